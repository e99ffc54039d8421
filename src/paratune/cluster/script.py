"""Writes the batch script of a job, with quoted values and the handling of signals.

srun starts one task on each node: `paratune train --nproc` on one node, torchrun on several, with the rendezvous on the
first node. A signal (the time limit is near, or the job is preempted) is forwarded to srun as SIGUSR1, repeatedly,
since a rank that is starting does not handle it; ranks save and end with 75, and the job is queued again.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paratune.base.units import counted
from paratune.cluster.site import Container, Site, directive, processes_per_node, quoted
from paratune.processes.launcher import FIRST_PORT, NUM_PORTS
from paratune.processes.place import EXIT_CODES_VARIABLE
from paratune.records import CHECKPOINTS_FOLDER
from paratune.records.sweep import cell_run_folder

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")

_END = """
# The exit codes of ranks are more specific than that of srun, or of torchrun, which is always 1.
codes=" $(cat "$codes_folder"/* 2>/dev/null | tr '\\n' ' ') "
has() { case "$codes" in *" $1 "*) ;; *) return 1 ;; esac; }
if [ "$code" != 0 ] || has 75; then  # below torchrun, a rank that saved and stopped ends with 0
  for rank_code in 2 3 4 6 7 8 9 10 1 5 75; do
    if has "$rank_code"; then code=$rank_code; break; fi
  done
  silent=
  for ((rank = 0; rank < processes; rank++)); do
    [ -e "$codes_folder/rank$rank" ] || silent="$silent $rank"
  done
  [ "$processes" -gt 1 ] && [ -n "$silent" ] && log "no exit code, probably killed: rank$silent of $processes"
fi

lost_nodes() {
  for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    timeout 20 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" true >/dev/null 2>&1 || echo "$node"
  done
}
hung() {
  # The first hang may have a transient cause; repeated hangs have not.
  hangs=0
  [ "$restarts" = 0 ] || hangs=$(cat "$folder/$job.hangs" 2>/dev/null || echo 0)
  if [ "$hangs" -lt "$max_hang_requeues" ]; then
    echo $((hangs + 1)) > "$folder/$job.hangs" && why="it hung"
  else
    log "it hung: not queued again, after $hangs times of max_hang_requeues: $max_hang_requeues"
  fi
}
stalled() {
  # A run that reaches no checkpoint in the time of its job would be queued again without end.
  stalls=0
  [ "$restarts" = 0 ] || stalls=$(cat "$folder/$job.stalls" 2>/dev/null || echo 0)
  if [ "$(newest)" = "$newest_before" ]; then stalls=$((stalls + 1)); else stalls=0; fi
  echo "$stalls" > "$folder/$job.stalls"
  [ "$stalls" -gt 2 ]
}
job_state() { scontrol --oneliner show job "$SLURM_JOB_ID" | sed -n 's/.*JobState=\\([A-Z_]*\\).*/\\1/p'; }

why= note=
if [ "$code" != 0 ]; then
  if [ "$signal" != none ] && { has 75 || [ "$codes" = "  " ]; }; then
    why="$signal"
    code=75
  elif [ "$signal" = none ] && { [ "$code" = 5 ] || [ "$code" = 10 ] || [ "$codes" = "  " ]; }; then
    lost=$(lost_nodes | tr '\\n' ' ')
    [ -n "$lost" ] && why="lost $lost"
  fi
  [ -z "$why" ] && [ "$code" = 10 ] && hung
fi
# A cancelled job is not queued again; Slurm itself requeues a job that it preempts.
if [ -n "$why" ] && [ "$(job_state)" = RUNNING ]; then
  if [ "$restarts" -ge "$max_requeues" ]; then
    log "$why: not queued again, after $restarts times of max_requeues: $max_requeues"
  elif stalled; then
    log "$why: not queued again, after 2 times without a new checkpoint: the job needs more time (time: of the site)"
    code=5 note=" no progress"
  else
    log "$why: queued again"
    echo requeued > "$folder/$job.exit"
    trap - USR1 TERM
    scontrol requeue "$SLURM_JOB_ID" && sleep 300  # Slurm ends this script
  fi
fi
echo "$code$note" > "$folder/$job.exit"
log "ended with exit code $code"
exit "$code"
"""


@dataclass(frozen=True)
class ArrayRun:
    """One run of a job; an array has several."""

    name: str
    config: Path
    """Complete configuration at the time of submission."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables of the matrix; None unsets one."""


@dataclass(frozen=True)
class BatchJob:
    """A job for which a script is written."""

    name: str
    site: Site
    runs: tuple[ArrayRun, ...]
    """One run, or those of an array."""
    folder: Path
    """Folder for script, outputs and exit codes; absolute."""
    directory: Path
    """Working directory of the run; absolute."""
    is_array: bool = False
    max_at_once: int | None = None
    """Maximum number of parallel runs of an array; None for no limit."""
    run_code: bool = False
    """Whether the job trains with --run-code."""

    @property
    def num_processes(self) -> int:
        return self.site.nodes * processes_per_node(self.site)


def script_text(job: BatchJob) -> str:
    """Return the batch script of a job."""
    kind = f"Array of {len(job.runs)} runs" if job.is_array else "Run"
    size = f"{counted(job.site.nodes, 'node')}, {counted(processes_per_node(job.site), 'process', 'processes')} on each"
    lines = ["#!/bin/bash", f"# {kind} {job.name}: {size}."]
    lines += ["# Written by paratune launch: edit the site file and submit again.", *_directives(job), ""]
    number = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.is_array else "$SLURM_JOB_ID"
    lines += [f"folder={shlex.quote(str(job.folder))}", f'job="{number}"', "restarts=${SLURM_RESTART_COUNT:-0}"]
    lines += [f"max_requeues={job.site.max_requeues} max_hang_requeues={job.site.max_hang_requeues}"]
    lines += [f"processes={job.num_processes}", *_SIGNALS.splitlines(), *setup_lines(job.site)]
    lines += [*_run_of(job), *_task(job), *_start(job), *_END.splitlines()]
    return "\n".join(lines) + "\n"


def _directives(job: BatchJob) -> Iterator[str]:
    site = job.site
    yield directive("job-name", job.name)
    for name in ("partition", "account", "qos", "time"):
        if value := getattr(site, name):
            yield directive(name, value if isinstance(value, str) else ",".join(value))
    yield directive("nodes", str(site.nodes))
    yield directive("ntasks-per-node", "1")
    if site.cpus_per_node is not None:
        yield directive("cpus-per-task", str(site.cpus_per_node))
    if site.memory_per_node is not None:
        yield directive("mem", site.memory_per_node)
    resources, gpus = list(site.gres), f"{site.gpu_type}:" if site.gpu_type else ""
    gpus += str(site.gpus_per_node)
    if site.gpus_per_node and site.gpu_request == "gres":
        resources.insert(0, f"gpu:{gpus}")
    elif site.gpus_per_node:
        yield directive("gpus-per-node", gpus)
    if resources:
        yield directive("gres", ",".join(resources))
    if site.exclusive:
        yield directive("exclusive", None if site.exclusive is True else site.exclusive)
    for option in site.sbatch:
        name, _, value = option.removeprefix("--").partition("=")
        yield directive(name, value or None)
    if site.save_before_s:
        yield directive("signal", f"B:USR1@{site.save_before_s}")
    yield directive("requeue" if site.max_requeues else "no-requeue")
    yield directive("open-mode", "append")
    yield directive("chdir", str(job.directory))
    if job.is_array:
        limit = f"%{job.max_at_once}" if job.max_at_once else ""
        yield directive("array", f"0-{len(job.runs) - 1}{limit}")
    folder = str(job.folder).replace("%", "%%")
    yield directive("output", f"{folder}/{'%A_%a' if job.is_array else '%j'}.txt")


def setup_lines(site: Site) -> Iterator[str]:
    """Yield the setup of a job: commands of the site, modules, virtual environment and variables."""
    if site.setup:
        yield from ("", "# Commands of the site.", *site.setup)
    if site.modules:
        yield from ("", *(f"module load {quoted(module)} || not_ready {quoted(module)}" for module in site.modules))
    if site.venv is not None:
        activate = quoted(f"{site.venv}/bin/activate")
        yield from ("", f". {activate} || not_ready {activate}")
    variables = []
    if site.network_interface is not None:
        names = site.network_interface
        names = names if isinstance(names, str) else ",".join(names)
        variables += [f"export {name}={quoted(names)}" for name in INTERFACES]
    if not site.internet:
        variables.append(f"export {' '.join(f'{name}=1' for name in OFFLINE)}")
    variables += [f"export {name}={quoted(str(value))}" for name, value in site.environment.items()]
    if variables:
        yield from ("", *variables)


def _run_of(job: BatchJob) -> Iterator[str]:
    """Yield the variables of the run, which the tasks inherit."""
    yield ""
    if job.is_array:
        yield 'case "$SLURM_ARRAY_TASK_ID" in'
    indent = "    " if job.is_array else ""
    for number, run in enumerate(job.runs):
        folder = cell_run_folder(job.folder.parent, run.name) if job.is_array else job.folder.parent
        if job.is_array:
            yield f"  {number}) # {run.name}"
        yield f"{indent}export config={shlex.quote(str(run.config))}"
        yield f"{indent}run_folder={shlex.quote(str(folder))}"
        for name, value in run.environment.items():
            # Literal: values of a matrix are not expanded.
            yield indent + (f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
        if job.is_array:
            yield "    ;;"
    if job.is_array:
        yield "esac"


def _task(job: BatchJob) -> Iterator[str]:
    site = job.site
    yield from ("", "# Runs once on each node.", "task() {")
    yield "  trap '' USR1  # for the ranks, which handle it; torchrun would die from it"
    yield "  trap : TERM  # the run gets it, too; wait for the run"
    if site.scratch is not None:
        yield f'  export TMPDIR={quoted(site.scratch)}"/paratune-$SLURM_JOB_ID"'
        yield '  mkdir -p "$TMPDIR" && trap \'rm -rf "$TMPDIR"\' EXIT'
    words = [*(_container_words(job, site.container) if site.container else []), *_command(job)]
    yield from _wrapped(words, indent="  ")
    yield "}"


def _command(job: BatchJob) -> list[str]:
    count = processes_per_node(job.site)
    nproc = [f"--nproc {count}"] if job.site.nodes == 1 else []
    words = ["train", '"$config"', *nproc, "--resume", *(["--run-code"] if job.run_code else [])]
    if job.site.nodes == 1:
        return ["paratune", *words]
    return [
        "torchrun",
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={count}',
        # Not c10d: its agents unpickle data from their store, to which anyone with access to the port can write.
        '--rdzv-backend=static --rdzv-id="$rendezvous_id" --rdzv-endpoint="$endpoint" --node-rank="$((SLURM_NODEID))"',
        '--log-dir="$ranks_folder" --tee=3',
        "--no-python paratune",
        *words,
    ]


def _container_words(job: BatchJob, container: Container) -> list[str]:
    binds = [f"--bind {quoted(bind)}" for bind in container.binds]
    if not job.folder.is_relative_to(job.directory):
        binds.insert(0, f"--bind {shlex.quote(str(job.folder.parent))}")
    if job.site.scratch is not None:
        binds.insert(0, '--bind "$TMPDIR"')
    gpu = [f"--{container.gpu}"] if job.site.gpus_per_node else []
    options = [quoted(option) for option in container.options]
    return [f'{container.runtime} exec --bind "$PWD" --pwd "$PWD"', *gpu, *binds, *options, quoted(container.image)]


def _wrapped(words: Iterable[str], *, indent: str) -> Iterator[str]:
    """Yield words as one command, in lines of at most 110 characters."""
    lines = [indent]
    for word in words:
        if len(lines[-1]) + len(word) > 110 and lines[-1].strip():
            lines[-1] += "\\"
            lines.append(f"{indent}  ")
        lines[-1] += f"{word} "
    yield from (line.rstrip() for line in lines)


_SIGNALS = """
log() { echo "$(date +%FT%T) $*"; }
not_ready() {
  log "$1 cannot be loaded: the run was not started"
  echo 5 > "$folder/$job.exit"
  exit 5
}

# Signals: the time limit is near, or the job is preempted. The run saves and ends; see the end of this script.
signal=none step=
forward() {
  [ "$signal" = none ] || return 0
  signal=$1
  log "$1: forwarded to the run, which saves and ends"
  send_usr1 >/dev/null 2>&1 &
}
send_usr1() {
  # Repeatedly: a rank that is starting does not handle the signal.
  trap - USR1 TERM
  while [ -n "$step" ] && kill -USR1 "$step"; do sleep 5; done
}
trap 'forward USR1' USR1
trap 'forward TERM' TERM"""


def _start(job: BatchJob) -> Iterator[str]:
    nodes = job.site.nodes
    yield from f"""
codes_folder="$folder/$job.codes"
rm -rf "$codes_folder" && mkdir -p "$codes_folder" || exit 4
export {EXIT_CODES_VARIABLE}="$codes_folder"
newest() {{ ls "$run_folder/{CHECKPOINTS_FOLDER}" 2>/dev/null | grep -E '^step_[0-9]+$' | sort -V | tail -n 1; }}
newest_before=$(newest)
""".splitlines()
    if nodes > 1:
        address = "$(scontrol --oneliner show node \"$head\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')"
        if job.site.host_suffix is not None:
            address = f'"$head"{job.site.host_suffix}'
        yield from f"""
# Rendezvous on the first node, at a random port for this start of the job.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address={address}
draw() {{ echo $(({FIRST_PORT} + $(od -An -N4 -tu4 /dev/urandom) % {NUM_PORTS})); }}
port=$(draw)
while (: </dev/tcp/127.0.0.1/$port) 2>/dev/null; do port=$(draw); done  # in use
export endpoint="${{address:-$head}}:$port"
export rendezvous_id="$SLURM_JOB_ID.$restarts" ranks_folder="$folder/$job.ranks"
""".splitlines()
    own = " ".join(map(quoted, job.site.srun))
    own = f" {own}" if own else ""
    yield from f"""
start() {{
  # If one node ends, the others have two minutes to end.
  srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=120{own} \\
    --open-mode=append --output="${{folder//%/%%}}/$job.node%n.txt" bash -c "$(declare -f task); task" &
  step=$!
  [ "$signal" = none ] || send_usr1 >/dev/null 2>&1 &
  while :; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break  # otherwise the trap has ended the wait
  done
  wait "$step"
  code=$?
}}
code=75
log "start $restarts of job $job on $SLURM_JOB_NODELIST: $config"
[ "$signal" = none ] && start
""".splitlines()
