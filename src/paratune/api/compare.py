"""`paratune.compare`: the speed and the quality of finished runs, compared with a baseline."""

from collections.abc import Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from paratune.api.process import process_as_before, several
from paratune.api.run import Run
from paratune.api.sweep_result import Sweep

if TYPE_CHECKING:
    from paratune.reports.comparison import Comparison

AnyRun = Run | Sweep | str | PathLike[str]
"""A run or its folder, or a matrix or its folder."""


@process_as_before()
def compare(
    *runs: AnyRun,
    baseline: AnyRun | None = None,
    by: str | Sequence[str] = (),
    margin: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
) -> "Comparison":
    """Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.

    RUNS are run folders, or patterns of them such as "runs/a_seed*", which are grouped by configuration over seeds and
    repeats; or the folder of one matrix.

    Args:
        runs: Runs to compare.
        baseline: Run, configuration or value with which the others are compared; default: the first.
        by: Axes of a matrix whose values are compared.
        margin: Difference that counts as equal, MEASURE=AMOUNT or PERCENT%: "f1=0.01", "speed=3%".
        allow: Allowed differences of the runs: batch, model, train, steps, data, tokens, task, kept, weights,
            distil.

    Returns:
        The verdicts: `as_dict()` has them as plain data; a notebook shows the output of the command.

    Raises:
        ParatuneError: A folder is not a run, or an option is invalid. Runs that cannot be compared are no error: the
            verdict has the reason, and `is_refused` is true.
    """
    from paratune.reports.comparison import make_comparison
    from paratune.reports.runs.sameness import read_allowed
    from paratune.verdicts import read_margins

    return make_comparison(
        [run_folder(run) for run in runs],
        baseline=None if baseline is None else run_folder(baseline),
        by=several(by),
        margins=read_margins(several(margin)),
        allowed=read_allowed(several(allow)),
    )


def run_folder(run: AnyRun) -> str:
    """Return the folder of a run or of a matrix."""
    return fspath(run.folder if isinstance(run, Run | Sweep) else run)
