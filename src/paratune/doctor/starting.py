"""Checks of the start: number of processes and GPUs, Slurm, environment variables, addresses and ports."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paratune.doctor.batch_script import find_start, read_in_tasks, wrong_rank_line
from paratune.doctor.feasible import tasks_line
from paratune.doctor.finding import Finding, Level
from paratune.doctor.processes import can_listen
from paratune.doctor.setup import QueuedRun
from paratune.processes.launcher import has_own_gpu

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOCAL_FILESYSTEMS = frozenset({"btrfs", "ext3", "ext4", "overlay", "xfs", "zfs"})
DEFAULT_PORT = "29500"
"""Default of torchrun and accelerate, which is the same for two jobs on one node."""


def check_devices(setup: QueuedRun) -> Iterator[Finding]:
    start, config = setup.start, setup.config
    num_gpus = start.gpus_per_node if start.gpus_per_node is not None else len(setup.gpus)
    if config.device == "cpu" or num_gpus == 0:
        return
    if start.processes_per_node < num_gpus and start.world_size > 1:
        fact = f"{start.processes_per_node} processes on each node, and {num_gpus} GPUs"
        why = "Some GPUs are idle."
        yield Finding("gpus_idle", "warning", fact, why, "", start.source, tasks_line(setup, num_gpus))
    elif start.world_size == 1 and num_gpus > 1:
        fact, why, remedy = f"one process, and {num_gpus} GPUs", "The other GPUs are idle.", "with strategy.kind: ddp"
        yield Finding("gpus_idle", "note", fact, why, remedy, start.source, tasks_line(setup, num_gpus))


def check_site(setup: QueuedRun) -> Iterator[Finding]:
    for kind, option, fact, line in setup.start.unfit:
        where = f"{setup.start.source}: {option}"
        if kind == "partition":
            why = "Slurm rejects the job (`invalid partition specified`)."
            yield Finding("site_partition", "problem", fact, why, "", where, line)
        else:
            why = "The job waits in the queue and fails at its start."
            yield Finding("site_folder", "problem", fact, why, "" if line else "create or rename it", where, line)


def check_visible(setup: QueuedRun) -> Iterator[Finding]:
    visible = setup.machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = setup.start.processes_per_node
    uses_gpus = setup.config.device != "cpu" and setup.machine.node["gpus"] and not setup.start.is_elsewhere
    # srun shows only its own GPU to each task.
    if visible in ("", "-1") or not uses_gpus or has_own_gpu(setup.machine.environ):
        return
    devices = [word for word in visible.split(",") if word.strip()]
    where = f"CUDA_VISIBLE_DEVICES={visible}"
    if len(set(devices)) < len(devices):
        fact, why = "a GPU is listed twice", "CUDA then finds no GPU."
        others = list(dict.fromkeys(devices))
        line = f"export CUDA_VISIBLE_DEVICES={','.join(others)}"
        line = line if len(others) >= count else "unset CUDA_VISIBLE_DEVICES"
        yield Finding("visible_twice", "problem", fact, why, "", where, line)
    elif len(devices) < count:
        fact = f"{count} processes on this machine see {len(devices)} GPUs"
        why = "Processes without their own GPU fail with `invalid device ordinal`."
        yield Finding("visible_too_few", "problem", fact, why, "", where, "unset CUDA_VISIBLE_DEVICES")


def check_slurm(setup: QueuedRun) -> Iterator[Finding]:
    environ, start = setup.machine.environ, setup.start
    in_job, in_step = "SLURM_JOB_ID" in environ, "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ
    if start.needs_srun and "srun" not in setup.probes.tools:
        fact, why = "there is no srun on this machine", "It starts the processes of the job."
        yield Finding("no_srun", "problem", fact, why, "", "PATH", "module load slurm")
    if in_job and not in_step and start.num_nodes > 1:
        yield from _check_srun(setup)
    ranks = {name: environ[name] for name in ("RANK", "SLURM_PROCID") if name in environ}
    yield from _check_node_rank(setup, in_step)
    is_one_each = environ.get("SLURM_NTASKS") == environ.get("WORLD_SIZE")
    # torchrun orders ranks differently.
    is_given = in_step and is_one_each and "TORCHELASTIC_RUN_ID" not in environ
    if len(ranks) == 2 and is_given and ranks["RANK"] != ranks["SLURM_PROCID"]:
        fact = f"RANK={ranks['RANK']}, and the Slurm task is {ranks['SLURM_PROCID']}"
        why = "Two processes may have the same rank, and wait for each other for ever."
        line = "unset RANK LOCAL_RANK WORLD_SIZE"
        yield Finding("rank_differs", "problem", fact, why, "then those of srun apply", "RANK", line)


def _check_srun(setup: QueuedRun) -> Iterator[Finding]:
    """Yield a problem if the script starts the run without srun, and a note if the script does not show the start."""
    start, script = setup.start, setup.probes.batch_script
    commands = find_start(script or "", setup.probes.called_scripts)
    if commands.names_srun:
        return
    fact = f"the job has {start.num_nodes} nodes, and this is its batch step, which runs only on the first one"
    why = (
        "Without srun all processes start on the first node, where SLURM_NODEID is 0, and wait for ever for the other "
        "nodes."
    )
    line = f"srun --ntasks-per-node={start.processes_per_node} paratune train {setup.path}"
    level: Level = "note"
    where = "SLURM_JOB_ID without SLURM_STEP_ID"
    if commands.plain is not None:
        name, number, command = commands.plain
        level, where, fact = "problem", f"{name}, line {number}", f"{fact}: {command}"
    elif script is not None:  # a shell of salloc has no script
        unread = f", and {', '.join(commands.unread)} could not be read" if commands.unread else ""
        fact = f"{fact}; its script has no srun and does not show the command that starts the run{unread}"
    yield Finding("srun_forgotten", level, fact, why, "", where, line)


def _check_node_rank(setup: QueuedRun, in_step: bool) -> Iterator[Finding]:
    environ = setup.machine.environ
    why = (
        "The shell of the batch step, on node 0, expands $SLURM_NODEID before srun starts the tasks: every node has "
        "NODE_RANK 0."
    )
    if in_step and environ.get("NODE_RANK") not in (None, environ.get("SLURM_NODEID")):
        fact = f"NODE_RANK={environ['NODE_RANK']}, and the Slurm node is {environ.get('SLURM_NODEID')}"
        line = "srun bash -c 'NODE_RANK=$SLURM_NODEID ...'"
        yield Finding("node_rank", "problem", fact, why, "with single quotes", "NODE_RANK", line)
    elif setup.start.num_nodes > 1 and (numbered_line := wrong_rank_line(setup.probes.batch_script)) is not None:
        number, text = numbered_line
        fact, where = f"{text} outside of single quotes", f"batch script, line {number}"
        yield Finding("node_rank", "problem", fact, why, "", where, read_in_tasks(text))


def check_variables(setup: QueuedRun) -> Iterator[Finding]:
    environ = setup.machine.environ
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    present = [name for name in names if name in environ]
    if present and len(present) < len(names):
        fact = f"{', '.join(present)} without {', '.join(name for name in names if name not in present)}"
        why = "They come from an earlier launcher; training fails without the others (exit code 5)."
        yield Finding("launcher_variables", "problem", fact, why, "", "environment", f"unset {' '.join(present)}")
    for name in INTERFACES:
        value = environ.get(name)
        # The interfaces of a login node differ from those of the nodes.
        if value is None or setup.probes.interfaces is None or setup.start.is_elsewhere:
            continue
        # gloo compares whole names.
        all_exist = set(value.split(",")) <= set(setup.probes.interfaces)
        if all_exist if name.startswith("GLOO") else _any_matches(value, setup.probes.interfaces):
            continue
        external = [interface for interface in setup.probes.interfaces if interface != "lo"]
        fact = f"{name}={value}, and this machine has {', '.join(setup.probes.interfaces)}"
        why = "The processes do not find each other (`Unable to find address for`, `No socket interface found`)."
        yield Finding("interface", "problem", fact, why, "", name, f"export {name}={(external or ['lo'])[0]}")


def _any_matches(value: str, interfaces: tuple[str, ...]) -> bool:
    """Return whether a value matches an interface by the rules of NCCL.

    Prefixes of names; "=" for whole names, "^" or "^=" for all others (manual of NCCL, NCCL_SOCKET_IFNAME).
    """
    rest = value.removeprefix("^")
    names = tuple(rest.removeprefix("=").split(","))
    matched = {name for name in interfaces if (name in names if rest.startswith("=") else name.startswith(names))}
    return bool(set(interfaces) - matched if value.startswith("^") else matched)


def check_meeting(setup: QueuedRun) -> Iterator[Finding]:
    environ, start = setup.machine.environ, setup.start
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if address is not None and start.num_nodes > 1:
        line = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        if address in ("localhost", "127.0.0.1", "::1"):
            fact = f"MASTER_ADDR={address}, and the run has {start.num_nodes} nodes"
            why = "Each node waits for the others at its own address."
            yield Finding("master_is_local", "problem", fact, why, "", "MASTER_ADDR", line)
        elif not setup.probes.resolve(address):
            fact, why = f"MASTER_ADDR={address} does not resolve here", "The processes do not find each other."
            yield Finding("master_unknown", "problem", fact, why, "", "MASTER_ADDR", line)
    if port is None:
        return
    if not re.fullmatch(r"\d+", port) or not 0 < int(port) < 65536:
        fact, why = f"MASTER_PORT={port} is not a port", "The processes do not find each other."
        yield Finding("port_wrong", "problem", fact, why, "", "MASTER_PORT", "unset MASTER_PORT")
    elif _would_listen(setup, address) and not setup.probes.port_is_free(int(port)):
        fact = f"port {port} is in use on this machine"
        why = (
            "Another job uses it (`EADDRINUSE`, `address already in use`), or this job connects to the "
            "processes of that job."
        )
        yield Finding("port_taken", "problem", fact, why, "", "MASTER_PORT", f"export MASTER_PORT={_other_port(setup)}")
    elif port == DEFAULT_PORT and "SLURM_JOB_ID" in environ:
        fact, why = f"MASTER_PORT={port}, the default", "Two jobs on one node use the same port."
        line = f"export MASTER_PORT={_other_port(setup)}"
        yield Finding("port_shared", "warning", fact, why, "a different port for each job", "MASTER_PORT", line)


def _would_listen(setup: QueuedRun, address: str | None) -> bool:
    """Return whether this process is rank 0, which will listen on the port of this machine."""
    environ = setup.machine.environ
    if "TORCHELASTIC_RUN_ID" in environ or environ.get("RANK", "0") != "0":  # torchrun itself listens on the port
        return False
    return address is None or any(map(can_listen, setup.probes.resolve(address)))


def _other_port(setup: QueuedRun) -> int:
    """Return a free port that depends on the number of the job."""
    first = int(re.sub(r"\D", "", setup.machine.environ.get("SLURM_JOB_ID", "")) or 0) % 20000 + 20000
    return next((port for port in range(first, first + 100) if setup.probes.port_is_free(port)), first)


def check_switched_off(setup: QueuedRun) -> Iterator[Finding]:
    """Check for variables that once worked around a hang, and that reduce the speed."""
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
        why = "The host waits for each kernel: it helps to find an error, and makes training several times slower."
        line = "unset CUDA_LAUNCH_BLOCKING"
        yield Finding("launch_blocking", "warning", "CUDA_LAUNCH_BLOCKING=1", why, "", "CUDA_LAUNCH_BLOCKING", line)


def check_nodes_share(setup: QueuedRun) -> Iterator[Finding]:
    """Check whether all nodes can read the run folder and the cache."""
    if setup.start.num_nodes < 2 and not setup.start.is_elsewhere:
        return
    folder, cache = setup.machine.out_folder, setup.machine.cache_folder
    if is_local(setup.probes.run_storage):
        fact = f"the run folder {folder} is on a disk of this node ({setup.probes.run_storage['filesystem']})"
        why = "Other nodes cannot read it: after a requeue, the first node may be another one, without the checkpoints."
        where, line = setup.where("run.folder"), "run.folder: FOLDER_THAT_ALL_NODES_SHARE"
        # On the file server itself, shared disks look local.
        level: Level = "warning" if setup.start.is_elsewhere else "problem"
        yield Finding("run_folder_local", level, fact, why, "", where, line)
    if is_local(setup.probes.cache_storage):
        fact = f"the cache of tokens {cache} is on a disk of this node"
        why = "Every node tokenizes all data, in each new job; training starts when all nodes have finished."
        where, line = setup.where("data.cache_dir"), "data.cache_dir: FOLDER_THAT_ALL_NODES_SHARE"
        yield Finding("cache_local", "note", fact, why, "", where, line)


def is_local(storage: Mapping[str, Any]) -> bool:
    """Return whether the kind or type of a file system shows that it is local."""
    return storage.get("kind") in ("memory", "nvme", "ssd", "hdd") or storage.get("filesystem") in LOCAL_FILESYSTEMS
