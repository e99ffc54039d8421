"""Environment variables with an influence on results or speed: which ones a run records, and which a matrix may set.

Also the batch script of its Slurm job, which sets them.
"""

import os
import re
from collections.abc import Mapping

from paratune.base.secrets import hide_secrets, is_secret_name
from paratune.hardware.system_files import command_output

RECORD_VARIABLE = "PARATUNE_RECORD_ENVIRONMENT"
"""Names of further variables to record, with commas between; `paratune sweep` sets it to those of a matrix. A minus
before a name means that the matrix unset the variable; the launcher may still give it a default."""
_KNOWN = {
    "": (
        "LD_PRELOAD MALLOC_ARENA_MAX MALLOC_CONF MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_ TOKENIZERS_PARALLELISM "
        "NVIDIA_TF32_OVERRIDE"
    ),
    "OMP_": (
        "NUM_THREADS PROC_BIND PLACES SCHEDULE DYNAMIC WAIT_POLICY THREAD_LIMIT MAX_ACTIVE_LEVELS STACKSIZE DISPLAY_ENV"
    ),
    "KMP_": "AFFINITY BLOCKTIME HW_SUBSET SETTINGS TPAUSE",
    "GOMP_": "CPU_AFFINITY SPINCOUNT STACKSIZE",
    "MKL_": "NUM_THREADS DYNAMIC DEBUG_CPU_TYPE ENABLE_INSTRUCTIONS CBWR VERBOSE THREADING_LAYER SERVICE_FORCE_INTEL",
    "OPENBLAS_": "NUM_THREADS CORETYPE VERBOSE MAIN_FREE",
    "DNNL_": "MAX_CPU_ISA CPU_ISA_HINTS DEFAULT_FPMATH_MODE VERBOSE PRIMITIVE_CACHE_CAPACITY",
    "ONEDNN_": "MAX_CPU_ISA CPU_ISA_HINTS DEFAULT_FPMATH_MODE VERBOSE PRIMITIVE_CACHE_CAPACITY",
    "CUDA_": (
        "VISIBLE_DEVICES DEVICE_ORDER LAUNCH_BLOCKING MODULE_LOADING DEVICE_MAX_CONNECTIONS CACHE_DISABLE "
        "CACHE_MAXSIZE CACHE_PATH FORCE_PTX_JIT DISABLE_PTX_JIT MPS_ACTIVE_THREAD_PERCENTAGE MPS_PIPE_DIRECTORY "
        "MPS_LOG_DIRECTORY HOME PATH"
    ),
    "CUBLAS_": "WORKSPACE_CONFIG LOGINFO_DBG",
    "CUBLASLT_": "WORKSPACE_SIZE LOG_LEVEL",
    "CUDNN_": "LOGINFO_DBG LOGDEST_DBG LOGLEVEL_DBG",
    "HIP_": "VISIBLE_DEVICES LAUNCH_BLOCKING",
    "ROCR_": "VISIBLE_DEVICES",
    "HSA_": "OVERRIDE_GFX_VERSION ENABLE_SDMA FORCE_FINE_GRAIN_PCIE XNACK",
    "RCCL_": "MSCCL_ENABLE MSCCLPP_ENABLE LOG_LEVEL",
    "GLOO_": "SOCKET_IFNAME DEVICE_TRANSPORT",
    "UCX_": "TLS NET_DEVICES IB_GPU_DIRECT_RDMA LOG_LEVEL",
    "FI_": (
        "PROVIDER EFA_USE_DEVICE_RDMA EFA_FORK_SAFE EFA_USE_HUGE_PAGE CXI_ATS CXI_DEFAULT_CQ_SIZE "
        "CXI_DISABLE_HOST_REGISTER CXI_RX_MATCH_MODE LOG_LEVEL MR_CACHE_MONITOR"
    ),
    "NCCL_": (
        "ALGO PROTO NTHREADS MIN_NCHANNELS MAX_NCHANNELS MIN_CTAS MAX_CTAS MIN_NRINGS MAX_NRINGS BUFFSIZE CROSS_NIC "
        "CHECKS_DISABLE CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_SPLIT_SHARE_RESOURCES "
        "CONF_FILE CUMEM_ENABLE CUMEM_HOST_ENABLE CGA_CLUSTER_SIZE DEBUG DEBUG_FILE DEBUG_SUBSYS DMABUF_ENABLE "
        "GDRCOPY_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_DUMP_FILE HOSTID IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD "
        "IB_CUDA_SUPPORT IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_ADDR_FAMILY IB_ADDR_RANGE IB_HCA "
        "IB_MERGE_NICS IB_MERGE_VFS IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION IB_RETRY_CNT "
        "IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY "
        "LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LOCAL_REGISTER MNNVL_ENABLE NET NET_DISABLE_INTRA NET_FORCE_FLUSH "
        "NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD "
        "NVB_DISABLE NVLS_ENABLE NVLS_NCHANNELS OOB_NET_ENABLE OOB_NET_IFNAME P2P_DISABLE P2P_DIRECT_DISABLE P2P_LEVEL "
        "P2P_NET_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PXN_LEVEL PROFILER_PLUGIN PXN_DISABLE RAS_ENABLE "
        "RUNTIME_CONNECT SHM_DISABLE SET_STACK_SIZE SET_THREAD_NAME SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME "
        "SOCKET_NTHREADS SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_POLL_TIMEOUT_MSEC STORE_IFNAME "
        "THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_FILE TUNER_CONFIG_PATH TUNER_PLUGIN WORK_ARGS_BYTES WORK_FIFO_BYTES"
    ),
    "PYTORCH_": (
        "ALLOC_CONF CUDA_ALLOC_CONF HIP_ALLOC_CONF NO_CUDA_MEMORY_CACHING NVML_BASED_CUDA_CHECK TUNABLEOP_ENABLED "
        "TUNABLEOP_TUNING TUNABLEOP_FILENAME JIT"
    ),
    "TORCH_": (
        "ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT COMPILE_DISABLE CPP_LOG_LEVEL "
        "CUDA_ARCH_LIST CUDNN_V8_API_DISABLED CUDNN_SDPA_ENABLED CUDNN_SDPA_AVOID_RECOMPILE "
        "DISABLE_SHARE_RDZV_TCP_STORE DISTRIBUTED_DEBUG EXTENSIONS_DIR FR_BUFFER_SIZE FR_DUMP_TEMP_FILE "
        "LINALG_PREFER_CUSOLVER LOGS NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT "
        "NCCL_CUDA_EVENT_CACHE NCCL_DESYNC_DEBUG NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING "
        "NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY NCCL_NAN_CHECK NCCL_TRACE_BUFFER_SIZE "
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK NCCL_ZERO_COPY SHOW_CPP_STACKTRACES SHOW_DISPATCH_TRACE USE_CUDA_DSA"
    ),
    "TORCHINDUCTOR_": (
        "CACHE_DIR COMPILE_THREADS CPP_WRAPPER COORDINATE_DESCENT_TUNING FORCE_DISABLE_CACHES FREEZING FX_GRAPH_CACHE "
        "AUTOGRAD_CACHE MAX_AUTOTUNE MAX_AUTOTUNE_GEMM MAX_AUTOTUNE_POINTWISE PERMUTE_FUSION SHAPE_PADDING "
        "UNIQUE_KERNEL_NAMES WORKER_START"
    ),
    "TRITON_": "CACHE_DIR ALWAYS_COMPILE DEBUG INTERPRET PRINT_AUTOTUNING F32_DEFAULT PTXAS_PATH",
}
"""Variables of communication, kernels, threads and memory from the manuals of the libraries: the ends of names by their
common start. Whole names are listed, because a start such as FI_ or TORCH_ also matches names of secrets."""
RECORDED = frozenset(f"{first}{rest}" for first, names in _KNOWN.items() for rest in names.split())
"""The variables that the record of a run keeps."""
MAX_SCRIPT_CHARACTERS = 65_536
"""Length of a recorded batch script; the rest of a longer one is left out."""
UNSET = "unset"
"""Title of a variable without a value."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LAUNCHER = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
        *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)
_OWN = {"PARATUNE_CACHE"}
"""Variables with PARATUNE_ that a user may set."""


def recorded_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the recorded variables: those of `RECORDED`, and of RECORD_VARIABLE those without secrets."""
    named = {name for name in environ.get(RECORD_VARIABLE, "").split(",") if not is_secret_name(name)}
    return {name: environ[name] for name in sorted(environ.keys() & (RECORDED | named))}


def unset_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables that were unset for this run, from RECORD_VARIABLE."""
    return sorted(name[1:] for name in environ.get(RECORD_VARIABLE, "").split(",") if name.startswith("-"))


def record_words(environment: Mapping[str, str | None]) -> str:
    """Return the value of RECORD_VARIABLE for a run with these variables; None unsets one."""
    return ",".join(name if environment[name] is not None else f"-{name}" for name in sorted(environment))


def why_not_to_set(name: str) -> str | None:
    """Return why a matrix cannot set a variable with this name, in words; None when it can."""
    if not NAME.fullmatch(name):
        return "is not the name of a variable; allowed: letters, digits and '_', with no digit first"
    if name in _LAUNCHER or name.startswith("TORCHELASTIC_"):
        return "is set by paratune and torchrun in each process of a run; use nproc instead"
    if name.startswith("PARATUNE_") and name not in _OWN:
        return "is internal to paratune and its processes; leave it out"
    if name.startswith("SLURM_"):
        return "is set by Slurm, and describes the allocation of the job; leave it out"
    if name == "COLUMNS":
        return "is set by paratune for the logs of a matrix; leave it out"
    if is_secret_name(name):
        return "looks like a secret, and the record would contain it; set it in the shell, which runs inherit"
    return None


def recorded_batch_script(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the batch script of this job from Slurm, without secrets; None outside of a job, or without a script."""
    number = environ.get("SLURM_JOB_ID")
    text = None if number is None else command_output("scontrol", "write", "batch_script", number, "-")
    if not text or not text.startswith("#!"):
        return None
    text = hide_secrets(text)
    left_out = len(text) - MAX_SCRIPT_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:MAX_SCRIPT_CHARACTERS]}\n# paratune left out {left_out} more characters\n"
