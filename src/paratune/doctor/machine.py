"""Checks of this machine: packages, cores, memory, GPUs, communication of torch, and disks."""

import operator as op
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from paratune import hardware
from paratune.base.units import GIB, MIB, format_bytes, format_number, parse_count
from paratune.doctor.facts import Finding, Level, MachineFacts

OF_DEVELOPERS = ("dev", "docs", "release")
"""Extras without features for users."""
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
LOW_MEMORY_BYTES = 2 * GIB
"""A process with torch and a small model uses about 1 GiB."""
LOW_SHM_BYTES = 256 * MIB
"""Containers have 64 MiB by default, which is too little for NCCL and for loader workers."""
MIN_FREE_BYTES = GIB
"""The demo model needs it: 22.7e6 parameters x 12 bytes = 0.27 GB a checkpoint; two are kept while a third is
written, and 0.09 GB for the model."""
LOW_FREE_BYTES = 5 * GIB
"""A BERT-base checkpoint is 110e6 parameters x 12 bytes = 1.3 GB; three at a time, plus the model."""


def check_packages(machine: MachineFacts) -> Iterator[Finding]:
    for name, version, wanted, extra in unmet_requirements():
        if extra is None:
            found = f"{name} {version} is installed; {wanted} is needed" if version else f"{name} is not installed"
            line = f"pip install '{name}{wanted}'"
            yield Finding("packages", "problem", found, "paratune cannot run without it.", line=line)


def check_extras() -> Iterator[Finding]:
    missing = dict.fromkeys(extra for *_, extra in unmet_requirements() if extra not in (None, *OF_DEVELOPERS))
    if missing:
        yield Finding("extras", "note", f"missing extras: {', '.join(map(str, missing))}")


def unmet_requirements() -> Iterator[tuple[str, str | None, str, str | None]]:
    """Yield (name, installed version or None, version range, extra or None) of what the package's metadata requires."""
    for text in metadata.requires("paratune") or []:
        match = re.match(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?", text)
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", text)
        if match:
            name, wanted, version = match[1], match[2].strip(), None
            with suppress(metadata.PackageNotFoundError):
                version = metadata.version(name)
            if version is None or not meets(version, wanted):
                yield name, version, wanted, extra[1] if extra else None


def meets(version: str, wanted: str) -> bool:
    """Return whether a version is in a range such as ">=2.11" or ">=5,<6"; only numbers are compared."""
    compare = {">=": op.ge, "<=": op.le, "==": op.eq, "!=": op.ne, ">": op.gt, "<": op.lt}
    have = _numbers(version)
    return all(compare[sign](have, _numbers(want)) for sign, want in re.findall(r"([<>=!]=|[<>])\s*([\w.]+)", wanted))


def _numbers(version: str) -> list[int]:
    """Return "2.13.0+cpu" as [2, 13], without trailing zeros and the part after a plus."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def check_cores(machine: MachineFacts) -> Iterator[Finding]:
    if not machine.node["gpus"] and "amx_bf16" in (machine.node["cpu_flags"] or ()):
        yield Finding("amx_bf16", "note", hardware.AMX_ADVICE)
    usable, threads = machine.node["num_usable_cores"], machine.environ.get("OMP_NUM_THREADS")
    if usable is None:
        return
    fact, why = "", "Steps are slow when threads wait for a core."
    if threads is not None and (parse_count(threads.split(",")[0]) or 0) > max(1, usable):
        fact = f"OMP_NUM_THREADS={threads}, and {format_number(usable)} cores are available"
    # Libraries start a thread for each core of the affinity; the quota of a container is unknown to them.
    elif threads is None and machine.num_affine_cores is not None and usable < machine.num_affine_cores:
        fact = f"{format_number(usable)} of {machine.num_affine_cores} cores are available to this container"
    if fact:
        line, remedy = f"export OMP_NUM_THREADS={max(1, int(usable))}", "divided by the processes of the run"
        yield Finding("cores", "warning", fact, why, remedy, line=line)


def check_memory(machine: MachineFacts) -> Iterator[Finding]:
    limit = machine.node["ram_limit_bytes"]
    available = min(value for value in (hardware.available_memory_bytes(), limit) if value is not None)
    if available < LOW_MEMORY_BYTES:
        why = "A process that trains a small model uses about 1 GiB; the system kills processes that use too much."
        fact, remedy = f"{format_bytes(available)} of memory are free", "run fewer processes, or close other programs"
        yield Finding("memory", "warning", fact, why, remedy)
    folder = Path("/dev/shm")
    total = hardware.describe_storage(folder)["total_bytes"] if folder.is_dir() else None
    if total is not None and total < LOW_SHM_BYTES:
        why = "Processes on one machine exchange tensors through it; when it is full, they fail with a bus error."
        remedy = "option of the container; or --ipc=host"
        yield Finding(
            "shared_memory", "warning", f"/dev/shm has {format_bytes(total)}", why, remedy, line="--shm-size=1g"
        )


def check_gpus(machine: MachineFacts) -> Iterator[Finding]:
    """Give the reason why torch finds no GPU although there is a driver."""
    if machine.node["gpus"] != [] or not NVIDIA_DRIVER.exists():
        return
    environ = machine.environ
    if "SLURM_JOB_ID" in environ and not any(environ.get(name) for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")):
        fact, line = "this machine has a GPU, and the Slurm job has none", "#SBATCH --gres=gpu:1"
        yield Finding("gpu", "note", fact, line=line)
    elif environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1", "none", "NoDevFiles"):
        fact = f"GPUs are hidden by CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}"
        yield Finding("gpu", "note", fact, line="unset CUDA_VISIBLE_DEVICES")
    else:
        fact = f"there is an NVIDIA driver, and torch {machine.versions['torch'] or 'n/a'} finds no GPU"
        why = "torch is a build for CPUs, the driver is too old for it, or the container has no access to the devices."
        remedy = "run nvidia-smi; then install a build of torch for this driver"
        yield Finding("gpu", "problem", fact, why, remedy)


def check_torch(machine: MachineFacts) -> Iterator[Finding]:
    gpus = machine.node["gpus"]
    if gpus is None:
        fact, why = "torch cannot be imported", "A library of torch is missing or incompatible."
        yield Finding("torch_import", "problem", fact, why, "prints the error", line="python -c 'import torch'")
        return
    import torch.distributed as dist

    remedy = "install an official build of torch"
    if not dist.is_available() or not dist.is_gloo_available():
        yield Finding("gloo", "problem", "torch has no gloo", "Runs of several processes on CPUs need it.", remedy)
    if len(gpus) > 1 and not (dist.is_available() and dist.is_nccl_available()):
        yield Finding("nccl", "problem", "torch has no NCCL", "Runs on several GPUs need it.", remedy)


def check_disks(machine: MachineFacts) -> Iterator[Finding]:
    """Check the folder of runs and the cache, which needs no space for checkpoints."""
    remedy = "a writable folder with more space"
    for code, title, folder, line in (
        ("run_disk", "run folder", machine.out_folder, "run.folder: FOLDER"),
        ("cache_disk", "cache", machine.cache_folder, "export PARATUNE_CACHE=FOLDER"),
    ):
        storage, why = hardware.describe_storage(folder), ""
        level: Level = "warning"
        if (problem := write_problem(folder)) is not None:
            fact = f"{title} {folder} cannot be written: {problem}"
            yield Finding(code, "problem", fact, "Every run needs it.", remedy, line=line)
            continue
        free = storage["free_bytes"]
        if free is not None and free < MIN_FREE_BYTES:
            level, why = "problem", "Not even the checkpoints of the smallest model fit."
        elif free is not None and free < LOW_FREE_BYTES and code == "run_disk":
            why = "Three checkpoints of a BERT-base (1.3 GB each) and the model need 4.4 GB."
        elif storage["kind"] == "memory":
            why = "Its files use memory, and are lost at the next start."
        if why:
            kind = storage["kind"] or storage["filesystem"] or "storage of unknown kind"
            yield Finding(code, level, f"{title} {folder}: {format_bytes(free)} free on {kind}", why, remedy, line=line)


def write_problem(folder: Path) -> str | None:
    """Return why a file in the folder (or its nearest parent) cannot be written; None if it can.

    Nothing remains: the file has no name. A check of permissions does not find a full or read-only disk.
    """
    try:
        with tempfile.TemporaryFile(dir=hardware.nearest_existing(folder)) as file:
            file.write(b"?")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None
