"""Checks of cores, memory, GPUs and the precisions in which they are fast."""

import re
from collections.abc import Iterator
from pathlib import Path

from paratune import hardware
from paratune.base.units import GIB, MIB, format_bytes, format_number
from paratune.doctor.finding import Finding, MachineFacts

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
UNSET = "unset OMP_NUM_THREADS"
LOW_MEMORY_BYTES = 2 * GIB
"""A process with torch and a small model uses about 1 GiB."""
LOW_SHM_BYTES = 256 * MIB
"""Containers have 64 MiB by default, which is too little for NCCL and for loader workers."""


def check_cores(machine: MachineFacts) -> Iterator[Finding]:
    logical, usable = machine.node["num_logical_cores"], machine.node["num_usable_cores"]
    model = machine.node["cpu_model"] or "processor of unknown kind"
    threads = machine.environ.get("OMP_NUM_THREADS")
    fact = f"{model}: {format_number(usable)} of {logical} logical cores are available"
    if usable is not None and usable == machine.num_affine_cores:  # libraries start one thread for each of these
        yield Finding("cores", "ok", fact if usable != logical else f"{model}: {format_number(usable)} logical cores")
    elif usable is not None and logical is not None and usable < logical:
        why = "Libraries that start a thread for each core of the machine would start too many threads."
        line, remedy = f"export OMP_NUM_THREADS={max(1, int(usable))}", "divided by the processes of the run"
        advice = Finding("cores", "warning", fact, why, remedy, line=line)
        yield Finding("cores", "note", fact, why) if threads else advice
    else:
        yield Finding("cores", "ok", f"{model}: {format_number(usable)} logical cores")
    if threads is not None:
        yield _threads_finding(threads, usable)


def _threads_finding(threads: str, usable: float | None) -> Finding:
    fact = f"OMP_NUM_THREADS={threads}"
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", threads.strip()):
        return Finding("threads", "warning", fact, "It is not a whole number, so it is ignored.", line=UNSET)
    if usable is not None and int(threads.split(",")[0]) > max(1, usable):
        why = f"That is more than the {format_number(usable)} available cores."
        line = f"export OMP_NUM_THREADS={max(1, int(usable))}"
        return Finding("threads", "warning", fact, why, "divided by the processes of the run", line=line)
    if threads.strip() == "1" and usable is not None and usable >= 2:
        why = "Each process uses one core: right for one process per core, slow for a single process."
        return Finding("threads", "note", fact, why, "for runs of a single process", line=UNSET)
    return Finding("threads", "ok", fact)


def check_memory(machine: MachineFacts) -> Iterator[Finding]:
    total, limit = machine.node["ram_bytes"], machine.node["ram_limit_bytes"]
    available = min(value for value in (hardware.available_memory_bytes(), limit) if value is not None)
    fact = f"memory: {format_bytes(available)} free of {format_bytes(total)}"
    if limit is not None and limit < total:
        fact += f", and this container may use {format_bytes(limit)}"
    if available < LOW_MEMORY_BYTES:
        why = "A process that trains a small model uses about 1 GiB; the system kills processes that use too much."
        yield Finding("memory", "warning", fact, why, "run fewer processes, or close other programs")
    else:
        yield Finding("memory", "ok", fact)


def check_shared_memory(machine: MachineFacts) -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return
    total = hardware.describe_storage(folder)["total_bytes"]
    fact = f"/dev/shm: {format_bytes(total)}"
    if total is not None and total < LOW_SHM_BYTES:
        why = "Processes on one machine exchange tensors through it; when it is full, they fail with a bus error."
        remedy = "option of the container; or --ipc=host"
        yield Finding("shared_memory", "warning", fact, why, remedy, line="--shm-size=1g")
    else:
        yield Finding("shared_memory", "ok", fact)


def check_torch(machine: MachineFacts) -> Iterator[Finding]:
    if machine.node["gpus"] is None:
        fact, why = "torch cannot be imported", "A library of torch is missing or incompatible."
        line = "python -c 'import torch'"
        yield Finding("torch_import", "problem", fact, why, "prints the error", line=line)


def check_gpus(machine: MachineFacts) -> Iterator[Finding]:
    gpus = machine.node["gpus"]
    if gpus is None:
        return
    for number, gpu in enumerate(gpus):
        link = f", link {gpu['link']}" if gpu["link"] else ""
        size = format_bytes(gpu["memory_bytes"])
        yield Finding("gpu", "ok", f"GPU {number}: {gpu['name']}, {size}, capability {gpu['capability']}{link}")
    if any(set(gpu["link"].split("+")) & {"SYS", "NODE", "PHB"} for gpu in gpus if gpu["link"]):
        why = "Some pairs exchange gradients through the CPU, which is slow for strategies that shard weights."
        remedy = "nvidia-smi topo -m shows the links; select linked GPUs with CUDA_VISIBLE_DEVICES"
        yield Finding("gpu_link", "note", "not all GPUs are linked directly", why, remedy)
    if not gpus:
        yield _no_gpu_finding(machine)


def _no_gpu_finding(machine: MachineFacts) -> Finding:
    if not NVIDIA_DRIVER.exists():
        return Finding("gpu", "note", "no GPU: runs use the CPU")
    environ = machine.environ
    if "SLURM_JOB_ID" in environ and not any(environ.get(name) for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")):
        fact, line = "this machine has a GPU, and the Slurm job has none", "#SBATCH --gres=gpu:1"
        return Finding("gpu", "note", fact, "Runs use the CPU.", "to use one", line=line)
    if machine.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1", "none", "NoDevFiles"):
        fact = f"GPUs are hidden by CUDA_VISIBLE_DEVICES={machine.environ['CUDA_VISIBLE_DEVICES']}"
        return Finding("gpu", "note", fact, "", "to use them", line="unset CUDA_VISIBLE_DEVICES")
    torch_version = machine.versions["torch"] or "n/a"
    fact = f"there is an NVIDIA driver, and torch {torch_version} finds no GPU"
    why = "torch is a build for CPUs, the driver is too old for it, or the container has no access to the devices."
    return Finding("gpu", "problem", fact, why, "run nvidia-smi; then install a build of torch for this driver")


def check_precision(machine: MachineFacts) -> Iterator[Finding]:
    old = list(dict.fromkeys(gpu["name"] for gpu in machine.node["gpus"] or [] if float(gpu["capability"]) < 8))
    if old:
        why = "GPUs below capability 8.0 have no bf16 units and are slow in it."
        fact = f"no fast bf16 on {', '.join(old)}"
        yield Finding("bf16_gpu", "note", fact, why, "or fp32", line="precision: fp16")
    elif machine.node["gpus"]:
        yield Finding("bf16_gpu", "ok", "the GPUs are fast in bf16")
    if machine.node["gpus"]:
        return
    flags = machine.node["cpu_flags"]
    if flags is None:
        yield Finding("bf16_cpu", "note", "it is unknown whether this CPU is fast in bf16", "", "measure both")
    elif hardware.BF16_FLAGS & set(flags):
        which = " and ".join(flag for flag in flags if flag in hardware.BF16_FLAGS)
        yield Finding("bf16_cpu", "ok", f"this CPU has {which}: bf16 may be faster than fp32; measure both")
    else:
        why = "Without amx_bf16 or avx512_bf16 matrix products are about 5 times slower in bf16 and 300 times in fp16."
        yield Finding("bf16_cpu", "note", "this CPU has no fast bf16", why, "precision: fp32, which is the default")
