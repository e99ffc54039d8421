"""`paratune report`: compares finished runs."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paratune.base.imports import collector_off
from paratune.base.text import plain
from paratune.commands.options import Json, Margins
from paratune.console import print_json, print_result
from paratune.errors import EXIT_OK


@collector_off()
def report(
    *runs: Path,
    out: Path | None = None,
    baseline: Path | None = None,
    target: Sequence[str] = (),
    price: float | None = None,
    plan: Path | None = None,
    margin: Margins = (),
    layout: str | None = None,
    latex: bool = False,
    figures: bool = False,
    json: Json = False,
) -> int:
    """Compare finished runs, or the runs of a matrix: the conclusions in the terminal, all figures in --out.

    Args:
        out: folder for index.html, report.pdf, table.csv (a line for each run) and report.json
        baseline: run with which the others are compared; default: the first
        target: score, such as f1>=0.88: show when each run or configuration first reached it
        price: price of a device-hour, in any currency: adds the cost of runs
        plan: file with the output of paratune plan MATRIX --json, which is shown next to the published figures
        layout: add tables of a matrix in the layout of a study: evora, ielts, oakridge, imdb or squad
        latex: write each table as LaTeX, too: tables/*.tex in --out
        figures: write each figure as SVG, too: figures/*.svg in --out
    """
    from paratune.api.report import report as make_report
    from paratune.reports import holds_report
    from paratune.reports.figures.canvas import can_draw
    from paratune.reports.matrix import SweepReport
    from paratune.reports.terminal import terminal_runs, terminal_sweep

    is_replaced = out is not None and holds_report(out)
    report = make_report(
        *runs, out=out, baseline=baseline, target=target, price=price, margin=margin, plan=plan, layout=layout,
        latex=latex, figures=figures,
    )  # fmt: skip
    if is_replaced:
        print(plain(f"the report in {out} was replaced"), file=sys.stderr)  # noqa: T201
    if json:
        print_json(report.as_dict(), indent=1)
        return EXIT_OK
    print_result(terminal_sweep(report) if isinstance(report, SweepReport) else terminal_runs(report))
    if out is None:
        print("All figures, tables and notes: --out FOLDER or --json")  # noqa: T201
    counts = Counter(path.parent for path in report.files if path.parent != out)
    folders = (f"{folder}{os.sep} ({count} files)" for folder, count in counts.items())
    for line in (*(path for path in report.files if path.parent == out), *folders):
        print(plain(line))  # noqa: T201
    if out is not None and (missing := can_draw()) is not None:
        print(plain(f"without figures and report.pdf: {missing}"), file=sys.stderr)  # noqa: T201
    return EXIT_OK
