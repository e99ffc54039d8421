"""The measures of runs: each is defined here once, with its label, unit, direction and source.

Tables, figures, data files, published tables and the Python API read this list. Of each run a measure is what its
record has: totals, or totals over totals.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from paratune.base.units import NOT_AVAILABLE, percent_change
from paratune.config.metric_names import LABELS, OWN_PREFIX, direction, is_lower_better, metric_label
from paratune.records import ALL_PHASES
from paratune.records.constant import compare_with_constant, is_better_score
from paratune.records.efficiency import MIN_SAMPLES, NOISE_KINDS, NoiseKind, statistical_efficiency
from paratune.records.finished import RunRecord, number_in, steps_taken
from paratune.verdicts.order import load_by_others
from paratune.verdicts.rates import noise_kind, reference_batch_of

ARROW = " → "
"""Separates the values of consecutive sessions."""
Unit = Literal[
    "s", "ms", "bytes", "rate", "share", "score", "joules", "watts", "flops", "hours", "price", "count", "number",
    "factor", "percent", "text",
]  # fmt: skip
"""Unit of the values, which decides their format; text is not a number."""
PHASE_NAMES = {phase: phase.replace("_", " ").capitalize() for phase in ALL_PHASES}
MEMORY_KINDS = {"rss": "resident memory of the process", "cuda_allocated": "CUDA memory allocated by PyTorch"}
CONSTANT_METRICS = ("accuracy", "f1_macro", "exact", "rmse", "mae")
"""Metrics of a constant answer that are informative; without an answer, exact match and F1 are equal."""


@dataclass(frozen=True)
class Measure:
    """A measure of runs."""

    key: str
    """Name in CSV and JSON, with the unit last."""
    label: str
    """Without the unit, which depends on the size of the values."""
    group: str
    unit: Unit
    better: int = 0
    """1 if more is better, -1 if less is better, 0 if neither."""
    source: str = ""
    """Field of the record; of a measure with `read`, the formula in words."""
    read: Callable[[RunRecord], Any] | None = None
    """Computes the value from a run; None for the field in `source`, and for measures of configurations."""
    show: Literal["known", "nonzero", "differs", "data"] = "known"
    """When a table of runs shows it: where a value is known, is not 0, or differs between runs; data: only CSV and
    JSON, which have all measures, show it."""
    is_quality: bool = False
    """Whether it measures quality: unknown for probes, and repeats count once."""
    note: str = ""
    """What it means, below a table that shows it."""
    absent: Callable[[RunRecord], str] | None = None
    """Text of an unknown value; None for n/a."""

    def of(self, run: RunRecord) -> Any:
        """Return the value of a run; None where it is unknown."""
        return run.get(self.source) if self.read is None else self.read(run)


def over_sessions(values: Iterable[Any]) -> str:
    """Return the values of consecutive sessions as text, such as "1 → 2"."""
    return ARROW.join(NOT_AVAILABLE if value is None else str(value) for value in values)


# ---- Formulas: totals over totals, None where a part is unknown


def step_part_ms(run: RunRecord, phase: str) -> float | None:
    """Return the mean time of a phase in a measured step, in ms; the five phases sum to the mean step."""
    total, steps = getattr(run.summary.phases, phase).total_s, run.summary.throughput.num_steps_measured
    return None if total is None or not steps else 1000 * total / steps


def step_ms(run: RunRecord) -> float | None:
    """Return the mean measured step in ms, the sum of its phases."""
    parts = [step_part_ms(run, phase) for phase in ALL_PHASES]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def epoch_s(run: RunRecord) -> float | None:
    """Return the training time of an epoch; evaluations are left out, and less than an epoch is scaled up."""
    train_s, steps, per_epoch = run.summary.time.train_s, steps_taken(run), run.run.plan.steps_per_epoch
    return None if train_s is None or not steps or per_epoch is None else train_s / steps * per_epoch


def phase_total_s(run: RunRecord, phase: str) -> float | None:
    """Return the seconds of a phase over all steps of a run, averaged over the ranks.

    A record without the totals of its ranks has those of the measured steps, which are scaled to all steps.
    """
    totals = [rank.phases_total_s.get(phase) for rank in run.summary.ranks if rank.phases_total_s]
    known = [value for value in totals if value is not None]
    if known and len(known) == len(totals):
        return statistics.fmean(known)
    mean_ms, steps = step_part_ms(run, phase), steps_taken(run)
    return None if mean_ms is None or steps is None else mean_ms * steps / 1000


def device_hours(run: RunRecord) -> float | None:
    """Return the hours of a run times its devices; None when their number changed."""
    total_s, size = run.summary.time.total_s, run.run.world_size
    if total_s is None or size is None or len(run.session_values("run.world_size")) > 1:
        return None
    return total_s * size / 3600


def usable_cores(run: RunRecord) -> float | None:
    """Return the cores that the processes of a run could use, over all nodes; None if a node does not record them."""
    cores = [number_in(node.get("num_usable_cores")) for node in run.run.hardware]
    known = [number for number in cores if number is not None]
    return sum(known) if known and len(known) == len(cores) else None


def run_noise(
    run: RunRecord, kind: NoiseKind = "plain", field: Literal["value", "standard_error"] = "value"
) -> float | None:
    """Return the noise scale of a run in samples, from its own sampled steps; None with fewer than `MIN_SAMPLES`."""
    noise = run.noise(kind)
    known: float | None = getattr(noise, field)
    return known if noise.num_steps is not None and noise.num_steps >= MIN_SAMPLES else None


def run_efficiency(run: RunRecord, kind: NoiseKind, reference: float | None) -> float | None:
    """Return the statistical efficiency of a run against a batch, by its own noise scale; 1 at that batch."""
    size, noise = run.run.batch.global_batch_size, run_noise(run, kind)
    if not size or not reference:
        return None
    if size == reference:
        return 1.0
    return None if noise is None else statistical_efficiency(noise, size, reference)


def _mean_power_w(run: RunRecord) -> float | None:
    """Return the mean power of the devices in watts; None when one of them is unknown."""
    powers = [device.get("power_w") for device in run.summary.utilisation.devices]
    means = [number_in(power.get("mean")) if isinstance(power, Mapping) else None for power in powers]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known and len(known) == len(means) else None


def _devices(run: RunRecord) -> str | None:
    """Return the kinds of device of the ranks: "cpu", "cuda"; of a resumed run, of its sessions."""
    by_session = run.session_values("run.device")
    if len(by_session) > 1:
        return over_sessions(by_session)
    kinds = {(rank.device or NOT_AVAILABLE).split(":")[0] for rank in run.summary.ranks}
    return ", ".join(sorted(kinds)) or None


def _predicted_ms(at: int) -> Callable[[RunRecord], float | None]:
    def read(run: RunRecord) -> float | None:
        span = run.summary.prediction.step_s
        return None if span is None else 1000.0 * span[at]

    return read


def _prediction_error(run: RunRecord) -> float | None:
    return percent_change(_predicted_ms(0)(run), step_ms(run))


# ---- The list


def _by_session(source: str) -> Callable[[RunRecord], Any]:
    """Return a reader of a setting: its value, or "1 → 2" for a run that was resumed with another one."""

    def read(run: RunRecord) -> Any:
        values = run.session_values(source)
        if len(values) > 1:
            return over_sessions(values)
        return values[0] if values[0] is None or isinstance(values[0], int | float) else str(values[0])

    return read


def _sizes(key: str) -> Callable[[RunRecord], Any]:
    """Return a reader of a size of a step: of all sessions, and after the memory ran out in one."""

    def read(run: RunRecord) -> Any:
        sizes = [getattr(session.run.batch, key) for session in run.sessions[:1]]
        for session in run.sessions:
            for size in (getattr(session.run.batch, key), *(change.get(key) for change in session.run.batch.changes)):
                sizes += [size] if size != sizes[-1] else []
        return sizes[0] if len(sizes) == 1 else over_sessions(sizes)

    return read


def _setting(key: str, label: str, source: str, unit: Unit = "text", **options: Any) -> Measure:
    return Measure(key, label, "Setup", unit, 0, source, _by_session(source), **options)


_STEPS = "summary.throughput.num_steps_measured"
_TIME, _PHASE, _MEMORY = "Time and throughput", "Mean step by phase", "Peak memory"
_EFFICIENCY, _DEVICES, _PLAN = "Efficiency", "Devices", "Plan"
_BUBBLE = (
    "Pipeline bubble: idle share of the time between the first and the last pass of a step, in which a rank waits for "
    "other stages or their data. Its ideal value, with equally fast stages and free communication, is "
    "(p - 1)/(v m + p - 1), with p ranks in a pipeline, v stages on each, and m micro-batches."
)
_UTILISATION = (
    "Utilisation: on a GPU the share of time in which a kernel ran (NVML), on a CPU the CPU time of a rank divided by "
    "the time of its cores. MFU measures how well a GPU was used."
)
NOISE_KEYS: dict[NoiseKind, str] = {"plain": "noise_scale", "preconditioned": "noise_scale_preconditioned"}
_NOISE_LABELS = {"plain": "Noise scale (samples)", "preconditioned": "Noise scale under AdamW (samples)"}


def _noise(kind: NoiseKind) -> Iterator[Measure]:
    key, label = NOISE_KEYS[kind], _NOISE_LABELS[kind]
    source = f"summary.noise_scale{'' if kind == 'plain' else f'.{kind}'}"
    yield Measure(key, label, _EFFICIENCY, "number", 0, f"{source}.value", lambda run: run_noise(run, kind))
    error = partial(run_noise, kind=kind, field="standard_error")
    yield Measure(f"{key}_standard_error", "Its standard error", _EFFICIENCY, "number", 0, source, error)
    count = f"{source}.num_steps"
    yield Measure(f"{key}_num_steps", "Sampled steps", _EFFICIENCY, "count", 0, count, show="data")


def _phase(phase: str) -> Iterator[Measure]:
    name, source = PHASE_NAMES[phase], f"summary.phases.{phase}"
    over = f"{source}.total_s over {_STEPS}"
    yield Measure(f"{phase}_mean_ms", name, _PHASE, "ms", -1, over, lambda run: step_part_ms(run, phase))
    yield Measure(f"{phase}_share", f"{name}, share", _PHASE, "share", -1, f"{source}.share", show="data")
    for at in ("median", "p10", "p90"):
        yield Measure(f"{phase}_{at}_ms", f"{name}, {at}", _PHASE, "ms", -1, f"{source}.{at}_ms", show="data")


def _phase_total(phase: str) -> Measure:
    source = f"summary.ranks[].phases_total_s.{phase}, mean over ranks, all steps"
    read = lambda run: phase_total_s(run, phase)  # noqa: E731
    return Measure(f"{phase}_s", PHASE_NAMES[phase], "All steps by phase", "s", -1, source, read, show="data")


_EPOCH = "summary.time.train_s over summary.num_steps, times run.plan.steps_per_epoch"
_LOAD = "summary.utilisation.machine_mean less summary.utilisation.mean"
_CORES = "run.hardware[].num_usable_cores"
_MEASURES = (
    Measure(
        "baseline", "Fitted baseline", "Setup", "text", 0, "run.model.architecture",
        lambda run: str(run.run.model.architecture) if run.is_baseline else None,
    ),
    _setting("strategy", "Strategy", "run.strategy.kind"),
    _setting("pipeline_stages", "Pipeline stages", "run.strategy.options.stages"),
    _setting("pipeline_schedule", "Pipeline schedule", "run.strategy.options.schedule"),
    _setting("deepspeed_stage", "DeepSpeed stage", "run.strategy.options.stage"),
    _setting("shard_size", "Ranks that share states", "run.strategy.options.shard_size"),
    _setting("world_size", "Processes", "run.world_size", "count"),
    Measure("device", "Device", "Setup", "text", 0, "summary.ranks[].device", _devices),
    _setting("num_threads", "Threads of each process", "run.num_threads", "count"),
    Measure("num_usable_cores", "Usable cores", "Setup", "number", 0, _CORES, usable_cores),
    Measure("other_load", "Load by other programs", "Setup", "share", 0, _LOAD, load_by_others),
    _setting("precision", "Precision", "run.config.precision"),
    Measure("global_batch_size", "Global batch (samples)", "Setup", "count", 0, "run.batch.global_batch_size"),
    *(Measure(key, label, "Setup", "count", 0, f"run.batch.{key}", _sizes(key))
      for key, label in (("micro_batch_size", "Micro-batch"), ("grad_accum_steps", "Accumulation steps"))),
    _setting("loader_workers", "Loader workers of each rank", "run.loader.workers", "count", show="differs"),
    Measure("num_train_rows", "Training rows", "Setup", "count", 0, "run.data.train.num_rows", show="data"),
    Measure(
        "num_pseudo_rows", "Pseudo-labelled rows", "Setup", "count", 0, "run.data.train.num_pseudo", show="nonzero"
    ),
    Measure("model_size_bytes", "Model size", "Setup", "bytes", 0, "run.model.size_bytes"),
    Measure("batches_per_epoch", "Batches per epoch and rank", "Setup", "count", 0, "run.plan.batches_per_epoch"),
    Measure("num_steps", "Optimizer steps", "Setup", "count", 0, "summary.num_steps"),
    Measure("seed", "Seed", "Setup", "text", 0, "run.seed"),
    Measure("train_s", "Training time", _TIME, "s", -1, "summary.time.train_s"),
    Measure("epoch_s", "Time per epoch", _TIME, "s", -1, _EPOCH, epoch_s),
    Measure("total_s", "Whole run", _TIME, "s", -1, "summary.time.total_s"),
    *(Measure(f"{part}_s", part.capitalize(), _TIME, "s", -1, f"summary.time.{part}_s", show="data")
      for part in ("startup", "tokenize", "evaluate", "checkpoint")),
    Measure("samples_per_s", "Samples/s", _TIME, "rate", 1, "summary.throughput.samples_per_s"),
    Measure("tokens_per_s", "Real tokens/s", _TIME, "rate", 1, "summary.throughput.tokens_per_s"),
    Measure(
        "padded_tokens_per_s", "Padded tokens/s", _TIME, "rate", 0, "summary.throughput.padded_tokens_per_s",
        show="data",
    ),
    Measure("padding_share", "Padding", _TIME, "share", -1, "summary.throughput.padding_share"),
    Measure("step_median_ms", "Median step", _TIME, "ms", -1, "summary.step_ms.median"),
    Measure("mean_step_ms", "Mean step", _TIME, "ms", -1, f"summary.phases.*.total_s over {_STEPS}", step_ms),
    *(Measure(f"step_{at}_ms", f"Step, {at}", _TIME, "ms", -1, f"summary.step_ms.{at}", show="data")
      for at in ("p10", "p90")),
    Measure(
        "bubble_share", "Pipeline bubble", _TIME, "share", -1, "summary.pipeline.bubble_share", note=_BUBBLE
    ),
    Measure("ideal_bubble_share", "Ideal bubble", _TIME, "share", -1, "summary.pipeline.ideal_bubble_share"),
    Measure(
        "num_skipped_steps", "Steps skipped (fp16)", _TIME, "count", 0, "summary.num_skipped_steps", show="nonzero"
    ),
    Measure("num_steps_measured", "Steps measured", _TIME, "count", 0, _STEPS, show="data"),
    *(measure for kind in NOISE_KINDS for measure in _noise(kind)),
    Measure("communication_share", "Communication", _EFFICIENCY, "share", -1, "summary.communication.share"),
    Measure(
        "communication_exposed_share", "Communication, not hidden", _EFFICIENCY, "share", -1,
        "summary.communication.exposed_share",
    ),
    Measure(
        "communication_ms_per_step", "Communication in a step", _EFFICIENCY, "ms", -1,
        "summary.communication.time_ms_per_step", show="data",
    ),
    Measure(
        "straggler_slowdown", "Slowest rank to median rank", _EFFICIENCY, "factor", -1, "summary.stragglers.slowdown"
    ),
    Measure("straggler_rank", "Slowest rank", _EFFICIENCY, "count", 0, "summary.stragglers.slowest_rank"),
    Measure("wait_share", "Waiting for the slowest rank", _EFFICIENCY, "share", -1, "summary.stragglers.wait_share"),
    *(measure for phase in ALL_PHASES for measure in _phase(phase)),
    *map(_phase_total, ALL_PHASES),
    Measure(
        "peak_memory_largest_bytes", "Peak memory per device", _MEMORY, "bytes", -1, "summary.memory.largest_bytes"
    ),
    Measure("peak_memory_sum_bytes", "Total memory", _MEMORY, "bytes", -1, "summary.memory.sum_bytes"),
    Measure("peak_memory_kind", "Kind of memory", _MEMORY, "text", 0, "summary.memory.kind"),
    Measure("utilisation", "Utilisation", _DEVICES, "share", 1, "summary.utilisation.mean", note=_UTILISATION),
    Measure("utilisation_kind", "Utilisation by", _DEVICES, "text", 0, "summary.utilisation.kind", show="data"),
    *(Measure(f"utilisation_{at}", f"Utilisation, {at}", _DEVICES, "share", 0, f"summary.utilisation.{at}",
              show="data") for at in ("p10", "p90")),
    Measure(
        "machine_utilisation", "All cores, with other processes", _DEVICES, "share", 0,
        "summary.utilisation.machine_mean", show="data",
    ),
    Measure("model_flops_per_s", "Work of real tokens", _DEVICES, "flops", 1, "summary.flops.model_flops_per_s"),
    Measure("mfu", "MFU", _DEVICES, "share", 1, "summary.flops.mfu"),
    Measure("peak_source", "Peak by", _DEVICES, "text", 0, "summary.flops.peak_source", show="data"),
    Measure(
        "power_w", "Power of a device, mean", _DEVICES, "watts", -1, "summary.utilisation.devices[].power_w",
        _mean_power_w,
    ),
    Measure("energy_j", "Energy of all steps", _DEVICES, "joules", -1, "summary.utilisation.energy_j"),
    Measure("energy_source", "Energy by", _DEVICES, "text", 0, "summary.utilisation.energy_source", show="data"),
    Measure(
        "device_hours", "Device-hours", _DEVICES, "hours", -1, "summary.time.total_s times run.world_size",
        device_hours,
    ),
    *(Measure(key, label, _PLAN, "ms", 0, "summary.prediction.step_s", _predicted_ms(at), "data" if at else "known")
      for at, (key, label) in enumerate((
          ("predicted_step_ms", "Mean step, predicted"),
          ("predicted_step_low_ms", "Its lower limit"),
          ("predicted_step_high_ms", "Its upper limit"),
      ))),
    Measure(
        "prediction_error_percent", "Predicted against measured", _PLAN, "percent", 0,
        "summary.prediction.step_s over the mean step", _prediction_error,
    ),
    Measure("train_loss_last_epoch", "Training loss, last epoch", "Loss", "score", -1, "summary.loss.mean_last_epoch"),
    Measure("kept_step", "Step of the kept model", "Loss", "count", 0, "summary.kept_step"),
)  # fmt: skip
MEASURES: Mapping[str, Measure] = {measure.key: measure for measure in _MEASURES}
"""The measures of all runs by key, in the order of tables."""


def named(*keys: str) -> tuple[Measure, ...]:
    """Return the measures of these keys: a view."""
    return tuple(MEASURES[key] for key in keys)


STEP_PARTS = named(*(f"{phase}_mean_ms" for phase in ALL_PHASES))
TOTAL_PARTS = named(*(f"{phase}_s" for phase in ALL_PHASES))
EFFICIENCY = Measure(
    "statistical_efficiency", "Statistical efficiency", _EFFICIENCY, "share", 1,
    "(phi + m0) / (phi + m), phi the noise scale, m the global batch, m0 the reference batch",
)  # fmt: skip
GOODPUT = Measure(
    "goodput_samples_per_s", "Goodput (useful samples/s)", _EFFICIENCY, "rate", 1,
    "samples/s times statistical efficiency",
)  # fmt: skip


# ---- Measures that depend on the runs that are compared


def metric_name(metric: str) -> str:
    """Return the label of a metric, with an arrow to its better side."""
    if metric not in LABELS and not metric.startswith(OWN_PREFIX):
        return metric
    return f"{metric_label(metric)} {'↓' if is_lower_better(metric) else '↑'}"


def score(split: str, metric: str) -> Measure:
    """Return the measure of a score."""
    try:
        better = 1 if direction(metric) == "max" else -1
    except KeyError:  # a metric of a later version
        better = 0
    title = split.capitalize().replace("_", " ")
    name, source = metric_name(metric).rstrip(" ↑↓"), f"summary.scores.{split}.{metric}"
    label = f"{title} {name[:1].lower() if name[1:2].islower() else name[:1]}{name[1:]}"  # accuracy, but F1 and RMSE
    read = lambda run: run.score(split, metric)  # noqa: E731
    return Measure(f"{split}_{metric}", label, f"{title} scores", "score", better, source, read, is_quality=True)


def score_measures(runs: Sequence[RunRecord]) -> list[Measure]:
    """Return the scores of the runs: validation, test, then other splits; the metrics of a task in their order."""
    splits = dict.fromkeys(["validation", "test", *(split for run in runs for split in run.summary.scores)])
    order = list(LABELS)
    measures = []
    for split in splits:
        names = dict.fromkeys(name for run in runs for name in run.summary.scores.get(split) or ())
        ordered = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
        measures += [score(split, metric) for metric in ordered]
    return measures


def constant_measures(runs: Sequence[RunRecord]) -> Iterator[Measure]:
    """Yield the scores of the constant answers of the runs, such as the majority class."""
    names = {run.summary.baseline.predicts for run in runs} - {None}
    group = (names.pop() or "" if len(names) == 1 else "constant answer").capitalize()
    for split in ("test", "validation"):
        for metric in CONSTANT_METRICS:
            if any(constant_score(run, split, metric) is not None for run in runs):
                own = score(split, metric)
                yield Measure(
                    f"{split}_constant_{metric}", own.label, group, "score", 0,
                    f"summary.baseline.scores.{split}.{metric}",
                    partial(constant_score, split=split, metric=metric),
                )  # fmt: skip


def constant_score(run: RunRecord, split: str, metric: str) -> float | None:
    """Return a score of the constant answer of a run."""
    return (run.summary.baseline.scores.get(split) or {}).get(metric)


def efficiency_measures(runs: Sequence[RunRecord], reference: RunRecord) -> Iterator[Measure]:
    """Yield statistical efficiency and goodput of runs, against the reference batch of one of them."""
    kind, base = noise_kind(runs), reference_batch_of(reference)
    # When all batches are the reference batch, efficiency is 100% and goodput equals samples/s.
    show: Literal["known", "data"] = "data" if {run.run.batch.global_batch_size for run in runs} == {base} else "known"

    def efficiency(run: RunRecord) -> float | None:
        return run_efficiency(run, kind, base)

    def goodput(run: RunRecord) -> float | None:
        rate, share = run.summary.throughput.samples_per_s, efficiency(run)
        return None if rate is None or share is None else rate * share

    size = NOT_AVAILABLE if base is None else f"{base:,.0f} samples"
    label = f"{EFFICIENCY.label} (against {size})"
    yield Measure(EFFICIENCY.key, label, _EFFICIENCY, "share", 1, EFFICIENCY.source, efficiency, show)
    yield Measure("goodput", GOODPUT.label, _EFFICIENCY, "rate", 1, GOODPUT.source, goodput, show)


def to_first(runs: Sequence[RunRecord]) -> Measure:
    """Return the real tokens/s of each run divided by those of the first run."""
    base = runs[0].summary.throughput.tokens_per_s

    def read(run: RunRecord) -> float | None:
        rate = run.summary.throughput.tokens_per_s
        return None if rate is None or not base else rate / base

    source = f"summary.throughput.tokens_per_s over that of {runs[0].name}"
    return Measure("tokens_per_s_to_first", "Tokens/s against first run", _TIME, "factor", 1, source, read)


def cost(price: float) -> Measure:
    """Return the measure of the cost of a run, for a price of a device-hour."""

    def read(run: RunRecord) -> float | None:
        hours = device_hours(run)
        return None if hours is None else hours * price

    return Measure("cost", f"Cost at {price:g} a device-hour", _DEVICES, "price", -1, "device-hours times price", read)


def not_better_than_constant(run: RunRecord) -> str | None:
    """Return a sentence when the model is not better than a constant answer; None when it is, or nothing is known.

    The first headline metric of the task decides, on the test set or else on validation.
    """
    found = compare_with_constant(run.summary.scores, run.summary.baseline.model_dump(), run.run.task.metrics)
    return None if found is None or is_better_score(found.metric, found.model, found.constant) else found.sentence


def unknown_reasons(run: RunRecord, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield why measures of a run are unknown that another run has, or that runs on GPUs have."""
    for name, part, read in _EXPLAINED:
        reason = part(run).reason
        if reason is not None and read(run) is None and any(read(other) is not None for other in runs):
            yield f"{name} n/a: {reason}."
    on_gpu, used, work = run.run.device == "cuda", run.summary.utilisation, run.summary.flops
    if used.reason is not None and (used.mean is None or (on_gpu and used.energy_j is None)):
        yield f"utilisation, power or energy is n/a: {used.reason}."
    if work.reason is not None and on_gpu and work.mfu is None:
        yield f"MFU is n/a: {work.reason}."


_EXPLAINED: tuple[tuple[str, Callable[[RunRecord], Any], Callable[[RunRecord], float | None]], ...] = (
    ("noise scale", lambda run: run.summary.noise_scale, run_noise),
    (
        "noise scale under AdamW", lambda run: run.summary.noise_scale.preconditioned,
        lambda run: run_noise(run, "preconditioned"),
    ),
    ("communication", lambda run: run.summary.communication, lambda run: run.summary.communication.share),
    ("slowest rank", lambda run: run.summary.stragglers, lambda run: run.summary.stragglers.slowdown),
)  # fmt: skip
"""Measures with a reason in the record: name, part of the summary, and value."""


def noise_words(kind: NoiseKind) -> str:
    """Return what phi is, in words."""
    name = "the gradient noise scale"
    return name if kind == "plain" else f"{name} of gradients divided as AdamW divides them"
