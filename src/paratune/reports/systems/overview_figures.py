"""Time and memory of all configurations, and the Pareto front."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.base.units import counted
from paratune.config.metric_names import direction
from paratune.reports.amounts import Amount, Scale, amount_text, scale_of
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import Bars, Points, bars, height_of_rows, panels, points
from paratune.reports.measures import MEASURES, Measure, metric_name, named, score
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, figure_labels, join_sentences
from paratune.reports.systems.model import Systems
from paratune.verdicts.estimate import mean_interval

_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35
_MAX_NUMBERED = 12
FRONT, BEATEN, OPEN = "not beaten", "beaten", "not distinguishable"
_STYLES = {
    FRONT: Key(FRONT, RUN_COLOURS[0], marker="o"),
    BEATEN: Key(BEATEN, "#9a9ca0", marker="o"),
    OPEN: Key(OPEN, MUTED, marker="o", is_hollow=True),
}
Interval = tuple[float, float]


def time_and_memory(systems: Systems) -> Drawing:
    """Draw time and memory of every configuration as bars."""
    members, selection = drawn_configurations(systems, systems.measured)
    time = MEASURES["mean_step_ms"] if any(member.is_probe for member in members) else MEASURES["train_s"]
    scale = scale_of(time.unit, [systems.amount(time, member).center for member in members])
    sizes = [
        systems.amount(measure, member).center
        for measure in named("peak_memory_largest_bytes", "peak_memory_sum_bytes")
        for member in members
    ]
    of_memory = scale_of("bytes", sizes)
    labels, notes = figure_labels(systems, members)

    def layer(measure: Measure, size: float, colour: str, height: float, alpha: float = 0.9) -> Bars:
        amounts = [systems.amount(measure, member) for member in members]
        texts = []
        for member, amount in zip(members, amounts, strict=True):
            own = scale_of(measure.unit, [amount.center])
            value = f"{amount_text(amount, own)} {own.unit}".strip()
            texts.append(f"{member.label}: {measure.label.lower()} {value} ({counted(len(amount.values), 'run')})")
        values, deviations = (
            [None if number is None else number / size for number in numbers]
            for numbers in ([amount.center for amount in amounts], [amount.deviation for amount in amounts])
        )
        return Bars(values, colour, texts, alpha, height, deviations)

    memory = [
        layer(MEASURES["peak_memory_sum_bytes"], of_memory.size, _TOTAL, 0.62, _FAINT),
        layer(MEASURES["peak_memory_largest_bytes"], of_memory.size, _DEVICE, 0.36),
    ]
    draw = panels(
        bars(labels, [layer(time, scale.size, _TIME, 0.62)], xlabel=scale.label(time.label)),
        bars(labels, memory, xlabel=of_memory.label("Peak memory")),
        share_y=True,
    )
    legend = (
        Key(scale.label(time.label), _TIME, is_area=True),
        Key("Memory of the largest device", _DEVICE, is_area=True),
        Key("Memory of all devices", _TOTAL, is_area=True, alpha=_FAINT),
    )
    caption = join_sentences(
        "Bars: mean over the runs of a configuration; whiskers: ± one standard deviation.", selection, notes
    )
    title = "Time and memory of all configurations"
    return Drawing("overview", title, caption, draw, height_of_rows(len(members)), whole=True, legend=legend)


@dataclass(frozen=True)
class Point:
    """A configuration in the Pareto figure: time and memory, and quality if all have it."""

    one: Configuration
    values: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    """95% confidence intervals of the values over runs; None for a single run."""
    state: str = OPEN
    """`FRONT`, `BEATEN` or `OPEN`."""


def pareto(systems: Systems) -> Iterator[Drawing]:
    """Yield a Pareto figure of time, memory and quality for each task."""
    by_task = grouped((_task_and_data(member), member) for member in systems.measured)
    for number, (task, members) in enumerate(by_task.items()):
        found = pareto_points(systems, members)
        if len(found) > 1:
            yield _pareto(systems, found, task, "pareto" if number == 0 else f"pareto-{number}")


def pareto_points(systems: Systems, members: Sequence[Configuration]) -> list[Point]:
    """Return the comparable configurations with their states; quality counts where all have it.

    Two configurations are told apart in a value where their intervals do not overlap. One is not beaten if it is told
    apart from each other one by a better value. It is beaten if another one is as good in all means, and is told apart
    by a better value. Otherwise neither is known.
    """
    wanted = [*named("train_s", "peak_memory_largest_bytes"), *([score(*systems.quality)] if systems.quality else [])]
    found: list[tuple[Configuration, list[float | None], list[Interval | None]]] = []
    for member in members:
        if not member.is_probe and not systems.differing[member.label].refused:
            amounts = [systems.amount(measure, member) for measure in wanted]
            found.append((member, [amount.center for amount in amounts], [*map(interval_of, amounts)]))
    known = [entry for entry in found if None not in entry[1][:2]]
    size = 3 if len(wanted) == 3 and all(values[2] is not None for _, values, _ in known) else 2
    several = [
        Point(member, tuple(value or 0.0 for value in values[:size]), tuple(intervals[:size]))
        for member, values, intervals in known
    ]
    signs = (1, 1, -1 if systems.quality and direction(systems.quality[1]) == "max" else 1)[:size]
    return [Point(point.one, point.values, point.intervals, _state(point, several, signs)) for point in several]


def interval_of(amount: Amount) -> Interval | None:
    """Return the 95% confidence interval of the mean over runs; None for fewer than two runs."""
    return mean_interval([*amount.values.values()])


def _state(point: Point, several: Sequence[Point], signs: Sequence[int]) -> str:
    others = [other for other in several if other is not point]
    if all(_is_told_better(point, other, signs) for other in others):
        return FRONT
    beating = (
        other
        for other in others
        if all(sign * a <= sign * b for sign, a, b in zip(signs, other.values, point.values, strict=True))
        and _is_told_better(other, point, signs)
    )
    return BEATEN if any(beating) else OPEN


def _is_told_better(first: Point, second: Point, signs: Sequence[int]) -> bool:
    """Return whether an interval of the first one is on the better side of that of the second one."""
    return any(
        a is not None and b is not None and (a[1] < b[0] if sign > 0 else a[0] > b[1])
        for sign, a, b in zip(signs, first.intervals, second.intervals, strict=True)
    )


def _task_and_data(member: Configuration) -> str:
    """Return the task and the fingerprint of the data of the scores."""
    run = member.runs[0]
    data = run.data("test").fingerprint or run.data("validation").fingerprint
    return f"{run.task} {data}"


def _pareto(systems: Systems, found: Sequence[Point], task: str, key: str) -> Drawing:
    scale = scale_of("s", [point.values[0] for point in found])
    memory = scale_of("bytes", [point.values[1] for point in found])
    unit, size = memory.unit, memory.size
    judged = systems.quality if len(found[0].values) == 3 else None
    ordered = sorted(found, key=lambda point: (point.state == BEATEN, point.values[0]))
    numbers = {id(point): f"{at}" for at, point in enumerate(ordered[:_MAX_NUMBERED], 1) if point.state != BEATEN}

    def groups(measure: int, divisor: float) -> Iterator[Points]:
        for state, style in _STYLES.items():
            members = [point for point in found if point.state == state]
            yield Points(
                [point.values[0] / scale.size for point in members],
                [point.values[measure] / divisor for point in members],
                style.colour, [_text(point, scale, unit, size, judged) for point in members],
                [numbers.get(id(point), "") for point in members],
                [_scaled(point.intervals[0], scale.size) for point in members],
                [_scaled(point.intervals[measure], divisor) for point in members], is_hollow=style.is_hollow,
            )  # fmt: skip

    time = scale.label("Training time")
    draws = [points([*groups(1, size)], xlabel=time, ylabel=f"Peak memory per device ({unit})")]
    criteria = "time and memory"
    if judged is not None:
        criteria = "time, memory and quality"
        label = f"{judged[0].capitalize()} {metric_name(judged[1])}"
        draws.append(points([*groups(2, 1.0)], xlabel=time, ylabel=label))
    names = [f"{numbers[id(point)]} {point.one.label}" for point in ordered if id(point) in numbers]
    caption = join_sentences(
        f"{'; '.join(names)}." if names else "",
        f"Not beaten: told apart by its {criteria} from each other one. Beaten: another one is as good in all, and is "
        "told apart by one. Not distinguishable: neither is known, since 95% intervals of the means overlap (lines), "
        "or there is one run.",
        "" if judged else "The quality of some configurations is unknown.",
        f"Not drawn: {len(systems.measured) - len(found)} (probes, runs of another task, or runs with a "
        "difference that is not on an axis)." if len(found) < len(systems.measured) else "",
    )  # fmt: skip
    legend = tuple(style for state, style in _STYLES.items() if any(point.state == state for point in found))
    title = f"Pareto front of {criteria}: {task.split(' ')[0]}"
    return Drawing(key, title, caption, panels(*draws), 3.4, whole=True, legend=legend)


def _scaled(interval: Interval | None, divisor: float) -> Interval | None:
    return None if interval is None else (interval[0] / divisor, interval[1] / divisor)


def _text(
    point: Point, scale: Scale, unit: str, size: float, judged: tuple[str, str] | None
) -> str:  # fmt: skip
    quality = f", {' '.join(judged)} {point.values[2]:.4f}" if judged else ""
    time = f"{scale.text(point.values[0])} {scale.unit}"
    return f"{point.one.label}: {time}, {point.values[1] / size:.3g} {unit}{quality}; {point.state}"
