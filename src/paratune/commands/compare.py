"""`paratune compare`: prints the result of `paratune.compare`."""

from typing import Any

from paratune.api.compare import compare as compare_runs
from paratune.commands.options import command
from paratune.console import print_json, print_result
from paratune.errors import EXIT_FAILED, EXIT_OK
from paratune.records import finite


def _show(comparison: Any, as_json: bool) -> int:
    from paratune.reports.terminal import terminal_comparison

    if as_json:
        print_json(finite(comparison.as_dict()), indent=1)
    else:
        print_result(terminal_comparison(comparison))
    return EXIT_FAILED if comparison.is_refused else EXIT_OK


compare = command(compare_runs, _show)
