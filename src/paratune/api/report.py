"""`paratune.report`: tables and figures of finished runs, or of matrices of runs."""

import math
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path

from paratune.api.arguments import several
from paratune.api.compare import AnyRun, run_folder
from paratune.api.process import process_as_before
from paratune.config.targets import ScoreTarget, parse_target
from paratune.errors import ConfigError
from paratune.records.sweep import holds_sweep
from paratune.reports import Report, make
from paratune.reports.document import ReportSection
from paratune.reports.matrix import SweepReport, make_sweep
from paratune.verdicts import read_margins


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
) -> Report | SweepReport:
    """Return the report of finished runs or of matrices, and write it.

    Args:
        runs: Runs or run folders, at least one; or matrices or their folders.
        out: Folder for page, PDF, table.csv and report.json, created when absent; None writes nothing.
        baseline: Run with which the others are compared; default: the first.
        target: Scores, such as "f1>=0.88": shows when each run or configuration first reached them.
        price: Price of a device-hour, in any currency: adds the cost of runs.
        plan: File of `paratune plan MATRIX --write`, shown next to the published figures of a matrix.
        margin: Differences that count as equal, such as "f1=0.01" or "speed=3%".
        layout: Adds tables of a matrix in the layout of a study: evora, ielts, oakridge, imdb or squad.
        latex: Writes the tables as LaTeX, too.
        figures: Writes the figures as SVG, too.

    Returns:
        The report: `as_dict()` has it as plain data, `files` the written files; a notebook shows its table.

    Raises:
        ParatuneError: A folder is not a run or a matrix, no run is finished, an option is invalid or has no effect, or
            the files cannot be written.
    """
    folders = [Path(run_folder(run)) for run in runs]
    if matrices := check_report(folders, price=price, plan=plan, layout=layout, has_baseline=baseline is not None):
        return report_of_matrices(
            matrices, out, target=target, price=price, margin=margin, plan=plan, layout=layout, latex=latex,
            figures=figures,
        )  # fmt: skip
    wanted = _wanted(out, latex=latex, figures=figures)
    targets, margins = _targets(several(target)), read_margins(several(margin))
    base = None if baseline is None else Path(run_folder(baseline))
    return make(folders, None if out is None else Path(out), base, targets, price, margins, wanted)


def report_of_matrices(
    folders: Sequence[Path],
    out: str | PathLike[str] | None = None,
    *,
    target: str | Sequence[str] = (),
    price: float | None = None,
    margin: str | Sequence[str] = (),
    plan: str | PathLike[str] | None = None,
    layout: str | None = None,
    latex: bool = False,
    figures: bool = False,
    more: Callable[[SweepReport], ReportSection] | None = None,
) -> SweepReport:
    """Return the report of matrices, and write it; `more` returns a last section that is not from the records."""
    check_price(price)
    targets, margins = _targets(several(target)), read_margins(several(margin))
    where = None if out is None else Path(out)
    known = None if plan is None else Path(plan)
    wanted = _wanted(out, latex=latex, figures=figures)
    return make_sweep(
        folders, where, price, targets, plan=known, margins=margins, more=more, layout=layout, wanted=wanted
    )


def check_report(
    runs: Sequence[Path],
    *,
    price: float | None,
    plan: str | PathLike[str] | None,
    layout: str | None,
    has_baseline: bool,
) -> list[Path]:
    """Check the arguments of a report, and return the matrices among them: all, or none.

    Raises:
        ConfigError: There is no run, an option is invalid, or one has no effect on these runs.
    """
    check_price(price)
    if not runs:
        raise ConfigError(
            "paratune report needs at least one run folder, such as runs/NAME", code="cli.argument_missing"
        )
    matrices = [run for run in runs if holds_sweep(run)]
    if matrices and len(matrices) < len(runs):
        raise ConfigError(
            f"{matrices[0]} is a matrix of runs: report it alone, with other matrices, or report its runs: "
            f"{matrices[0]}/runs/*",
            code="compare.mixed_matrix",
        )
    if matrices and has_baseline:
        message = f"--baseline compares runs, and {matrices[0]} is a matrix; give its runs: {matrices[0]}/runs/*"
        raise ConfigError(message, code="compare.mixed_matrix", option="--baseline")
    if plan is not None and len(matrices) != 1:
        message = f"--plan {fspath(plan)} is of one matrix; give the folder of that matrix alone"
        raise ConfigError(message, code="cli.no_effect", option="--plan", path=plan)
    if layout is not None and not matrices:
        message = f"--layout {layout} is of a matrix; give the folder of one, with sweep.json"
        raise ConfigError(message, code="cli.no_effect", option="--layout")
    return matrices


def _wanted(out: str | PathLike[str] | None, **is_wanted: bool) -> list[str]:
    """Return the kinds of files for a paper that are wanted; raise a `ConfigError` if there is no folder for them."""
    wanted = [kind for kind, is_one in is_wanted.items() if is_one]
    if wanted and out is None:
        option = f"--{wanted[0]}"
        message = f"{option} writes files into the folder of --out, and --out is not given; add --out FOLDER"
        raise ConfigError(message, code="cli.no_effect", option=option)
    return wanted


def check_price(price: float | None) -> None:
    """Raise a `ConfigError` for a price below 0."""
    if price is not None and not (math.isfinite(price) and price >= 0):
        message = f"--price is {price:g}; the price of a device-hour is a number at least 0, such as 2.5"
        raise ConfigError(message, code="cli.out_of_range", option="--price", value=price)


def _targets(texts: Sequence[str]) -> list[ScoreTarget]:
    return [parse_target(text) for text in dict.fromkeys(texts)]
