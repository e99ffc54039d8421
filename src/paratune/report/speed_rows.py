"""Rows of the comparison table about speed and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.units import NOT_AVAILABLE, format_duration, format_share
from paratune.records import ALL_PHASES
from paratune.report.read import RunRecord
from paratune.report.rows import ReportRow, byte_unit, count_text, decimals, make_row, number_row, numbers, texts_of
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
"""Of what the time per epoch is computed."""
EPOCH_SOURCE = f"{EPOCH_SOURCES[0]} over {EPOCH_SOURCES[1]}, times {EPOCH_SOURCES[2]}"
_STEPS = "throughput.num_steps_measured"
_BUBBLE = (
    "* Of the time from the first pass of a step to the last, the part in which a rank computed nothing: it waited for "
    "other stages, or for what they sent. In brackets what it would be were all stages equally fast and sending free: "
    "(p - 1)/(v m + p - 1), with p ranks in a pipeline, v stages on each, and m micro-batches."
)


def step_parts_ms(run: ComparedRun) -> dict[str, float | None]:
    """Return the mean time of each phase in a measured step, in ms; the five sum to the mean step.

    Totals over totals: the phase's total (mean over ranks, warm-up left out) over the number of measured steps.
    """
    return {phase: step_part_ms(run, phase) for phase in ALL_PHASES}


def step_part_ms(run: ComparedRun, phase: str) -> float | None:
    """Return the mean time of a phase in a measured step, in ms."""
    total, steps = (run.number(f"summary.{what}") for what in (f"phases.{phase}.total_s", _STEPS))
    return None if total is None or not steps else 1000 * total / steps


def epoch_s(run: ComparedRun) -> float | None:
    """Return the training time of one epoch in s: the time of all steps over their number, times the steps of an epoch.

    Evaluations and checkpoints are left out; a run of less than an epoch is scaled up.
    """
    train_s, steps, per_epoch = map(run.number, EPOCH_SOURCES)
    return None if train_s is None or not steps or per_epoch is None else train_s / steps * per_epoch


def time_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield how long runs took, and how fast they were."""
    duration = texts_of(format_duration)
    yield number_row(runs, "train_s", "Time and throughput", "Training time", "summary.time.train_s", duration)
    epochs = [epoch_s(run) for run in runs]
    yield make_row(runs, "epoch_s", "Time and throughput", "Time per epoch", EPOCH_SOURCE, epochs, duration(epochs))
    yield number_row(runs, "total_s", "Time and throughput", "Whole run", "summary.time.total_s", duration)
    for part in ("startup", "tokenize", "evaluate", "checkpoint"):
        yield number_row(
            runs, f"{part}_s", "Time and throughput", part.capitalize(), f"summary.time.{part}_s", duration, shown=False
        )
    rate = "summary.throughput."
    yield number_row(runs, "samples_per_s", "Time and throughput", "Samples/s", f"{rate}samples_per_s", numbers)
    yield number_row(runs, "tokens_per_s", "Time and throughput", "Real tokens/s", f"{rate}tokens_per_s", numbers)
    yield number_row(
        runs,
        "padded_tokens_per_s",
        "Time and throughput",
        "Padded tokens/s",
        f"{rate}padded_tokens_per_s",
        numbers,
        shown=False,
    )
    yield number_row(
        runs, "padding_share", "Time and throughput", "Padding share", f"{rate}padding_share", texts_of(format_share)
    )
    if len(runs) > 1:
        yield _speed_up(runs)
    yield number_row(
        runs, "step_median_ms", "Time and throughput", "Median step (ms)", "summary.step_ms.median", numbers
    )
    for point in ("p10", "p90"):
        yield number_row(
            runs,
            f"step_{point}_ms",
            "Time and throughput",
            f"Step, {point} (ms)",
            f"summary.step_ms.{point}",
            numbers,
            shown=False,
        )
    yield from _bubble(runs)
    skipped = "summary.num_skipped_steps"
    if any(run.number(skipped) for run in runs):
        yield number_row(
            runs, "num_skipped_steps", "Time and throughput", "Steps skipped (fp16)", skipped, texts_of(count_text)
        )
    yield number_row(
        runs,
        "num_steps_measured",
        "Time and throughput",
        "Steps measured",
        f"{rate}num_steps_measured",
        texts_of(count_text),
    )


def _bubble(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the bubble of pipelines with the ideal one beside it."""
    sources = {key: f"summary.pipeline.{key}" for key in ("bubble_share", "ideal_bubble_share")}
    measured, ideal = ([run.number(source) for run in runs] for source in sources.values())
    if all(value is None for value in (*measured, *ideal)):
        return
    texts = [
        NOT_AVAILABLE if one is None and other is None else f"{format_share(one)} ({format_share(other)})"
        for one, other in zip(measured, ideal, strict=True)
    ]
    source = ", ".join(sources.values())
    row = make_row(runs, "bubble_share", "Time and throughput", "Pipeline bubble (ideal) *", source, measured, texts)
    yield replace(row, footnote=_BUBBLE)
    yield number_row(
        runs, "ideal_bubble_share", "Time and throughput", "Ideal bubble", sources["ideal_bubble_share"],
        texts_of(format_share), shown=False,
    )  # fmt: skip


def _speed_up(runs: Sequence[RunRecord]) -> ReportRow:
    """Return the real tokens/s of each run over those of the first."""
    source = "summary.throughput.tokens_per_s"
    rates = [run.number(source) for run in runs]
    values = [None if rate is None or not rates[0] else rate / rates[0] for rate in rates]
    texts = [NOT_AVAILABLE if value is None else f"{value:.2f}×" for value in values]
    origin = f"{source} over that of {runs[0].name}"
    return make_row(
        runs,
        "tokens_per_s_to_first",
        "Time and throughput",
        "Tokens/s against first run",
        origin,
        values,
        texts,
    )


def phases_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the mean step by its phases."""
    group = "Mean step by phase: ms (share)"
    parts = [step_parts_ms(run) for run in runs]
    # The longest phase of each run gets three digits; the others of its column stand on the same point.
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
        yield make_row(runs, f"{phase}_mean_ms", group, name, origin, means, texts)
        yield make_row(
            runs,
            f"{phase}_share",
            group,
            f"{name}, share",
            f"{source}.share",
            shares,
            [format_share(share) for share in shares],
            shown=False,
        )
        for point in ("median", "p10", "p90"):
            yield number_row(
                runs,
                f"{phase}_{point}_ms",
                group,
                f"{name}, {point} (ms)",
                f"{source}.{point}_ms",
                numbers,
                shown=False,
            )


def memory_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the peak of memory."""
    sources = {"largest": "summary.memory.largest_bytes", "sum": "summary.memory.sum_bytes"}
    values = {which: [run.number(source) for run in runs] for which, source in sources.items()}
    unit, size = byte_unit([value for of in values.values() for value in of])
    for which, label in (("largest", "Largest rank"), ("sum", "Sum of ranks")):
        texts = numbers([None if value is None else value / size for value in values[which]])
        yield make_row(
            runs, f"peak_memory_{which}_bytes", "Peak memory", f"{label} ({unit})", sources[which], values[which], texts
        )
    kinds = [run.get("summary.memory.kind") for run in runs]
    kinds = [None if kind is None else str(kind) for kind in kinds]
    yield make_row(runs, "peak_memory_kind", "Peak memory", "Kind", "summary.memory.kind", kinds)
