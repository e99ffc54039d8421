"""Detects the launcher of this process (`--nproc`, torchrun, srun, accelerate) and explains wrong starts.

No torch. All functions read environment variables, by default those of this process.
"""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paratune.base.text import plain
from paratune.base.units import parse_count

FIRST_PORT = 10_000
NUM_PORTS = 20_000
"""Ports for the rendezvous of a Slurm job; systems assign ports from 32768 on to other programs."""
LAST_PORT = 65_535
_DRAWN_BY_SRUN = ("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT")
"""Random ports of srun: equal in all tasks of a step, different in each step."""
_STEP = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
"""Set by every `accelerate launch`."""
_ACCELERATE_SETTINGS = {
    "ACCELERATE_USE_FSDP": "strategy: zero3 (or zero2, hsdp)",
    "ACCELERATE_USE_DEEPSPEED": "strategy: deepspeed",
    "ACCELERATE_USE_MEGATRON_LM": "strategy: {kind: pipeline, stages: 2}",
}
_BINDS_GPUS = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_GPU_BIND")


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the launcher of this process: paratune, accelerate, torchrun, variables, srun, or None."""
    if "PARATUNE_RENDEZVOUS" in environ:
        return "paratune"
    if _ACCELERATE in environ:
        return "accelerate"
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    if "RANK" in environ:
        return "variables"
    return "srun" if is_srun(environ) else None


def is_srun(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this is one of several tasks of srun, without a rank from another launcher."""
    return "RANK" not in environ and "SLURM_STEP_ID" in environ and _count(environ, "SLURM_STEP_NUM_TASKS") > 1


@dataclass(frozen=True)
class Rendezvous:
    """The address at which the processes of a run connect."""

    host: str
    port: int
    name: str
    """Prefix in the store, so that processes of another run at the same port do not interfere."""
    is_one_machine: bool

    @classmethod
    def at(cls, host: str, port: str, name: str, *, is_one_machine: bool) -> "Rendezvous":
        """Return the rendezvous at a port given as text.

        Raises:
            ValueError: The text is not a port.
        """
        number = parse_count(port)
        if number is None or not 0 < number <= LAST_PORT:
            raise ValueError(f"MASTER_PORT is {plain(port[:40])}; allowed: 1 to {LAST_PORT}")
        return cls(host, number, name, is_one_machine)


def srun_rendezvous(environ: Mapping[str, str] = os.environ) -> Rendezvous:
    """Return the rendezvous of srun's tasks: $MASTER_ADDR or the first node; $MASTER_PORT or a port of this step.

    On one node the host is loopback. The port depends on a random port of srun, which all tasks of a step have, so that
    the job ID is not enough to guess it.

    Raises:
        ValueError: $MASTER_PORT is not a port.
    """
    is_one_machine = _count(environ, "SLURM_STEP_NUM_NODES") == 1
    host = environ.get("MASTER_ADDR") or ("127.0.0.1" if is_one_machine else _first_node(environ))
    words = [environ.get(name, "") for name in (*_STEP, *_DRAWN_BY_SRUN)]
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).digest()
    drawn = FIRST_PORT + int.from_bytes(digest[:8], "big") % NUM_PORTS
    port = environ.get("MASTER_PORT") or str(drawn)
    return Rendezvous.at(host, port, digest[8:24].hex(), is_one_machine=is_one_machine)


def _first_node(environ: Mapping[str, str]) -> str:
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    try:
        socket.getaddrinfo(host, None)
    except OSError:  # the name does not resolve
        return environ.get("SLURM_LAUNCH_NODE_IPADDR", host)
    return host


def first_host(nodes: str) -> str:
    """Return the first name of a list of nodes in Slurm's syntax.

    >>> first_host("gpu[003-5,9],cpu1")
    'gpu003'
    """
    match = re.match(r"([^,\[]*)(?:\[([0-9]+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def tasks_on_node(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of tasks of this step on this node, from a list such as `2(x3),1`; 1 if it is unknown."""
    node = _count(environ, "SLURM_NODEID")
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        number, _, times = part.partition("(x")
        node -= parse_count(times.removesuffix(")")) or 1
        if node < 0:
            return parse_count(number) or 1
    return 1


def has_own_gpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether each task of srun sees only its own GPUs."""
    return is_srun(environ) and any(name in environ for name in _BINDS_GPUS)


def job_facts(environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return the Slurm job of this process for the record of a run; None outside of a job."""
    number = environ.get("SLURM_JOB_ID")
    if number is None:
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return {
        "scheduler": "slurm",
        "id": number,
        "array_id": f"{array}_{task}" if array and task else None,
        "cluster": environ.get("SLURM_CLUSTER_NAME"),
        "partition": environ.get("SLURM_JOB_PARTITION"),
        "nodes": environ.get("SLURM_JOB_NODELIST"),
        "num_requeued": _count(environ, "SLURM_RESTART_COUNT"),
    }


def launch_problem(num_processes: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what is wrong with the start of a run, and what to change; None if it is correct."""
    if "PARATUNE_RENDEZVOUS" in environ:
        return None
    return _accelerate_problem(environ) or _job_problem(num_processes, environ) or _step_problem(environ)


def sweep_problem(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why this process cannot run a matrix, one run after the other on this machine; None if it can."""
    if is_srun(environ):
        tasks = environ["SLURM_STEP_NUM_TASKS"]
        return (
            f"srun started paratune sweep {tasks} times, but it starts the processes of its runs itself (nproc:): "
            "leave out srun, or use srun --ntasks=1"
        )
    if "RANK" in environ and environ.get("WORLD_SIZE") not in (None, "1"):
        return "paratune sweep starts its processes itself (nproc:); leave out torchrun"
    nodes = _count(environ, "SLURM_NNODES")
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" not in environ and nodes > 1:
        return (
            f"this Slurm job has {nodes} nodes, but paratune sweep uses one machine: use #SBATCH --nodes=1, or "
            "paratune launch MATRIX --site SITE --array, which submits each run as a job with its own nodes"
        )
    return None


def idle_tasks_warning(num_processes: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if the Slurm job has more tasks than processes; otherwise None."""
    if "RANK" in environ or "SLURM_STEP_ID" in environ or num_processes > 1:
        return None
    tasks = _count(environ, "SLURM_NTASKS")
    if tasks <= 1:
        return None
    return (
        f"this Slurm job has {tasks} tasks, but this is one process without srun: use srun paratune train, or --nproc "
        f"{tasks}; or #SBATCH --ntasks=1 for one process"
    )


def _accelerate_problem(environ: Mapping[str, str]) -> str | None:
    if _ACCELERATE not in environ:
        return None
    if "RANK" not in environ and "ACCELERATE_USE_CPU" in environ and "MASTER_PORT" in environ:
        # It sets the port for several processes, but starts only one on CPUs of one machine.
        return (
            "accelerate launch started one process instead of several, as it does on CPUs; use paratune train --nproc "
            "N, or torchrun --nproc-per-node=N"
        )
    requests = "accelerate launch requests"
    effect = "which has no effect on paratune; remove it from accelerate's configuration, and set in yours:"
    precision = environ[_ACCELERATE]
    if precision not in ("no", ""):
        return f"{requests} mixed precision {precision}, {effect} precision: {precision}"
    for name, line in _ACCELERATE_SETTINGS.items():
        if environ.get(name, "").lower() in ("true", "1"):
            return f"{requests} {name.removeprefix('ACCELERATE_USE_')}, {effect} {line}"
    steps = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", ""):
        return f"{requests} {steps} steps of gradient accumulation, {effect} batch: {{grad_accum_steps: {steps}}}"
    return None


def _job_problem(num_processes: int, environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with a process of a job that srun has not started, or None."""
    nodes = _count(environ, "SLURM_NNODES")
    if "SLURM_JOB_ID" not in environ or "SLURM_STEP_ID" in environ or nodes <= 1:
        return None
    if "RANK" not in environ:
        started = f"--nproc {num_processes}" if num_processes > 1 else "one process"
        return (
            f"this Slurm job has {nodes} nodes, but {started} was started only on the first of them: srun is missing. "
            "In the batch script, use srun paratune train ..., or #SBATCH --nodes=1; or submit with paratune launch, "
            "which writes the script"
        )
    if "TORCHELASTIC_RUN_ID" in environ and _count(environ, "GROUP_WORLD_SIZE") <= 1:
        return (
            f"this Slurm job has {nodes} nodes, but torchrun was started only on the first of them: srun is missing. "
            f"In the batch script, use srun --ntasks-per-node=1 torchrun --nnodes={nodes} ...; or submit with paratune "
            "launch"
        )
    return None


def _step_problem(environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with a task of srun, or None."""
    if "SLURM_STEP_ID" not in environ or "RANK" not in environ or _count(environ, "SLURM_STEP_NUM_TASKS") <= 1:
        return None
    if "TORCHELASTIC_RUN_ID" in environ:
        tasks, local = tasks_on_node(environ), _count(environ, "LOCAL_WORLD_SIZE")
        if tasks > 1 and local > 1:
            return (
                f"srun started torchrun {tasks} times on this node, and each one started {local} processes: torchrun "
                "starts all processes of a node itself. In the batch script, use #SBATCH --ntasks-per-node=1"
            )
        return None
    rank, task = environ["RANK"], environ.get("SLURM_PROCID", "")
    if rank != task and rank == "0":
        return (
            f"RANK is 0 in task {task} of srun: the batch script has read $SLURM_PROCID or $SLURM_NODEID, which is 0 "
            "there, instead of each task. Do not set RANK, LOCAL_RANK and WORLD_SIZE: paratune uses srun's variables; "
            "or set them in srun bash -c '...', in single quotes"
        )
    return None


def _count(environ: Mapping[str, str], name: str) -> int:
    """Return the number at the start of a variable; 0 if there is none."""
    match = re.match(r"[0-9]+", environ.get(name, ""))
    return (parse_count(match.group()) or 0) if match else 0
