"""Advice from predictions, as sentences: the option to run, its risks, and what to do if nothing fits."""

from collections.abc import Iterator, Sequence

from paratune.base.units import format_bytes, format_duration
from paratune.planning.enumerate import ALL_STRATEGIES
from paratune.planning.predict import Prediction

SIMILAR_SHARE = 0.1
"""Times that differ by a smaller share count as equal, and the simpler strategy is recommended."""
MAX_COST_RATIO = 2.0
"""Largest ratio of the device-hours of the recommended option to those of the cheapest one."""
SHORT_RUN_S = 120.0
"""A run that takes at most so many seconds on the fewest devices stays there: starting more processes takes as long."""


def recommended(predictions: Sequence[Prediction]) -> tuple[Prediction | None, str]:
    """Return the prediction of the option to run, and why; None if nothing fits.

    This is the fastest option that fits and needs at most twice the device-hours of the cheapest one. If several
    options take about the same time, or no time is known, it is the simplest one on the fewest devices. A run that
    takes at most two minutes on the fewest devices stays on these.
    """
    fitting = [prediction for prediction in predictions if prediction.fits is not False]
    fitting = [prediction for prediction in fitting if prediction.fit != "tight"] or fitting
    timed = [prediction for prediction in fitting if prediction.time is not None]
    if not timed:
        why = "the simplest on the fewest devices; the time of no option is known"
        return min(fitting, key=_effort, default=None), why
    fewest = min(prediction.setup.num_ranks for prediction in timed)
    on_fewest = [prediction for prediction in timed if prediction.setup.num_ranks == fewest]
    short = [prediction for prediction in on_fewest if prediction.run and prediction.run.value <= SHORT_RUN_S]
    quick, why = min(_affordable(timed), key=_seconds), "the fastest that fits"
    if quick is not min(timed, key=_seconds):
        why += f" without taking more than {MAX_COST_RATIO:g} times the device-hours of the cheapest"
    affordable = _affordable(short or timed)
    limit = (1 + SIMILAR_SHARE) * min(map(_seconds, affordable))
    similar = [prediction for prediction in affordable if _seconds(prediction) <= limit]
    best = min(similar, key=lambda prediction: (*_effort(prediction), _seconds(prediction)))
    if short and best.run is not None and best.setup.num_ranks < quick.setup.num_ranks:
        why = f"a run of {format_duration(best.run.value)} gains nothing from starting more processes"
    elif quick is not best:
        gain = "on fewer devices" if best.setup.num_ranks < quick.setup.num_ranks else "simpler"
        why = f"about as fast as {quick.label}, {why}, and {gain}"
    return best, why


def _affordable(timed: Sequence[Prediction]) -> list[Prediction]:
    """Return the options that need at most twice the device-hours of the cheapest one."""
    costs = [prediction.setup.num_ranks * _seconds(prediction) for prediction in timed]
    return [prediction for prediction, cost in zip(timed, costs, strict=True) if cost <= MAX_COST_RATIO * min(costs)]


def _seconds(prediction: Prediction) -> float:
    """Return the seconds of a sample, with which options with different global batches are compared."""
    assert prediction.time is not None
    return prediction.time.total_s / prediction.setup.global_batch_size


def _effort(prediction: Prediction) -> tuple[int, int]:
    """Return the number of devices, and the place of the strategy in the list of all, the simplest first."""
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in ALL_STRATEGIES))
    kind = prediction.setup.strategy.kind
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return prediction.setup.num_ranks, 2 * place + (prediction.setup.traits.states_on == "cpu")


def plan_advice(predictions: Sequence[Prediction], *, all_tried: bool = False) -> Iterator[str]:
    """Yield the advice on all possible options as sentences, the most useful first.

    `all_tried` is whether all strategies were planned.
    """
    best, why = recommended(predictions)
    if best is not None:
        yield f"Run {best.label}: {why}."
        if best.fit == "tight":
            usable = best.memory.total + (best.room_bytes or 0)
            yield (
                f"Its memory is tight: {format_bytes(best.memory.total)} is expected, and "
                f"{format_bytes(best.memory.high)} is possible, of {format_bytes(usable)} that programs can use."
            )
    fitting = [prediction for prediction in predictions if prediction.fits]
    if any(prediction.fits is None for prediction in predictions):
        yield "The memory of the device is unknown, so whether it fits is too: give it in a file (--device FILE.yaml)."
    elif not fitting and predictions:
        nearest = max(predictions, key=lambda prediction: prediction.room_bytes or 0)
        lacks = f"{format_bytes(-(nearest.room_bytes or 0))} of {format_bytes(nearest.memory.total)}"
        remedies = ["more devices, or larger ones" if all_tried else "--strategies all"]
        if nearest.setup.micro_batch_size > 1:
            remedies.insert(0, "batch.micro_batch_size: auto")
        if nearest.setup.activation_checkpointing is None:
            remedies.insert(0, "train.activation_checkpointing: 1")
        yield f"Nothing fits. {nearest.label} comes nearest: it lacks {lacks}; try {', '.join(remedies)}."
    elif fitting:
        least = min(fitting, key=_effort)
        yield (
            f"Smallest that fits: {least.label}, {format_bytes(least.memory.total)} a device and "
            f"{format_bytes(least.room_bytes)} to spare."
        )
