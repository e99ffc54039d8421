"""Rows on the predictions of the plan."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_percent, percent_change
from paratune.reports.rows.row import ReportRow, RowBuilder, numbers
from paratune.reports.rows.speed import step_ms
from paratune.reports.runs.read import RunRecord

GROUP = "Plan"


def prediction_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield predicted and measured step times and their difference, if runs have predictions."""
    builder = RowBuilder(runs, GROUP)
    spans = [_span_ms(run) for run in runs]
    if not any(spans):
        return
    source = "summary.prediction.step_s"
    measured = [step_ms(run) for run in runs]
    predicted = [None if span is None else span[0] for span in spans]
    written = numbers([value for span in spans for value in (span or (None, None, None))])
    texts = [
        NOT_AVAILABLE if span is None else f"{written[3 * at]} ({written[3 * at + 1]} to {written[3 * at + 2]})"
        for at, span in enumerate(spans)
    ]
    yield builder.row("predicted_step_ms", "Mean step, predicted (ms)", source, predicted, texts)
    mean_source = "summary.phases.*.total_s over summary.throughput.num_steps_measured"
    yield builder.row("mean_step_ms", "Mean step, measured (ms)", mean_source, measured, numbers(measured))
    changes = [percent_change(value, base) for value, base in zip(predicted, measured, strict=True)]
    texts = [format_percent(change) for change in changes]
    yield builder.row("prediction_error_percent", "Predicted against measured", source, changes, texts)


def _span_ms(run: RunRecord) -> tuple[float, float, float] | None:
    value: Any = run.get("summary.prediction.step_s")
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(seconds, int | float) for seconds in value):
        return None
    middle, low, high = (1000.0 * seconds for seconds in value)
    return middle, low, high
