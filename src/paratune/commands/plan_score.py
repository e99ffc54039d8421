"""`paratune plan --score` and `--calibrate`: compare plans with measurements, and measure this machine."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from paratune.base.text import plain
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    from paratune.planning.constants import Constants
    from paratune.planning.machine import Machine
    from paratune.planning.refinement import Observation


def score_command(folders: Sequence[Path], *, as_json: bool) -> int:
    """Print predicted and measured values of finished runs; return the exit code.

    Raises:
        CheckpointError: A folder is not a run, or no run is finished.
    """
    from paratune.planning.score import COLUMNS, Score, row_texts, score_run
    from paratune.reports.measures import step_ms
    from paratune.reports.runs.read import read_runs
    from paratune.reports.tables.table import make_table
    from paratune.reports.tables.terminal import rich_table

    runs = []
    for run in read_runs([run for folder in folders for run in runs_of(folder)]).runs:
        mean_ms = step_ms(run)
        runs.append(
            score_run(
                run.name, run.run.model_dump(), run.summary.model_dump(), None if mean_ms is None else mean_ms / 1000
            )
        )
    score = Score(tuple(runs))
    if as_json:
        print_json(score.as_dict())
        return EXIT_OK
    table = make_table("score", "", COLUMNS, map(row_texts, score.runs), 2)
    for part in rich_table(table, Console().width):
        print_result(part)
    for line in score.lines():
        print_result(Text(plain(line)))
    return EXIT_OK


def runs_of(folder: Path) -> list[Path]:
    """Return the folder itself, or the runs in the folder of a matrix."""
    from paratune.records.sweep import RUNS_FOLDER, holds_sweep

    if not holds_sweep(folder):
        return [folder]
    return sorted(run for run in (folder / RUNS_FOLDER).iterdir() if run.is_dir())


def calibrate_command(*, as_json: bool, speaks: bool, write: Path | None = None) -> dict[str, Any] | None:
    """Measure this machine and save the constants; return them as JSON values.

    Under torchrun on several nodes, rank 0 measures its node and all ranks measure the network; the other ranks print
    nothing and return None.

    Args:
        speaks: Whether this is all that the command prints.
        write: Device file to write, besides the file in the cache.

    Raises:
        ParatuneError: The machine cannot be measured, or the constants cannot be saved.
    """
    import logging

    from paratune.planning.calibration import calibrate, calibrate_nodes, write_node_file
    from paratune.planning.written import check_writable
    from paratune.processes.place import local_world_size, place_from_environment

    place = place_from_environment()
    ranks_per_node = local_world_size(place)
    if write is not None and place.rank == 0:
        check_writable(write)
    set_up_logging(speaks=place.rank == 0)
    log = logging.getLogger(__name__)

    def log_progress(text: str) -> None:
        log.info("measuring %s", text)

    with stdout_for_results():
        # A measurement of the network needs all ranks; one node is measured by its rank 0 alone.
        if place.world_size > ranks_per_node:
            calibration = calibrate_nodes(place.rank, place.local_rank, ranks_per_node, log_progress)
        else:
            calibration = None if place.rank else calibrate(log_progress)
    if calibration is None:
        return None
    if write is not None:
        write_node_file(write, calibration.machine, calibration.by_threads)
    if not as_json and speaks:
        lines = [] if write is None else [f"{write}: use it with paratune plan CONFIG --device {write}"]
        for line in [*calibration.lines(), *lines]:
            print_result(Text(plain(line)))
    by_threads = {str(threads): constants.as_json() for threads, constants in calibration.by_threads.items()}
    about = {"machine": calibration.machine.name, "path": str(calibration.path), "seconds": calibration.seconds}
    written = None if write is None else str(write)
    return {**about, "written": written, "launching": dict(calibration.launching), "by_threads": by_threads}


def refine_command(folders: Sequence[Path], *, as_json: bool) -> int:
    """Refine the figures of this machine by runs on it, and save them; return the exit code.

    Raises:
        CheckpointError: A folder is not a run, or no run is finished.
        ConfigError: This machine has not been calibrated, or no run can be compared with it.
    """
    from paratune.planning.calibration import refining_runs, store_refined
    from paratune.planning.constants import Constants
    from paratune.planning.machine import this_machine
    from paratune.planning.refinement import refine

    machine = this_machine()
    if not machine.is_calibrated:
        message = f"{machine.name} has not been measured; first run paratune plan --calibrate alone"
        raise ConfigError(message, code="plan.not_calibrated", name=machine.name)
    seen, names, left_out = _observed(folders, machine, refining_runs(machine.name))
    reasons = [f"{name} is not used: {reason}" for name, reason in left_out.items()]
    if not names:
        message = f"no run can be compared with the figures of {machine.name}: {'; '.join(reasons)}"
        raise ConfigError(message, code="plan.nothing_to_refine", name=machine.name)
    before = machine.by_threads or {1: machine.constants or Constants()}
    refined = {threads: refine(before[threads], observations) for threads, observations in seen.items()}
    path = store_refined(machine, refined, names)
    if as_json:
        by_threads = {str(threads): constants.as_json() for threads, constants in refined.items()}
        print_json({"machine": machine.name, "path": str(path), "left_out": left_out, "by_threads": by_threads})
        return EXIT_OK
    for line in [*_refined_lines(before, refined), *reasons, f"saved in {path}"]:
        print_result(Text(plain(line)))
    return EXIT_OK


def _observed(
    folders: Sequence[Path], machine: "Machine", known: Sequence[str]
) -> tuple[dict[int, list["Observation"]], list[str], dict[str, str]]:
    """Return observations by threads of a process, the names of their runs, and the reasons of unused runs."""
    from paratune.planning.refinement import read_recorded_run
    from paratune.reports.runs.read import read_runs

    seen: dict[int, list[Observation]] = {}
    names, left_out = [], {}
    for run in read_runs([run for folder in folders for run in runs_of(folder)]).runs:
        name = f"{run.name} {run.run.created}"
        try:
            if name in known:
                raise ValueError("the figures already include it")
            threads, observation = read_recorded_run(run.run.model_dump(), run.summary.model_dump(), machine)
        except ValueError as error:
            left_out[run.name] = str(error)
            continue
        names.append(name)
        seen.setdefault(threads, []).append(observation)
    return seen, names, left_out


def _refined_lines(before: Mapping[int, "Constants"], refined: Mapping[int, "Constants"]) -> Iterator[str]:
    """Yield each changed figure, after and before."""
    for threads, constants in refined.items():
        for name in constants:
            old, new = before[threads][name], constants[name]
            if new != old:
                yield (
                    f"{name}: {new.value:.2f} ({new.low:.2f} to {new.high:.2f}), before {old.value:.2f} "
                    f"({old.low:.2f} to {old.high:.2f})"
                )
