"""Examines a run before it is queued, on this machine or on a site, for `paratune doctor CONFIG`."""

import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune import hardware
from paratune.cluster.site import Site, processes_per_node
from paratune.config.load import LoadedConfig
from paratune.config.own_code import importable_parts
from paratune.config.problems import Problem
from paratune.config.sections import Config, data_sources
from paratune.config.sources import local_path, path_and_split
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.doctor.checkup import judge_setup
from paratune.doctor.finding import Finding, MachineFacts
from paratune.doctor.probe import gather, start_of
from paratune.doctor.setup import Probes, QueuedRun, Start
from paratune.errors import ConfigError, nearest_name, require_at_least
from paratune.records import CHECKPOINTS_FOLDER


def runs_alone(config: Config) -> bool:
    """Return whether the strategy uses one process, which needs no network."""
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    return traits is not None and traits.max_world_size == 1


def examine_run(
    path: Path,
    loaded: LoadedConfig | None,
    problems: Sequence[Problem],
    machine: MachineFacts,
    *,
    num_processes: int | None = None,
    probes: Probes | None = None,
    start: Start | None = None,
) -> list[Finding]:
    """Collect the facts about a run, and return the findings.

    Args:
        loaded: The configuration; None if it is invalid.
        num_processes: Number of processes of the run; that of the environment when None.
        probes: Facts from tools and the system; collected when None.
        start: Start of the run on a site; that of this machine when None.
    """
    if loaded is None:
        return judge_setup(QueuedRun(machine, path, tuple(problems)))
    config = loaded.config
    start = start or start_of(config, machine.environ, num_processes)
    from paratune.commands.doctor_data import data_facts
    from paratune.commands.doctor_model import model_facts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = importable_parts(config)
        model, tokenizer, limit = model_facts(read, machine.environ)
        data = data_facts(read, tokenizer, limit)
    if probes is None:
        probes = gather(machine, start, _data_files(config), _damaged_checkpoint(machine.out_folder))
    setup = QueuedRun(machine, path, tuple(problems), loaded, data, model, start, probes)
    return judge_setup(setup)


def _data_files(config: Config) -> list[Path]:
    paths = [local_path(source) for _, source in data_sources(config.data)]
    return [file for path in paths if path is not None and (file := path_and_split(path)[0]).is_file()]


def _damaged_checkpoint(folder: Path) -> str | None:
    """Return the name of the newest checkpoint of a run if it is incomplete, else None."""
    from paratune import checkpoint

    checkpoints = checkpoint.list_checkpoints(folder / CHECKPOINTS_FOLDER)
    complete = checkpoint.find_newest(folder / CHECKPOINTS_FOLDER) if checkpoints else None
    return checkpoints[-1].name if checkpoints and complete != checkpoints[-1] else None


def check_size(site: Path | None, nodes: int | None, gpus_per_node: int | None, num_processes: int | None) -> None:
    """Raise a `ConfigError` if options contradict each other or are out of range."""
    if site is None and (nodes is not None or gpus_per_node is not None):
        message = "--nodes and --gpus-per-node describe a cluster: name its file with --site"
        raise ConfigError(message, code="cli.option_missing", option="--site")
    if site is not None and num_processes is not None:
        message = "--nproc describes this machine and --site a cluster; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--nproc", "--site"))
    require_at_least("--nodes", nodes)
    require_at_least("--gpus-per-node", gpus_per_node, 0)
    require_at_least("--nproc", num_processes)


def start_on(site: Site, path: Path) -> Start:
    """Return the start of a run on a site."""
    return Start(
        num_nodes=site.nodes,
        processes_per_node=processes_per_node(site),
        gpus_per_node=site.gpus_per_node,
        source=str(path),
        needs_srun=True,
        no_network=not site.internet,
        time_limit_s=None if site.time is None else seconds(site.time),
        gpu_type=site.gpu_type,
        cores_per_node=site.cpus_per_node,
        is_elsewhere=True,
        brings_software=bool(site.modules or site.container or site.setup),
        unfit=tuple(_unfit(site)),
    )


def site_environment(site: Site) -> dict[str, str]:
    """Return the environment variables of the site, with the variables of this shell expanded."""
    return {name: os.path.expandvars(str(value)) for name, value in site.environment.items()}


def seconds(time: str) -> float:
    """Return the seconds of a time in a format of Slurm: minutes, minutes:seconds, hours:minutes:seconds, days-hours...

    >>> seconds("90"), seconds("1-12"), seconds("08:00:00")
    (5400.0, 129600.0, 28800.0)
    """
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
        return float(int(days) * 86400 + hours * 3600 + minutes * 60 + secs)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))


def _unfit(site: Site) -> Iterator[tuple[str, str, str, str]]:
    """Yield the folders and partitions of the site file that do not exist on this machine; partitions need Slurm."""
    folders = {"venv": site.venv, "container.image": site.container.image if site.container else None}
    for option, value in folders.items():
        path = Path(os.path.expandvars(value)).expanduser() if value else None
        if path is None or "$" in str(path) or path.exists():  # a variable that only the nodes have
            continue
        near = nearest_name(path.name, [file.name for file in path.parent.iterdir()]) if path.parent.is_dir() else None
        line = f"{option}: {path.with_name(near)}" if near else ""
        yield "folder", option, f"{path} does not exist on this machine", line
    known = _partitions()
    names = [site.partition] if isinstance(site.partition, str) else list(site.partition or [])
    for name in names if known else ():
        if name not in known:
            line = f"partition: {nearest_name(name, known) or known[0]}"
            yield "partition", "partition", f"Slurm has no partition {name} (it has: {', '.join(known)})", line


def _partitions() -> list[str]:
    """Return the partitions of this cluster; an empty list without Slurm."""
    if shutil.which("sinfo") is None:
        return []
    text = hardware.command_output("sinfo", "--noheader", "--format=%R") or ""
    return list(dict.fromkeys(text.split()))
