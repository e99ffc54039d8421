"""Environment variables that change how a run is computed or how fast: which are recorded, and which are taken.

Beside floor 1: no torch.
"""

import os
import re
from collections.abc import Mapping

RECORD_VARIABLE = "PARATUNE_RECORD_ENVIRONMENT"
"""Names of further variables to record, with commas between; `paratune sweep` sets it to those that a matrix gives. A
minus in front of a name says that the variable was unset, which is told from a default that the launcher gives it."""
RECORDED = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "DNNL_", "FI_", "GLOO_", "GOMP_", "HSA_", "KMP_", "MALLOC_", "MKL_", "NCCL_"),
    *("NVIDIA_TF32_OVERRIDE", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "RCCL_", "ROCR_VISIBLE_DEVICES"),
    *("TOKENIZERS_PARALLELISM", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "UCX_", "LD_PRELOAD", "HIP_VISIBLE_DEVICES"),
)
"""Names, and beginnings of names, of what communication, kernels, threads and memory of a process are told by."""
UNSET = "unset"
"""How a variable without a value is shown."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS)$", re.IGNORECASE)
_LAUNCHER = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
        *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)
_OWN = {"PARATUNE_CACHE"}
"""Of those that begin with PARATUNE_, what a user may say."""


def recorded_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a run's record keeps: those of `RECORDED`, and those that RECORD_VARIABLE names.

    What looks like a secret is left out.
    """
    named = set(environ.get(RECORD_VARIABLE, "").split(","))
    return {
        name: environ[name]
        for name in sorted(environ)
        if (name in named or name.startswith(RECORDED)) and not _SECRET.search(name)
    }


def unset_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables that were unset for this run, as RECORD_VARIABLE says."""
    return sorted(name[1:] for name in environ.get(RECORD_VARIABLE, "").split(",") if name.startswith("-"))


def record_words(environment: Mapping[str, str | None]) -> str:
    """Return the value of RECORD_VARIABLE for a run that is given these variables; None unsets one."""
    return ",".join(name if environment[name] is not None else f"-{name}" for name in sorted(environment))


def why_not_to_set(name: str) -> str | None:
    """Return why a run cannot be given a variable of this name, in words; None when it can."""
    if not NAME.fullmatch(name):
        return "is no name of a variable; allowed: letters, digits and '_', with no digit first"
    if name in _LAUNCHER or name.startswith("TORCHELASTIC_"):
        return "is set by paratune and torchrun in each process of a run; say nproc instead"
    if name.startswith("PARATUNE_") and name not in _OWN:
        return "is between paratune and the processes that it starts; leave it out"
    if name.startswith("SLURM_"):
        return "is set by Slurm, and says what a job has been given; leave it out"
    if name == "COLUMNS":
        return "is set by paratune for the logs of a matrix; leave it out"
    if _SECRET.search(name):
        return "looks like a secret, and would stand in the record; set it in the shell, runs inherit it"
    return None
