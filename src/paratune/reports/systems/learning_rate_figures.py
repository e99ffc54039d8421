"""The score over the learning rate, with a line for each combination of the other axes and a band over seeds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import counted
from paratune.reports.figures.canvas import Drawing, Hovers
from paratune.reports.figures.runs import draw_band, line_keys, line_style
from paratune.reports.systems.configurations import Configuration, label_of
from paratune.reports.systems.labels import join_sentences
from paratune.reports.systems.measures import score
from paratune.reports.systems.model import Systems

KEY = "train.learning_rate"
MAX_LINES, MAX_FIGURES = 8, 4
MOST_TICKS = 8


@dataclass(frozen=True)
class ScorePoint:
    """The scores of the seeds at a learning rate."""

    learning_rate: float
    mean: float
    low: float
    high: float
    num_seeds: int
    configuration: str


def learning_rate_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield a figure for each task, if the matrix has several learning rates."""
    groups = grouped(
        ((member.cell_runs[0].cell.task, member.cell_runs[0].cell.metric), member)
        for member in systems.measured
        if member.scored and isinstance(member.settings.get(KEY), int | float)
    )
    for number, ((task, metric), members) in enumerate(groups.items()):
        lines = score_lines(systems, members, metric)
        if number < MAX_FIGURES and any(len(points) > 1 for points in lines.values()):
            key = "learning_rate" if number == 0 else f"learning_rate-{number}"
            yield _drawing(key, task if len(groups) > 1 else "", metric, lines)


def score_lines(systems: Systems, members: Sequence[Configuration], metric: str) -> dict[str, list[ScorePoint]]:
    """Return the points of each line, by the values of the other axes; scores are those of the selection."""
    axes = [axis for axis in systems.record.axes if not axis.is_seed and KEY not in axis.keys]
    measure = score("validation", metric)
    lines: dict[str, list[ScorePoint]] = {}
    for member in members:
        values = systems.amount(measure, member).values.values()
        if values:
            point = ScorePoint(
                float(member.settings[KEY]), sum(values) / len(values), min(values), max(values), len(values),
                member.label,
            )  # fmt: skip
            lines.setdefault(label_of(axes, member.values), []).append(point)
    return {label: sorted(points, key=lambda point: point.learning_rate) for label, points in lines.items()}


def _drawing(key: str, task: str, metric: str, lines: Mapping[str, Sequence[ScorePoint]]) -> Drawing:
    shown = dict(list(lines.items())[:MAX_LINES])
    label = score("validation", metric).label

    def draw(axes: Any, hovers: Hovers) -> None:
        for number, (name, points) in enumerate(shown.items()):
            style, owners = line_style(number), [point.configuration for point in points]
            rates = [point.learning_rate for point in points]
            low, high = [point.low for point in points], [point.high for point in points]
            draw_band(axes, hovers, rates, low, high, style["color"], owners)
            axes.plot(rates, [point.mean for point in points], linewidth=1.6, gid=hovers.part_of(*owners), **style)
            for point in points:
                gid = hovers.part_of(point.configuration, text=hover_text(name, label, point))
                axes.plot([point.learning_rate], [point.mean], "o", color=style["color"], markersize=5.5, gid=gid)
        axes.set_xscale("log")
        rates = marked_rates([point.learning_rate for points in shown.values() for point in points])
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_xlabel("Learning rate")
        axes.set_ylabel(label)
        axes.grid()

    caption = join_sentences(
        "Lines: means over seeds; bands: smallest to largest score of the seeds.",
        f"Drawn: {MAX_LINES} of {len(lines)} combinations of the other axes." if len(lines) > MAX_LINES else "",
    )
    owners = [tuple(point.configuration for point in points) for points in shown.values()]
    title = f"{label} over the learning rate{f': {task}' if task else ''}"
    return Drawing(key, title, caption, draw, 3.2, legend=line_keys(list(shown), owners))


def marked_rates(rates: Sequence[float]) -> list[float]:
    """Return the learning rates at which the axis has ticks: those that are far enough apart for their texts."""
    low, high = math.log(min(rates)), math.log(max(rates))
    marked: list[float] = []
    for rate in sorted(set(rates)):
        if not marked or math.log(rate / marked[-1]) >= 0.95 * (high - low) / MOST_TICKS:
            marked.append(rate)
    return marked


def hover_text(name: str, label: str, point: ScorePoint) -> str:
    """Return what a point shows."""
    spread = f" ({point.low:.4f} to {point.high:.4f})" if point.num_seeds > 1 else ""
    seeds = counted(point.num_seeds, "seed")
    prefix = f"{name}, " if name else ""
    return f"{prefix}learning rate {point.learning_rate:g}: {label} {point.mean:.4f}{spread}, {seeds}"
