"""`paratune compare`: compares speed and quality of configurations with a baseline."""

from collections.abc import Sequence
from pathlib import Path

from paratune.base.imports import collector_off
from paratune.commands.options import Json, Margins
from paratune.console import print_json, print_result
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError
from paratune.records import finite
from paratune.records.sweep import holds_sweep

MAX_LOOKS = 100


@collector_off()
def compare(
    *runs: str,
    baseline: str | None = None,
    by: Sequence[str] = (),
    margin: Margins = (),
    allow: Sequence[str] = (),
    looks: int | None = None,
    json: Json = False,
) -> int:
    """Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.

    RUNS are run folders, which are grouped by configuration over seeds and repeats; or groups, each a quoted pattern
    ("runs/a_seed*") or a comma-separated list; or the folder of one matrix.

    Args:
        baseline: run, group or value with which the others are compared; default: the first
        by: axes of a matrix whose values are compared
        allow: allowed differences of the runs: batch,model,train,steps,data,tokens,task,kept
        looks: number of times that these runs were compared while runs were added, including this one; default: 1
    """
    from paratune.reports.comparison import make_comparison, terminal_comparison
    from paratune.reports.runs.differing import read_allowed
    from paratune.verdicts import read_margins

    if looks is not None:
        _check_looks(runs, looks)
    comparison = make_comparison(
        runs, baseline=baseline, by=by, margins=read_margins(margin), allowed=read_allowed(allow), looks=looks
    )
    if json:
        print_json(finite(comparison.as_dict()), indent=1)
    else:
        print_result(terminal_comparison(comparison))
    return EXIT_FAILED if comparison.is_refused else EXIT_OK


def _check_looks(runs: Sequence[str], looks: int) -> None:
    if any(holds_sweep(Path(run)) for run in runs):
        raise ConfigError(
            "--looks has no effect on a matrix: its sweep.json records the looks; leave it out",
            code="cli.no_effect",
            option="--looks",
        )
    if not 1 <= looks <= MAX_LOOKS:
        raise ConfigError(
            f"--looks {looks}: a number from 1 to {MAX_LOOKS} is needed", code="cli.invalid_value", option="--looks"
        )
