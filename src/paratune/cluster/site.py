"""Reads a site file (YAML), which describes a Slurm cluster, and quotes its values for shell scripts."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.problems import Problem
from paratune.config.section import Positive, Section, Text
from paratune.config.validate import describe_value, read_section_file
from paratune.hardware.environment import why_not_to_set

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
Names = Name | Annotated[list[Name], Field(min_length=1)]
Time = Annotated[str, Field(pattern=r"^(\d+-)?\d+(:\d+){0,2}$")]
Memory = Annotated[str, Field(pattern=r"^\d+[KMGT]?$")]

OWN_OPTIONS = {
    **{name: name for name in ("account", "qos", "time", "partition", "gres", "nodes")},
    "ntasks": "processes_per_node",
    "ntasks-per-node": "processes_per_node",
    "cpus-per-task": "cpus_per_node",
    "mem": "memory_per_node",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "exclusive": "exclusive",
    "signal": "save_before_s",
    "requeue": "max_requeues",
    "no-requeue": "max_requeues",
}
"""Option of the site by option of sbatch."""
RESERVED = ("array", "chdir", "dependency", "error", "export", "job-name", "open-mode", "output", "parsable", "wait")
"""Options of sbatch that paratune sets."""
SRUN_RESERVED = (
    *("nodes", "ntasks", "ntasks-per-node", "kill-on-bad-exit", "wait", "open-mode", "output", "error", "input"),
    *("export", "chdir", "multi-prog", "overlap", "nodelist"),
)
"""Options of srun that paratune sets."""
SIGNAL_EARLY_S = 60
"""Slurm sends the signal of `save_before_s` up to so many seconds earlier."""


class Container(Section):
    """A container image for runs."""

    runtime: Literal["apptainer", "singularity"] = "apptainer"
    """Program that runs the image."""
    image: Text
    """File of the image; may contain variables (`$NAME`)."""
    binds: list[Text] = Field(default_factory=list)
    """Further folders to mount, `HOST[:CONTAINER[:ro]]`; the working directory and the run are always mounted."""
    gpu: Literal["nv", "rocm"] = "nv"
    """Option for GPUs, if there are any: NVIDIA (nv) or AMD (rocm)."""
    options: list[Text] = Field(default_factory=list)
    """Further options of `exec`, such as --no-home."""


class Site(Section):
    """A Slurm cluster."""

    partition: Names | None = None
    """Partition, or a list from which Slurm takes the first free one; the default of the cluster if not set."""
    account: Name | None = None
    """Account for the job."""
    qos: Name | None = None
    """Quality of service."""
    time: Time | None = None
    """Time limit of a job, in quotes: "minutes", "hours:minutes:seconds" or "days-hours". A run may take several."""
    nodes: Positive = 1
    """Number of nodes of a run."""
    gpus_per_node: Count = 0
    """GPUs on each node; 0 for runs on CPUs."""
    gpu_type: Name | None = None
    """Type of GPU in Slurm (a100)."""
    gpu_request: Literal["gres", "gpus-per-node"] = "gres"
    """Option of sbatch that requests GPUs."""
    processes_per_node: Positive | None = None
    """Processes on each node; by default one for each GPU, or one."""
    cpus_per_node: Positive | None = None
    """Cores on each node."""
    memory_per_node: Memory | None = None
    """Memory on each node (64G); "0" for all memory."""
    gres: list[Text] = Field(default_factory=list)
    """Further generic resources (nvme:1)."""
    exclusive: bool | Literal["user", "mcs"] = False
    """Whether no other job runs on its nodes, or only those of the same user (user) or group (mcs)."""
    sbatch: list[Text] = Field(default_factory=list)
    """Further options of sbatch, each as --name or --name=value: --constraint=h100, --exclude=n7."""
    srun: list[Text] = Field(default_factory=list)
    """Further options of srun, which starts the task of each node: --cpu-bind=cores, --mpi=none."""
    modules: list[Text] = Field(default_factory=list)
    """Environment modules to load, in this order."""
    venv: Text | None = None
    """Folder of the virtual environment with paratune; may contain variables (`$NAME`)."""
    container: Container | None = None
    """Container image for runs, instead of a virtual environment."""
    setup: list[Text] = Field(default_factory=list)
    """Shell commands that run first, such as `module purge`, one per line; the only values that are not quoted."""
    environment: dict[Text, str | int | float] = Field(default_factory=dict)
    """Environment variables of all processes; values may contain variables (`$NAME`)."""
    network_interface: Names | None = None
    """Network interface for NCCL and gloo (ib0), or several (hsn0, hsn1)."""
    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    """What follows the name of a node in its name on the fast network (-ib, .hsn); default: its address in Slurm."""
    scratch: Text | None = None
    """Folder on each node for temporary files, which the job deletes; may contain variables (`$NAME`)."""
    internet: bool = True
    """Whether compute nodes have internet access; if not, runs are offline (HF_HUB_OFFLINE=1)."""
    save_before_s: Annotated[int, Field(ge=0, le=65535)] = 300
    """Seconds before the time limit at which a run saves a checkpoint and is queued again; 0 for never. `time` must be
    more than a minute longer."""
    max_requeues: Count = 100
    """How often a run may be queued again after a signal, a lost node or a hang; twice without a new checkpoint."""
    max_hang_requeues: Count = 1
    """How often of these after a hang (exit code 10) without a lost node; 0 for never."""


PLAIN = Site(
    partition="gpu",
    account="my-project",
    time="08:00:00",
    gpus_per_node=4,
    cpus_per_node=32,
    memory_per_node="200G",
    venv="$HOME/paratune/.venv",
)
"""The site of configs/sites/plain.yaml, of a dry run without a site."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_VARIABLE = re.compile(r"\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_WORD = re.compile(r"[A-Za-z0-9_.,:/=+@%-]+")


def quoted(text: str) -> str:
    """Return text as one shell word in which only `$NAME` and `${NAME}` are expanded.

    >>> quoted("/scratch/$USER/my data")
    '"/scratch/$USER/my data"'
    """
    if _WORD.fullmatch(text):
        return text
    if "$" not in text:
        return shlex.quote(text)
    # Variables stay as they are; other characters that act inside of double quotes are escaped.
    escaped = re.sub(rf'({_VARIABLE.pattern})|([\\"`$])', lambda match: match[1] or f"\\{match[3]}", text)
    return f'"{escaped}"'


def directive(name: str, value: str | None = None) -> str:
    """Return an #SBATCH line; sbatch handles quotes like a shell, but expands no variables."""
    if value is None:
        return f"#SBATCH --{name}"
    word = value if _WORD.fullmatch(value) else f'"{value}"'
    return f"#SBATCH --{name}={word}"


def word_problem(text: str) -> str | None:
    """Return why a text is not a plain word; None if it is."""
    if _WORD.fullmatch(text):
        return None
    return f"is {_shown(text)}; allowed: letters, digits and _ . , : / = + @ % -"


def path_problem(text: str | None) -> str | None:
    """Return why a text cannot be quoted; None if it can. `$NAME` and `${NAME}` are variables."""
    if text is None:
        return None
    if _CONTROL.search(text):
        return f"is {_shown(text)}; line breaks and other control characters are not allowed"
    if "$" in _VARIABLE.sub("", text):
        return f"is {_shown(text)}; after $, only the name of a variable is allowed"
    return None


def shell_problem(line: str) -> str | None:
    """Return why a text is not a complete shell command; None if it is, or bash was not found."""
    if _CONTROL.search(line.replace("\t", " ")):
        return f"is {_shown(line)}; write each line as a separate item"
    bash = shutil.which("bash")
    if bash is None:
        return None
    checked = subprocess.run([bash, "-n", "-c", line], capture_output=True, text=True, timeout=10, check=False)
    if checked.returncode == 0:
        return None
    messages = checked.stderr.strip().splitlines()
    return f"is {_shown(line)}, which is a syntax error in bash: {messages[0].rpartition(': ')[2] if messages else '?'}"


def sbatch_path_problem(text: str) -> str | None:
    """Return why a path is not allowed in an #SBATCH line; None if it is."""
    if _CONTROL.search(text) or re.search(r"[\"'\\]", text):
        return f"{_shown(text)} contains a quote, a backslash or a line break, which sbatch cannot read in a path"
    return None


def _shown(text: str) -> str:
    short = text if len(text) <= 60 else f"{text[:56]} ..."
    return repr(short)


def read_site(path: Path) -> Site:
    """Return the site in a file.

    Raises:
        ConfigError: The file is unreadable, or has problems, which are listed with their lines.
    """
    return read_section_file(path, Site, "a site", _problems)


def _problems(values: dict[str, Any], _: dict[str, Any], is_valid: bool) -> list[Problem]:
    """Return the problems of values with the right types, which must be safe in a shell script.

    Contradictions are checked only if all options are valid.
    """
    site = Site.model_validate(values)
    reasons = [
        *((f"modules[{number}]", word_problem(module)) for number, module in enumerate(site.modules)),
        *((f"gres[{number}]", word_problem(resource)) for number, resource in enumerate(site.gres)),
        *((f"setup[{number}]", shell_problem(line)) for number, line in enumerate(site.setup)),
        ("venv", path_problem(site.venv)),
        ("scratch", path_problem(site.scratch)),
    ]
    for name, value in site.environment.items():
        reasons += [(f"environment.{name}", reason) for reason in (why_not_to_set(name), path_problem(str(value)))]
    if site.container is not None:
        reasons.append(("container.image", path_problem(site.container.image)))
        reasons += [(f"container.binds[{n}]", path_problem(bind)) for n, bind in enumerate(site.container.binds)]
        for number, option in enumerate(site.container.options):
            reason = path_problem(option)
            if option in ("--cleanenv", "-e", "--containall", "-C"):
                reason = f"is {option}, which removes the variables of the job and of the site; leave it out"
            reasons.append((f"container.options[{number}]", reason))
    given = [("sbatch", *item) for item in enumerate(site.sbatch)] + [("srun", *item) for item in enumerate(site.srun)]
    for program, number, option in given:
        key, name = f"{program}[{number}]", option.removeprefix("--").partition("=")[0]
        own = OWN_OPTIONS if program == "sbatch" else {}
        if not re.fullmatch(r"--[a-z][a-z-]*(=[^\x00-\x1f\x7f\"'\\#]+)?", option):
            reasons.append((key, f"is {describe_value(option)}; allowed: --name or --name=value, without quotes"))
        elif name in own:
            reasons.append((key, f"gives --{name}; set it with {own[name]}: of the site"))
        elif name in (RESERVED if program == "sbatch" else SRUN_RESERVED):
            reasons.append((key, f"gives --{name}, which paratune sets; remove it"))
    reasons += _contradictions(site) if is_valid else []
    return [Problem(f"{key} {reason}", (key,), code="site.invalid_value") for key, reason in reasons if reason]


def _contradictions(site: Site) -> list[tuple[str, str]]:
    problems = []
    if site.container is not None and site.venv is not None:
        problems.append(("venv", "has no effect with container; keep one of them"))
    least_s = site.save_before_s + SIGNAL_EARLY_S
    if site.save_before_s and site.time and 0 < (given_s := seconds_of(site.time)) <= least_s:
        given = (
            f"is {given_s} s; a run saves {site.save_before_s} s (save_before_s) before the end, and Slurm may signal"
        )
        remedy = "allow more time, or set a smaller save_before_s"
        problems.append(("time", f"{given} {SIGNAL_EARLY_S} s earlier: it must be above {least_s} s; {remedy}"))
    if site.gpus_per_node and site.processes_per_node not in (None, site.gpus_per_node):
        given = f"is {site.processes_per_node} with gpus_per_node: {site.gpus_per_node}"
        problems.append(("processes_per_node", f"{given}; a GPU has one process; leave it out"))
    if site.gpu_type and not site.gpus_per_node:
        problems.append(("gpu_type", "has no effect without gpus_per_node; set it, or leave gpu_type out"))
    if site.network_interface:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            if name in site.environment:
                problems.append((f"environment.{name}", "conflicts with network_interface; keep one of them"))
    return problems


def seconds_of(time: str) -> int:
    """Return the seconds of a time limit of Slurm; 0 is no limit."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # D-HH[:MM[:SS]], HH:MM:SS, or MM[:SS]
    hours, minutes, seconds = (([0] if not days and len(parts) < 3 else []) + parts + [0, 0])[:3]
    return 60 * (60 * (24 * int(days or 0) + hours) + minutes) + seconds


def with_size(site: Site, *, nodes: int | None, gpus_per_node: int | None) -> Site:
    """Return the site with the size of a run from the command line."""
    changed: dict[str, Any] = {}
    if nodes is not None:
        changed["nodes"] = nodes
    if gpus_per_node is not None:
        changed |= {"gpus_per_node": gpus_per_node, "processes_per_node": None}
        changed |= {"gpu_type": None} if gpus_per_node == 0 else {}
    return site.model_copy(update=changed)


def processes_per_node(site: Site) -> int:
    """Return the number of processes on each node."""
    return site.processes_per_node or max(1, site.gpus_per_node)
