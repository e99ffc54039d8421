"""What the predictions advise, in words: what to run, what not to bother with, and why a curve will be flat."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from paratune.base.units import format_bytes, format_duration, format_share
from paratune.plan.enumerate import ALL
from paratune.plan.predict import FigureRange, Prediction, devices
from paratune.plan.time import BOUND_OF

ALIKE = 0.1
"""Times that differ by less are taken for the same, and the simpler strategy is advised."""
FLAT = 0.7
"""Efficiency of scaling below which it is said why."""
COSTLY = 2.0
"""Times the device-hours of the cheapest way that the advised one may take at most, for its speed."""
NAMED = 0.1
"""Share of the time that more devices do not save from which it is said what takes it."""
_SECOND = 0.9995
"""Below, times are shown in milliseconds."""


def recommended(predictions: Sequence[Prediction]) -> Prediction | None:
    """Return what to run: the fastest that fits and takes at most twice the device-hours of the cheapest.

    Of those that take about its time, the simplest on the fewest devices; so too where no time is known. None where
    nothing fits.
    """
    fitting = [each for each in predictions if each.fits is not False]
    timed = [each for each in fitting if each.per_sample is not None]
    if not timed:
        return min(fitting, key=lambda each: (each.setup.num_ranks, _complexity(each)), default=None)
    affordable = _affordable(timed)
    best = min(affordable, key=_seconds)
    alike = [each for each in affordable if _seconds(each) <= (1 + ALIKE) * _seconds(best)]
    return min(alike, key=lambda each: (each.setup.num_ranks, _complexity(each), _seconds(each)))


def _affordable(timed: Sequence[Prediction]) -> list[Prediction]:
    """Return those that take at most twice the device-hours of the cheapest."""
    cheapest = min(map(_device_seconds, timed))
    return [each for each in timed if _device_seconds(each) <= COSTLY * cheapest]


def plan_advice(predictions: Sequence[Prediction], *, all_tried: bool = False) -> list[str]:
    """Return sentences, the most useful first; an empty list where there is nothing to say.

    Args:
        predictions: Of all ways that sizes allow.
        all_tried: Whether these are the ways of all strategies.
    """
    looks: tuple[Callable[[Sequence[Prediction]], Iterator[str]], ...] = (
        _advised,
        partial(_what_fits, all_tried=all_tried),
        _fastest,
        _cheapest,
        _micro_batch,
        _sharding,
        _flat,
    )
    return [line for look in looks for line in look(predictions)]


def _advised(predictions: Sequence[Prediction]) -> Iterator[str]:
    best = recommended(predictions)
    if best is None:
        return
    timed = [each for each in predictions if each.per_sample is not None and each.fits is not False]
    why = "the simplest on the fewest devices; of no way the time is known"
    if timed:
        quick = min(_affordable(timed), key=_seconds)
        why = "the fastest that fits"
        if quick is not min(timed, key=_seconds):
            why += f" without taking more than {COSTLY:g} times the device-hours of the cheapest"
        if quick is not best:
            gain = "on fewer devices" if best.setup.num_ranks < quick.setup.num_ranks else "simpler"
            why = f"about as fast as {quick.label}, {why}, and {gain}"
    yield f"Run {best.in_words}: {why}."


def _what_fits(predictions: Sequence[Prediction], *, all_tried: bool) -> Iterator[str]:
    fitting = [each for each in predictions if each.fits]
    if any(each.fits is None for each in predictions):
        yield "Whether it fits is not known: the memory of the device is not; give it in a file (--device FILE.yaml)."
    elif not fitting and predictions:
        nearest = max(predictions, key=lambda each: each.room_bytes or 0)
        yield (
            f"Nothing fits. {nearest.label} comes nearest: it lacks {format_bytes(-(nearest.room_bytes or 0))} of "
            f"{format_bytes(nearest.memory.total)}{_remedies(nearest, all_tried)}."
        )
    elif fitting:
        least = min(fitting, key=lambda each: (each.setup.num_ranks, _complexity(each)))
        yield (
            f"Smallest that fits: {least.label}, {format_bytes(least.memory.total)} a device and "
            f"{format_bytes(least.room_bytes)} to spare."
        )


def _remedies(nearest: Prediction, all_tried: bool) -> str:
    found = []
    if nearest.setup.activation_checkpointing is None:
        found.append("train.activation_checkpointing: 1")
    if (nearest.largest_micro_batch or 0) > 1 or nearest.setup.micro_batch_size > 1:
        found.append("batch.micro_batch_size: auto")
    found.append("more devices, or larger ones" if all_tried else "--strategies all")
    return f"; try {', '.join(found)}"


def _fastest(predictions: Sequence[Prediction]) -> Iterator[str]:
    timed = [each for each in predictions if each.per_sample is not None and each.fits is not False]
    if not timed:
        return
    best = min(timed, key=_seconds)
    close = [each for each in timed if each is not best and _span(each).overlaps(_span(best))]
    text = f"Fastest: {best.label}, {_times(best)}; bound by {_bound(best)}."
    if close:
        names = ", ".join(each.label for each in sorted(close, key=_seconds)[:3])
        more = f" and {len(close) - 3} more" if len(close) > 3 else ""
        text += f" The intervals do not separate it from {names}{more}: short probes would (paratune sweep --probe)."
    yield text


def _cheapest(predictions: Sequence[Prediction]) -> Iterator[str]:
    timed = [each for each in predictions if each.per_sample is not None and each.fits is not False]
    if len({each.setup.num_ranks for each in timed}) < 2:
        return
    cheapest = min(timed, key=_device_seconds)
    span = cheapest.run or cheapest.epoch
    if cheapest.price is not None:
        price = cheapest.price
        cost = f"{price.value:.3g} ({price.low:.3g} to {price.high:.3g}) for {_of(cheapest)}"
    elif span is not None:
        cost = f"{cheapest.setup.num_ranks * span.value / 3600:.3g} device-hours for {_of(cheapest)}"
    else:
        cost = f"{duration(_device_seconds(cheapest))} of a device for a sample"
    yield f"Cheapest: {cheapest.label}, {cost}."


def _of(prediction: Prediction) -> str:
    return "the run" if prediction.run is not None else "an epoch"


def _micro_batch(predictions: Sequence[Prediction]) -> Iterator[str]:
    best = recommended(predictions)
    if best is None or best.largest_micro_batch is None:
        return
    size, share = best.largest_micro_batch, best.option.sizes.share
    if size == share:
        yield f"Largest micro-batch of {best.label}: {size}, all of a rank's share; no accumulation is needed."
    else:
        yield f"Largest micro-batch of {best.label}: {size} of a rank's {share} samples; {share // size} micro-steps."


def _sharding(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Say what sharding and offloading save and cost where none need it: each way at its most devices."""
    said: set[tuple[str, str]] = set()
    against: dict[Prediction, list[str]] = {}
    for each in sorted(predictions, key=lambda each: -each.setup.num_ranks):
        plain = _plain_one(predictions, each)
        saves = each.setup.traits.shards or each.setup.traits.states_on == "cpu"
        way = (each.option.name, each.setup.precision.name)
        if plain is None or not plain.fits or way in said or not saves:
            continue
        said.add(way)
        saved = plain.memory.total - each.memory.total
        what = f"saves {format_bytes(saved)}" if saved > 0 else f"takes {format_bytes(-saved)} more"
        against.setdefault(plain, []).append(f"{each.option.name} {what}{_slower(each, plain)}")
    for plain, others in against.items():
        yield (
            f"{plain.label} takes {format_bytes(plain.memory.total)} and has {format_bytes(plain.room_bytes)} to "
            f"spare, so memory is no reason to shard or offload: {'; '.join(others)}."
        )


def _plain_one(predictions: Sequence[Prediction], sharded: Prediction) -> Prediction | None:
    """Return what shares nothing, with the same devices and precision, and the same micro-batches where there are."""
    alike = [
        each
        for each in predictions
        if not each.setup.traits.shards
        and each.setup.num_ranks == sharded.setup.num_ranks
        and each.setup.precision == sharded.setup.precision
    ]
    size = sharded.setup.micro_batch_size
    return min(alike, key=lambda each: abs(each.setup.micro_batch_size - size), default=None)


def _slower(each: Prediction, plain: Prediction) -> str:
    if each.step is None or plain.step is None:
        return ""
    change = _seconds(each) / _seconds(plain) - 1
    if abs(change) <= ALIKE:
        return " (about as fast)"
    return f" ({format_share(abs(change))} {'longer' if change > 0 else 'less time'})"


def _flat(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Say why more devices help less than they could, with a fixed global batch."""
    timed = [each for each in predictions if each.step is not None and each.fits is not False]
    if len({each.setup.global_batch_size for each in timed}) != 1:
        return
    by_ranks = {}
    for each in sorted(timed, key=_seconds, reverse=True):
        by_ranks[each.setup.num_ranks] = each  # the fastest of each number comes last
    few, many = (by_ranks[pick(by_ranks)] for pick in (min, max))
    ratio = many.setup.num_ranks / few.setup.num_ranks
    speedup = _seconds(few) / _seconds(many)
    if ratio == 1 or speedup / ratio >= FLAT:
        return
    shares = [each.setup.global_batch_size / each.setup.num_ranks for each in (few, many)]
    yield (
        f"The global batch stays {many.setup.global_batch_size}, so the curve flattens: from "
        f"{devices(few.setup.num_ranks)} to {many.setup.num_ranks} it is {speedup:.2g} times as fast, not {ratio:g} "
        f"times. A device's part of a step shrinks from {shares[0]:g} to {shares[1]:g} samples; what shrinks less: "
        f"{_causes(few, many, ratio)}."
    )


def _causes(few: Prediction, many: Prediction, ratio: float) -> str:
    """Return what takes the time that more devices do not save, the most first, with its seconds of a step on many."""
    assert few.time is not None
    assert many.time is not None
    before, now = few.time.parts, many.time.parts
    lost = {part: max(0.0, seconds - before[part] / ratio) for part, seconds in now.items()}
    named = [part for part in lost if lost[part] >= NAMED * math.fsum(lost.values())]
    texts = [f"{PARTS[part]} ({duration(now[part])})" for part in sorted(named, key=lost.__getitem__, reverse=True)]
    first, last = ", ".join(texts[:-1]), texts[-1]
    return f"{first + ' and ' if first else ''}{last}, of {duration(many.time.total_s)} a step"


def _span(prediction: Prediction) -> FigureRange:
    assert prediction.per_sample is not None
    return prediction.per_sample


def _seconds(prediction: Prediction) -> float:
    return _span(prediction).value


def _device_seconds(prediction: Prediction) -> float:
    """Return the seconds that all devices together take for a sample."""
    return prediction.setup.num_ranks * _seconds(prediction)


def _complexity(prediction: Prediction) -> int:
    """Return the place of a strategy among those there are, from the simplest on."""
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in ALL))
    kind = prediction.setup.strategy.kind
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return 2 * place + (prediction.setup.traits.states_on == "cpu")


def _times(prediction: Prediction) -> str:
    step, span = prediction.step, prediction.epoch
    assert step is not None
    texts = [f"{span_text(step)} a step"]
    if span is not None:
        texts.append(f"{span_text(span)} an epoch")
    return ", ".join(texts)


def _bound(prediction: Prediction) -> str:
    time = prediction.time
    assert time is not None
    if time.bound != "host":
        return BOUNDS[time.bound]
    most = max((part for part in time.parts if BOUND_OF[part] == "host"), key=time.parts.__getitem__)
    return f"{BOUNDS['host']}: most of it is {PARTS[most]}"


BOUNDS = {
    "host": "the host",
    "compute": "arithmetic",
    "memory": "the bandwidth of the device's memory",
    "link": "the link between devices",
    "offload": "the way to the host's memory and back",
    "loader": "making batches",
}
"""What `StepTime.bound` means, in words."""
PARTS = {
    "launch": "launching operations",
    "python": "the engine's own Python",
    "bookkeeping": "the bookkeeping of a step",
    "compute": "arithmetic",
    "memory": "kernels that wait for memory or are short",
    "update": "updating the weights",
    "communication": "exchanging data",
    "bubble": "the bubble of the pipeline",
    "offload": "the way to the host's memory and back",
    "loader": "making batches",
}
"""What `StepTime.parts` are, in words."""


def span_text(span: FigureRange | None) -> str:
    """Return a time with its interval, "12 ms (9.31 to 17.4)" or "1 min 05 s (48.2 s to 1 min 40 s)"."""
    if span is None:
        return format_duration(None)
    if span.high < _SECOND:
        return f"{1000 * span.value:.3g} ms ({1000 * span.low:.3g} to {1000 * span.high:.3g})"
    return f"{duration(span.value)} ({duration(span.low)} to {duration(span.high)})"


def duration(seconds: float) -> str:
    """Return seconds as `format_duration` does, below one second in milliseconds."""
    return f"{1000 * seconds:.3g} ms" if seconds < _SECOND else format_duration(seconds)
