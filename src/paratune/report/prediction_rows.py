"""Rows of the comparison table about what the plan had predicted of runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_percent, percent_change
from paratune.report.read import RunRecord
from paratune.report.rows import ReportRow, make_row, numbers
from paratune.report.speed_rows import step_parts_ms

GROUP = "Plan"


def measured_step_ms(run: RunRecord) -> float | None:
    """Return the mean of the measured steps."""
    parts = list(step_parts_ms(run).values())
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def prediction_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield predicted and measured step times, and by how much they differ, where runs have predictions."""
    spans = [_span_ms(run) for run in runs]
    if not any(spans):
        return
    source = "summary.prediction.step_s"
    measured = [measured_step_ms(run) for run in runs]
    predicted = [None if span is None else span[0] for span in spans]
    written = numbers([value for span in spans for value in (span or (None, None, None))])
    texts = [
        NOT_AVAILABLE if span is None else f"{written[3 * at]} ({written[3 * at + 1]} to {written[3 * at + 2]})"
        for at, span in enumerate(spans)
    ]
    yield make_row(runs, "predicted_step_ms", GROUP, "Mean step, predicted (ms)", source, predicted, texts)
    of = "summary.phases.*.total_s over summary.throughput.num_steps_measured"
    yield make_row(runs, "mean_step_ms", GROUP, "Mean step, measured (ms)", of, measured, numbers(measured))
    changes = [percent_change(value, base) for value, base in zip(predicted, measured, strict=True)]
    texts = [format_percent(change) for change in changes]
    yield make_row(runs, "prediction_error_percent", GROUP, "Predicted against measured", source, changes, texts)


def _span_ms(run: RunRecord) -> tuple[float, float, float] | None:
    value: Any = run.get("summary.prediction.step_s")
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(each, int | float) for each in value):
        return None
    middle, low, high = (1000.0 * each for each in value)
    return middle, low, high
