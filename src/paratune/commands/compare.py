"""`paratune compare`: how much faster configurations are than a baseline, and whether they are as good."""

from collections.abc import Sequence

from paratune.console import print_json, print_result
from paratune.errors import EXIT_FAILED, EXIT_OK
from paratune.records import finite
from paratune.report.differing import read_allowed
from paratune.report.versus import make_comparison, terminal_comparison
from paratune.verdicts import read_margins


def compare_command(
    words: Sequence[str],
    *,
    baseline: str | None,
    by: Sequence[str],
    margins: Sequence[str],
    allow: Sequence[str],
    as_json: bool,
) -> int:
    """Print the verdicts; return the exit code.

    Raises:
        ParatuneError: The words, margins or names cannot be understood, or a folder is not a run.
    """
    comparison = make_comparison(
        words, baseline=baseline, by=by, margins=read_margins(margins), allowed=read_allowed(allow)
    )
    if as_json:
        print_json(finite(comparison.as_dict()), indent=1)
    else:
        print_result(terminal_comparison(comparison))
    return EXIT_FAILED if comparison.is_refused else EXIT_OK
