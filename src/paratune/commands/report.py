"""`paratune report`: finished runs beside each other."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.base.text import plain
from paratune.config.targets import parse_target
from paratune.console import print_json, print_result
from paratune.errors import EXIT_OK, ConfigError
from paratune.records.sweep import holds_sweep
from paratune.report import holds_report, make, terminal_table
from paratune.report.canvas import can_draw
from paratune.report.sweep import SweepReport, make_sweep, terminal_sweep
from paratune.report.sweep.export import as_dict
from paratune.verdicts import read_margins


def report_command(
    runs: Sequence[Path],
    *,
    out: Path | None,
    as_json: bool,
    baseline: Path | None = None,
    targets: Sequence[str] = (),
    price: float | None = None,
    plan: Path | None = None,
    margins: Sequence[str] = (),
    data_figures: bool = False,
) -> int:
    """Print the comparison, write the files where `out` says; return the exit code."""
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
    wanted = [parse_target(text) for text in dict.fromkeys(targets)]
    equal = read_margins(margins)
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
    more = None
    if data_figures:
        from paratune.commands.matrix_data import check_matrices, data_section

        check_matrices(sweeps)
        more = data_section
    report = (
        make_sweep(sweeps, out, price, wanted, plan=plan, margins=equal, more=more)
        if sweeps
        else make(runs, out, baseline, wanted, price, equal)
    )
    if is_replaced:
        print(plain(f"the report that {out} held was replaced"), file=sys.stderr)  # noqa: T201
    if as_json:
        print_json(as_dict(report) if isinstance(report, SweepReport) else report.as_dict(), indent=1)
        return EXIT_OK
    print_result(terminal_sweep(report) if isinstance(report, SweepReport) else terminal_table(report))
    for line in _file_lines(report.files, out):
        print(plain(line))  # noqa: T201
    if out is not None and (missing := can_draw()) is not None:
        print(plain(f"without figures and report.pdf: {missing}"), file=sys.stderr)  # noqa: T201
    return EXIT_OK


def _file_lines(files: Sequence[Path], out: Path | None) -> Iterator[str]:
    """Yield what was written: each file of the folder, and how many there are in each folder below."""
    yield from (str(path) for path in files if path.parent == out)
    counts = Counter(path.parent for path in files if path.parent != out)
    yield from (f"{folder}{os.sep} ({count} files)" for folder, count in counts.items())
