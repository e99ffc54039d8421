"""Rows on speed and memory, and on the predictions of the plan."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_duration, format_percent, format_share, percent_change
from paratune.records import ALL_PHASES
from paratune.reports.rows.row import (
    ReportRow,
    RowBuilder,
    byte_unit,
    counts,
    decimals,
    formatted,
    numbers,
    percentages,
)
from paratune.reports.runs.read import RunRecord, steps_taken
from paratune.verdicts import ComparedRun

PHASE_NAMES = {
    "get_batch": "Get batch",
    "forward": "Forward",
    "backward": "Backward",
    "optimizer": "Optimizer",
    "other": "Other",
}
MEMORY_KINDS = {"rss": "resident memory of the process", "cuda_allocated": "CUDA memory allocated by PyTorch"}
EPOCH_SOURCES = ("summary.time.train_s", "summary.num_steps", "run.plan.steps_per_epoch")
"""Fields that the time per epoch is computed from."""
EPOCH_SOURCE = f"{EPOCH_SOURCES[0]} over {EPOCH_SOURCES[1]}, times {EPOCH_SOURCES[2]}"
_STEPS = "throughput.num_steps_measured"
_BUBBLE = (
    "* Idle share of the time between the first and the last pass of a step: a rank waits for other stages or their "
    "data. In brackets: the ideal value with equally fast stages and free communication, "
    "(p - 1)/(v m + p - 1), with p ranks in a pipeline, v stages on each, and m micro-batches."
)


def step_parts_ms(run: ComparedRun) -> dict[str, float | None]:
    """Return the mean time of each phase in a measured step, in ms; the five phases sum to the mean step.

    Totals over totals: the phase's total (mean over ranks, warm-up left out) over the number of measured steps.
    """
    return {phase: step_part_ms(run, phase) for phase in ALL_PHASES}


def step_part_ms(run: ComparedRun, phase: str) -> float | None:
    """Return the mean time of a phase in a measured step, in ms."""
    total, steps = (run.number(f"summary.{field}") for field in (f"phases.{phase}.total_s", _STEPS))
    return None if total is None or not steps else 1000 * total / steps


def step_ms(run: ComparedRun) -> float | None:
    """Return the mean measured step in ms, the sum of its phases."""
    parts = list(step_parts_ms(run).values())
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def epoch_s(run: ComparedRun) -> float | None:
    """Return the training time of an epoch in s: time of all steps / number of steps * steps of an epoch.

    Evaluations and checkpoints are left out; a run of less than an epoch is scaled up.
    """
    train_s, _, per_epoch = map(run.number, EPOCH_SOURCES)
    steps = steps_taken(run)
    return None if train_s is None or not steps or per_epoch is None else train_s / steps * per_epoch


def time_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield times and rates of the runs."""
    builder = RowBuilder(runs, "Time and throughput")
    duration = formatted(format_duration)
    yield builder.number("train_s", "Training time", "summary.time.train_s", duration)
    epochs = [epoch_s(run) for run in runs]
    yield builder.row("epoch_s", "Time per epoch", EPOCH_SOURCE, epochs, duration(epochs))
    yield builder.number("total_s", "Whole run", "summary.time.total_s", duration)
    for part in ("startup", "tokenize", "evaluate", "checkpoint"):
        yield builder.number(f"{part}_s", part.capitalize(), f"summary.time.{part}_s", duration, shown=False)
    rate = "summary.throughput."
    yield builder.number("samples_per_s", "Samples/s", f"{rate}samples_per_s", numbers)
    yield builder.number("tokens_per_s", "Real tokens/s", f"{rate}tokens_per_s", numbers)
    yield builder.number("padded_tokens_per_s", "Padded tokens/s", f"{rate}padded_tokens_per_s", numbers, shown=False)
    yield builder.number("padding_share", "Padding share", f"{rate}padding_share", percentages)
    if len(runs) > 1:
        yield _speed_up(runs)
    yield builder.number("step_median_ms", "Median step (ms)", "summary.step_ms.median", numbers)
    for at in ("p10", "p90"):
        yield builder.number(f"step_{at}_ms", f"Step, {at} (ms)", f"summary.step_ms.{at}", numbers, shown=False)
    yield from _bubble(runs)
    skipped = "summary.num_skipped_steps"
    if any(run.number(skipped) for run in runs):
        yield builder.number("num_skipped_steps", "Steps skipped (fp16)", skipped, counts)
    yield builder.number("num_steps_measured", "Steps measured", f"{rate}num_steps_measured", counts)


def _bubble(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the measured and the ideal bubble of pipelines."""
    builder = RowBuilder(runs, "Time and throughput")
    sources = ("summary.pipeline.bubble_share", "summary.pipeline.ideal_bubble_share")
    if all(run.number(source) is None for run in runs for source in sources):
        return
    row = builder.pair("bubble_share", "Pipeline bubble (ideal) *", sources, _bubble_text)
    yield replace(row, footnote=_BUBBLE)
    yield builder.number("ideal_bubble_share", "Ideal bubble", sources[1], percentages, shown=False)


def _bubble_text(share: float | None, ideal: float | None) -> str:
    return NOT_AVAILABLE if share is None and ideal is None else f"{format_share(share)} ({format_share(ideal)})"


def _speed_up(runs: Sequence[RunRecord]) -> ReportRow:
    """Return the real tokens/s of each run divided by those of the first run."""
    source = "summary.throughput.tokens_per_s"
    rates = [run.number(source) for run in runs]
    values = [None if rate is None or not rates[0] else rate / rates[0] for rate in rates]
    texts = [NOT_AVAILABLE if value is None else f"{value:.2f}×" for value in values]
    origin, label = f"{source} over that of {runs[0].name}", "Tokens/s against first run"
    return RowBuilder(runs, "Time and throughput").row("tokens_per_s_to_first", label, origin, values, texts)


def phases_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the mean time of each phase."""
    builder = RowBuilder(runs, "Mean step by phase: ms (share)")
    parts = [step_parts_ms(run) for run in runs]
    # The longest phase of each run gets three digits; all phases have the same number of decimals.
    places = decimals([max((value for value in part.values() if value), default=None) for part in parts])
    for phase in ALL_PHASES:
        name, source = PHASE_NAMES[phase], f"summary.phases.{phase}"
        means = [part[phase] for part in parts]
        shares = [run.number(f"{source}.share") for run in runs]
        texts = [
            NOT_AVAILABLE if mean is None else f"{mean:,.{places}f} ({format_share(share)})"
            for mean, share in zip(means, shares, strict=True)
        ]
        origin = f"{source}.total_s over summary.throughput.num_steps_measured; {source}.share"
        yield builder.row(f"{phase}_mean_ms", name, origin, means, texts)
        yield builder.number(f"{phase}_share", f"{name}, share", f"{source}.share", percentages, shown=False)
        for at in ("median", "p10", "p90"):
            yield builder.number(f"{phase}_{at}_ms", f"{name}, {at} (ms)", f"{source}.{at}_ms", numbers, shown=False)


def memory_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the peak memory."""
    builder = RowBuilder(runs, "Peak memory")
    sources = {"largest": "summary.memory.largest_bytes", "sum": "summary.memory.sum_bytes"}
    values = {which: [run.number(source) for run in runs] for which, source in sources.items()}
    unit, size = byte_unit([value for column in values.values() for value in column])
    for which, label in (("largest", "Largest rank"), ("sum", "Sum of ranks")):
        texts = numbers(values[which], size)
        yield builder.row(f"peak_memory_{which}_bytes", f"{label} ({unit})", sources[which], values[which], texts)
    kinds = [run.get("summary.memory.kind") for run in runs]
    kinds = [None if kind is None else str(kind) for kind in kinds]
    yield builder.row("peak_memory_kind", "Kind", "summary.memory.kind", kinds)


def prediction_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield predicted and measured step times and their difference, if runs have predictions."""
    builder = RowBuilder(runs, "Plan")
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
