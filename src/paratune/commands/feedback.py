"""`paratune feedback`: what the score of an essay rests on, how sure it is, and which essays a person should read."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paratune.api.apply import allow_source, check_model
from paratune.api.process import respect_quota
from paratune.base.imports import collector_off_for_imports
from paratune.base.text import plain
from paratune.commands.options import BatchSize, Device, Json, RunCode
from paratune.console import Display, print_json, print_result, print_table, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, ConfigError, option_error, require_at_least

_MAX_LISTED = 20


def feedback(
    run: Annotated[str, Parameter(help="run for regression or ordered labels, with validation and test predictions")],
    *,
    input: str | None = None,
    split: str | None = None,
    out: Path,
    coverage: float = 0.9,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Write feedback on the essays of a file: an interval for each score, and what the score rests on.

    Args:
        input: file with the essays, in the columns of the run
        split: the essays of this split of the run, such as test, in place of --input
        out: folder for the pages (overview, one page for each essay) and report.json
        coverage: share of essays whose score should be inside its interval
    """
    from paratune.api.split_rows import split_table
    from paratune.data.read import read_table
    from paratune.reports.output import MARKER, PAGE, check_folder

    require_at_least("--batch-size", batch_size)
    if not 0 < coverage < 1:
        raise option_error("--coverage", coverage, "a share between 0 and 1, such as 0.9", code="cli.out_of_range")
    if (input is None) == (split is None):
        raise ConfigError(
            "name the essays with one of --input FILE and --split NAME, such as --split test",
            code="cli.option_missing" if input is None else "cli.conflict",
            option="--input",
            options=("--input", "--split"),
        )
    set_up_logging(speaks=True)
    respect_quota()
    check_folder(out, [PAGE, MARKER])
    with stdout_for_results():
        check_model(run, run_code=run_code)
        allow_source(str(input))
        source, table = (input, read_table(input)) if input is not None else split_table(Path(run), str(split))
        with collector_off_for_imports():
            from paratune.feedback.feedback import calibrate, give_feedback
            from paratune.feedback.page import ClassFeedback, as_dict, write_feedback
            from paratune.infer.trained import NamedColumns, load_trained

        trained = load_trained(run, NamedColumns(), device)
    calibration = calibrate(trained, run, level=coverage)
    rows = trained.read(source, table, require_labels=False)
    with Display(speaks=True).bar("score essays with parts removed", 1) as bar:
        essays = give_feedback(
            trained, rows, table, calibration, batch_size, lambda done, total: bar.update(done, total=total)
        )
    result = ClassFeedback(run, source, calibration, tuple(essays))
    files = write_feedback(out, result)
    if json:
        print_json(as_dict(result) | {"files": [str(file) for file in files]}, indent=1)
        return EXIT_OK
    show(result)
    print(plain(f"{out / PAGE} and {len(files) - 1} other files"))  # noqa: T201
    return EXIT_OK


def show(result: Any) -> None:
    """Print the interval and its coverage, and a line for each essay."""
    from paratune.feedback.page import FOR_A_PERSON, coverage_sentence, essay_name, interval_text

    calibration = result.calibration
    print_result(
        f"intervals: score ± {calibration.half:.3g}, calibrated on {calibration.num_rows} validation rows for "
        f"{calibration.level:.0%}. {coverage_sentence(calibration)}"
    )
    rows = []
    for essay in result.essays[:_MAX_LISTED]:
        score, interval = calibration.text(essay.predicted), interval_text(calibration, essay)
        rows.append((essay_name(essay), score, interval, FOR_A_PERSON[calibration.is_for_a_person(essay.interval)]))
    print_table(("essay", "score", "interval", "for a person"), rows)
    if len(result.essays) > _MAX_LISTED:
        print_result(f"and {len(result.essays) - _MAX_LISTED} more essays")
