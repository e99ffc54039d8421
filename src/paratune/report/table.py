"""The comparison table as data: one row a figure, one cell a run; each cell names the record that it came from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.config.targets import ScoreTarget
from paratune.report.certificates import Certificate, certified
from paratune.report.device_rows import device_rows
from paratune.report.efficiency_rows import efficiency_rows
from paratune.report.prediction_rows import prediction_rows
from paratune.report.read import RunRecord
from paratune.report.rows import FigureCell, ReportRow, count_text, make_row, number_row, texts_of
from paratune.report.score_rows import constant_rows, quality_rows
from paratune.report.speed_rows import memory_rows, phases_rows, time_rows
from paratune.report.targets import target_rows

ARROW = " → "
"""Between what a run began with and what it was gone on with."""
_STRATEGY_OPTIONS = (
    ("stages", "pipeline_stages", "Pipeline stages"),
    ("schedule", "pipeline_schedule", "Pipeline schedule"),
    ("stage", "deepspeed_stage", "DeepSpeed stage"),
    ("shard_size", "shard_size", "Ranks that share states"),
)
"""Options of strategies that a comparison must show: name, key of the row, label."""


def build_rows(
    runs: Sequence[RunRecord],
    certificates: Sequence[Certificate] = (),
    *,
    reference: RunRecord | None = None,
    targets: Sequence[ScoreTarget] = (),
    price: float | None = None,
) -> tuple[ReportRow, ...]:
    """Return the rows of the comparison table, in their order.

    Args:
        runs: In the order of the columns.
        certificates: Of `find_certificates`.
        reference: Whose global batch statistical efficiency is held against; the first run when not given.
        targets: Scores whose times are shown.
        price: Of a device-hour, where it has one.
    """
    rows = [
        *_setup(runs),
        *_certified(runs, certificates),
        *time_rows(runs),
        *target_rows(runs, targets),
        *efficiency_rows(runs, reference or runs[0]),
        *phases_rows(runs),
        *memory_rows(runs),
        *device_rows(runs, price),
        *prediction_rows(runs),
        *quality_rows(runs),
        *constant_rows(runs),
    ]
    return tuple(rows)


def _setup(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    if any(run.is_baseline for run in runs):
        fitted = [str(run.get("run.model.architecture")) if run.is_baseline else None for run in runs]
        texts = ["none" if one is None else one for one in fitted]
        yield make_row(runs, "baseline", "Setup", "Fitted baseline", "run.model.architecture", fitted, texts)
    yield _course_row(runs, "strategy", "Strategy", "run.strategy.kind", str)
    yield from _strategy_options(runs)
    yield _course_row(runs, "world_size", "World size (processes)", "run.world_size", count_text)
    devices = [
        ARROW.join(map(str, run.course("run.device"))) if _changed(run, "run.device") else _devices(run) for run in runs
    ]
    yield make_row(runs, "device", "Setup", "Device", "summary.ranks[].device", devices)
    yield _course_row(runs, "precision", "Precision", "run.config.precision", str)
    yield number_row(
        runs,
        "global_batch_size",
        "Setup",
        "Global batch (samples)",
        "run.batch.global_batch_size",
        texts_of(count_text),
    )
    micro = _course_row(
        runs, "micro_batch_size", "Micro-batch × accumulation", "run.batch.micro_batch_size", count_text
    )
    source = "run.batch.micro_batch_size, run.batch.grad_accum_steps"
    cells = (replace(cell, text=_micro_batch(run), source=source) for run, cell in zip(runs, micro.cells, strict=True))
    yield replace(micro, cells=tuple(cells))
    accum = _course_row(runs, "grad_accum_steps", "Accumulation steps", "run.batch.grad_accum_steps", count_text)
    yield replace(accum, shown=False)
    workers = _course_row(runs, "loader_workers", "Loader workers of each rank", "run.loader.workers", count_text)
    yield replace(workers, shown=len({cell.text for cell in workers.cells}) > 1 or ARROW in workers.cells[0].text)
    yield from _training_rows(runs)
    megabytes = texts_of(lambda value: NOT_AVAILABLE if value is None else f"{value / 1e6:,.1f}")
    yield number_row(runs, "model_size_bytes", "Setup", "Model size (MB)", "run.model.size_bytes", megabytes)
    yield number_row(
        runs,
        "batches_per_epoch",
        "Setup",
        "Batches per epoch and rank",
        "run.plan.batches_per_epoch",
        texts_of(count_text),
    )
    yield number_row(runs, "num_steps", "Setup", "Optimizer steps", "summary.num_steps", texts_of(count_text))
    yield number_row(
        runs,
        "seed",
        "Setup",
        "Seed",
        "run.seed",
        texts_of(lambda value: NOT_AVAILABLE if value is None else str(value)),
    )


def _strategy_options(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield what decides how a strategy works, where a run has it."""
    for option, key, label in _STRATEGY_OPTIONS:
        row = _course_row(runs, key, label, f"run.strategy.options.{option}", str)
        if option == "schedule":
            row = replace(row, cells=tuple(_schedule(cell, run) for cell, run in zip(row.cells, runs, strict=True)))
        if any(cell.value is not None for cell in row.cells):
            yield row


def _schedule(cell: FigureCell, run: RunRecord) -> FigureCell:
    """Add to a schedule how many stages each rank has, where there are several."""
    chunks = run.get("run.strategy.traits.stages_per_rank")
    if cell.value != "interleaved" or chunks is None:
        return cell
    return replace(cell, text=f"{cell.text}, {chunks} a rank")


def _certified(runs: Sequence[RunRecord], certificates: Sequence[Certificate]) -> Iterator[ReportRow]:
    """Yield what certificates say of each run's strategy, if there are any."""
    if certificates:
        texts, sources = zip(*(certified(run, certificates) for run in runs), strict=True)
        yield make_row(runs, "certified", "Setup", "Certified", sources, texts)


def _course_row(runs: Sequence[RunRecord], key: str, label: str, source: str, text: Callable[[Any], str]) -> ReportRow:
    """Return a setting; "1 → 2", a text in every format, of a run that went on with another."""
    values: list[Any] = []
    for run in runs:
        course = [one.number(source) for one in run.sessions] if text is count_text else run.course(source)
        if _changed(run, source):
            values.append(ARROW.join(NOT_AVAILABLE if value is None else text(value) for value in run.course(source)))
        else:
            values.append(course[0] if text is count_text or course[0] is None else str(course[0]))
    texts = [value if isinstance(value, str) else NOT_AVAILABLE if value is None else text(value) for value in values]
    sources = [source.replace("run.", "run.sessions[].", 1) if _changed(run, source) else source for run in runs]
    return make_row(runs, key, "Setup", label, sources, values, texts)


def _training_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield on how many rows runs were trained, where a model labelled some of them."""
    rows, pseudo = ([run.number(f"run.data.train.{key}") for run in runs] for key in ("num_rows", "num_pseudo"))
    given = [None if all_rows is None else all_rows - (of or 0) for all_rows, of in zip(rows, pseudo, strict=True)]
    texts = [
        f"{count_text(count)} labelled + {count_text(of)} pseudo-labelled" if of else count_text(count)
        for count, of in zip(given, pseudo, strict=True)
    ]
    source = "run.data.train.num_rows, run.data.train.num_pseudo"
    yield make_row(runs, "num_train_rows", "Setup", "Training rows", source, rows, texts, shown=any(pseudo))
    yield number_row(
        runs,
        "num_pseudo_rows",
        "Setup",
        "Pseudo-labelled rows",
        "run.data.train.num_pseudo",
        texts_of(count_text),
        shown=False,
    )


def _changed(run: RunRecord, source: str) -> bool:
    return len(run.course(source)) > 1


def _micro_batch(run: RunRecord) -> str:
    texts = []
    for one in run.sessions:
        sizes = (one.number(f"run.batch.{key}") for key in ("micro_batch_size", "grad_accum_steps"))
        texts.append(" × ".join(count_text(size) for size in sizes))
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
