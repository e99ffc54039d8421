"""Will the processes be started as many as they must be, on devices of their own, and find each other."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paratune.doctor.batch_script import look_into, read_in_tasks, wrong_rank_line
from paratune.doctor.feasible import tasks_line
from paratune.doctor.finding import Finding, Level
from paratune.doctor.processes import can_listen
from paratune.doctor.setup import QueuedRun
from paratune.processes.launcher import has_own_gpu

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOCAL_FILESYSTEMS = frozenset({"btrfs", "ext3", "ext4", "overlay", "xfs", "zfs"})
DEFAULT_PORT = "29500"
"""That torchrun and accelerate take when none is given: two jobs on one node take the same."""


def check_devices(setup: QueuedRun) -> Iterator[Finding]:
    start, config = setup.start, setup.config
    num_gpus = start.gpus_per_node if start.gpus_per_node is not None else len(setup.gpus)
    if config.device == "cpu" or num_gpus == 0:
        return
    if start.processes_per_node < num_gpus and start.world_size > 1:
        what = f"{start.processes_per_node} processes on each node, and {num_gpus} GPUs"
        why = "The others stand idle, and are paid for."
        yield Finding("gpus_idle", "warning", what, why, "", start.said_by, tasks_line(setup, num_gpus))
    elif start.world_size == 1 and num_gpus > 1:
        what, why = f"one process, and {num_gpus} GPUs", "The others stand idle."
        yield Finding(
            "gpus_idle", "note", what, why, "with strategy.kind: ddp", start.said_by, tasks_line(setup, num_gpus)
        )


def check_site(setup: QueuedRun) -> Iterator[Finding]:
    for kind, option, what, line in setup.start.unfit:
        where = f"{setup.start.said_by}: {option}"
        if kind == "partition":
            why = "Slurm refuses the job (`invalid partition specified`)."
            yield Finding("site_partition", "problem", what, why, "", where, line)
        else:
            why = "The job ends in its first second, after it has waited in the queue."
            yield Finding("site_folder", "problem", what, why, "" if line else "make it, or name another", where, line)


def check_visible(setup: QueuedRun) -> Iterator[Finding]:
    visible = setup.machine.environ.get("CUDA_VISIBLE_DEVICES")
    count = setup.start.processes_per_node
    if (
        setup.start.is_elsewhere
        or has_own_gpu(setup.machine.environ)  # srun shows each task its own alone
        or visible is None
        or visible in ("", "-1")
        or setup.config.device == "cpu"
        or not setup.machine.node["gpus"]
    ):
        return
    named = [word for word in visible.split(",") if word.strip()]
    where = f"CUDA_VISIBLE_DEVICES={visible}"
    if len(set(named)) < len(named):
        what, why = "a GPU is named twice", "CUDA then shows no GPU."
        others = list(dict.fromkeys(named))
        line = f"export CUDA_VISIBLE_DEVICES={','.join(others)}"
        line = line if len(others) >= count else "unset CUDA_VISIBLE_DEVICES"
        yield Finding("visible_twice", "problem", what, why, "", where, line)
    elif len(named) < count:
        what = f"{count} processes on this machine may see {len(named)} GPUs"
        why = "Processes without a GPU of their own end with `invalid device ordinal`."
        yield Finding("visible_too_few", "problem", what, why, "", where, "unset CUDA_VISIBLE_DEVICES")


def check_slurm(setup: QueuedRun) -> Iterator[Finding]:
    environ, start = setup.machine.environ, setup.start
    in_job, in_step = "SLURM_JOB_ID" in environ, "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ
    if start.needs_srun and "srun" not in setup.probes.tools:
        what, why = "there is no srun on this machine", "The processes of the job are started by it."
        yield Finding("no_srun", "problem", what, why, "", "PATH", "module load slurm")
    if in_job and not in_step and start.num_nodes > 1:
        yield from _check_srun(setup)
    ranks = {name: environ[name] for name in ("RANK", "SLURM_PROCID") if name in environ}
    yield from _check_node_rank(setup, in_step)
    is_one_each = environ.get("SLURM_NTASKS") == environ.get("WORLD_SIZE")
    # torchrun gives ranks in an order of its own.
    is_given = in_step and is_one_each and "TORCHELASTIC_RUN_ID" not in environ
    if len(ranks) == 2 and is_given and ranks["RANK"] != ranks["SLURM_PROCID"]:
        what = f"RANK={ranks['RANK']}, and in Slurm this is task {ranks['SLURM_PROCID']}"
        why = "Two processes may take the same rank, and wait for each other for ever."
        line = "unset RANK LOCAL_RANK WORLD_SIZE"
        yield Finding("rank_differs", "problem", what, why, "srun's own are then taken", "RANK", line)


def _check_srun(setup: QueuedRun) -> Iterator[Finding]:
    """Say that srun is missing where a script shows it, and that it is needed where none shows how the run starts."""
    start, script = setup.start, setup.probes.batch_script
    seen = look_into(script or "", setup.probes.called_scripts)
    if seen.names_srun:
        return
    what = f"the job has {start.num_nodes} nodes, and this is its batch step, which runs on the first alone"
    why = (
        "Without srun all processes are started on the first node, SLURM_NODEID is 0 for each of them, and the others "
        "wait for ever."
    )
    line = f"srun --ntasks-per-node={start.processes_per_node} paratune train {setup.path}"
    level: Level = "note"
    where = "SLURM_JOB_ID without SLURM_STEP_ID"
    if seen.plain is not None:
        name, number, command = seen.plain
        level, where, what = "problem", f"{name}, line {number}", f"{what}: {command}"
    elif script is not None:  # in a shell of salloc there is none
        unread = f", and {', '.join(seen.unread)} could not be read" if seen.unread else ""
        what = f"{what}; its script names no srun and does not show what starts the run{unread}"
    yield Finding("srun_forgotten", level, what, why, "", where, line)


def _check_node_rank(setup: QueuedRun, in_step: bool) -> Iterator[Finding]:
    environ = setup.machine.environ
    why = (
        "$SLURM_NODEID is replaced by the shell of the batch step, which is node 0, before srun starts the tasks: "
        "every node takes itself for the first."
    )
    if in_step and environ.get("NODE_RANK") not in (None, environ.get("SLURM_NODEID")):
        what = f"NODE_RANK={environ['NODE_RANK']}, and in Slurm this is node {environ.get('SLURM_NODEID')}"
        line = "srun bash -c 'NODE_RANK=$SLURM_NODEID ...'"
        yield Finding("node_rank", "problem", what, why, "with single quotes", "NODE_RANK", line)
    elif setup.start.num_nodes > 1 and (found := wrong_rank_line(setup.probes.batch_script)) is not None:
        number, text = found
        line = read_in_tasks(text)
        where = f"batch script, line {number}"
        yield Finding("node_rank", "problem", f"{text} outside of single quotes", why, "", where, line)


def check_variables(setup: QueuedRun) -> Iterator[Finding]:
    environ = setup.machine.environ
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    given = [name for name in names if name in environ]
    if given and len(given) < len(names):
        what = f"{', '.join(given)} without {', '.join(name for name in names if name not in given)}"
        why = "They are left over from a launcher; training refuses to guess the rest (exit code 5)."
        yield Finding("launcher_variables", "problem", what, why, "", "environment", f"unset {' '.join(given)}")
    for name in INTERFACES:
        value = environ.get(name)
        # What a login node has says nothing of the nodes.
        if value is None or setup.probes.interfaces is None or setup.start.is_elsewhere:
            continue
        names_one = _names_all if name.startswith("GLOO") else _names_one
        if names_one(value, setup.probes.interfaces):
            continue
        has = [each for each in setup.probes.interfaces if each != "lo"] or list(setup.probes.interfaces)
        what = f"{name}={value}, and this machine has {', '.join(setup.probes.interfaces)}"
        why = "The processes do not find each other (`Unable to find address for`, `No socket interface found`)."
        yield Finding("interface", "problem", what, why, "", name, f"export {name}={has[0]}")


def _names_all(value: str, interfaces: tuple[str, ...]) -> bool:
    """Return whether a value names interfaces in gloo's way: whole names, all of which must be there."""
    return all(each in interfaces for each in value.split(","))


def _names_one(value: str, interfaces: tuple[str, ...]) -> bool:
    """Return whether a value names an interface, in NCCL's way.

    Beginnings of names; "=" before them for whole names, "^" or "^=" for all others (its manual, NCCL_SOCKET_IFNAME).
    """
    rest = value.removeprefix("^")
    names = tuple(rest.removeprefix("=").split(","))
    matched = {each for each in interfaces if (each in names if rest.startswith("=") else each.startswith(names))}
    return bool(set(interfaces) - matched if value.startswith("^") else matched)


def check_meeting(setup: QueuedRun) -> Iterator[Finding]:
    environ, start = setup.machine.environ, setup.start
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if address is not None and start.num_nodes > 1:
        line = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        if address in ("localhost", "127.0.0.1", "::1"):
            what = f"MASTER_ADDR={address}, and the run has {start.num_nodes} nodes"
            why = "Each node waits for the others on itself."
            yield Finding("master_is_local", "problem", what, why, "", "MASTER_ADDR", line)
        elif not setup.probes.resolve(address):
            what, why = f"MASTER_ADDR={address} does not resolve here", "The processes do not find each other."
            yield Finding("master_unknown", "problem", what, why, "", "MASTER_ADDR", line)
    if port is None:
        return
    if not re.fullmatch(r"\d+", port) or not 0 < int(port) < 65536:
        what, why = f"MASTER_PORT={port} is not a port", "The processes do not find each other."
        yield Finding("port_wrong", "problem", what, why, "", "MASTER_PORT", "unset MASTER_PORT")
    elif _would_listen(setup, address) and not setup.probes.port_is_free(int(port)):
        what = f"port {port} is in use on this machine"
        why = (
            "Another job has it (`EADDRINUSE`, `address already in use`), or this job connects to the "
            "processes of that job."
        )
        yield Finding("port_taken", "problem", what, why, "", "MASTER_PORT", f"export MASTER_PORT={_other_port(setup)}")
    elif port == DEFAULT_PORT and "SLURM_JOB_ID" in environ:
        what, why = f"MASTER_PORT={port}, the default", "Two jobs on one node take the same port."
        line = f"export MASTER_PORT={_other_port(setup)}"
        yield Finding("port_shared", "warning", what, why, "a different port for each job", "MASTER_PORT", line)


def _would_listen(setup: QueuedRun, address: str | None) -> bool:
    """Return whether rank 0, which listens on the port, is to be on this machine, and nothing listens for it yet."""
    environ = setup.machine.environ
    if "TORCHELASTIC_RUN_ID" in environ or environ.get("RANK", "0") != "0":  # torchrun itself has the port
        return False
    return address is None or any(can_listen(each) for each in setup.probes.resolve(address))


def _other_port(setup: QueuedRun) -> int:
    """Return a port that follows from the job's number, as Slurm's users make them, and that is free."""
    first = int(re.sub(r"\D", "", setup.machine.environ.get("SLURM_JOB_ID", "")) or 0) % 20000 + 20000
    return next((port for port in range(first, first + 100) if setup.probes.port_is_free(port)), first)


def check_switched_off(setup: QueuedRun) -> Iterator[Finding]:
    """Switches that a hang was once worked around with, and that cost speed ever since."""
    reasons = {
        "NCCL_P2P_DISABLE": "GPUs then exchange gradients through the host's memory",
        "NCCL_SHM_DISABLE": "processes of one machine then exchange gradients over sockets",
        "NCCL_IB_DISABLE": "nodes then exchange gradients over Ethernet",
    }
    if len(setup.gpus) < 2 and setup.start.num_nodes < 2:
        return
    for name, why in reasons.items():
        if setup.machine.environ.get(name) == "1" and (name != "NCCL_IB_DISABLE" or setup.start.num_nodes > 1):
            yield Finding("nccl_switched_off", "warning", f"{name}=1", f"{why}.", "", name, f"unset {name}")
    if setup.machine.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        why = "The host waits for each kernel: good for finding an error, several times slower for training."
        line = "unset CUDA_LAUNCH_BLOCKING"
        yield Finding("launch_blocking", "warning", "CUDA_LAUNCH_BLOCKING=1", why, "", "CUDA_LAUNCH_BLOCKING", line)


def check_nodes_share(setup: QueuedRun) -> Iterator[Finding]:
    """What several nodes, or this machine and those of the site, must see alike."""
    if setup.start.num_nodes < 2 and not setup.start.is_elsewhere:
        return
    folder, cache = setup.machine.out_folder, setup.machine.cache_folder
    if is_local(setup.probes.run_storage):
        what = f"the run folder {folder} is on a disk of this node ({setup.probes.run_storage['filesystem']})"
        why = "The others do not see it: after a requeue the first node may be another one, without the checkpoints."
        where, line = setup.where("run.folder"), "run.folder: FOLDER_THAT_ALL_NODES_SHARE"
        # A server's own disks look local to the machine that shares them.
        level: Level = "warning" if setup.start.is_elsewhere else "problem"
        yield Finding("run_folder_local", level, what, why, "", where, line)
    if is_local(setup.probes.cache_storage):
        what = f"tokens are kept in {cache}, on a disk of this node"
        why = "Every node tokenizes all data, in each new job; training starts when all nodes have finished."
        where, line = setup.where("data.cache_dir"), "data.cache_dir: FOLDER_THAT_ALL_NODES_SHARE"
        yield Finding("cache_local", "note", what, why, "", where, line)


def is_local(storage: Mapping[str, Any]) -> bool:
    """Return whether other machines do not see a file system, as its kind or its type says."""
    return storage.get("kind") in ("memory", "nvme", "ssd", "hdd") or storage.get("filesystem") in LOCAL_FILESYSTEMS
