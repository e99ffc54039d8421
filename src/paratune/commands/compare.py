"""`paratune compare`: compares speed and quality of configurations with a baseline."""

from collections.abc import Sequence

from paratune.base.imports import collector_off
from paratune.commands.options import Json, Margins
from paratune.console import print_json, print_result
from paratune.errors import EXIT_FAILED, EXIT_OK
from paratune.records import finite


@collector_off()
def compare(
    *runs: str,
    baseline: str | None = None,
    by: Sequence[str] = (),
    margin: Margins = (),
    allow: Sequence[str] = (),
    json: Json = False,
) -> int:
    """Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.

    RUNS are run folders, or patterns of them such as "runs/a_seed*", which are grouped by configuration over seeds and
    repeats; or the folder of one matrix.

    Args:
        baseline: run, configuration or value with which the others are compared; default: the first
        by: axes of a matrix whose values are compared
        allow: allowed differences of the runs: batch, model, train, steps, data, tokens, task, kept, weights, distil
    """
    from paratune.api.compare import compare as make_comparison
    from paratune.reports.terminal import terminal_comparison

    comparison = make_comparison(*runs, baseline=baseline, by=by, margin=margin, allow=allow)
    if json:
        print_json(finite(comparison.as_dict()), indent=1)
    else:
        print_result(terminal_comparison(comparison))
    return EXIT_FAILED if comparison.is_refused else EXIT_OK
