"""`paratune plan --score` and `--calibrate`: how right plans were, what a machine can do, and both from its runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from paratune.base.text import plain
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    from paratune.plan.constants import Constants
    from paratune.plan.machine import Machine
    from paratune.plan.refinement import Observation


def score_command(folders: Sequence[Path], *, as_json: bool) -> int:
    """Print predicted against measured of finished runs; return the exit code.

    Raises:
        CheckpointError: A folder is no run, or none of them is finished.
    """
    from paratune.plan.score import COLUMNS, Score, row_texts, scored
    from paratune.report.prediction_rows import measured_step_ms
    from paratune.report.read import read_runs
    from paratune.report.tabular import table_of_texts
    from paratune.report.tabular_terminal import rich_table

    found = read_runs([run for folder in folders for run in runs_of(folder)])
    runs = []
    for run in found.runs:
        mean_ms = measured_step_ms(run)
        runs.append(scored(run.name, dict(run.run), dict(run.summary), None if mean_ms is None else mean_ms / 1000))
    score = Score(tuple(runs))
    if as_json:
        print_json(score.as_dict())
        return EXIT_OK
    table = table_of_texts("score", "", COLUMNS, map(row_texts, score.runs), 2)
    for part in rich_table(table, Console().width):
        print_result(part)
    for line in score.lines():
        print_result(Text(plain(line)))
    return EXIT_OK


def runs_of(folder: Path) -> list[Path]:
    """Return the runs that a folder stands for: itself, or those of a matrix."""
    from paratune.records.sweep import RUNS_FOLDER, holds_sweep

    if not holds_sweep(folder):
        return [folder]
    return sorted(each for each in (folder / RUNS_FOLDER).iterdir() if each.is_dir())


def calibrate_command(*, as_json: bool, speaks: bool) -> dict[str, Any]:
    """Measure this machine and keep what is found; return it as plain data.

    Args:
        as_json: Print nothing on stdout.
        speaks: Whether this is all that the command prints.

    Raises:
        ParatuneError: It cannot be measured, or what was found cannot be kept.
    """
    import logging

    from paratune.plan.calibration import calibrate

    set_up_logging(speaks=True)
    log = logging.getLogger(__name__)
    with stdout_for_results():
        found = calibrate(lambda text: log.info("measuring %s", text))
    if not as_json and speaks:
        for line in found.lines():
            print_result(Text(plain(line)))
    by_threads = {str(threads): constants.as_json() for threads, constants in found.by_threads.items()}
    about = {"machine": found.machine.name, "path": str(found.path), "seconds": found.seconds}
    return {**about, "launching": dict(found.launching), "by_threads": by_threads}


def refine_command(folders: Sequence[Path], *, as_json: bool) -> int:
    """Make the figures of this machine better by runs on it, and keep them; return the exit code.

    Raises:
        CheckpointError: A folder is no run, or none of them is finished.
        ConfigError: This machine has not been calibrated, or none of the runs says anything of it.
    """
    from paratune.plan.calibration import keep_refined, refined_by
    from paratune.plan.constants import Constants
    from paratune.plan.machine import this_machine
    from paratune.plan.refinement import refine

    machine = this_machine()
    if not machine.is_calibrated:
        raise ConfigError(
            f"{machine.name} has not been measured; first run paratune plan --calibrate alone",
            code="plan.not_calibrated",
            name=machine.name,
        )
    seen, names, left_out = _observed(folders, machine, refined_by(machine.name))
    reasons = [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    if not names:
        raise ConfigError(
            f"no run can be compared with the figures of {machine.name}: {'; '.join(reasons)}",
            code="plan.nothing_to_refine",
            name=machine.name,
        )
    before = machine.by_threads or {1: machine.constants or Constants()}
    refined = {threads: refine(before[threads], each) for threads, each in seen.items()}
    path = keep_refined(machine, refined, names)
    if as_json:
        by_threads = {str(threads): constants.as_json() for threads, constants in refined.items()}
        print_json({"machine": machine.name, "path": str(path), "left_out": left_out, "by_threads": by_threads})
        return EXIT_OK
    for line in [*_refined_lines(before, refined), *reasons, f"kept in {path}"]:
        print_result(Text(plain(line)))
    return EXIT_OK


def _observed(
    folders: Sequence[Path], machine: "Machine", known: Sequence[str]
) -> tuple[dict[int, list["Observation"]], list[str], dict[str, str]]:
    """Return what runs say by the threads of their processes, those runs, and why others say nothing."""
    from paratune.plan.refinement import recorded
    from paratune.report.read import read_runs

    seen: dict[int, list[Observation]] = {}
    names, left_out = [], {}
    for run in read_runs([run for folder in folders for run in runs_of(folder)]).runs:
        name = f"{run.name} {run.run.get('created')}"
        try:
            if name in known:
                raise ValueError("it has refined them already")
            threads, found = recorded(run.run, run.summary, machine)
        except ValueError as error:
            left_out[run.name] = str(error)
            continue
        names.append(name)
        seen.setdefault(threads, []).append(found)
    return seen, names, left_out


def _refined_lines(before: Mapping[int, "Constants"], refined: Mapping[int, "Constants"]) -> Iterator[str]:
    """Yield each figure that has changed, before and after."""
    for threads, constants in refined.items():
        for name in constants:
            old, new = before[threads][name], constants[name]
            if new != old:
                yield (
                    f"{name}: {new.value:.2f} ({new.low:.2f} to {new.high:.2f}), before {old.value:.2f} "
                    f"({old.low:.2f} to {old.high:.2f})"
                )
