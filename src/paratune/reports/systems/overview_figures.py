"""Time and memory of all configurations, and the Pareto front."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted
from paratune.config.metric_names import direction
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Hovers, Key, label_rows
from paratune.reports.rows.row import byte_unit
from paratune.reports.rows.scores import metric_name
from paratune.reports.systems import measures
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, figure_labels, height_of_bars, join_sentences
from paratune.reports.systems.measures import Amount, amount_text, column_scale
from paratune.reports.systems.model import Systems
from paratune.verdicts.estimate import mean_interval

_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35
_GREY = "#9a9ca0"
_MAX_LABELS = 12
_MAX_POINTS = 400
_MAX_CROSSES = 60
"""Figures of more points have no intervals, which would hide the points."""


def time_and_memory(systems: Systems) -> Drawing:
    """Draw time and memory of every configuration as bars."""
    members, selection = drawn_configurations(systems, systems.measured)
    measure = measures.STEP_MS if any(member.is_probe for member in members) else measures.TRAIN_S
    times = [systems.amount(measure, member) for member in members]
    device, total = (
        [systems.amount(size_measure, member) for member in members]
        for size_measure in (measures.PEAK_BYTES, measures.SUM_BYTES)
    )
    scale = column_scale(measure, [amount.center for amount in times])
    unit, size = byte_unit([amount.center for amount in (*device, *total)])
    labels, notes = figure_labels(systems, members)

    def draw(figure: Any, hovers: Hovers) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _bars(left, hovers, members, times, scale.size, _TIME, 0.62)
        _bars(right, hovers, members, total, size, _TOTAL, 0.62, alpha=_FAINT)
        _bars(right, hovers, members, device, size, _DEVICE, 0.36)
        label_rows(left, hovers, labels, [(member.label,) for member in members], fontsize=9)
        left.set_xlabel(scale.label(measure.label))
        right.set_xlabel(f"Peak memory ({unit})")
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, left=False)
            axes.grid(axis="x")
            axes.set_xlim(left=0)
        right.yaxis.set_visible(False)  # invisible, but its layout takes as long as that of the left axis

    legend = (
        Key(scale.label(measure.label), _TIME, is_area=True),
        Key("Memory of the largest device", _DEVICE, is_area=True),
        Key("Memory of all devices", _TOTAL, is_area=True, alpha=_FAINT),
    )
    caption = join_sentences(
        "Bars: mean over the runs of a configuration; whiskers: ± one standard deviation.", selection, notes
    )
    title = "Time and memory of all configurations"
    return Drawing("overview", title, caption, draw, height_of_bars(len(members)), whole=True, legend=legend)


def _bars(
    axes: Any, hovers: Hovers, members: Sequence[Configuration], amounts: Sequence[Amount], size: float,
    colour: str, height: float, alpha: float = 0.9,
) -> None:  # fmt: skip
    values = [(amount.center or 0.0) / size for amount in amounts]
    bars = axes.barh(range(len(members)), values, height=height, color=colour, alpha=alpha)
    for row, (member, amount, bar) in enumerate(zip(members, amounts, bars, strict=True)):
        if amount.center is None:
            gid = hovers.part_of(member.label, row=row)
            axes.text(0, row, f" {NOT_AVAILABLE}", va="center", color=MUTED, fontsize=9, gid=gid)
            continue
        scale = column_scale(amount.measure, [amount.center])
        value = f"{amount_text(amount, scale)} {scale.unit}".strip()
        text = f"{member.label}: {amount.measure.label.lower()} {value} ({counted(len(amount.values), 'run')})"
        bar.set_gid(hovers.part_of(member.label, row=row, text=text))
        if amount.deviation:
            middle, length = values[row], amount.deviation / size
            axes.plot(
                [middle - length, middle + length], [row, row], color=MUTED, linewidth=1.0, marker="|", markersize=4,
                gid=hovers.part_of(member.label, row=row),
            )  # fmt: skip


Interval = tuple[float, float]


def interval_of(amount: Amount) -> Interval | None:
    """Return the 95% confidence interval of the mean over runs; None for fewer than two runs."""
    return mean_interval([*amount.values.values()])


@dataclass(frozen=True)
class Point:
    """A configuration in the Pareto figure."""

    one: Configuration
    time: float
    memory: float
    quality: float | None
    is_front: bool
    intervals: tuple[Interval | None, Interval | None, Interval | None] = (None, None, None)
    """95% confidence intervals of time, memory and quality over runs; None for a single run."""


def pareto(systems: Systems) -> Iterator[Drawing]:
    """Yield a Pareto figure of time, memory and quality for each task, with labels on the front."""
    by_task = grouped((_task_and_data(member), member) for member in systems.measured)
    for number, (task, members) in enumerate(by_task.items()):
        points = pareto_points(systems, members)
        if len(points) > 1:
            yield _pareto(systems, points, task, "pareto" if number == 0 else f"pareto-{number}")


def pareto_points(systems: Systems, members: Sequence[Configuration]) -> list[Point]:
    """Return the comparable configurations, and which of them are on the Pareto front.

    One beats another that is as good in time, memory and quality and better in one of them; quality counts where all
    have it.
    """
    judged = systems.quality
    candidates = []
    for member in members:
        wanted = (measures.TRAIN_S, measures.PEAK_BYTES, *([measures.score(*judged)] if judged else []))
        amounts = [systems.amount(measure, member) for measure in wanted]
        time, memory, quality = [*(amount.center for amount in amounts), None][:3]
        is_comparable = not member.is_probe and not systems.differing[member.label].refused
        if time is not None and memory is not None and is_comparable:
            first, second, third = [*map(interval_of, amounts), None][:3]
            candidates.append((member, time, memory, quality, (first, second, third)))
    sign = -1 if judged and direction(judged[1]) == "max" else 1
    has_quality = all(quality is not None for *_, quality, _ in candidates)
    costs = [
        (time, memory, sign * (quality or 0.0) if has_quality else 0.0) for _, time, memory, quality, _ in candidates
    ]
    front = [not any(_beats(other, cost) for other in costs) for cost in costs]
    return [
        Point(member, time, memory, quality if has_quality else None, is_front, intervals)
        for (member, time, memory, quality, intervals), is_front in zip(candidates, front, strict=True)
    ]


def _beats(other: tuple[float, ...], cost: tuple[float, ...]) -> bool:
    return other != cost and all(a <= b for a, b in zip(other, cost, strict=True))


def _task_and_data(member: Configuration) -> str:
    """Return the task and the fingerprint of the data of the scores."""
    run = member.runs[0]
    data = run.get("run.data.test.fingerprint") or run.get("run.data.validation.fingerprint")
    return f"{run.task} {data}"


def _pareto(systems: Systems, points: Sequence[Point], task: str, key: str) -> Drawing:
    scale = column_scale(measures.TRAIN_S, [point.time for point in points])
    unit, size = byte_unit([point.memory for point in points])
    judged = systems.quality
    with_quality = judged is not None and all(point.quality is not None for point in points)
    front = sorted((point for point in points if point.is_front), key=lambda point: point.time)
    thinned = sorted(points, key=lambda point: not point.is_front)[:_MAX_POINTS]

    def draw(figure: Any, hovers: Hovers) -> None:
        panels = figure.subplots(1, 2) if with_quality else [figure.subplots()]
        for number, axes in enumerate(panels):
            for point in thinned:
                y = point.memory / size if number == 0 else point.quality
                colour = RUN_COLOURS[0] if point.is_front else _GREY
                if len(thinned) <= _MAX_CROSSES:
                    for artist in _cross(axes, point, number, scale.size, size, colour):
                        artist.set_gid(hovers.part_of(point.one.label))
                text = _hover_text(point, scale.text(point.time), scale.unit, unit, size, judged)
                gid = hovers.part_of(point.one.label, text=text)
                # Points are inside the axes; including them in the layout takes most of its time.
                axes.plot([point.time / scale.size], [y], "o", markersize=7, color=colour, gid=gid, in_layout=False)
            axes.set_xlabel(scale.label("Training time"))
            axes.grid()
            axes.margins(0.14)
            _number_points(axes, hovers, front, number, scale.size, size)
        panels[0].set_ylabel(f"Peak memory per device ({unit})")
        if with_quality and judged is not None:
            panels[1].set_ylabel(f"{judged[0].capitalize()} {metric_name(judged[1])}")

    criteria = "time, memory and quality" if with_quality else "time and memory"
    numbered = [f"{number} {point.one.label}" for number, point in enumerate(front[:_MAX_LABELS], start=1)]
    more = f"; {len(front) - _MAX_LABELS} more" if len(front) > _MAX_LABELS else ""
    caption = join_sentences(
        f"Coloured: no other configuration is as good in {criteria} and better in one of them: "
        f"{'; '.join(numbered)}{more}. "
        "Grey: another configuration is.",
        "Lines: 95% confidence intervals of the means over runs."
        if len(points) <= _MAX_CROSSES and any(point.intervals[0] is not None for point in points)
        else "",
        "" if with_quality else "The quality of some configurations is unknown.",
        f"Not drawn: {len(systems.measured) - len(points)} (probes, runs of another task, or runs with a "
        "difference that is not on an axis)." if len(points) < len(systems.measured) else "",
    )  # fmt: skip
    # Files of figures have no caption, so the legend names the numbers.
    kinds = (Key("not beaten", RUN_COLOURS[0], is_area=True), Key("beaten", _GREY, is_area=True))
    names = (
        Key(label, RUN_COLOURS[0], is_area=True, owners=(point.one.label,))
        for label, point in zip(numbered, front, strict=False)
    )
    legend = (*kinds, *names)
    title = f"Pareto front of {criteria}: {task.split(' ')[0]}"
    return Drawing(key, title, caption, draw, 3.6, whole=True, legend=legend)


def _cross(axes: Any, point: Point, panel: int, time_size: float, size: float, colour: str) -> list[Any]:
    """Draw the intervals of a point; return the artists."""
    drawn: list[Any] = []
    time, memory, quality = point.intervals
    x, y = point.time / time_size, _height(point, panel, size)
    if time is not None:
        drawn += axes.plot([end / time_size for end in time], [y, y], color=colour, linewidth=1.0, alpha=0.6)
    other = memory if panel == 0 else quality
    if other is not None:
        ends = [end / (size if panel == 0 else 1.0) for end in other]
        drawn += axes.plot([x, x], ends, color=colour, linewidth=1.0, alpha=0.6)
    return drawn


def _hover_text(point: Point, time: str, time_unit: str, unit: str, size: float, judged: tuple[str, str] | None) -> str:
    quality = f", {' '.join(judged)} {point.quality:.4f}" if judged and point.quality is not None else ""
    side = "not beaten" if point.is_front else "beaten"
    return f"{point.one.label}: {time} {time_unit}, {point.memory / size:.3g} {unit}{quality}; {side}"


def _number_points(
    axes: Any, hovers: Hovers, front: Sequence[Point], panel: int, time_size: float, size: float
) -> None:
    """Write the numbers of the points of the front; the caption has their names."""
    for number, point in enumerate(front[:_MAX_LABELS], start=1):
        place = (point.time / time_size, _height(point, panel, size))
        gid = hovers.part_of(point.one.label)
        axes.annotate(str(number), place, xytext=(5, 4), textcoords="offset points", fontsize=9, gid=gid)


def _height(point: Point, number: int, size: float) -> float:
    return point.memory / size if number == 0 else (point.quality or 0.0)
