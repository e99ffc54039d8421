"""Time and memory of all configurations side by side, and which of them no other one beats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import NOT_AVAILABLE, counted
from paratune.config.metric_names import direction
from paratune.report.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.report.rows import byte_unit
from paratune.report.score_rows import metric_name
from paratune.report.systems import measures as of
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.labels import drawn, figure_labels, height_of_bars, sentences
from paratune.report.systems.measures import Amount
from paratune.report.systems.model import Systems
from paratune.report.systems.writing import amount_text, scale_of

_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35
_GREY = "#9a9ca0"
_MAX_LABELS = 12
_MAX_POINTS = 400


def time_and_memory(systems: Systems) -> Drawing:
    """Draw the time and the memory of every configuration as bars side by side."""
    members, some = drawn(systems, systems.measured)
    measure = of.STEP_MS if any(one.is_probe for one in members) else of.TRAIN_S
    times = [systems.amount(measure, one) for one in members]
    device, total = ([systems.amount(each, one) for one in members] for each in (of.PEAK_BYTES, of.SUM_BYTES))
    scale = scale_of(measure, [amount.center for amount in times])
    unit, size = byte_unit([amount.center for amount in (*device, *total)])
    labels, notes = figure_labels(systems, members)

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _bars(left, hovers, "time", members, times, scale.size, _TIME, 0.62)
        _bars(right, hovers, "total", members, total, size, _TOTAL, 0.62, alpha=_FAINT)
        _bars(right, hovers, "device", members, device, size, _DEVICE, 0.36)
        left.set_yticks(range(len(members)), labels, fontsize=9)
        left.set_ylim(len(members) - 0.4, -0.6)
        left.set_xlabel(scale.label(measure.label))
        right.set_xlabel(f"Peak memory ({unit})")
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, left=False)
            axes.grid(axis="x")
            axes.set_xlim(left=0)
        right.yaxis.set_visible(False)  # nothing of it is seen, and to place it takes as long as the left one

    legend = (
        Key(scale.label(measure.label), _TIME, is_area=True),
        Key("Memory of the largest device", _DEVICE, is_area=True),
        Key("Memory of all devices", _TOTAL, is_area=True, alpha=_FAINT),
    )
    caption = sentences("Bars: mean over the runs of a configuration; whiskers: ± one standard deviation.", some, notes)
    title = "Time and memory of all configurations"
    return Drawing("overview", title, caption, draw, height_of_bars(len(members)), whole=True, legend=legend)


def _bars(
    axes: Any, hovers: dict[str, str], name: str, members: Sequence[Configuration], amounts: Sequence[Amount],
    size: float, colour: str, height: float, alpha: float = 0.9,
) -> None:  # fmt: skip
    values = [(amount.center or 0.0) / size for amount in amounts]
    bars = axes.barh(range(len(members)), values, height=height, color=colour, alpha=alpha)
    for row, (one, amount, bar) in enumerate(zip(members, amounts, bars, strict=True)):
        if amount.center is None:
            axes.text(0, row, f" {NOT_AVAILABLE}", va="center", color=MUTED, fontsize=9)
            continue
        gid = f"hover-{name}-{row}"
        bar.set_gid(gid)
        scale = scale_of(amount.measure, [amount.center])
        text = f"{amount_text(amount, scale)} {scale.unit}".strip()
        hovers[gid] = f"{one.label}: {amount.measure.label.lower()} {text} ({counted(len(amount.values), 'run')})"
    spread = [(row, amount.deviation / size) for row, amount in enumerate(amounts) if amount.deviation]
    if spread:
        rows = [row for row, _ in spread]
        axes.errorbar(
            [values[row] for row in rows], rows, xerr=[length for _, length in spread], fmt="none", ecolor=MUTED,
            elinewidth=1.0, capsize=2,
        )  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A configuration in the plane of what it costs and gives."""

    one: Configuration
    time: float
    memory: float
    quality: float | None
    is_front: bool


def pareto(systems: Systems) -> Iterator[Drawing]:
    """Yield for each task the configurations by time, memory and quality; those that none beats are labelled."""
    for number, (task, members) in enumerate(_by_task(systems).items()):
        points = pareto_points(systems, members)
        if len(points) > 1:
            yield _pareto(systems, points, task, "pareto" if number == 0 else f"pareto-{number}")


def pareto_points(systems: Systems, members: Sequence[Configuration]) -> list[Point]:
    """Return the configurations that compare, and which of them no other one beats.

    One beats another that is as good in time, memory and quality and better in one of them; quality counts where all
    have it.
    """
    judged = systems.quality
    found = []
    for one in members:
        time, memory = (systems.amount(each, one).center for each in (of.TRAIN_S, of.PEAK_BYTES))
        quality = systems.amount(of.score(*judged), one).center if judged else None
        if time is not None and memory is not None and not one.is_probe and not systems.differing[one.label].refused:
            found.append((one, time, memory, quality))
    sign = -1 if judged and direction(judged[1]) == "max" else 1
    has_quality = all(quality is not None for *_, quality in found)
    costs = [(time, memory, sign * (quality or 0.0) if has_quality else 0.0) for _, time, memory, quality in found]
    front = [not any(_beats(other, own) for other in costs) for own in costs]
    return [
        Point(one, time, memory, quality if has_quality else None, is_front)
        for (one, time, memory, quality), is_front in zip(found, front, strict=True)
    ]


def _beats(other: tuple[float, ...], own: tuple[float, ...]) -> bool:
    return other != own and all(a <= b for a, b in zip(other, own, strict=True))


def _by_task(systems: Systems) -> Mapping[str, list[Configuration]]:
    """Return the configurations by what their scores are of."""
    groups: dict[str, list[Configuration]] = {}
    for one in systems.measured:
        run = one.runs[0]
        data = run.get("run.data.test.fingerprint") or run.get("run.data.validation.fingerprint")
        groups.setdefault(f"{run.task} {data}", []).append(one)
    return groups


def _pareto(systems: Systems, points: Sequence[Point], task: str, key: str) -> Drawing:
    scale = scale_of(of.TRAIN_S, [point.time for point in points])
    unit, size = byte_unit([point.memory for point in points])
    judged = systems.quality
    with_quality = judged is not None and all(point.quality is not None for point in points)
    front = sorted((point for point in points if point.is_front), key=lambda point: point.time)
    thinned = sorted(points, key=lambda point: not point.is_front)[:_MAX_POINTS]

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        panels = figure.subplots(1, 2) if with_quality else [figure.subplots()]
        for number, axes in enumerate(panels):
            for position, point in enumerate(thinned):
                y = point.memory / size if number == 0 else point.quality
                gid = f"hover-{number}-{position}"
                colour = RUN_COLOURS[0] if point.is_front else _GREY
                # It lies inside the axes: to ask each point for its place takes most of the time of the layout.
                axes.plot([point.time / scale.size], [y], "o", markersize=7, color=colour, gid=gid, in_layout=False)
                hovers[gid] = _hover(point, scale.text(point.time), scale.unit, unit, size, judged)
            axes.set_xlabel(scale.label("Training time"))
            axes.grid()
            axes.margins(0.14)
            _number_points(axes, front, number, scale.size, size)
        panels[0].set_ylabel(f"Peak memory per device ({unit})")
        if with_quality and judged is not None:
            panels[1].set_ylabel(f"{judged[0].capitalize()} {metric_name(judged[1])}")

    what = "time, memory and quality" if with_quality else "time and memory"
    numbered = [f"{number} {point.one.label}" for number, point in enumerate(front[:_MAX_LABELS], start=1)]
    more = f"; {len(front) - _MAX_LABELS} more" if len(front) > _MAX_LABELS else ""
    caption = sentences(
        f"Coloured: no other configuration is as good in {what} and better in one of them: "
        f"{'; '.join(numbered)}{more}. "
        "Grey: another one is.",
        "" if with_quality else "The quality of some is unknown.",
        f"Not drawn: {len(systems.measured) - len(points)} (probes, runs of another task, or runs with a "
        "difference that is not on an axis)." if len(points) < len(systems.measured) else "",
    )  # fmt: skip
    # The file of a figure has no caption: what its numbers stand for has to be in it.
    keys = (("not beaten", RUN_COLOURS[0]), ("beaten", _GREY), *((label, RUN_COLOURS[0]) for label in numbered))
    legend = tuple(Key(label, colour, is_area=True) for label, colour in keys)
    title = f"Pareto front of {what}: {task.split(' ')[0]}"
    return Drawing(key, title, caption, draw, 3.6, whole=True, legend=legend)


def _hover(point: Point, time: str, time_unit: str, unit: str, size: float, judged: tuple[str, str] | None) -> str:
    quality = f", {' '.join(judged)} {point.quality:.4f}" if judged and point.quality is not None else ""
    side = "not beaten" if point.is_front else "beaten"
    return f"{point.one.label}: {time} {time_unit}, {point.memory / size:.3g} {unit}{quality}; {side}"


def _number_points(axes: Any, front: Sequence[Point], panel: int, time_size: float, size: float) -> None:
    """Write the numbers of the points beside them; the caption says which configurations they are."""
    for number, point in enumerate(front[:_MAX_LABELS], start=1):
        place = (point.time / time_size, _height(point, panel, size))
        axes.annotate(str(number), place, xytext=(5, 4), textcoords="offset points", fontsize=9)


def _height(point: Point, number: int, size: float) -> float:
    return point.memory / size if number == 0 else (point.quality or 0.0)
