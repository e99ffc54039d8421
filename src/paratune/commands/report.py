"""`paratune report`: finished runs beside each other."""

import sys
from collections.abc import Sequence
from pathlib import Path

from paratune.console import print_json, print_result
from paratune.errors import EXIT_OK, ConfigError
from paratune.report import holds_report, make, terminal_table
from paratune.text import plain


def report_command(runs: Sequence[Path], *, out: Path | None, as_json: bool, baseline: Path | None = None) -> int:
    """Print the comparison, write the files where `out` says; return the exit code."""
    if not runs:
        raise ConfigError("paratune report needs at least one run folder, such as runs/NAME")
    is_replaced = out is not None and holds_report(out)
    report = make(runs, out, baseline)
    if is_replaced:
        print(plain(f"the report that {out} held was replaced"), file=sys.stderr)  # noqa: T201
    if as_json:
        print_json(report.as_dict(), indent=1)
        return EXIT_OK
    print_result(terminal_table(report))
    for path in report.files:
        print(plain(path))  # noqa: T201
    return EXIT_OK
