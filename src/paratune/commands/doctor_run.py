"""Examines a run before it is queued, for `paratune doctor CONFIG`."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.sources import local_path, path_and_split
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.data.sources import source_files
from paratune.doctor.checkup import judge_setup
from paratune.doctor.finding import Finding, MachineFacts
from paratune.doctor.probe import gather, start_of
from paratune.doctor.setup import Probes, QueuedRun, Start
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
        model, tokenizer, limit = model_facts(config, machine.environ)
        data = data_facts(config, tokenizer, limit)
    if probes is None:
        probes = gather(machine, start, _data_files(config), _damaged_checkpoint(machine.out_folder))
    setup = QueuedRun(machine, path, tuple(problems), loaded, data, model, start, probes)
    return judge_setup(setup)


def _data_files(config: Config) -> list[Path]:
    data = config.data
    sources = [*source_files(data.train), *source_files(data.validation), *source_files(data.test)]
    paths = [local_path(source) for source in (*sources, *data.extra.values(), *data.predict.values())]
    return [file for path in paths if path is not None and (file := path_and_split(path)[0]).is_file()]


def _damaged_checkpoint(folder: Path) -> str | None:
    """Return the name of the newest checkpoint of a run if it is incomplete, else None."""
    from paratune import checkpoint

    checkpoints = checkpoint.list_checkpoints(folder / CHECKPOINTS_FOLDER)
    complete = checkpoint.find_newest(folder / CHECKPOINTS_FOLDER) if checkpoints else None
    return checkpoints[-1].name if checkpoints and complete != checkpoints[-1] else None
