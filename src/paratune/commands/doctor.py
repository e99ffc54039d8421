"""`paratune doctor CONFIG`: what would go wrong in a run, found before it is queued."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paratune.cluster.site import read_site, with_size
from paratune.commands.doctor_site import check_size, site_environment, start_on
from paratune.config.layers import read_layers
from paratune.config.load import LoadedConfig, check_layer
from paratune.config.problems import Problem
from paratune.config.sections import Config, run_path
from paratune.config.sources import local_path, split_of
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import traits_of
from paratune.console import set_up_logging, stdout_for_results
from paratune.data.sources import sources_of
from paratune.doctor.checkup import describe_machine, judge, judge_setup, looking, tell
from paratune.doctor.finding import Finding, MachineFacts
from paratune.doctor.probe import gather, start_of
from paratune.doctor.setup import Probes, QueuedRun, Start
from paratune.errors import option_error
from paratune.records import CHECKPOINTS_FOLDER


def doctor_command(
    path: Path,
    overrides: Sequence[str],
    *,
    num_processes: int | None,
    as_json: bool,
    site_path: Path | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> int:
    """Print what is found; return the exit code: 0, or 1 when there is a problem.

    Raises:
        ConfigError: A file cannot be read at all, a site's profile has problems, or options contradict each other.
    """
    check_size(site_path, nodes, gpus_per_node, num_processes)
    if num_processes is not None and num_processes < 1:
        raise option_error("--nproc", num_processes, "at least 1 process is needed", code="cli.out_of_range")
    set_up_logging(speaks=False)
    with looking(f"Looking at this machine and {path}", silent=as_json), stdout_for_results():
        loaded, problems = check_layer(read_layers(path, overrides), path)
        machine = describe_machine(run_path(loaded.config) if loaded is not None else Path("runs"))
        start = None
        if site_path is not None:
            site = with_size(read_site(site_path), nodes=nodes, gpus_per_node=gpus_per_node)
            start = start_on(site, site_path)
            machine = replace(machine, environ={**machine.environ, **site_environment(site)})
        is_single = loaded is not None and _runs_alone(loaded.config)
        findings = judge(machine, is_elsewhere=start is not None, is_single=is_single)
        findings += examine_run(path, loaded, problems, machine, num_processes=num_processes, start=start)
    return tell(findings, machine, as_json=as_json)


def _runs_alone(config: Config) -> bool:
    """Return whether the strategy takes one process, which needs no network."""
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
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
    """Gather what is to be known of a run, and judge it.

    Args:
        path: Of the configuration, as it was named.
        loaded: The configuration, or None and what is wrong with it.
        problems: Of its options.
        machine: On which it is looked at.
        num_processes: With which it will be started; as the environment says when None.
        probes: What tools and system say; asked when None.
        start: How it will be started, where a site's profile says so.
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
    named = [*sources_of(data.train), *sources_of(data.validation), *sources_of(data.test)]
    paths = [local_path(source) for source in (*named, *data.extra.values(), *data.predict.values())]
    return [file for path in paths if path is not None and (file := split_of(path)[0]).is_file()]


def _damaged_checkpoint(folder: Path) -> str | None:
    """Return the name of the newest checkpoint of a run, where it is not whole."""
    from paratune import checkpoint

    there = checkpoint.list_checkpoints(folder / CHECKPOINTS_FOLDER)
    newest = checkpoint.find_newest(folder / CHECKPOINTS_FOLDER) if there else None
    return there[-1].name if there and newest != there[-1] else None
