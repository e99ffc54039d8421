"""The comparison table as data: one row a figure, one cell a run; each cell names the record that it came from."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paratune.config.metric_names import LOWER_IS_BETTER
from paratune.records import ALL_PHASES
from paratune.report.certificates import Certificate, certified
from paratune.report.read import RunRecord
from paratune.units import GIB, KIB, MIB, NOT_AVAILABLE, format_duration, format_percent, format_share, percent_change

ARROW = " → "
"""Between what a run began with and what it was gone on with."""
PHASE_NAMES = {
    "get_batch": "Get batch",
    "forward": "Forward",
    "backward": "Backward",
    "optimizer": "Optimizer",
    "other": "Other",
}
MEMORY_KINDS = {"rss": "resident memory of the process", "cuda_allocated": "CUDA memory allocated by PyTorch"}
_METRICS = {
    "perplexity": "Perplexity",
    "accuracy": "Accuracy",
    "f1": "F1",
    "f1_macro": "F1, macro",
    "f1_micro": "F1, micro",
    "f1_weighted": "F1, weighted",
    "f1_samples": "F1, mean of rows",
    "precision": "Precision",
    "recall": "Recall",
    "matthews": "Matthews correlation",
    "hamming_loss": "Hamming loss",
    "roc_auc": "ROC AUC, mean of classes",
    "average_precision": "Average precision, mean of classes",
    "within_one": "Within one class",
    "rmse": "RMSE",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R²",
    "pearson": "Pearson r",
    "spearman": "Spearman ρ",
    "qwk": "Quadratic weighted kappa",
    "exact_agreement": "Exact agreement",
    "adjacent_agreement": "Adjacent agreement",
    "exact": "Exact match",
    "has_answer_exact": "Exact match, with an answer",
    "has_answer_f1": "F1, with an answer",
    "no_answer_exact": "Exact match, without an answer",
    "no_answer_f1": "F1, without an answer",
    "best_exact": "Exact match at its best threshold",
    "best_f1": "F1 at its best threshold",
    "loss": "Loss",
}
"""Names of metrics in the order in which they are shown; others follow by their own names."""

_STRATEGY_OPTIONS = (
    ("stages", "pipeline_stages", "Pipeline stages"),
    ("schedule", "pipeline_schedule", "Pipeline schedule"),
    ("stage", "deepspeed_stage", "DeepSpeed stage"),
    ("shard_size", "shard_size", "Ranks that share states"),
)
"""Options of strategies that a comparison must show: name, key of the row, label."""
_BUBBLE = (
    "* Of the time from the first pass of a step to the last, the part in which a rank computed nothing: it waited for "
    "other stages, or for what they sent. In brackets what it would be were all stages equally fast and sending free: "
    "(p - 1)/(v m + p - 1), with p ranks in a pipeline, v stages on each, and m micro-batches."
)

_CONSTANT_METRICS = ("accuracy", "f1_macro", "rmse", "mae")
"""Of what a constant answer scores, the figures that say something."""

Texts = Callable[[Sequence[Any]], list[str]]


@dataclass(frozen=True)
class Cell:
    """A figure of one run."""

    run: str
    value: Any
    """The figure in the unit of the row; None where it is unknown."""
    text: str
    source: str
    """Where in the record it stands, or from what it was computed."""


@dataclass(frozen=True)
class Row:
    """One figure of all runs."""

    key: str
    """Its name in CSV and JSON, with the unit last."""
    group: str
    label: str
    cells: tuple[Cell, ...]
    shown: bool
    """False for what only CSV and JSON hold."""
    metric: str | None = None
    """Of the scores of a set, which of its metrics this is."""
    footnote: str = ""
    """What a mark in the label refers to."""


def metric_name(metric: str) -> str:
    """Return how a metric is written for readers, with an arrow to its better side where that is known."""
    if metric not in _METRICS:
        return metric
    return f"{_METRICS[metric]} {'↓' if metric in LOWER_IS_BETTER else '↑'}"


def build_rows(runs: Sequence[RunRecord], certificates: Sequence[Certificate] = ()) -> tuple[Row, ...]:
    """Return the rows of the comparison table, in their order."""
    rows = [
        *_setup(runs),
        *_certified(runs, certificates),
        *_time(runs),
        *_phases(runs),
        *_memory(runs),
        *_quality(runs),
        *_constant(runs),
    ]
    return tuple(rows)


def decimals(values: Sequence[float | None]) -> int:
    """Return how many decimals give the smallest of the values three significant digits, and the largest at most five.

    At most 3; zeros and unknown values do not count.
    """
    known = [abs(value) for value in values if value]
    if not known:
        return 3
    least, most = (math.floor(math.log10(value)) for value in (min(known), max(known)))
    return min(3, max(0, 2 - least), max(0, 4 - most))


def numbers(values: Sequence[float | None]) -> list[str]:
    """Return numbers with the same count of decimals, so that they align."""
    places = decimals(values)
    return [NOT_AVAILABLE if value is None else f"{value:,.{places}f}" for value in values]


def byte_unit(values: Sequence[float | None]) -> tuple[str, int]:
    """Return the binary unit that suits the largest of the values, by name and in bytes."""
    largest = max((value for value in values if value is not None), default=0.0)
    return next(((name, size) for name, size in (("GiB", GIB), ("MiB", MIB)) if largest >= size), ("KiB", KIB))


def step_parts_ms(run: RunRecord) -> dict[str, float | None]:
    """Return the mean time of each phase in a measured step, in ms; the five sum to the mean step.

    Totals over totals: the phase's total (mean over ranks, warm-up left out) over the number of measured steps.
    """
    steps = run.number("summary.throughput.num_steps_measured")
    totals = {phase: run.number(f"summary.phases.{phase}.total_s") for phase in ALL_PHASES}
    return {phase: None if total is None or not steps else 1000 * total / steps for phase, total in totals.items()}


def _row(
    runs: Sequence[RunRecord], key: str, group: str, label: str, source: str | Sequence[str],
    values: Sequence[Any], texts: Sequence[str] | None = None, *, shown: bool = True,
) -> Row:  # fmt: skip
    written = [NOT_AVAILABLE if value is None else str(value) for value in values] if texts is None else texts
    sources = [source] * len(runs) if isinstance(source, str) else source
    cells = zip(runs, values, written, sources, strict=True)
    return Row(key, group, label, tuple(Cell(run.name, value, text, of) for run, value, text, of in cells), shown)


def _number_row(
    runs: Sequence[RunRecord], key: str, group: str, label: str, source: str, texts: Texts, *, shown: bool = True
) -> Row:
    values = [run.number(source) for run in runs]
    return _row(runs, key, group, label, source, values, texts(values), shown=shown)


def _each(text: Callable[[float | None], str]) -> Texts:
    return lambda values: [text(value) for value in values]


def _count(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:,.0f}"


def _setup(runs: Sequence[RunRecord]) -> Iterator[Row]:
    yield _course_row(runs, "strategy", "Strategy", "run.strategy.kind", str)
    yield from _strategy_options(runs)
    yield _course_row(runs, "world_size", "World size (processes)", "run.world_size", _count)
    devices = [
        ARROW.join(map(str, run.course("run.device"))) if _changed(run, "run.device") else _devices(run) for run in runs
    ]
    yield _row(runs, "device", "Setup", "Device", "summary.ranks[].device", devices)
    yield _course_row(runs, "precision", "Precision", "run.config.precision", str)
    yield _number_row(
        runs,
        "global_batch_size",
        "Setup",
        "Global batch (samples)",
        "run.batch.global_batch_size",
        _each(_count),
    )
    micro = _course_row(runs, "micro_batch_size", "Micro-batch × accumulation", "run.batch.micro_batch_size", _count)
    source = "run.batch.micro_batch_size, run.batch.grad_accum_steps"
    cells = (replace(cell, text=_micro_batch(run), source=source) for run, cell in zip(runs, micro.cells, strict=True))
    yield replace(micro, cells=tuple(cells))
    accum = _course_row(runs, "grad_accum_steps", "Accumulation steps", "run.batch.grad_accum_steps", _count)
    yield replace(accum, shown=False)
    yield from _training_rows(runs)
    yield _number_row(runs, "num_steps", "Setup", "Optimizer steps", "summary.num_steps", _each(_count))
    yield _number_row(
        runs, "seed", "Setup", "Seed", "run.seed", _each(lambda value: NOT_AVAILABLE if value is None else str(value))
    )


def _strategy_options(runs: Sequence[RunRecord]) -> Iterator[Row]:
    """Yield what decides how a strategy works, where a run has it."""
    for option, key, label in _STRATEGY_OPTIONS:
        row = _course_row(runs, key, label, f"run.strategy.options.{option}", str)
        if option == "schedule":
            row = replace(row, cells=tuple(_schedule(cell, run) for cell, run in zip(row.cells, runs, strict=True)))
        if any(cell.value is not None for cell in row.cells):
            yield row


def _schedule(cell: Cell, run: RunRecord) -> Cell:
    """Add to a schedule how many stages each rank has, where there are several."""
    chunks = run.get("run.strategy.traits.stages_per_rank")
    if cell.value != "interleaved" or chunks is None:
        return cell
    return replace(cell, text=f"{cell.text}, {chunks} a rank")


def _certified(runs: Sequence[RunRecord], certificates: Sequence[Certificate]) -> Iterator[Row]:
    """Yield what certificates say of each run's strategy, if there are any."""
    if certificates:
        texts, sources = zip(*(certified(run, certificates) for run in runs), strict=True)
        yield _row(runs, "certified", "Setup", "Certified", sources, texts)


def _course_row(runs: Sequence[RunRecord], key: str, label: str, source: str, text: Callable[[Any], str]) -> Row:
    """Return a setting; "1 → 2", a text in every format, of a run that went on with another."""
    values: list[Any] = []
    for run in runs:
        course = [one.number(source) for one in run.sessions] if text is _count else run.course(source)
        if _changed(run, source):
            values.append(ARROW.join(NOT_AVAILABLE if value is None else text(value) for value in run.course(source)))
        else:
            values.append(course[0] if text is _count or course[0] is None else str(course[0]))
    texts = [value if isinstance(value, str) else NOT_AVAILABLE if value is None else text(value) for value in values]
    sources = [source.replace("run.", "run.sessions[].", 1) if _changed(run, source) else source for run in runs]
    return _row(runs, key, "Setup", label, sources, values, texts)


def _training_rows(runs: Sequence[RunRecord]) -> Iterator[Row]:
    """Yield on how many rows runs were trained, where a model labelled some of them."""
    rows, pseudo = ([run.number(f"run.data.train.{key}") for run in runs] for key in ("num_rows", "num_pseudo"))
    given = [None if all_rows is None else all_rows - (of or 0) for all_rows, of in zip(rows, pseudo, strict=True)]
    texts = [
        f"{_count(count)} labelled + {_count(of)} pseudo-labelled" if of else _count(count)
        for count, of in zip(given, pseudo, strict=True)
    ]
    source = "run.data.train.num_rows, run.data.train.num_pseudo"
    yield _row(runs, "num_train_rows", "Setup", "Training rows", source, rows, texts, shown=any(pseudo))
    yield _number_row(
        runs,
        "num_pseudo_rows",
        "Setup",
        "Pseudo-labelled rows",
        "run.data.train.num_pseudo",
        _each(_count),
        shown=False,
    )


def _changed(run: RunRecord, source: str) -> bool:
    return len(run.course(source)) > 1


def _micro_batch(run: RunRecord) -> str:
    texts = []
    for one in run.sessions:
        texts.append(
            f"{_count(one.number('run.batch.micro_batch_size'))} × {_count(one.number('run.batch.grad_accum_steps'))}"
        )
        # What the session went on with when memory had run out.
        changes = one.get("run.batch.changes")
        for change in changes if isinstance(changes, list) else []:
            if isinstance(change, Mapping):
                texts.append(f"{change.get('micro_batch_size')} × {change.get('grad_accum_steps')}")
    return ARROW.join(dict.fromkeys(texts))


def _devices(run: RunRecord) -> str | None:
    """Return the kinds of device of the ranks: "cpu", "cuda"."""
    ranks = run.get("summary.ranks")
    if not isinstance(ranks, list):
        return None
    kinds = {str(rank.get("device", NOT_AVAILABLE)).split(":")[0] for rank in ranks if isinstance(rank, dict)}
    return ", ".join(sorted(kinds)) or None


def _time(runs: Sequence[RunRecord]) -> Iterator[Row]:
    duration = _each(format_duration)
    yield _number_row(runs, "train_s", "Time and throughput", "Training time", "summary.time.train_s", duration)
    yield _number_row(runs, "total_s", "Time and throughput", "Whole run", "summary.time.total_s", duration)
    for part in ("startup", "tokenize", "evaluate", "checkpoint"):
        yield _number_row(
            runs, f"{part}_s", "Time and throughput", part.capitalize(), f"summary.time.{part}_s", duration, shown=False
        )
    rate = "summary.throughput."
    yield _number_row(runs, "samples_per_s", "Time and throughput", "Samples/s", f"{rate}samples_per_s", numbers)
    yield _number_row(runs, "tokens_per_s", "Time and throughput", "Real tokens/s", f"{rate}tokens_per_s", numbers)
    yield _number_row(
        runs,
        "padded_tokens_per_s",
        "Time and throughput",
        "Padded tokens/s",
        f"{rate}padded_tokens_per_s",
        numbers,
        shown=False,
    )
    yield _number_row(
        runs, "padding_share", "Time and throughput", "Padding share", f"{rate}padding_share", _each(format_share)
    )
    if len(runs) > 1:
        yield _speed_up(runs)
    yield _number_row(
        runs, "step_median_ms", "Time and throughput", "Median step (ms)", "summary.step_ms.median", numbers
    )
    for point in ("p10", "p90"):
        yield _number_row(
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
        yield _number_row(
            runs, "num_skipped_steps", "Time and throughput", "Steps skipped (fp16)", skipped, _each(_count)
        )
    yield _number_row(
        runs, "num_steps_measured", "Time and throughput", "Steps measured", f"{rate}num_steps_measured", _each(_count)
    )


def _bubble(runs: Sequence[RunRecord]) -> Iterator[Row]:
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
    row = _row(runs, "bubble_share", "Time and throughput", "Pipeline bubble (ideal) *", source, measured, texts)
    yield replace(row, footnote=_BUBBLE)
    yield _number_row(
        runs, "ideal_bubble_share", "Time and throughput", "Ideal bubble", sources["ideal_bubble_share"],
        _each(format_share), shown=False,
    )  # fmt: skip


def _speed_up(runs: Sequence[RunRecord]) -> Row:
    """Return the real tokens/s of each run over those of the first."""
    source = "summary.throughput.tokens_per_s"
    rates = [run.number(source) for run in runs]
    values = [None if rate is None or not rates[0] else rate / rates[0] for rate in rates]
    texts = [NOT_AVAILABLE if value is None else f"{value:.2f}×" for value in values]
    origin = f"{source} over that of {runs[0].name}"
    return _row(
        runs,
        "tokens_per_s_to_first",
        "Time and throughput",
        "Tokens/s against first run",
        origin,
        values,
        texts,
    )


def _phases(runs: Sequence[RunRecord]) -> Iterator[Row]:
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
        yield _row(runs, f"{phase}_mean_ms", group, name, origin, means, texts)
        yield _row(
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
            yield _number_row(
                runs,
                f"{phase}_{point}_ms",
                group,
                f"{name}, {point} (ms)",
                f"{source}.{point}_ms",
                numbers,
                shown=False,
            )


def _memory(runs: Sequence[RunRecord]) -> Iterator[Row]:
    sources = {"largest": "summary.memory.largest_bytes", "sum": "summary.memory.sum_bytes"}
    values = {which: [run.number(source) for run in runs] for which, source in sources.items()}
    unit, size = byte_unit([value for of in values.values() for value in of])
    for which, label in (("largest", "Largest rank"), ("sum", "Sum of ranks")):
        texts = numbers([None if value is None else value / size for value in values[which]])
        yield _row(
            runs, f"peak_memory_{which}_bytes", "Peak memory", f"{label} ({unit})", sources[which], values[which], texts
        )
    kinds = [run.get("summary.memory.kind") for run in runs]
    kinds = [None if kind is None else str(kind) for kind in kinds]
    yield _row(runs, "peak_memory_kind", "Peak memory", "Kind", "summary.memory.kind", kinds)


def _quality(runs: Sequence[RunRecord]) -> Iterator[Row]:
    yield _number_row(
        runs,
        "train_loss_last_epoch",
        "Training loss",
        "Mean of the last epoch",
        "summary.loss.mean_last_epoch",
        _each(_score),
    )
    for split in _splits_of(runs):
        metrics = _metrics_of(runs, split)
        for metric in metrics:
            values = [run.number(("summary", "scores", split, metric)) for run in runs]
            texts = [_score(value) for value in values]
            source = f"summary.scores.{split}.{metric}"
            row = _row(
                runs,
                f"{split}_{metric}",
                f"{split.capitalize().replace('_', ' ')} scores",
                metric_name(metric),
                source,
                values,
                texts,
                # Of more than two classes f1 is f1_macro (`metrics.classification`).
                shown=metric != "f1" or "f1_macro" not in metrics or not _all_have_many_classes(runs),
            )
            yield replace(row, metric=metric)


def _constant(runs: Sequence[RunRecord]) -> Iterator[Row]:
    """Yield what the same answer for every sample scores, and how far the runs are from it."""
    for split in ("test", "validation"):
        paths = {metric: ("summary", "baseline", "scores", split, metric) for metric in _CONSTANT_METRICS}
        for metric, path in paths.items():
            values = [run.number(path) for run in runs]
            if all(value is None for value in values):
                continue
            texts = [
                NOT_AVAILABLE if value is None else f"{_score(value)} (run {_from_constant(run, split, metric, value)})"
                for run, value in zip(runs, values, strict=True)
            ]
            yield _row(
                runs,
                f"{split}_constant_{metric}",
                "The same answer for every sample",
                f"{split.capitalize()} {metric_name(metric)}",
                ".".join(path),
                values,
                texts,
            )


def _from_constant(run: RunRecord, split: str, metric: str, constant: float) -> str:
    return format_percent(percent_change(run.number(("summary", "scores", split, metric)), constant))


def _splits_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return validation, test, and what other sets any of the runs has scores of."""
    scored = [scores for run in runs if isinstance(scores := run.get("summary.scores"), dict)]
    return list(dict.fromkeys(["validation", "test", *(split for scores in scored for split in scores)]))


def _all_have_many_classes(runs: Sequence[RunRecord]) -> bool:
    """Return whether no run that tells classes apart has two of them."""
    labels = [run.get("run.task.labels") for run in runs]
    return all(len(each) > 2 for each in labels if isinstance(each, list))


def _metrics_of(runs: Sequence[RunRecord], split: str) -> list[str]:
    found: dict[str, None] = {}
    for run in runs:
        scores = run.get(f"summary.scores.{split}")
        found.update(dict.fromkeys(scores if isinstance(scores, dict) else ()))
    order = list(_METRICS)
    return sorted(found, key=lambda metric: order.index(metric) if metric in order else len(order))


def _score(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.4f}"
