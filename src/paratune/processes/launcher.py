"""What started this process - `--nproc`, torchrun, srun, accelerate - and starts that cannot work, with what to change.

Beside floor 1: no torch. All functions read the variables that they are given, by default those of this process.
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
"""Ports at which the processes of a Slurm job may meet: systems give those from 32768 on to others."""
LAST_PORT = 65_535
_DRAWN_BY_SRUN = ("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT")
"""Ports that the system has drawn for srun itself: the same in all tasks of a step, others in each step."""
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
    """Return what started this process: paratune, accelerate, torchrun, srun, or None for a plain command."""
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
    """Return whether this is one of several tasks of srun, which nothing else has given a rank."""
    return "RANK" not in environ and "SLURM_STEP_ID" in environ and _count(environ, "SLURM_STEP_NUM_TASKS") > 1


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a run meet."""

    host: str
    port: int
    name: str
    """Part of the store that is theirs: processes of another run that come to this port do not mix with them."""
    is_one_machine: bool

    @classmethod
    def at(cls, host: str, port: str, name: str, *, is_one_machine: bool) -> "Meeting":
        """Return the meeting at a port that a text from outside names.

        Raises:
            ValueError: It is none.
        """
        number = parse_count(port)
        if number is None or not 0 < number <= LAST_PORT:
            raise ValueError(f"MASTER_PORT is {plain(port[:40])}; allowed: 1 to {LAST_PORT}")
        return cls(host, number, name, is_one_machine)


def srun_meeting(environ: Mapping[str, str] = os.environ) -> Meeting:
    """Return where tasks of srun meet: the first node, or $MASTER_ADDR; a port of this step alone, or $MASTER_PORT.

    On one node it is loopback. The number of the job does not tell the port: it depends on the port that the system
    has drawn for srun itself, which all tasks of a step are told.

    Raises:
        ValueError: $MASTER_PORT is no port.
    """
    is_one_machine = _count(environ, "SLURM_STEP_NUM_NODES") == 1
    host = environ.get("MASTER_ADDR") or ("127.0.0.1" if is_one_machine else _first_node(environ))
    words = [environ.get(name, "") for name in (*_STEP, *_DRAWN_BY_SRUN)]
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).digest()
    drawn = FIRST_PORT + int.from_bytes(digest[:8], "big") % NUM_PORTS
    port = environ.get("MASTER_PORT") or str(drawn)
    return Meeting.at(host, port, digest[8:24].hex(), is_one_machine=is_one_machine)


def _first_node(environ: Mapping[str, str]) -> str:
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    return host if _resolves(host) else environ.get("SLURM_LAUNCH_NODE_IPADDR", host)


def first_host(nodes: str) -> str:
    """Return the first name of a list of nodes as Slurm writes it.

    >>> first_host("gpu[003-5,9],cpu1")
    'gpu003'
    """
    found = re.match(r"([^,\[]*)(?:\[([0-9]+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def tasks_here(environ: Mapping[str, str] = os.environ) -> int:
    """Return the tasks of this step on this node, as `2(x3),1` says it for node after node; 1 when it is not said."""
    node = _count(environ, "SLURM_NODEID")
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        number, _, times = part.partition("(x")
        node -= parse_count(times.removesuffix(")")) or 1
        if node < 0:
            return parse_count(number) or 1
    return 1


def has_own_gpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether srun shows each of its tasks only the GPUs that are the task's."""
    return is_srun(environ) and any(name in environ for name in _BINDS_GPUS)


def job_facts(environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return what a record keeps of the Slurm job that this process is in; None outside of one."""
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


def why_wrong(num_processes: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what is wrong with how a run was started, and the line to change; None when nothing is.

    Args:
        num_processes: Of --nproc; 1 where it was not given.
        environ: Variables of this process.
    """
    if "PARATUNE_RENDEZVOUS" in environ:
        return None
    return _wrong_accelerate(environ) or _wrong_in_a_job(num_processes, environ) or _wrong_in_a_step(environ)


def why_no_sweep(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why a matrix cannot be run from this process, and what to do; None when it can.

    Its runs are made one after the other, in processes of this machine.
    """
    if is_srun(environ):
        tasks = environ["SLURM_STEP_NUM_TASKS"]
        return (
            f"srun started paratune sweep {tasks} times, and one is meant, which starts the processes of its runs "
            "itself (nproc:): leave out srun, or use srun --ntasks=1"
        )
    if "RANK" in environ and environ.get("WORLD_SIZE") not in (None, "1"):
        return "paratune sweep starts its processes itself (nproc:); leave out torchrun"
    nodes = _count(environ, "SLURM_NNODES")
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" not in environ and nodes > 1:
        return (
            f"Slurm gave this job {nodes} nodes, and paratune sweep makes its runs on one machine: #SBATCH --nodes=1; "
            "or paratune launch MATRIX --site SITE --array, which submits each run by itself, on as many nodes as it "
            "wants"
        )
    return None


def idle_tasks(num_processes: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what to say when Slurm gave this node more tasks than processes were started; None when it did not."""
    if "RANK" in environ or "SLURM_STEP_ID" in environ or num_processes > 1:
        return None
    tasks = _count(environ, "SLURM_NTASKS")
    if tasks <= 1:
        return None
    return (
        f"Slurm gave this job {tasks} tasks, and this is one process, without srun: put srun before paratune train, or "
        f"say --nproc {tasks}; #SBATCH --ntasks=1 if one is meant"
    )


def _wrong_accelerate(environ: Mapping[str, str]) -> str | None:
    if _ACCELERATE not in environ:
        return None
    if "RANK" not in environ and "ACCELERATE_USE_CPU" in environ and "MASTER_PORT" in environ:
        # It sets the port when several processes are wanted; on CPUs of one machine it starts one all the same.
        return (
            "accelerate launch was asked for several processes and started one, as it does on CPUs; start them with "
            "paratune train --nproc N, or torchrun --nproc-per-node=N"
        )
    says = "accelerate launch asks for"
    takes = "which has no effect on paratune; take it out of accelerate's configuration, and write in yours:"
    precision = environ[_ACCELERATE]
    if precision not in ("no", ""):
        return f"{says} mixed precision {precision}, {takes} precision: {precision}"
    for name, line in _ACCELERATE_SETTINGS.items():
        if environ.get(name, "").lower() in ("true", "1"):
            return f"{says} {name.removeprefix('ACCELERATE_USE_')}, {takes} {line}"
    steps = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", ""):
        return f"{says} {steps} steps of gradient accumulation, {takes} batch: {{grad_accum_steps: {steps}}}"
    return None


def _wrong_in_a_job(num_processes: int, environ: Mapping[str, str]) -> str | None:
    """Say what is wrong with a process of a job that srun has not started."""
    nodes = _count(environ, "SLURM_NNODES")
    if "SLURM_JOB_ID" not in environ or "SLURM_STEP_ID" in environ or nodes <= 1:
        return None
    if "RANK" not in environ:
        started = f"--nproc {num_processes}" if num_processes > 1 else "one process"
        return (
            f"Slurm gave this job {nodes} nodes, and {started} was started on the first of them alone: srun is "
            "missing. In the batch script: srun paratune train ...; or submit with paratune launch, which writes the "
            "script; or #SBATCH --nodes=1"
        )
    if "TORCHELASTIC_RUN_ID" in environ and _count(environ, "GROUP_WORLD_SIZE") <= 1:
        return (
            f"Slurm gave this job {nodes} nodes, and torchrun was started on the first of them alone: srun is missing. "
            f"In the batch script: srun --ntasks-per-node=1 torchrun --nnodes={nodes} ...; or submit with paratune "
            "launch"
        )
    return None


def _wrong_in_a_step(environ: Mapping[str, str]) -> str | None:
    """Say what is wrong with a task of srun."""
    if "SLURM_STEP_ID" not in environ or "RANK" not in environ or _count(environ, "SLURM_STEP_NUM_TASKS") <= 1:
        return None
    if "TORCHELASTIC_RUN_ID" in environ:
        tasks, local = tasks_here(environ), _count(environ, "LOCAL_WORLD_SIZE")
        if tasks > 1 and local > 1:
            return (
                f"srun started torchrun {tasks} times on this node, and each of them {local} processes: torchrun "
                "starts all of a node itself. In the batch script: #SBATCH --ntasks-per-node=1"
            )
        return None
    rank, task = environ["RANK"], environ.get("SLURM_PROCID", "")
    if rank != task and rank == "0":
        return (
            f"RANK=0 in task {task} of srun: $SLURM_PROCID or $SLURM_NODEID was read in the batch script, where it is "
            "0, and not in each task. Leave RANK, LOCAL_RANK and WORLD_SIZE out: paratune takes srun's; or set them "
            "within srun bash -c '...', in single quotes"
        )
    return None


def _count(environ: Mapping[str, str], name: str) -> int:
    """Return the whole number that a variable begins with; 0 when there is none, or one that is no count."""
    found = re.match(r"[0-9]+", environ.get(name, ""))
    return (parse_count(found.group()) or 0) if found else 0


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
