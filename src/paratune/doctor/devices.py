"""Checks of cores, memory and GPUs of this machine."""

from collections.abc import Iterator
from pathlib import Path

from paratune import hardware
from paratune.base.units import GIB, MIB, format_bytes, format_number, parse_count
from paratune.doctor.finding import Finding, MachineFacts

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
LOW_MEMORY_BYTES = 2 * GIB
"""A process with torch and a small model uses about 1 GiB."""
LOW_SHM_BYTES = 256 * MIB
"""Containers have 64 MiB by default, which is too little for NCCL and for loader workers."""


def check_cores(machine: MachineFacts) -> Iterator[Finding]:
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


def check_shared_memory(machine: MachineFacts) -> Iterator[Finding]:
    folder = Path("/dev/shm")
    total = hardware.describe_storage(folder)["total_bytes"] if folder.is_dir() else None
    if total is not None and total < LOW_SHM_BYTES:
        why = "Processes on one machine exchange tensors through it; when it is full, they fail with a bus error."
        remedy = "option of the container; or --ipc=host"
        yield Finding(
            "shared_memory", "warning", f"/dev/shm has {format_bytes(total)}", why, remedy, line="--shm-size=1g"
        )


def check_torch(machine: MachineFacts) -> Iterator[Finding]:
    if machine.node["gpus"] is None:
        fact, why = "torch cannot be imported", "A library of torch is missing or incompatible."
        yield Finding("torch_import", "problem", fact, why, "prints the error", line="python -c 'import torch'")


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
