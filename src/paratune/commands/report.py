"""`paratune report` and `paratune compare`: print the results of `paratune.report` and `paratune.compare`."""

import sys
from typing import Any

from paratune.api.report import compare as compare_runs
from paratune.api.report import report as make_report
from paratune.base.text import plain
from paratune.commands.options import command
from paratune.console import print_json, print_result
from paratune.errors import EXIT_FAILED, EXIT_OK
from paratune.records import finite


def _show_report(report: Any, as_json: bool) -> int:
    from paratune.reports.figures.canvas import can_draw
    from paratune.reports.outcomes import SweepReport
    from paratune.reports.terminal import terminal_runs, terminal_sweep

    if as_json:
        print_json(report.as_dict(), indent=1)
        return EXIT_OK
    print_result(terminal_sweep(report) if isinstance(report, SweepReport) else terminal_runs(report))
    if not report.files:
        print("All figures, tables and notes: --out FOLDER or --json")  # noqa: T201
        return EXIT_OK
    page, *others = report.files
    names = dict.fromkeys(path.relative_to(page.parent).parts[0] for path in others)
    print(plain(f"{page}, and beside it {', '.join(names)}"))  # noqa: T201
    if (missing := can_draw()) is not None:
        print(plain(f"without figures and report.pdf: {missing}"), file=sys.stderr)  # noqa: T201
    return EXIT_OK


def _show_comparison(comparison: Any, as_json: bool) -> int:
    from paratune.reports.terminal import terminal_comparison

    if as_json:
        print_json(finite(comparison.as_dict()), indent=1)
    else:
        print_result(terminal_comparison(comparison))
    return EXIT_FAILED if comparison.is_refused else EXIT_OK


report = command(make_report, _show_report)
compare = command(compare_runs, _show_comparison)
