"""`paratune plan --score` and `--calibrate`: how right plans were, and what a machine can do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK
from paratune.text import plain


def score_command(folders: Sequence[Path], *, as_json: bool) -> int:
    """Print predicted against measured of finished runs; return the exit code.

    Raises:
        CheckpointError: A folder is no run, or none of them is finished.
    """
    from paratune.plan.score import COLUMNS, Score, row_texts, scored
    from paratune.report.prediction_rows import measured_step_ms
    from paratune.report.read import read_runs

    found = read_runs([run for folder in folders for run in _runs_of(folder)])
    runs = []
    for run in found.runs:
        mean_ms = measured_step_ms(run)
        runs.append(scored(run.name, dict(run.run), dict(run.summary), None if mean_ms is None else mean_ms / 1000))
    score = Score(tuple(runs))
    if as_json:
        print_json(score.as_dict())
        return EXIT_OK
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for each in score.runs:
        table.add_row(*(Text(plain(text)) for text in row_texts(each)))
    print_result(table)
    for line in score.lines():
        print_result(Text(plain(line)))
    return EXIT_OK


def _runs_of(folder: Path) -> list[Path]:
    """Return the runs that a folder stands for: itself, or those of a matrix."""
    from paratune.sweep_record import RUNS_FOLDER, holds_sweep

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
    return {**about, "by_threads": by_threads}
