"""Collects the facts about a run before it is queued, on this machine or on a site, for `paratune doctor CONFIG`."""

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.cluster.site import Site, processes_per_node
from paratune.config.load import LoadedConfig
from paratune.config.own_code import importable_parts
from paratune.config.problems import Problem
from paratune.doctor.finding import MachineFacts
from paratune.doctor.probe import gather, start_of
from paratune.doctor.setup import Probes, QueuedRun, Start
from paratune.errors import nearest_name
from paratune.records import CHECKPOINTS_FOLDER


def queued_run(
    path: Path,
    loaded: LoadedConfig | None,
    problems: Sequence[Problem],
    machine: MachineFacts,
    *,
    num_processes: int | None = None,
    probes: Probes | None = None,
    start: Start | None = None,
) -> QueuedRun:
    """Return the facts about a run.

    Args:
        loaded: The configuration; None if it is invalid.
        num_processes: Number of processes of the run; that of the environment when None.
        probes: Facts from tools and the system; collected when None.
        start: Start of the run on a site; that of this machine when None.
    """
    if loaded is None:
        return QueuedRun(machine, path, tuple(problems))
    from paratune import checkpoint
    from paratune.commands.doctor_data import data_facts
    from paratune.commands.doctor_model import model_facts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = importable_parts(loaded.config)
        model, tokenizer, limit = model_facts(read, machine.environ)
        data = data_facts(read, tokenizer, limit)
    start = start or start_of(loaded.config, machine.environ, num_processes)
    if probes is None:
        checkpoints = checkpoint.list_checkpoints(machine.out_folder / CHECKPOINTS_FOLDER)
        complete = checkpoint.find_newest(machine.out_folder / CHECKPOINTS_FOLDER) if checkpoints else None
        is_damaged = checkpoints and complete != checkpoints[-1]
        probes = gather(machine, checkpoints[-1].name if is_damaged else None)
    return QueuedRun(machine, path, tuple(problems), loaded, data, model, start, probes)


def start_on(site: Site, path: Path) -> Start:
    """Return the start of a run on a site."""
    return Start(
        num_nodes=site.nodes,
        processes_per_node=processes_per_node(site),
        gpus_per_node=site.gpus_per_node,
        source=str(path),
        no_network=not site.internet,
        gpu_type=site.gpu_type,
        cores_per_node=site.cpus_per_node,
        is_elsewhere=True,
        missing_folders=tuple(_missing_folders(site)),
    )


def site_environment(site: Site) -> dict[str, str]:
    """Return the environment variables of the site, with the variables of this shell expanded."""
    return {name: os.path.expandvars(str(value)) for name, value in site.environment.items()}


def _missing_folders(site: Site) -> Iterator[tuple[str, Path, str]]:
    folders = {"venv": site.venv, "container.image": site.container.image if site.container else None}
    for option, value in folders.items():
        path = Path(os.path.expandvars(value)).expanduser() if value else None
        if path is None or "$" in str(path) or path.exists():  # a variable that only the nodes have
            continue
        near = nearest_name(path.name, [file.name for file in path.parent.iterdir()]) if path.parent.is_dir() else None
        yield option, path, f"{option}: {path.with_name(near)}" if near else ""
