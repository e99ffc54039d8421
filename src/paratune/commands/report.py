"""`paratune report`: compares finished runs."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.base.imports import collector_off
from paratune.base.text import plain
from paratune.commands.options import Json, Margins
from paratune.config.targets import parse_target
from paratune.console import print_json, print_result
from paratune.errors import EXIT_OK, ConfigError


@collector_off()
def report(
    *runs: Path,
    out: Path | None = None,
    baseline: Path | None = None,
    target: Sequence[str] = (),
    price: float | None = None,
    plan: Path | None = None,
    margin: Margins = (),
    data_figures: bool = False,
    layout: str | None = None,
    json: Json = False,
) -> int:
    """Compare finished runs, or the runs of a matrix: a table in the terminal, a page with figures in --out.

    Args:
        out: folder for the page, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)
        baseline: run with which the others are compared, in per cent
        target: score, such as f1>=0.88: show when each run or configuration first reached it
        price: price of a device-hour, in any currency: adds the cost of runs
        plan: file of paratune plan MATRIX --write: show it next to the published figures
        data_figures: add figures of the data to the report of a matrix; reads the data again
        layout: add a table of a matrix in the layout of a study: evora, ielts, oakridge, imdb or squad
    """
    from paratune.records.sweep import holds_sweep
    from paratune.reports import holds_report, make, terminal_table
    from paratune.reports.figures.canvas import can_draw
    from paratune.reports.matrix import SweepReport, make_sweep, terminal_sweep
    from paratune.reports.matrix.export import as_dict
    from paratune.verdicts import read_margins

    if price is not None and not (math.isfinite(price) and price >= 0):
        raise ConfigError(
            f"--price is {price:g}; the price of a device-hour is a number at least 0, such as 2.5",
            code="cli.out_of_range",
            option="--price",
            value=price,
        )
    if not runs:
        raise ConfigError(
            "paratune report needs at least one run folder, such as runs/NAME", code="cli.argument_missing"
        )
    targets = [parse_target(text) for text in dict.fromkeys(target)]
    margins = read_margins(margin)
    sweeps = [run for run in runs if holds_sweep(run)]
    if sweeps and len(sweeps) < len(runs):
        raise ConfigError(
            f"{sweeps[0]} is a matrix of runs: report it alone, with other matrices, or report its runs: "
            f"{sweeps[0]}/runs/*",
            code="compare.mixed_matrix",
        )
    is_replaced = out is not None and holds_report(out)
    if sweeps and baseline is not None:
        raise ConfigError(
            f"--baseline compares runs, and {sweeps[0]} is a matrix; give its runs: {sweeps[0]}/runs/*",
            code="compare.mixed_matrix",
            option="--baseline",
        )
    if plan is not None and len(sweeps) != 1:
        raise ConfigError(
            f"--plan {plan} is of one matrix; give the folder of that matrix alone",
            code="cli.no_effect",
            option="--plan",
            path=plan,
        )
    if layout is not None and not sweeps:
        raise ConfigError(
            f"--layout {layout} is of a matrix; give the folder of one, with sweep.json",
            code="cli.no_effect",
            option="--layout",
        )
    add_section = None
    if data_figures:
        from paratune.commands.matrix_data import check_matrices, data_section

        check_matrices(sweeps)
        add_section = data_section
    report = (
        make_sweep(sweeps, out, price, targets, plan=plan, margins=margins, more=add_section, layout=layout)
        if sweeps
        else make(runs, out, baseline, targets, price, margins)
    )
    if is_replaced:
        print(plain(f"the report in {out} was replaced"), file=sys.stderr)  # noqa: T201
    if json:
        print_json(as_dict(report) if isinstance(report, SweepReport) else report.as_dict(), indent=1)
        return EXIT_OK
    print_result(terminal_sweep(report) if isinstance(report, SweepReport) else terminal_table(report))
    for line in _file_lines(report.files, out):
        print(plain(line))  # noqa: T201
    if out is not None and (missing := can_draw()) is not None:
        print(plain(f"without figures and report.pdf: {missing}"), file=sys.stderr)  # noqa: T201
    return EXIT_OK


def _file_lines(files: Sequence[Path], out: Path | None) -> Iterator[str]:
    """Yield each file in `out`, and the number of files in each folder below it."""
    yield from (str(path) for path in files if path.parent == out)
    counts = Counter(path.parent for path in files if path.parent != out)
    yield from (f"{folder}{os.sep} ({count} files)" for folder, count in counts.items())
