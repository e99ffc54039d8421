"""`paratune.compare` and `paratune.report`: finished runs beside each other."""

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from paratune.api.run import Run
from paratune.reports import Report, make
from paratune.reports.comparison import Comparison, make_comparison
from paratune.reports.runs.differing import read_allowed
from paratune.verdicts import read_margins

AnyRun = Run | str | PathLike[str]
"""A run or its folder."""


def compare(
    *runs: AnyRun,
    baseline: AnyRun | None = None,
    by: Sequence[str] = (),
    margin: Sequence[str] = (),
    allow: Sequence[str] = (),
    looks: int | None = None,
) -> Comparison:
    """Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.

    Args:
        runs: Runs or run folders, which are grouped by configuration over seeds and repeats; groups, each a pattern
            ("runs/a_seed*") or a comma-separated list; or the folder of one matrix.
        baseline: Run, group or value with which the others are compared; default: the first.
        by: Axes of a matrix whose values are compared.
        margin: Differences that count as equal, such as "f1=0.01" or "speed=3%".
        allow: Allowed differences of the runs: batch, model, train, steps, data, tokens, task, kept.
        looks: Number of times that these runs were compared while runs were added, 1 to 100.

    Returns:
        The verdicts: `as_dict()` has them as plain data; a notebook shows what the command prints.

    Raises:
        ParatuneError: A folder is not a run, or an option is invalid. Runs that cannot be compared are no error: the
            verdict has the reason, and `is_refused` is true.
    """
    return make_comparison(
        [_folder(run) for run in runs],
        baseline=None if baseline is None else _folder(baseline),
        by=by,
        margins=read_margins(margin),
        allowed=read_allowed(allow),
        looks=looks,
    )


def report(*runs: AnyRun, out: str | PathLike[str] | None = None, baseline: AnyRun | None = None) -> Report:
    """Return the report of finished runs, and write it.

    Args:
        runs: Runs or run folders, at least one.
        out: Folder for the page, tables and figures, created when absent; None writes nothing.
        baseline: Run that the changes in per cent refer to.

    Returns:
        The report: `as_dict()` has it as plain data, `files` the written files; a notebook shows its table.

    Raises:
        ParatuneError: A folder is not a run, no run is finished, or the files cannot be written.
    """
    folders = [Path(_folder(run)) for run in runs]
    return make(folders, None if out is None else Path(out), None if baseline is None else Path(_folder(baseline)))


def _folder(run: AnyRun) -> str:
    return fspath(run.folder if isinstance(run, Run) else run)
