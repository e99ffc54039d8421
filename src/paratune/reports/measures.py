"""The measures of runs: each is defined here once, with its label, unit, direction and source.

Tables, figures, data files, published tables and the Python API read this list. Of each run a measure is what its
record has: totals, or totals over totals.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from paratune.base.units import NOT_AVAILABLE, percent_change
from paratune.config.metric_names import LABELS, direction, metric_name
from paratune.records import ALL_PHASES
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord, number_in, steps_taken
from paratune.verdicts.order import load_by_others
from paratune.verdicts.speeds import efficiency_of, noise_kind, reference_batch_of

ARROW = " → "  # separates the values of consecutive sessions
Unit = Literal[
    "s", "ms", "bytes", "rate", "share", "score", "joules", "watts", "flops", "hours", "price", "count", "number",
    "factor", "percent", "text",
]  # fmt: skip
"""Unit of the values, which decides their format; text is not a number."""
Show = Literal["known", "nonzero", "differs", "data"]
PHASE_NAMES = {phase: phase.replace("_", " ").capitalize() for phase in ALL_PHASES}
CONSTANT_METRICS = ("accuracy", "f1_macro", "exact", "rmse", "mae")
"""Metrics of a constant answer that are informative; without an answer, exact match and F1 are equal."""


@dataclass(frozen=True)
class Measure:
    group: str
    key: str  # name in CSV and JSON, with the unit last
    label: str  # without the unit, which depends on the size of the values
    unit: Unit
    better: int = 0  # 1 if more is better, -1 if less is better, 0 if neither
    source: str = ""  # field of the record; of a measure with `read`, the formula in words
    show: Show = "known"
    """When a table of runs shows it: where a value is known, is not 0, or differs between runs; data: only CSV and
    JSON, which have all measures, show it."""
    read: Callable[[RunRecord], Any] | None = None  # computes the value; None: the field in `source`, or no value
    note: str = ""  # what it means, below a table that shows it
    is_quality: bool = False  # unknown for probes, and repeats count once
    absent: Callable[[RunRecord], str] | None = None  # text of an unknown value; None for n/a

    def of(self, run: RunRecord) -> Any:
        """Return the value of a run; None where it is unknown, or not in the range of numbers."""
        try:
            value = run.get(self.source) if self.read is None else self.read(run)
        except OverflowError:
            return None
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def reason(self, run: RunRecord) -> str | None:
        """Return why a run does not have a measure of its summary, if the summary says so."""
        part = re.match(r"summary\.\w+(\.preconditioned)?", self.source)
        found = run.get(f"{part[0]}.reason") if part else None
        return found if isinstance(found, str) else None


def over_sessions(values: Iterable[Any]) -> str:
    """Return the values of consecutive sessions as text, such as "1 → 2"."""
    return ARROW.join(NOT_AVAILABLE if value is None else str(value) for value in values)


def _complete(values: Iterable[float | None]) -> list[float]:
    known = list(values)
    return [] if None in known else [value for value in known if value is not None]


def step_part_ms(run: RunRecord, phase: str) -> float | None:
    """Return the mean time of a phase in a measured step, in ms; the five phases sum to the mean step."""
    total, steps = getattr(run.summary.phases, phase).total_s, run.summary.throughput.num_steps_measured
    return None if total is None or not steps else 1000 * total / steps


def step_ms(run: RunRecord) -> float | None:
    """Return the mean measured step in ms, the sum of its phases."""
    parts = _complete(step_part_ms(run, phase) for phase in ALL_PHASES)
    return sum(parts) if parts else None


def epoch_s(run: RunRecord) -> float | None:
    """Return the training time of an epoch; evaluations are left out, and less than an epoch is scaled up."""
    train_s, steps, per_epoch = run.summary.time.train_s, steps_taken(run), run.run.plan.steps_per_epoch
    return None if train_s is None or not steps or per_epoch is None else train_s / steps * per_epoch


def phase_total_s(run: RunRecord, phase: str) -> float | None:
    """Return the seconds of a phase over all steps of a run, averaged over the ranks.

    A record without the totals of its ranks has those of the measured steps, which are scaled to all steps.
    """
    if totals := _complete(rank.phases_total_s.get(phase) for rank in run.summary.ranks if rank.phases_total_s):
        return statistics.fmean(totals)
    mean_ms, steps = step_part_ms(run, phase), steps_taken(run)
    return None if mean_ms is None or steps is None else mean_ms * steps / 1000


def device_hours(run: RunRecord, *, of_epoch: bool = False) -> float | None:
    """Return the hours of a run, or of an epoch, times its devices; None when their number changed."""
    seconds, size = epoch_s(run) if of_epoch else run.summary.time.total_s, run.run.world_size
    if seconds is None or size is None or len(run.session_values("run.world_size")) > 1:
        return None
    return seconds * size / 3600


def usable_cores(run: RunRecord) -> float | None:
    """Return the cores that the processes of a run could use, over all nodes; None if a node does not record them."""
    cores = _complete(number_in(node.get("num_usable_cores")) for node in run.run.hardware)
    return sum(cores) if cores else None


def _mean_power_w(run: RunRecord) -> float | None:
    powers = [device.get("power_w") for device in run.summary.utilisation.devices]
    means = _complete(number_in(power.get("mean")) if isinstance(power, Mapping) else None for power in powers)
    return statistics.fmean(means) if means else None


def _devices(run: RunRecord) -> str | None:
    """Return the kinds of device of the ranks: "cpu", "cuda"; of a resumed run, of its sessions."""
    by_session = run.session_values("run.device")
    if len(by_session) > 1:
        return over_sessions(by_session)
    kinds = {(rank.device or NOT_AVAILABLE).split(":")[0] for rank in run.summary.ranks}
    return ", ".join(sorted(kinds)) or None


def _predicted_ms(run: RunRecord, at: int) -> float | None:
    span = run.summary.prediction.step_s
    return None if span is None else 1000.0 * span[at]


def _setting(run: RunRecord, source: str) -> Any:
    """Return a setting: its value, or "1 → 2" for a run that was resumed with another one."""
    values = run.session_values(source)
    if len(values) > 1:
        return over_sessions(values)
    return values[0] if values[0] is None or isinstance(values[0], int | float) else str(values[0])


def _sizes(run: RunRecord, key: str) -> Any:
    """Return a size of a step: of all sessions, and after the memory ran out in one."""
    sizes: list[Any] = []
    for session in run.sessions:
        for size in (getattr(session.run.batch, key), *(change.get(key) for change in session.run.batch.changes)):
            sizes += [size] if [size] != sizes[-1:] else []
    return sizes[0] if len(sizes) == 1 else over_sessions(sizes)


_setup, _time, _phase = (partial(Measure, name) for name in ("Setup", "Time and throughput", "Mean step by phase"))
_efficiency, _memory, _device = (partial(Measure, name) for name in ("Efficiency", "Peak memory", "Devices"))
_plan, _loss = (partial(Measure, name) for name in ("Plan", "Loss"))


_STEPS = "summary.throughput.num_steps_measured"
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


_OF_A_PHASE: Sequence[tuple[str, str, Unit, str, Show]] = (
    ("mean_ms", "", "ms", f"total_s over {_STEPS}", "known"),
    ("share", ", share", "share", "share", "data"),
    *((f"{at}_ms", f", {at}", "ms", f"{at}_ms", "data") for at in ("median", "p10", "p90")),
)
_SETTINGS: Sequence[tuple[str, str, Unit, str]] = (
    ("strategy", "Strategy", "text", "run.strategy.kind"),
    ("pipeline_stages", "Pipeline stages", "text", "run.strategy.options.stages"),
    ("pipeline_schedule", "Pipeline schedule", "text", "run.strategy.options.schedule"),
    ("deepspeed_stage", "DeepSpeed stage", "text", "run.strategy.options.stage"),
    ("shard_size", "Ranks that share states", "text", "run.strategy.options.shard_size"),
    ("world_size", "Processes", "count", "run.world_size"),
)
_EPOCH = "summary.time.train_s over summary.num_steps, times run.plan.steps_per_epoch"
_LOAD = "summary.utilisation.machine_mean less summary.utilisation.mean"
_PREDICTED = "summary.prediction.step_s"
_NOISE, _ADAMW = "summary.noise_scale", "summary.noise_scale.preconditioned"
_MEASURES = (
    _setup("baseline", "Fitted baseline", "text", 0, "run.model.architecture",
           read=lambda run: str(run.run.model.architecture) if run.is_fitted else None),
    *(_setup(key, label, unit, 0, source, read=partial(_setting, source=source))
      for key, label, unit, source in _SETTINGS),
    _setup("device", "Device", "text", 0, "summary.ranks[].device", read=_devices),
    _setup("num_threads", "Threads of each process", "count", 0, "run.num_threads",
           read=partial(_setting, source="run.num_threads")),
    _setup("num_usable_cores", "Usable cores", "number", 0, "run.hardware[].num_usable_cores", read=usable_cores),
    _setup("other_load", "Load by other programs", "share", 0, _LOAD, read=load_by_others),
    _setup("precision", "Precision", "text", 0, "run.config.precision",
           read=partial(_setting, source="run.config.precision")),
    _setup("global_batch_size", "Global batch (samples)", "count", 0, "run.batch.global_batch_size"),
    *(_setup(key, label, "count", 0, f"run.batch.{key}", read=partial(_sizes, key=key))
      for key, label in (("micro_batch_size", "Micro-batch"), ("grad_accum_steps", "Accumulation steps"))),
    _setup("loader_workers", "Loader workers of each rank", "count", 0, "run.loader.workers", "differs",
           partial(_setting, source="run.loader.workers")),
    _setup("num_train_rows", "Training rows", "count", 0, "run.data.train.num_rows", "data"),
    _setup("num_pseudo_rows", "Pseudo-labelled rows", "count", 0, "run.data.train.num_pseudo", "nonzero"),
    _setup("model_size_bytes", "Model size", "bytes", 0, "run.model.size_bytes"),
    _setup("batches_per_epoch", "Batches per epoch and rank", "count", 0, "run.plan.batches_per_epoch"),
    _setup("num_steps", "Optimizer steps", "count", 0, "summary.num_steps"),
    _setup("seed", "Seed", "text", 0, "run.seed"),
    _time("train_s", "Training time", "s", -1, "summary.time.train_s"),
    _time("epoch_s", "Time per epoch", "s", -1, _EPOCH, read=epoch_s),
    _time("total_s", "Whole run", "s", -1, "summary.time.total_s"),
    *(_time(f"{part}_s", part.capitalize(), "s", -1, f"summary.time.{part}_s", "data")
      for part in ("startup", "tokenize", "evaluate", "checkpoint")),
    _time("samples_per_s", "Samples/s", "rate", 1, "summary.throughput.samples_per_s"),
    _time("tokens_per_s", "Real tokens/s", "rate", 1, "summary.throughput.tokens_per_s"),
    _time("padded_tokens_per_s", "Padded tokens/s", "rate", 0, "summary.throughput.padded_tokens_per_s", "data"),
    _time("padding_share", "Padding", "share", -1, "summary.throughput.padding_share"),
    *(_time(f"latency_{at}_ms", f"Latency of a text, {at}", "ms", -1, f"summary.inference.latency_{at}_ms")
      for at in ("p50", "p95")),
    _time("step_median_ms", "Median step", "ms", -1, "summary.step_ms.median"),
    _time("mean_step_ms", "Mean step", "ms", -1, f"summary.phases.*.total_s over {_STEPS}", read=step_ms),
    *(_time(f"step_{at}_ms", f"Step, {at}", "ms", -1, f"summary.step_ms.{at}", "data") for at in ("p10", "p90")),
    _time("bubble_share", "Pipeline bubble", "share", -1, "summary.pipeline.bubble_share", note=_BUBBLE),
    _time("ideal_bubble_share", "Ideal bubble", "share", -1, "summary.pipeline.ideal_bubble_share"),
    _time("num_skipped_steps", "Steps skipped (fp16)", "count", 0, "summary.num_skipped_steps", "nonzero"),
    _time("num_steps_measured", "Steps measured", "count", 0, _STEPS, "data"),
    _efficiency("noise_scale", "Noise scale (samples)", "number", 0, f"{_NOISE}.value"),
    _efficiency("noise_scale_standard_error", "Its standard error", "number", 0, f"{_NOISE}.standard_error"),
    _efficiency("noise_scale_num_steps", "Sampled steps", "count", 0, f"{_NOISE}.num_steps", "data"),
    _efficiency("noise_scale_preconditioned", "Noise scale under AdamW (samples)", "number", 0, f"{_ADAMW}.value"),
    _efficiency("noise_scale_preconditioned_standard_error", "Its standard error", "number", 0,
                f"{_ADAMW}.standard_error"),
    _efficiency("noise_scale_preconditioned_num_steps", "Sampled steps", "count", 0, f"{_ADAMW}.num_steps", "data"),
    _efficiency("communication_share", "Communication", "share", -1, "summary.communication.share"),
    _efficiency("communication_exposed_share", "Communication, not hidden", "share", -1,
                "summary.communication.exposed_share"),
    _efficiency("communication_ms_per_step", "Communication in a step", "ms", -1,
                "summary.communication.time_ms_per_step", "data"),
    _efficiency("straggler_slowdown", "Slowest rank to median rank", "factor", -1, "summary.stragglers.slowdown"),
    _efficiency("straggler_rank", "Slowest rank", "count", 0, "summary.stragglers.slowest_rank"),
    _efficiency("wait_share", "Waiting for the slowest rank", "share", -1, "summary.stragglers.wait_share"),
    *(_phase(f"{phase}_{key}", PHASE_NAMES[phase] + end, unit, -1, f"summary.phases.{phase}.{source}", show,
             partial(step_part_ms, phase=phase) if key == "mean_ms" else None)
      for phase in ALL_PHASES for key, end, unit, source, show in _OF_A_PHASE),
    *(Measure("All steps by phase", f"{phase}_s", PHASE_NAMES[phase], "s", -1,
              f"summary.ranks[].phases_total_s.{phase}, mean over ranks, all steps", "data",
              partial(phase_total_s, phase=phase)) for phase in ALL_PHASES),
    _memory("peak_memory_largest_bytes", "Peak memory per device", "bytes", -1, "summary.memory.largest_bytes"),
    _memory("peak_memory_sum_bytes", "Total memory", "bytes", -1, "summary.memory.sum_bytes"),
    _memory("weights_bytes", "Size of the weights", "bytes", -1, "summary.inference.weights_bytes"),
    _memory("peak_memory_kind", "Kind of memory", "text", 0, "summary.memory.kind"),
    _device("utilisation", "Utilisation", "share", 1, "summary.utilisation.mean", note=_UTILISATION),
    _device("utilisation_kind", "Utilisation by", "text", 0, "summary.utilisation.kind", "data"),
    *(_device(f"utilisation_{at}", f"Utilisation, {at}", "share", 0, f"summary.utilisation.{at}", "data")
      for at in ("p10", "p90")),
    _device("machine_utilisation", "All cores, with other processes", "share", 0, "summary.utilisation.machine_mean",
            "data"),
    _device("model_flops_per_s", "Work of real tokens", "flops", 1, "summary.flops.model_flops_per_s"),
    _device("mfu", "MFU", "share", 1, "summary.flops.mfu"),
    _device("peak_source", "Peak by", "text", 0, "summary.flops.peak_source", "data"),
    _device("power_w", "Power of a device, mean", "watts", -1, "summary.utilisation.devices[].power_w",
            read=_mean_power_w),
    _device("energy_j", "Energy of all steps", "joules", -1, "summary.utilisation.energy_j"),
    _device("energy_source", "Energy by", "text", 0, "summary.utilisation.energy_source", "data"),
    _device("device_hours", "Device-hours", "hours", -1, "summary.time.total_s times run.world_size",
            read=device_hours),
    _plan("predicted_step_ms", "Mean step, predicted", "ms", 0, _PREDICTED, read=partial(_predicted_ms, at=0)),
    _plan("predicted_step_low_ms", "Its lower limit", "ms", 0, _PREDICTED, "data", partial(_predicted_ms, at=1)),
    _plan("predicted_step_high_ms", "Its upper limit", "ms", 0, _PREDICTED, "data", partial(_predicted_ms, at=2)),
    _plan("prediction_error_percent", "Predicted against measured", "percent", 0, f"{_PREDICTED} over the mean step",
          read=lambda run: percent_change(_predicted_ms(run, 0), step_ms(run))),
    _loss("train_loss_last_epoch", "Training loss, last epoch", "score", -1, "summary.loss.mean_last_epoch"),
    _loss("kept_step", "Step of the kept model", "count", 0, "summary.kept_step"),
)  # fmt: skip
MEASURES: Mapping[str, Measure] = {measure.key: measure for measure in _MEASURES}
"""The measures of all runs by key, in the order of tables."""
EFFICIENCY = _efficiency(
    "statistical_efficiency", "Statistical efficiency", "share", 1,
    "(phi + m0) / (phi + m), phi the noise scale, m the global batch, m0 the reference batch",
)  # fmt: skip
GOODPUT = _efficiency(
    "goodput_samples_per_s", "Goodput (useful samples/s)", "rate", 1, "samples/s times statistical efficiency"
)
SPEED_UP = Measure("Scaling", "speed_up", "Speed-up", "rate", 1, "samples/s over those of the first line")
_PER_DEVICE = "speed-up over the number of devices, against the first line"
SCALING = Measure("Scaling", "scaling_efficiency", "Efficiency", "share", 1, _PER_DEVICE)
OF_CONFIGURATIONS = {measure.key: measure for measure in (*_MEASURES, EFFICIENCY, GOODPUT, SPEED_UP, SCALING)}
"""The same, and those that depend on other configurations."""


def named(*keys: str) -> tuple[Measure, ...]:
    """Return the measures of these keys: a view."""
    return tuple(OF_CONFIGURATIONS[key] for key in keys)


STEP_PARTS = named(*(f"{phase}_mean_ms" for phase in ALL_PHASES))
TOTAL_PARTS = named(*(f"{phase}_s" for phase in ALL_PHASES))


def score(split: str, metric: str, *, of_constant: bool = False) -> Measure:
    """Return the measure of a score; `of_constant` is that of the constant answer."""
    try:
        better = 1 if direction(metric) == "max" else -1
    except KeyError:  # a metric of a later version
        better = 0
    title, source = split.capitalize().replace("_", " "), f"summary.scores.{split}.{metric}"
    name = metric_name(metric).rstrip(" ↑↓")
    label = f"{title} {name[:1].lower() if name[1:2].islower() else name[:1]}{name[1:]}"  # accuracy, but F1 and RMSE
    key = f"{split}_{metric}"
    read: Callable[[RunRecord], Any] = partial(RunRecord.score, split=split, metric=metric)
    if of_constant:
        key, better, source = f"{split}_constant_{metric}", 0, f"summary.baseline.scores.{split}.{metric}"
        read = lambda run: (run.summary.baseline.scores.get(split) or {}).get(metric)  # noqa: E731
    return Measure(f"{title} scores", key, label, "score", better, source, read=read, is_quality=True)


def score_measures(runs: Sequence[RunRecord]) -> Iterator[Measure]:
    """Yield the scores of the runs: validation, test, then other splits; the metrics of a task in their order. Then the
    scores of their constant answers, such as the majority class.
    """
    pairs = [(split, metric) for run in runs for split, scores in run.summary.scores.items() for metric in scores or ()]
    metrics = dict.fromkeys([*LABELS, *(metric for _, metric in pairs if metric not in LABELS)])
    for split in dict.fromkeys(["validation", "test", *(split for split, _ in pairs)]):
        yield from (score(split, metric) for metric in metrics if (split, metric) in pairs)
    names = {run.summary.baseline.predicts for run in runs} - {None}
    group = (names.pop() or "" if len(names) == 1 else "constant answer").capitalize()
    for split in ("test", "validation"):
        for metric in CONSTANT_METRICS:
            found = score(split, metric, of_constant=True)
            if any(found.of(run) is not None for run in runs):
                yield replace(found, group=group)


def efficiency_measures(runs: Sequence[RunRecord], reference: RunRecord) -> Iterator[Measure]:
    """Yield statistical efficiency and goodput of runs, against the reference batch of one of them."""
    kind, base = noise_kind(runs), reference_batch_of(reference)
    # When all batches are the reference batch, efficiency is 100% and goodput equals samples/s.
    show: Show = "data" if {run.run.batch.global_batch_size for run in runs} == {base} else "known"
    efficiency = partial(efficiency_of, stand_in=None, reference=base, kind=kind)
    rate = MEASURES["samples_per_s"].of
    goodput = lambda run: None if None in (own := (rate(run), efficiency(run))) else own[0] * own[1]  # noqa: E731
    label = f"{EFFICIENCY.label} (against {NOT_AVAILABLE if base is None else f'{base:,.0f} samples'})"
    yield replace(EFFICIENCY, label=label, read=efficiency, show=show)
    yield replace(GOODPUT, read=goodput, show=show)


def cost(*prices: float) -> tuple[Measure, Measure]:
    """Return the measures of the cost of a run and of an epoch, at the first price of a device-hour; the label of the
    first one has the price if there is no other.
    """

    def read(run: RunRecord, *, of_epoch: bool = False) -> float | None:
        return None if (hours := device_hours(run, of_epoch=of_epoch)) is None else hours * prices[0]

    at = f" at {prices[0]:g} a device-hour" if len(prices) == 1 else ""
    source, of_epoch = f"{_EPOCH}, run.world_size and price", partial(read, of_epoch=True)
    return (
        _device("cost", f"Cost of the run{at}", "price", -1, "device-hours times price", read=read),
        _device("epoch_cost", "Cost of an epoch", "price", -1, source, read=of_epoch),
    )
