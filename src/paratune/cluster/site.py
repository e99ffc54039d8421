"""The profile of a site: what its Slurm wants to be told, and what a job does before a run can start. One YAML file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.cluster.shell import why_no_path, why_no_shell, why_no_word
from paratune.config.layers import read_text
from paratune.config.options import options_of
from paratune.config.problems import Problem, SourceLocation, failure
from paratune.config.section import Positive, Section, Text
from paratune.config.validate import describe_value, validate_as
from paratune.config.yaml_tree import read_tree
from paratune.hardware.environment import why_not_to_set

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
Names = Name | Annotated[list[Name], Field(min_length=1)]
Time = Annotated[str, Field(pattern=r"^(\d+-)?\d+(:\d+){0,2}$")]
Memory = Annotated[str, Field(pattern=r"^\d+[KMGT]?$")]

OWN_OPTIONS = {
    **dict.fromkeys(("account", "qos", "constraint", "reservation", "exclusive", "exclude", "time"), None),
    "partition": None,
    "gres": None,
    "nodes": "nodes",
    "ntasks": "processes_per_node",
    "ntasks-per-node": "processes_per_node",
    "cpus-per-task": "cpus_per_node",
    "mem": "memory_per_node",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "signal": "save_before_s",
    "requeue": "max_requeues",
    "no-requeue": "max_requeues",
}
"""Options of sbatch that have a name of their own here; None where it is the same."""
RESERVED = ("array", "chdir", "dependency", "error", "export", "job-name", "open-mode", "output", "parsable", "wait")
"""Options of sbatch that paratune gives itself."""


class Container(Section):
    """The image in which a run is made."""

    runtime: Literal["apptainer", "singularity"] = "apptainer"
    """The program that runs it."""
    image: Text
    """Its file; `$NAME` stands for a variable."""
    binds: list[Text] = Field(default_factory=list)
    """Further folders to show in it, `HOST[:CONTAINER[:ro]]`; the working directory and the run are always there."""
    gpu: Literal["nv", "rocm"] = "nv"
    """How GPUs are shown in it, when there are any: NVIDIA's or AMD's."""
    options: list[Text] = Field(default_factory=list)
    """Further options of `exec`, such as --no-home."""


class Site(Section):
    """What a cluster wants to be told."""

    partition: Names | None = None
    """Partition, or partitions of which the first free one is taken; the site's default when not given."""
    account: Name | None = None
    """Account that pays."""
    qos: Name | None = None
    """Quality of service."""
    reservation: Name | None = None
    """Reservation to run in."""
    constraint: Text | None = None
    """Features that nodes must have, as sbatch's --constraint takes them."""
    exclude: list[Name] = Field(default_factory=list)
    """Nodes that are not to be used."""
    exclusive: bool = False
    """Whether no other job may share the nodes."""
    time: Time | None = None
    """Longest time of a job, in quotes: "minutes", "hours:minutes:seconds" or "days-hours"; a run may take several."""
    nodes: Positive = 1
    """Nodes of a run."""
    gpus_per_node: Count = 0
    """GPUs on each node; 0 for runs on CPUs."""
    gpu_type: Name | None = None
    """Kind of GPU, as the site calls it (a100)."""
    gpu_request: Literal["gres", "gpus-per-node"] = "gres"
    """With which option of sbatch GPUs are asked for."""
    processes_per_node: Positive | None = None
    """Processes on each node; one for each GPU when not given, or one."""
    cpus_per_node: Positive | None = None
    """Cores on each node."""
    memory_per_node: Memory | None = None
    """Memory on each node (64G); "0" for all of it."""
    gres: list[Text] = Field(default_factory=list)
    """Further generic resources (nvme:1)."""
    sbatch: list[Text] = Field(default_factory=list)
    """Further options of sbatch, each as --name=value."""
    modules: list[Text] = Field(default_factory=list)
    """Environment modules to load, in this order."""
    purge_modules: bool = False
    """Whether the modules of the shell that submits are dropped first."""
    venv: Text | None = None
    """Folder of the virtual environment that has paratune; `$NAME` stands for a variable."""
    container: Container | None = None
    """The image in which a run is made, instead of a virtual environment."""
    setup: list[Text] = Field(default_factory=list)
    """Lines of shell that run before all else, each on its own; the only values that are not quoted."""
    environment: dict[Text, str | int | float] = Field(default_factory=dict)
    """Variables of all processes; `$NAME` in a value stands for another variable."""
    network_interface: Name | None = None
    """Interface over which processes talk (ib0), for NCCL and gloo."""
    scratch: Text | None = None
    """Folder on each node for temporary files, in which one is made and deleted; `$NAME` stands for a variable."""
    internet: bool = True
    """Whether compute nodes reach the internet; if not, nothing tries (HF_HUB_OFFLINE=1)."""
    save_before_s: Annotated[int, Field(ge=0, le=65535)] = 300
    """Seconds before the end of its time at which a run saves and is queued again; 0 for no warning."""
    max_requeues: Count = 100
    """How often a run is queued again, at most, after a signal, the loss of a node or a standstill."""
    max_hang_requeues: Count = 1
    """How often that is, at most, after a standstill (exit code 10) with all nodes there; 0: never."""


def read_site(path: Path) -> Site:
    """Read a site's profile.

    Raises:
        ConfigError: It cannot be read, or it has problems: all are in the text, each with its line.
    """
    tree = read_tree(read_text(path), path.name)
    problems = list(tree.problems)
    found = {} if tree.value is None else tree.value
    if not isinstance(found, dict):
        known = ", ".join(options_of(Site))
        problems.append(
            Problem(
                f"it is {describe_value(found)}; a site is a mapping of options ({known})", code="config.not_mapping"
            )
        )
        raise failure(path, problems, path.name)
    values, findings = validate_as(Site, found, "a site")
    problems += findings.problems
    site = Site.model_validate(values)
    problems += _problems(site, are_all_known=not problems)
    if problems:
        raise failure(path, [_placed(problem, tree.places, path.name) for problem in problems], path.name)
    return site


def _placed(problem: Problem, places: dict[str, SourceLocation], file: str) -> Problem:
    if problem.place is not None or not problem.keys:
        return problem
    key = problem.keys[0]
    while key and key not in places:
        key = re.sub(r"(\.[^.]*|\[\d+\])$", "", key) if re.search(r"\.|\[", key) else ""
    return replace(problem, place=places.get(key, SourceLocation(file, 1)))


def _problems(site: Site, *, are_all_known: bool) -> list[Problem]:
    """Return what is wrong with values that have the right type: they go into a script, and must not act in it.

    Where not all options are known as they were meant no contradiction is looked for.
    """
    found = [*_unfit_words(site), *_unfit_options(site), *_unfit_variables(site)]
    if are_all_known:
        found += _contradictions(site)
    return [Problem(f"{key} {reason}", (key,), code="site.invalid_value") for key, reason in found]


def _unfit_words(site: Site) -> list[tuple[str, str]]:
    found = [
        *((f"modules[{number}]", why_no_word(each)) for number, each in enumerate(site.modules)),
        *((f"gres[{number}]", why_no_word(each)) for number, each in enumerate(site.gres)),
        *((f"setup[{number}]", why_no_shell(each)) for number, each in enumerate(site.setup)),
        ("venv", why_no_path(site.venv)),
        ("scratch", why_no_path(site.scratch)),
        ("constraint", None if site.constraint is None else why_no_word(site.constraint, more="&|*()[]!, ")),
    ]
    if site.container is not None:
        found.append(("container.image", why_no_path(site.container.image)))
        found += [(f"container.binds[{n}]", why_no_path(each)) for n, each in enumerate(site.container.binds)]
        found += [(f"container.options[{n}]", _why_no_option(each)) for n, each in enumerate(site.container.options)]
    return [(key, reason) for key, reason in found if reason]


def _why_no_option(text: str) -> str | None:
    if text in ("--cleanenv", "-e", "--containall", "-C"):
        return f"is {text}, which would drop the variables of the job, and with them those of the site; leave it out"
    return why_no_path(text)


def _unfit_options(site: Site) -> list[tuple[str, str]]:
    found = []
    for number, option in enumerate(site.sbatch):
        key, name = f"sbatch[{number}]", option.removeprefix("--").partition("=")[0]
        if not re.fullmatch(r"--[a-z][a-z-]*(=[^\x00-\x1f\x7f\"'\\#]+)?", option):
            found.append((key, f"is {describe_value(option)}; allowed: --name or --name=value, without quotes"))
        elif name in OWN_OPTIONS:
            found.append((key, f"gives --{name}; set it with {OWN_OPTIONS[name] or name}: of the site"))
        elif name in RESERVED:
            found.append((key, f"gives --{name}, which paratune gives itself; take it out"))
    return found


def _unfit_variables(site: Site) -> list[tuple[str, str]]:
    found: list[tuple[str, str | None]] = []
    for name, value in site.environment.items():
        found.append((f"environment.{name}", why_not_to_set(name)))
        found.append((f"environment.{name}", why_no_path(str(value))))
    return [(key, reason) for key, reason in found if reason]


def _contradictions(site: Site) -> list[tuple[str, str]]:
    found = []
    if site.container is not None and site.venv is not None:
        found.append(("venv", "is given together with container, in which it would not be used; keep one of them"))
    if site.gpus_per_node and site.processes_per_node not in (None, site.gpus_per_node):
        found.append(
            (
                "processes_per_node",
                f"is {site.processes_per_node} with gpus_per_node: {site.gpus_per_node}; a GPU has one process: "
                "leave it out",
            )
        )
    if site.gpu_type and not site.gpus_per_node:
        found.append(("gpu_type", "is given without gpus_per_node; set their number, or leave it out"))
    if site.network_interface:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            if name in site.environment:
                found.append((f"environment.{name}", "is given together with network_interface; keep one of them"))
    return found


def with_size(site: Site, *, nodes: int | None, gpus_per_node: int | None) -> Site:
    """Return the site with what the command line says of the size of a run."""
    changed: dict[str, Any] = {}
    if nodes is not None:
        changed["nodes"] = nodes
    if gpus_per_node is not None:
        changed |= {"gpus_per_node": gpus_per_node, "processes_per_node": None}
        changed |= {"gpu_type": None} if gpus_per_node == 0 else {}
    return site.model_copy(update=changed)


def processes_per_node(site: Site) -> int:
    """Return the processes of a run on each node."""
    return site.processes_per_node or max(1, site.gpus_per_node)
