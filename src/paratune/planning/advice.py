"""Advice from predictions, as sentences: the option to run, its risks, and what to do if nothing fits."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from paratune.base.units import format_bytes, format_duration
from paratune.planning.constants import KINDS
from paratune.planning.enumerate import ALL_STRATEGIES
from paratune.planning.figure_range import FigureRange
from paratune.planning.predict import Prediction
from paratune.planning.time import BOUNDS

SIMILAR_SHARE = 0.1
"""Times that differ by a smaller share count as equal, and the simpler strategy is recommended."""
MAX_COST_RATIO = 2.0
"""Largest ratio of the device-hours of the recommended option to those of the cheapest one."""
SHORT_RUN_S = 120.0
"""A run that takes at most so many seconds on the fewest devices stays there: starting more processes takes as long."""
WIDE_RATIO = 1.5
"""Smallest ratio of the upper to the lower bound for which the advice names the causes of the interval."""
_MS_BELOW_S = 0.9995
"""Below, times are shown in milliseconds."""


def recommended(predictions: Sequence[Prediction]) -> Prediction | None:
    """Return the prediction of the option to run, or None if nothing fits.

    This is the fastest option that fits and needs at most twice the device-hours of the cheapest one. If several
    options take about the same time, or no time is known, it is the simplest one on the fewest devices. A run that
    takes at most two minutes on the fewest devices stays on these.
    """
    fitting = _fitting(predictions)
    timed = _timed(fitting)
    if not timed:
        return min(fitting, key=lambda prediction: (prediction.setup.num_ranks, _complexity(prediction)), default=None)
    fewest = min(prediction.setup.num_ranks for prediction in timed)
    short = [prediction for prediction in timed if prediction.setup.num_ranks == fewest and _is_short(prediction)]
    affordable = _affordable(short or timed)
    best = min(affordable, key=_seconds)
    similar = [prediction for prediction in affordable if _seconds(prediction) <= (1 + SIMILAR_SHARE) * _seconds(best)]
    return min(
        similar, key=lambda prediction: (prediction.setup.num_ranks, _complexity(prediction), _seconds(prediction))
    )


def _timed(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the options with a known time that may fit."""
    return [prediction for prediction in predictions if prediction.fits is not False and prediction.time is not None]


def _fitting(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the options that fit, without those whose fit is tight if others fit."""
    fitting = [prediction for prediction in predictions if prediction.fits is not False]
    return [prediction for prediction in fitting if prediction.fit != "tight"] or fitting


def _is_short(prediction: Prediction) -> bool:
    return prediction.run is not None and prediction.run.value <= SHORT_RUN_S


def _affordable(timed: Sequence[Prediction]) -> list[Prediction]:
    """Return the options that need at most twice the device-hours of the cheapest one."""
    cheapest = min(map(_device_seconds, timed))
    return [prediction for prediction in timed if _device_seconds(prediction) <= MAX_COST_RATIO * cheapest]


def plan_advice(predictions: Sequence[Prediction], *, all_tried: bool = False) -> list[str]:
    """Return the advice on all possible options as sentences, the most useful first; an empty list if there is none.

    `all_tried` is whether all strategies were planned.
    """
    topics: tuple[Callable[[Sequence[Prediction]], Iterator[str]], ...] = (
        _recommendation,
        partial(_smallest_that_fits, all_tried=all_tried),
        _fastest,
        _interval,
    )
    return [line for topic in topics for line in topic(predictions)]


def _recommendation(predictions: Sequence[Prediction]) -> Iterator[str]:
    best = recommended(predictions)
    if best is None:
        return
    timed = _timed(_fitting(predictions))
    why = "the simplest on the fewest devices; the time of no option is known"
    if timed:
        quick = min(_affordable(timed), key=_seconds)
        why = "the fastest that fits"
        if quick is not min(timed, key=_seconds):
            why += f" without taking more than {MAX_COST_RATIO:g} times the device-hours of the cheapest"
        if best.run is not None and best.setup.num_ranks < quick.setup.num_ranks and _is_short(best):
            why = f"a run of {duration(best.run.value)} gains nothing from starting more processes"
        elif quick is not best:
            gain = "on fewer devices" if best.setup.num_ranks < quick.setup.num_ranks else "simpler"
            why = f"about as fast as {quick.label}, {why}, and {gain}"
    yield f"Run {best.in_words}: {why}."
    if best.host is not None and best.host_fit == "tight":
        yield (
            f"The memory of the host may be too small: the {best.setup.ranks_per_node} processes of a node need "
            f"{format_bytes(best.host.low)} to {format_bytes(best.host.high)} while they load the weights, of "
            f"{format_bytes(best.machine.host_memory_bytes)}."
        )
    if best.room_bytes is not None and best.room_bytes < best.memory.high - best.memory.total:
        yield (
            f"Its memory is tight: {format_bytes(best.memory.total)} is expected, and {format_bytes(best.memory.high)} "
            f"is possible, of {format_bytes(best.memory.total + (best.room_bytes or 0))} that programs can use."
        )


def _interval(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Name the constants that make the interval of the recommended option wide, and how to narrow it."""
    best = recommended(predictions)
    if best is None or best.time is None or best.time.high_s < WIDE_RATIO * best.time.low_s:
        return
    names = [f"{name} ({KINDS[name]})" for name in best.time.main_constants[:2]]
    yield (
        f"The interval of {best.label} is wide mainly because of {' and '.join(names)}; a figure that you measured "
        "narrows it, or a run (--measured)."
    )


def _smallest_that_fits(predictions: Sequence[Prediction], *, all_tried: bool) -> Iterator[str]:
    fitting = [prediction for prediction in predictions if prediction.fits]
    if any(prediction.fits is None for prediction in predictions):
        yield "The memory of the device is unknown, so whether it fits is too: give it in a file (--device FILE.yaml)."
    elif not fitting and predictions:
        nearest = max(predictions, key=lambda prediction: prediction.room_bytes or 0)
        yield (
            f"Nothing fits. {nearest.label} comes nearest: it lacks {nearest.shortage}{_remedies(nearest, all_tried)}."
        )
    elif fitting:
        least = min(fitting, key=lambda prediction: (prediction.setup.num_ranks, _complexity(prediction)))
        yield (
            f"Smallest that fits: {least.label}, {format_bytes(least.memory.total)} a device and "
            f"{format_bytes(least.room_bytes)} to spare."
        )


def _remedies(nearest: Prediction, all_tried: bool) -> str:
    remedies = []
    if nearest.setup.activation_checkpointing is None:
        remedies.append("train.activation_checkpointing: 1")
    if (nearest.largest_micro_batch or 0) > 1 or nearest.setup.micro_batch_size > 1:
        remedies.append("batch.micro_batch_size: auto")
    remedies.append("more devices, or larger ones" if all_tried else "--strategies all")
    return f"; try {', '.join(remedies)}"


def _fastest(predictions: Sequence[Prediction]) -> Iterator[str]:
    timed = _timed(predictions)
    if not timed:
        return
    best = min(timed, key=_seconds)
    assert best.time is not None
    close = [prediction for prediction in timed if prediction is not best and _span(prediction).overlaps(_span(best))]
    text = f"Fastest: {best.label}, {_time_text(best)}; bound by {BOUNDS[best.time.bound]}."
    if close:
        names = ", ".join(prediction.label for prediction in sorted(close, key=_seconds)[:3])
        more = f" and {len(close) - 3} more" if len(close) > 3 else ""
        text += f" The intervals do not separate it from {names}{more}: short probes would (paratune sweep --probe)."
    yield text


def _span(prediction: Prediction) -> FigureRange:
    assert prediction.per_sample is not None
    return prediction.per_sample


def _seconds(prediction: Prediction) -> float:
    return _span(prediction).value


def _device_seconds(prediction: Prediction) -> float:
    """Return the device-seconds per sample: the time per sample times the number of devices."""
    return prediction.setup.num_ranks * _seconds(prediction)


def _complexity(prediction: Prediction) -> int:
    """Return the rank of a strategy in the list of all strategies, which starts with the simplest."""
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in ALL_STRATEGIES))
    kind = prediction.setup.strategy.kind
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return 2 * place + (prediction.setup.traits.states_on == "cpu")


def _time_text(prediction: Prediction) -> str:
    epoch = "" if prediction.epoch is None else f", {span_text(prediction.epoch)} an epoch"
    return f"{span_text(prediction.step)} a step{epoch}"


def span_text(span: FigureRange | None) -> str:
    """Return a time with its interval, "12 ms (9.31 to 17.4)" or "1 min 05 s (48.2 s to 1 min 40 s)"."""
    if span is None:
        return format_duration(None)
    if span.high < _MS_BELOW_S:
        return f"{1000 * span.value:.3g} ms ({1000 * span.low:.3g} to {1000 * span.high:.3g})"
    if span.low >= 1 and span.high < 59.5:
        return f"{span.value:.3g} s ({span.low:.3g} to {span.high:.3g})"
    return f"{duration(span.value)} ({duration(span.low)} to {duration(span.high)})"


def duration(seconds: float) -> str:
    """Return seconds as `format_duration` does, below one second in milliseconds."""
    return f"{1000 * seconds:.3g} ms" if seconds < _MS_BELOW_S else format_duration(seconds)
