"""Runs a Slurm cluster on this machine for tests: munged, slurmctld and several slurmd on loopback, in one folder.

Without systemd, and without files outside of the folder. Its nodes share the cores of this machine, so that it is not
for benchmarks. Works as root and as a user.
"""

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from paratune.base.text import plain
from paratune.errors import LaunchError, MissingDependency, os_error_as

PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
"""Required programs, with their Debian packages."""
CONF = "slurm.conf"
START_S = 120.0
"""Seconds that daemons have to start; the machine may be busy."""
END_S = 20.0
"""Seconds that all jobs have to end, and then each type of daemon (slurmd, slurmctld, munged) before SIGKILL."""
MAX_NODES = 64
_SEARCH = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_POLL_S = 0.1
_ANSWER_S = 60.0
"""Timeout of a Slurm command, in seconds."""


@dataclass(frozen=True)
class ToyCluster:
    """A toy cluster in its folder, running or not."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / CONF

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for Slurm's commands."""
        return {"SLURM_CONF": str(self.conf)}

    def pids(self) -> dict[str, int]:
        """Return the process ID of each running daemon: munged, slurmctld, and slurmd by the name of its node."""
        numbers = {}
        for path in sorted(self.folder.glob("*.pid")):
            with suppress(OSError, ValueError, psutil.Error):
                process = psutil.Process(int(path.read_text()))
                # Another process may have the number of a daemon that ended.
                if _is_running(process) and str(self.folder) in " ".join(process.cmdline()):
                    numbers[path.stem] = process.pid
        return numbers

    def node_names(self) -> list[str]:
        """Return the names of its nodes; empty if it was never started."""
        if not self.conf.exists():
            return []
        return re.findall(r"^NodeName=(\w+) ", self.conf.read_text(), re.MULTILINE)


def start(folder: Path, num_nodes: int) -> ToyCluster:
    """Start a cluster of idle nodes named n1, n2, ...

    Args:
        folder: Folder for keys, logs, states and configuration; created.
        num_nodes: 1 to 64.

    Raises:
        LaunchError: A cluster already runs there, the path is too long for a socket, or a daemon does not start.
        MissingDependency: A program of Slurm or munge is not installed; the message has the command to install it.
    """
    if not 1 <= num_nodes <= MAX_NODES:
        text = f"--nodes {num_nodes}: a toy cluster has 1 to {MAX_NODES}"
        raise LaunchError(text, code="toy_cluster.not_started", option="--nodes", value=num_nodes)
    programs = _programs()
    cluster = ToyCluster(folder.absolute())
    if cluster.pids():
        where = plain(shlex.quote(str(cluster.folder)))
        variables = " ".join(f"{name}={plain(shlex.quote(value))}" for name, value in cluster.environment.items())
        remedy = f"use it with export {variables}, or stop it with paratune toy-cluster stop --folder {where}"
        text = f"a toy cluster already runs in {where}: {remedy}"
        raise LaunchError(text, code="toy_cluster.not_started", where=where)
    _make_folder(cluster.folder)
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_nodes + 1)]
        for free_socket in sockets:
            free_socket.bind(("127.0.0.1", 0))
        ports = [free_socket.getsockname()[1] for free_socket in sockets]
    cluster.conf.write_text(conf_text(cluster.folder, ports))
    try:
        at = cluster.folder
        munged = [programs["munged"], "--force", f"--socket={at}/munge.socket", f"--key-file={at}/munge.key"]
        munged += [f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munge.seed"]
        _daemon(munged, cluster, "munged")
        _wait((at / "munge.socket").exists, cluster, ["munged"], "munged")
        _daemon([programs["slurmctld"], "-f", str(cluster.conf)], cluster, "slurmctld")
        for name in cluster.node_names():
            start_node(cluster, name)
        _wait_until_idle(cluster)
    except BaseException:
        stop(cluster)
        raise
    return cluster


def stop(cluster: ToyCluster) -> list[str]:
    """Stop all jobs and daemons; return the names of the daemons that ran."""
    pids = cluster.pids()
    are_over = _cancel_all(cluster, pids)
    for names in ([n for n in pids if n not in ("munged", "slurmctld")], ["slurmctld"], ["munged"]):
        _end([pids[name] for name in names if name in pids])
    if not are_over:
        for name in cluster.node_names():
            _kill(_job_processes(cluster, name))
    for name in pids:
        (cluster.folder / f"{name}.pid").unlink(missing_ok=True)
    return list(pids)


def start_node(cluster: ToyCluster, name: str) -> None:
    """Start or restart the slurmd of a node.

    Raises:
        LaunchError: It does not start.
    """
    (cluster.folder / f"spool.{name}").mkdir(exist_ok=True)
    _daemon([_programs()["slurmd"], "-N", name, "-f", str(cluster.conf)], cluster, name)


def resume_nodes(cluster: ToyCluster) -> list[str]:
    """Resume nodes that count as lost although their slurmd runs, and return their names.

    A suspended or overloaded machine loses nodes. Slurm itself takes minutes to resume them.
    """
    pids = cluster.pids()
    # Nodes that were set down by hand have another reason.
    lost = [
        name for name, state, why in _nodes(cluster) if state.startswith("down") and why.startswith("Not responding")
    ]
    back = [name for name in lost if name in pids]
    for name in back:
        _call(["scontrol", "update", f"nodename={name}", "state=resume"], cluster)
    return back


def node_states(cluster: ToyCluster) -> dict[str, str]:
    """Return the state of each node from sinfo; empty if the controller does not respond."""
    return {name: state for name, state, _ in _nodes(cluster)}


def _nodes(cluster: ToyCluster) -> list[list[str]]:
    """Return name, state and reason of each node."""
    result = _call(["sinfo", "--noheader", "--Node", "--partition=toy", "--format=%N %T %E"], cluster)
    lines = [] if result is None or result.returncode else result.stdout.splitlines()
    return [line.split(" ", 2) for line in lines]


def conf_text(folder: Path, ports: Sequence[int]) -> str:
    """Return slurm.conf, with the controller on the first port and a node on each other port.

    With a shorter `SlurmdTimeout`, a busy machine would lose nodes.
    """
    user, host = getpass.getuser(), socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4096 State=UNKNOWN"
        for number, port in enumerate(ports[1:], start=1)
    )
    partition = f"Nodes=n[1-{len(ports) - 1}] MaxTime=INFINITE State=UP"
    return f"""\
# A toy cluster of paratune on loopback; rewritten by each start.
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
KillWait=10
UnkillableStepTimeout=300
MinJobAge=300
InactiveLimit=0
SchedulerParameters=sched_min_interval=100000,sched_interval=5,bf_interval=5
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=toy {partition} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent {partition} PriorityTier=2 PreemptMode=OFF
"""


def _programs() -> dict[str, str]:
    """Return the path of each program.

    Raises:
        MissingDependency: Some are not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SEARCH])
    paths = {name: shutil.which(name, path=path) for name in PROGRAMS}
    missing = [name for name, where in paths.items() if where is None]
    if missing:
        packages = " ".join(PROGRAMS[name] for name in missing)
        remedy = f"on Debian and Ubuntu: apt-get install --no-install-recommends {packages}"
        text = f"a toy cluster needs {', '.join(missing)}; {remedy}"
        raise MissingDependency(text, code="dependency.program_missing", missing=missing)
    return {name: where for name, where in paths.items() if where is not None}


def _make_folder(folder: Path) -> None:
    """Make the folder, or raise a LaunchError where Slurm or munge cannot use it."""
    if not re.fullmatch(r"[A-Za-z0-9_./+-]{1,80}", str(folder)):  # the address of a socket has at most 108
        problem = f"{plain(folder)}: slurm.conf allows letters, digits and _ . / + - in a path, and at most 80 of them"
        raise LaunchError(f"{problem}; choose --folder", code="toy_cluster.not_started")
    with os_error_as(
        LaunchError, f"{plain(folder)} cannot be used", "choose --folder", code="toy_cluster.not_started", folder=folder
    ):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # munge refuses folders that others can write to
        (folder / "state").mkdir(exist_ok=True)
        key = folder / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))


def _daemon(command: Sequence[str], cluster: ToyCluster, name: str) -> None:
    """Start a daemon and wait for its process ID in `NAME.pid`."""
    (cluster.folder / f"{name}.pid").unlink(missing_ok=True)
    with (cluster.folder / f"{name}.out").open("ab") as output:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cluster.folder,
                env={**os.environ, **cluster.environment},
                timeout=START_S,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise _start_failure(cluster, name) from error
    _wait(lambda: name in cluster.pids(), cluster, [], name)


def _wait_until_idle(cluster: ToyCluster) -> None:
    names = cluster.node_names()
    idle = dict.fromkeys(names, "idle")
    _wait(lambda: node_states(cluster) == idle, cluster, ["munged", "slurmctld", *names], "slurmctld")


def _wait(is_ready: Callable[[], bool], cluster: ToyCluster, daemons: Sequence[str], name: str) -> None:
    """Wait for a condition, while these daemons run; `name` is named in a timeout."""
    deadline = time.monotonic() + START_S
    while not is_ready():
        pids = cluster.pids()
        gone = [daemon for daemon in daemons if daemon not in pids]
        if gone or time.monotonic() > deadline:
            raise _start_failure(cluster, gone[0] if gone else name)
        time.sleep(_POLL_S)


def _start_failure(cluster: ToyCluster, name: str) -> LaunchError:
    words: list[str] = []
    for file in (f"{name}.out", f"{name}.log", f"slurmd.{name}.log"):
        with suppress(OSError):
            words += (cluster.folder / file).read_text(errors="replace").splitlines()[-5:]
    log_lines = "".join(f"\n  {plain(line)}" for line in words)
    message = f"{name} of the toy cluster does not start; the end of its log, in {plain(cluster.folder)}:{log_lines}"
    return LaunchError(message, code="toy_cluster.not_started")


def _cancel_all(cluster: ToyCluster, pids: dict[str, int]) -> bool:
    """Cancel all jobs and wait for their end; return whether the controller confirms that none is left."""
    if "slurmctld" not in pids:
        return False
    deadline = time.monotonic() + END_S
    _call(["scancel", "--user", getpass.getuser()], cluster, timeout_s=END_S)
    while (left_s := deadline - time.monotonic()) > 0:
        queue = _call(["squeue", "--noheader"], cluster, timeout_s=left_s)
        if queue is None or queue.returncode:
            return False
        if not queue.stdout.strip():
            return True
        time.sleep(_POLL_S)
    return False


def _kill(numbers: Sequence[int]) -> None:
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _end(numbers: Sequence[int]) -> None:
    """Send SIGTERM, and SIGKILL to processes that still run after END_S."""
    processes = []
    for number in numbers:
        with suppress(psutil.Error):
            processes.append(psutil.Process(number))
            processes[-1].terminate()
    deadline = time.monotonic() + END_S
    while (processes := [process for process in processes if _is_running(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _kill([process.pid for process in processes])


def _is_running(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        # A daemon stays a zombie in a container whose first process does not wait for it.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _job_processes(cluster: ToyCluster, name: str) -> list[int]:
    """Return the processes of jobs on a node: slurmstepd first, since it would report the deaths of the others."""
    node = {"SLURMD_NODENAME": name, "SLURM_CONF": str(cluster.conf)}
    daemons, tasks = [], []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if node.items() <= process.environ().items():
                tasks.append(process.pid)
                parent = process.parent()
                if parent is not None and parent.name() == "slurmstepd":
                    daemons.append(parent.pid)
    return [*dict.fromkeys(daemons), *tasks]


def _call(
    command: Sequence[str], cluster: ToyCluster, *, timeout_s: float = _ANSWER_S
) -> "subprocess.CompletedProcess[str] | None":
    """Call a command of Slurm; return None after the timeout."""
    environment = {**os.environ, **cluster.environment}
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    return None
