"""The rows of the comparison table, with a cell for each run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_as
from paratune.config.targets import ScoreTarget
from paratune.reports.rows.devices import device_rows
from paratune.reports.rows.efficiency import efficiency_rows
from paratune.reports.rows.row import ReportRow, RowBuilder, count_text, counts, formatted, in_form, percentages
from paratune.reports.rows.scores import constant_rows, quality_rows
from paratune.reports.rows.speed import memory_rows, phases_rows, prediction_rows, time_rows
from paratune.reports.runs.certificates import Certificate, certified
from paratune.reports.runs.execution import LABELS, NUM_THREADS, OTHER_LOAD, SOURCES, USABLE_CORES, usable_cores
from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.targets import target_rows
from paratune.reports.tables.table import TableCell
from paratune.verdicts.order import load_by_others

ARROW = " → "
"""Separates the values of consecutive sessions."""
_STRATEGY_OPTIONS = (
    ("stages", "pipeline_stages", "Pipeline stages"),
    ("schedule", "pipeline_schedule", "Pipeline schedule"),
    ("stage", "deepspeed_stage", "DeepSpeed stage"),
    ("shard_size", "shard_size", "Ranks that share states"),
)
"""Strategy options that the comparison shows: name, key of the row, label."""


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
        runs: Runs in the order of the columns.
        certificates: Result of `find_certificates`.
        reference: Run whose reference batch is that of the statistical efficiency; the first run when None.
        targets: Scores; rows show when runs reached them.
        price: Price of a device-hour.
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
    builder = RowBuilder(runs, "Setup")
    if any(run.is_baseline for run in runs):
        fitted = [str(run.get("run.model.architecture")) if run.is_baseline else None for run in runs]
        texts = ["none" if name is None else name for name in fitted]
        yield builder.row("baseline", "Fitted baseline", "run.model.architecture", fitted, texts)
    yield _session_row(runs, "strategy", "Strategy", "run.strategy.kind", str)
    yield from _strategy_options(runs)
    yield _session_row(runs, "world_size", "World size (processes)", "run.world_size", count_text)
    devices = [
        ARROW.join(map(str, run.session_values("run.device"))) if _changed(run, "run.device") else _devices(run)
        for run in runs
    ]
    yield builder.row("device", "Device", "summary.ranks[].device", devices)
    yield _session_row(runs, NUM_THREADS, LABELS[NUM_THREADS], SOURCES[NUM_THREADS], count_text)
    cores = [usable_cores(run) for run in runs]
    yield builder.row(USABLE_CORES, LABELS[USABLE_CORES], SOURCES[USABLE_CORES], cores, in_form("g")(cores))
    loads = [load_by_others(run) for run in runs]
    yield builder.row(OTHER_LOAD, LABELS[OTHER_LOAD], SOURCES[OTHER_LOAD], loads, percentages(loads))
    yield _session_row(runs, "precision", "Precision", "run.config.precision", str)
    yield builder.number("global_batch_size", "Global batch (samples)", "run.batch.global_batch_size", counts)
    size, steps = "run.batch.micro_batch_size", "run.batch.grad_accum_steps"
    micro = _session_row(runs, "micro_batch_size", "Micro-batch × accumulation", size, count_text)
    pairs = zip(runs, micro.cells, strict=True)
    cells = (replace(cell, text=_micro_batch(run), source=f"{size}, {steps}") for run, cell in pairs)
    yield replace(micro, cells=tuple(cells))
    yield replace(_session_row(runs, "grad_accum_steps", "Accumulation steps", steps, count_text), shown=False)
    workers = _session_row(runs, "loader_workers", "Loader workers of each rank", "run.loader.workers", count_text)
    yield replace(workers, shown=len({cell.text for cell in workers.cells}) > 1 or ARROW in workers.cells[0].text)
    yield from _training_rows(runs)
    megabytes = formatted(lambda value: format_as(None if value is None else value / 1e6, ",.1f"))
    yield builder.number("model_size_bytes", "Model size (MB)", "run.model.size_bytes", megabytes)
    yield builder.number("batches_per_epoch", "Batches per epoch and rank", "run.plan.batches_per_epoch", counts)
    yield builder.number("num_steps", "Optimizer steps", "summary.num_steps", counts)
    yield builder.number("seed", "Seed", "run.seed", in_form(""))


def _strategy_options(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the strategy options that a run has."""
    for option, key, label in _STRATEGY_OPTIONS:
        row = _session_row(runs, key, label, f"run.strategy.options.{option}", str)
        if option == "schedule":
            row = replace(row, cells=tuple(_schedule(cell, run) for cell, run in zip(row.cells, runs, strict=True)))
        if any(cell.value is not None for cell in row.cells):
            yield row


def _schedule(cell: TableCell, run: RunRecord) -> TableCell:
    """Add the number of stages of each rank to an interleaved schedule."""
    chunks = run.get("run.strategy.traits.stages_per_rank")
    if cell.value != "interleaved" or chunks is None:
        return cell
    return replace(cell, text=f"{cell.text}, {chunks} a rank")


def _certified(runs: Sequence[RunRecord], certificates: Sequence[Certificate]) -> Iterator[ReportRow]:
    """Yield the certificates of the strategies, if there are any."""
    if certificates:
        texts, sources = zip(*(certified(run, certificates) for run in runs), strict=True)
        yield RowBuilder(runs, "Setup").row("certified", "Certified", sources, texts)


def _session_row(runs: Sequence[RunRecord], key: str, label: str, source: str, text: Callable[[Any], str]) -> ReportRow:
    """Return the row of a setting; "1 → 2" for a run that was resumed with another value."""
    values: list[Any] = []
    for run in runs:
        numbers = [session.number(source) for session in run.sessions] if text is count_text else None
        by_session = run.session_values(source)
        if len(by_session) > 1:
            values.append(ARROW.join(NOT_AVAILABLE if value is None else text(value) for value in by_session))
        elif numbers is not None or by_session[0] is None:
            values.append(numbers[0] if numbers else None)
        else:
            values.append(str(by_session[0]))
    texts = [value if isinstance(value, str) else NOT_AVAILABLE if value is None else text(value) for value in values]
    sources = [source.replace("run.", "run.sessions[].", 1) if _changed(run, source) else source for run in runs]
    return RowBuilder(runs, "Setup").row(key, label, sources, values, texts)


def _training_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the number of training rows, and how many of them a model labelled."""
    builder = RowBuilder(runs, "Setup")
    rows, pseudo = ([run.number(f"run.data.train.{key}") for run in runs] for key in ("num_rows", "num_pseudo"))
    given = [
        None if all_rows is None else all_rows - (num_pseudo or 0)
        for all_rows, num_pseudo in zip(rows, pseudo, strict=True)
    ]
    texts = [
        f"{count_text(count)} labelled + {count_text(num_pseudo)} pseudo-labelled" if num_pseudo else count_text(count)
        for count, num_pseudo in zip(given, pseudo, strict=True)
    ]
    source = "run.data.train.num_rows, run.data.train.num_pseudo"
    yield builder.row("num_train_rows", "Training rows", source, rows, texts, shown=any(pseudo))
    yield builder.number("num_pseudo_rows", "Pseudo-labelled rows", "run.data.train.num_pseudo", counts, shown=False)


def _changed(run: RunRecord, source: str) -> bool:
    return len(run.session_values(source)) > 1


def _micro_batch(run: RunRecord) -> str:
    texts = []
    for session in run.sessions:
        sizes = (session.number(f"run.batch.{key}") for key in ("micro_batch_size", "grad_accum_steps"))
        texts.append(" × ".join(count_text(size) for size in sizes))
        # Values after the memory ran out in a session.
        changes = session.get("run.batch.changes")
        for change in changes if isinstance(changes, list) else []:
            if isinstance(change, Mapping):
                texts.append(f"{change.get('micro_batch_size')} × {change.get('grad_accum_steps')}")
    return ARROW.join(dict.fromkeys(texts))


def _devices(run: RunRecord) -> str | None:
    """Return the kinds of device of the ranks: "cpu", "cuda"."""
    kinds = {str(rank.get("device", NOT_AVAILABLE)).split(":")[0] for rank in run.objects("summary.ranks")}
    return ", ".join(sorted(kinds)) or None
