"""Set-ups with faults of the machine: disk space, disks, clocks, drivers, NCCL, compilers, devices."""

import _ctypes
import os
import time
from pathlib import Path

from broken_setups.changes import edit_json, with_environ, with_probes
from set_ups import GPU, STORAGE, T4, WHEELS, Case, in_slurm, with_gpus

MIXED_TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tNV4\tSYS\t0-15\t0\tN/A
GPU1\tSYS\t X \tSYS\tNV4\t16-31\t1\tN/A
GPU2\tNV4\tSYS\t X \tSYS\t0-15\t0\tN/A
GPU3\tSYS\tNV4\tSYS\t X \t16-31\t1\tN/A
"""


def cpu_adam(set_up, missing):
    with_gpus(set_up, 2).set("strategy", {"kind": "deepspeed", "offload_optimizer": True, "cpu_adam": True})
    set_up.probes["tools"] = {name: path for name, path in set_up.probes["tools"].items() if name != missing}


def old_nvcc(set_up):
    cpu_adam(set_up, "none")
    set_up.probes["nvcc"] = "11.8"


def nccl_twice(set_up):
    with_gpus(set_up, 2)
    set_up.versions |= {"nvidia-nccl-cu12": "2.21.5", "nvidia-nccl-cu13": "2.27.7"}


def mixed_gpus(set_up):
    with_gpus(set_up, 2)
    set_up.node["gpus"][1] = dict(T4)


def killed_build(set_up):
    lock = set_up.folder / "ext" / "py311" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200, time.time() - 7200))
    set_up.environ["TORCH_EXTENSIONS_DIR"] = str(set_up.folder / "ext")
    set_up.machine_checks = True


def killed_compilation(set_up):
    """Two truncated libraries and an empty one, next to files that must not change."""
    whole = whole_compilation(set_up)
    for name, content in {"aa/cut": whole[:5000], "ab/header": whole[:40], "ab/empty": b""}.items():
        compiled(set_up, name, content)


def whole_compilation(set_up):
    """A complete library, and one that is being written; return the content of the first."""
    whole = Path(_ctypes.__file__).read_bytes()
    compiled(set_up, "ac/whole", whole)
    compiled(set_up, "ad/new", whole[:50], age_s=0)
    set_up.environ["TORCHINDUCTOR_CACHE_DIR"] = str(set_up.folder / "inductor")
    set_up.machine_checks = True
    return whole


def compiled(set_up, name, content, age_s=60):
    path = set_up.folder / "inductor" / f"{name}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - age_s, time.time() - age_s))


def small_disk(set_up):
    set_up.probes["run_storage"] = {**STORAGE, "free_bytes": 3_000_000}
    edit_json(set_up.model / "config.json")
    set_up.set("checkpoint", {"keep": 20})


CASES = [
    Case(
        "run_folder_local",
        "checkpoints on /tmp of the first node were lost after the requeue",
        lambda s: (in_slurm(s, nodes=2), s.probes.update(run_storage={**STORAGE, "filesystem": "ext4", "kind": "ssd"})),
        after=lambda s: s.probes.update(run_storage=STORAGE),
    ),
    Case(
        "checkpoint_room",
        "No space left on device while saving (DeepSpeed#2921)",
        small_disk,
        level="problem",
    ),
    Case(
        "quota",
        "Disk quota exceeded in the second epoch",
        with_probes(quota_free_bytes=100_000),
        after=lambda s: s.probes.update(quota_free_bytes=10**12),
    ),
    Case(
        "free_files",
        "No space left on device, but df shows free space: no inodes",
        with_probes(free_files=3),
        after=lambda s: s.probes.update(free_files=10**6),
    ),
    Case(
        "slow_storage",
        "checkpoints that take minutes on a network disk (metaseq#53)",
        with_probes(run_bytes_per_s=1e3),
        after=lambda s: s.probes.update(run_bytes_per_s=5e8),
    ),
    Case(
        "slow_data",
        "trl#7223: data read at 3 MB/s by every node",
        with_probes(data_bytes_per_s={"train.csv": 3e6}),
        after=lambda s: s.probes.update(data_bytes_per_s={}),
    ),
    Case(
        "clock_skew",
        "a file server whose clock is minutes ahead: builds never finish",
        with_probes(clock_skew_s=180.0),
        after=lambda s: s.probes.update(clock_skew_s=0.1),
    ),
    Case(
        "clock_skew",
        "nodes whose clocks differ",
        with_probes(node_skew_s={"node2": -40.0}),
        after=lambda s: s.probes.update(node_skew_s={"node2": 0.0}),
    ),
    Case(
        "driver_old",
        "The NVIDIA driver on your system is too old",
        with_probes(gpus=1, driver="535.1", driver_cuda="12.2"),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "driver_old",
        "ComfyUI#16438: a Blackwell with a driver for CUDA 12: only cu128 has kernels for it",
        with_probes(driver="570.1", driver_cuda="12.8", torch_cuda="13.0", capabilities=("12.0",)),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "driver_old",
        "a driver for CUDA 11, which no current torch supports",
        with_probes(gpus=1, driver="470.1", driver_cuda="11.4"),
        line="",
        after=lambda s: s.probes.update(driver="580.1", driver_cuda="13.0"),
    ),
    Case(
        "torch_build",
        "torch.cuda.is_available() is False: a CPU build",
        with_probes(driver="590.1", driver_cuda="13.1"),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
    ),
    Case(
        "torch_build",
        "a CPU build, and a driver for CUDA 11, with which no other build runs",
        with_probes(driver="470.1", driver_cuda="11.4"),
        line="",
        after=lambda s: s.probes.update(driver="580.1", driver_cuda="13.0", torch_cuda="13.0"),
    ),
    Case(
        "torch_build",
        "a CPU build with a B200 and a driver for CUDA 12: cu126 has no kernels for the B200",
        with_probes(driver="570.1", driver_cuda="12.8", capabilities=("10.0",)),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "torch_build",
        "a CPU build with an H100 and a driver for CUDA 12",
        with_probes(driver="535.1", driver_cuda="12.2", capabilities=("9.0",)),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "torch_build",
        "a CPU build with a V100 and a driver for CUDA 13: cu130 has no kernels for the V100",
        with_probes(driver="580.1", driver_cuda="13.0", capabilities=("7.0",)),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "gpu_kernels",
        "a Blackwell with a driver for CUDA 12, and cu126; the driver does not support cu130",
        lambda s: (
            with_gpus(s, 1, {**GPU, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}),
            s.probes.update(WHEELS["cu126"], driver="570.1", driver_cuda="12.8"),
        ),
        line="pip install --force-reinstall 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cu128",
    ),
    Case(
        "gpu_kernels",
        "a B200 and a V100 in one machine: no build has kernels for both",
        lambda s: (
            with_gpus(s, 1, {**GPU, "capability": "10.0"}),
            s.node["gpus"].append({**GPU, "name": "Tesla V100", "capability": "7.0"}),
        ),
        line="",
        after=lambda s: s.node["gpus"].pop(),
    ),
    Case(
        "gpu_kernels",
        "a V100 and a Blackwell in one machine with cu126: cu130 has kernels only for the Blackwell",
        lambda s: (
            with_gpus(s, 1, {**GPU, "name": "Tesla V100", "capability": "7.0"}),
            s.node["gpus"].append({**GPU, "name": "NVIDIA GeForce RTX 5090", "capability": "12.0"}),
            s.probes.update(WHEELS["cu126"]),
        ),
        line="",
        after=lambda s: s.node["gpus"].pop(),
    ),
    Case(
        "gpu_kernels",
        "pytorch#172352: no kernel image is available for execution on a V100: only cu126 has kernels for it",
        lambda s: with_gpus(s, 1, {**GPU, "name": "Tesla V100", "capability": "7.0"}),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    Case(
        "gpu_kernels",
        "no kernel image is available for execution on a GPU that is newer than torch",
        with_probes(gpus=1, torch_archs=("sm_70", "sm_75")),
        line="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
    ),
    Case(
        "nccl_differs",
        "nccl#1730: LD_LIBRARY_PATH selected another NCCL",
        lambda s: (with_environ(LD_LIBRARY_PATH="/opt/nccl/lib")(s), s.probes.update(loaded_nccl="2.18.3")),
    ),
    Case(
        "nccl_twice",
        "pip installed NCCL for CUDA 12 and 13",
        nccl_twice,
        line="pip uninstall -y nvidia-nccl-cu12 && pip install --force-reinstall --no-deps nvidia-nccl-cu13==2.27.7",
    ),
    Case(
        "toolchain",
        "DeepSpeed#1846: Ninja is required to load C++ extensions",
        lambda s: cpu_adam(s, "ninja"),
        line="pip install ninja",
    ),
    Case("toolchain", "DeepSpeed#889: nvcc was not found", lambda s: cpu_adam(s, "nvcc")),
    Case("toolchain", "DeepSpeed#3094: no g++ on the compute nodes", lambda s: cpu_adam(s, "g++")),
    Case(
        "nvcc_differs",
        "DeepSpeed#5677: CUDAMismatchException",
        old_nvcc,
        line="module load cuda/13.0",
    ),
    Case(
        "compiled_torn",
        "a run out of memory while it compiled: file too short, in every later run",
        killed_compilation,
    ),
    Case(
        "compiled_torn",
        "a disk that was full while many kernels were compiled",
        lambda s: [killed_compilation(s), *(compiled(s, f"ba/{n}", b"") for n in range(9))],
    ),
    Case("extension_lock", "a killed build left a lock, and every later run waited", killed_build),
    Case(
        "gpu_busy",
        "out of memory: somebody else's process on the GPU",
        with_probes(gpus=1, gpu_processes={0: 40 * 2**30}),
        after=lambda s: s.probes.update(gpu_processes={}),
    ),
    Case(
        "gpu_busy",
        "out of memory on one rank of four: a notebook was still open on its GPU",
        with_probes(gpus=4, gpu_processes={0: 0, 1: 0, 2: 40 * 2**30, 3: 0}),
    ),
    Case(
        "gpus_differ",
        "every step waited for the T4",
        mixed_gpus,
    ),
    Case(
        "topology",
        "Lightning#2701: GPUs 0 and 1 had no NVLink, 0 and 2 had",
        lambda s: (with_probes(gpus=4, topology=MIXED_TOPOLOGY)(s), setattr(s, "nproc", 2)),
        line="export CUDA_VISIBLE_DEVICES=0,2",
    ),
    Case(
        "numa",
        "four processes with one core each, on the wrong socket",
        lambda s: (with_probes(gpus=4, topology=MIXED_TOPOLOGY)(s), s.node.update(num_usable_cores=2)),
        after=lambda s: s.node.update(num_usable_cores=32),
    ),
    Case(
        "shm_small",
        "bus error in a container: --shm-size",
        with_probes(gpus=2, shm_bytes=64 * 2**20),
        line="--shm-size=1g",
    ),
    Case(
        "user_site",
        "another torch in ~/.local on one node",
        with_probes(user_site=("torch",)),
        line="export PYTHONNOUSERSITE=1",
    ),
]
