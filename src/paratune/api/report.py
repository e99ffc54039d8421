"""`paratune.report` and `paratune.compare`: finished runs, or matrices of runs."""

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paratune.api.process import process_as_before, several
from paratune.api.run import Run, Sweep, run_folder
from paratune.errors import ConfigError

if TYPE_CHECKING:
    from paratune.reports import Report
    from paratune.reports.comparison import Comparison
    from paratune.reports.outcomes import SweepReport


AnyRun = Run | Sweep | str | PathLike[str]
"""A run or its folder, or a matrix or its folder."""


@process_as_before()
def report(
    *runs: AnyRun,
    out: str | PathLike[str] | None = None,
    baseline: AnyRun | None = None,
    target: str | Sequence[str] = (),
    price: float | None = None,
    plan: str | PathLike[str] | None = None,
    margin: str | Sequence[str] = (),
    layout: str | None = None,
    latex: bool = False,
    figures: bool = False,
) -> "Report | SweepReport":
    """Compare finished runs, or the runs of a matrix: the conclusions, and all tables and figures in files.

    Args:
        runs: Runs, or matrices of runs.
        out: Folder for index.html, report.pdf, table.csv (a line for each run) and report.json.
        baseline: Run with which the others are compared; default: the first.
        target: Score, such as "f1_macro>=0.88": shows when each run or configuration first reached it.
        price: Price of a device-hour, in any currency: adds the cost of runs.
        plan: File with the output of `paratune plan MATRIX --json`, shown next to the published figures of a matrix.
        margin: Difference that counts as equal, MEASURE=AMOUNT or PERCENT%: "f1_macro=0.01", "speed=3%".
        layout: Adds tables of a matrix in the layout of a study: evora, ielts, oakridge, imdb or squad.
        latex: Writes each table as LaTeX, too: tables/*.tex in the folder.
        figures: Writes each figure as SVG, too: figures/*.svg in the folder.

    Returns:
        The report: `as_dict()` has it as plain data, `files` the written files; a notebook shows its table.

    Raises:
        ParatuneError: A folder is not a run or a matrix, no run is finished, an option is invalid or has no effect, or
            the files cannot be written.

    >>> [path.name for path in paratune.report("runs/first", out="report").files]
    ['index.html', 'report.pdf', 'table.csv', 'report.json']
    """
    from paratune.config.metric_names import parse_target
    from paratune.records.sweep import SWEEP_FILE
    from paratune.reports import make
    from paratune.reports.matrix import make_sweep
    from paratune.verdicts import read_margins

    folders = [Path(run_folder(run)) for run in runs]
    if not folders:
        raise ConfigError("paratune report needs at least one run folder, such as runs/NAME", code="cli.required")
    matrices = [folder for folder in folders if (folder / SWEEP_FILE).is_file()]
    if matrices and len(matrices) < len(folders):
        message = f"{matrices[0]} is a matrix of runs: report it alone, with other matrices, or report its runs: "
        raise ConfigError(f"{message}{matrices[0]}/runs/*", code="cli.conflict")
    for option, problem in (
        ("--baseline", baseline is not None and matrices and f"compares runs, and {matrices[0]} is a matrix, which "
         f"paratune compare {matrices[0]} --baseline {baseline} compares"),
        ("--plan", plan is not None and len(matrices) != 1 and f"{plan} is of one matrix; give its folder alone"),
        ("--layout", layout is not None and not matrices and f"{layout} is of a matrix; give the folder of one"),
        ("--latex", latex and out is None and "writes files into the folder of --out; add --out FOLDER"),
        ("--figures", figures and out is None and "writes files into the folder of --out; add --out FOLDER"),
    ):  # fmt: skip
        if problem:
            raise ConfigError(f"{option} {problem}", code="cli.no_effect", option=option)
    if price is not None and not (math.isfinite(price) and price >= 0):
        message = f"--price is {price:g}; the price of a device-hour is a number at least 0, such as 2.5"
        raise ConfigError(message, code="cli.invalid_value", option="--price", value=price)
    wanted = [kind for kind, is_wanted in (("latex", latex), ("figures", figures)) if is_wanted]
    targets = [parse_target(text) for text in dict.fromkeys(several(target))]
    where, margins = None if out is None else Path(out), read_margins(several(margin))
    if matrices:
        known = None if plan is None else Path(plan)
        return make_sweep(matrices, where, price, targets, plan=known, margins=margins, layout=layout, wanted=wanted)
    base = None if baseline is None else Path(run_folder(baseline))
    return make(folders, where, base, targets, price, margins, wanted)


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
        margin: Difference that counts as equal, MEASURE=AMOUNT or PERCENT%: "f1_macro=0.01", "speed=3%".
        allow: Allowed differences of the runs: batch, model, train, steps, data, tokens, task, kept, weights,
            distil.

    Returns:
        The verdicts: `as_dict()` has them as plain data; a notebook shows the output of the command.

    Raises:
        ParatuneError: A folder is not a run, or an option is invalid. Runs that cannot be compared are no error: the
            verdict has the reason, and `is_refused` is true.

    >>> second = paratune.train("my.yaml", {"train.learning_rate": 1e-5}, run_name="second")
    >>> paratune.compare("runs/first", second, allow="train").is_refused
    False
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
