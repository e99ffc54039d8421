"""Forest plots: every effect on speed and quality with its interval, next to the margin that counts as equal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import is_lower_better
from paratune.reports.document import ReportSection
from paratune.reports.figures.canvas import INK, MUTED, RULE, RUN_COLOURS, Drawing, Hovers, Key, label_rows
from paratune.reports.systems.effects import AxisEffects
from paratune.reports.systems.judging import verdict_table
from paratune.reports.systems.labels import join_sentences
from paratune.reports.text import shorten
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.factorial import FactorEffect
from paratune.verdicts.words import change_words, is_in_points, label_of, signed_interval_words

MAX_SCORES = 2
"""Panels of scores in a figure, next to that of speed."""
_ROW, _REST = 0.27, 0.75
"""Heights in inches: of a row, and of the rest."""
_WIDTH, _HEADING_WIDTH = 34, 42
"""Characters of names, and of headings."""
_GREY = "#9a9ca0"


@dataclass(frozen=True)
class EffectRow:
    """The effects of a configuration, or of a value of an axis, on several measures."""

    label: str
    heading: str
    """Baseline, which rows of one heading share."""
    comparisons: tuple[MeasureComparison, ...]
    task: str
    owners: tuple[str, ...] = ()
    """Configuration of the row and its runs; empty for the value of an axis."""


@dataclass(frozen=True)
class OutcomeStyle:
    """How an outcome is drawn: shape, colour and outline differ, so that colours are not needed."""

    label: str
    colour: str
    marker: str
    is_hollow: bool = False


_BETTER = OutcomeStyle("better", RUN_COLOURS[0], "o")
_WORSE = OutcomeStyle("worse", RUN_COLOURS[1], "s")
_EQUAL = OutcomeStyle("equal within the margin", RUN_COLOURS[2], "D")
_OPEN = OutcomeStyle("cannot tell", _GREY, "o", is_hollow=True)


def verdict_section(
    verdicts: Sequence[Verdict], remarks: Sequence[str], effects: Sequence[AxisEffects] = ()
) -> ReportSection:
    """Return the section of verdicts: the figures of the effects, and the table in words, if there are any."""
    drawings = tuple(effect_drawings(verdicts, effects))
    tables = verdict_table(verdicts, remarks, is_closed=bool(drawings))
    return ReportSection("verdicts", "Verdicts", (*drawings, *tables))


def effect_drawings(verdicts: Sequence[Verdict], effects: Sequence[AxisEffects] = ()) -> Iterator[Drawing]:
    """Yield a figure of the main effects of axes, and one of the configurations, each against its baseline."""
    by_value = grouped(
        ((_axis_heading(family, effect), effect.level, family.task), effect.comparison)
        for family in effects
        for effect in family.effects
    )
    rows = [EffectRow(level, heading, tuple(found), task) for (heading, level, task), found in by_value.items()]
    if rows:
        caption = "Mean effect of a value over the combinations of the other axes."
        yield _forest("axis_effects", "Effects of the axes", rows, caption)
    rows = []
    for verdict in verdicts:
        if not verdict.differs.refused:
            owners, comparisons = (verdict.label, *verdict.runs), (verdict.speed, *verdict.quality)
            rows.append(EffectRow(verdict.label, f"against {verdict.baseline}", comparisons, verdict.task, owners))
    if rows:
        yield _forest("effects", "Effects of the configurations", rows, "")


def _axis_heading(family: AxisEffects, effect: FactorEffect) -> str:
    return f"{effect.axis}, against {effect.baseline}{f', {family.title}' if family.title else ''}"


def _forest(key: str, title: str, rows: Sequence[EffectRow], caption: str) -> Drawing:
    names = dict.fromkeys(comparison.measure for row in rows for comparison in row.comparisons)
    speeds = [name for name in names if any(_of(row, name, is_ratio=True) for row in rows)]
    scores = [name for name in names if name not in speeds][:MAX_SCORES]
    measures = [*speeds, *scores]
    headings = list(dict.fromkeys(row.heading for row in rows))
    lines: list[str | EffectRow] = []
    for heading in headings:
        lines += [heading, *(row for row in rows if row.heading == heading)]

    def draw(figure: Any, hovers: Hovers) -> None:
        panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, measures, strict=True):
            _panel(axes, hovers, lines, measure)
        first = panels[0]
        texts = [
            shorten(line, _HEADING_WIDTH) if isinstance(line, str) else shorten(line.label, _WIDTH) for line in lines
        ]
        owners = [() if isinstance(line, str) else line.owners for line in lines]
        label_rows(first, hovers, texts, owners, fontsize=9)
        for label, line in zip(first.get_yticklabels(), lines, strict=True):
            label.set_fontweight("bold" if isinstance(line, str) else "normal")

    legend = tuple(
        Key(style.label, style.colour, marker=style.marker, is_hollow=style.is_hollow)
        for style in (_BETTER, _WORSE, _EQUAL, _OPEN)
    )
    full_caption = join_sentences(
        caption,
        "Points: change; lines: 95% confidence intervals; shaded: the margin within which a change counts as equal. "
        "Arrows: the interval is longer than the figure.",
        f"{len(names) - len(measures)} more scores are in the table." if len(names) > len(measures) else "",
    )
    height = _REST + _ROW * len(lines)
    return Drawing(key, title, full_caption, draw, height, whole=True, legend=legend)


def _of(row: EffectRow, measure: str, *, is_ratio: bool | None = None) -> MeasureComparison | None:
    wanted = (item for item in row.comparisons if item.measure == measure and is_ratio in (None, item.is_ratio))
    return next(wanted, None)


def _panel(axes: Any, hovers: Hovers, lines: Sequence[str | EffectRow], measure: str) -> None:
    rows = [(at, line) for at, line in enumerate(lines) if isinstance(line, EffectRow)]
    placed_rows = [(at, row, comparison) for at, row in rows if (comparison := _of(row, measure)) is not None]
    factor, label = _scale(measure, placed_rows[0][1].task, is_ratio=placed_rows[0][2].is_ratio)
    limit = _limit([comparison for _, _, comparison in placed_rows]) * factor
    for at, row, comparison in placed_rows:
        margin = factor * (comparison.margin or 0.0)
        gid = hovers.part_of(*row.owners, row=at)
        axes.barh([at], [2 * margin], left=-margin, height=1.0, color=RULE, alpha=0.7, in_layout=False, gid=gid)
        if comparison.change is None:
            gid = hovers.part_of(*row.owners, row=at)
            axes.text(0, at, NOT_AVAILABLE, ha="center", va="center", color=MUTED, fontsize=8, gid=gid)
            continue
        style = style_of(comparison)
        for artist in _interval(axes, at, comparison, factor, limit, style):
            artist.set_gid(hovers.part_of(*row.owners, row=at))
        gid = hovers.part_of(*row.owners, row=at, text=hover_text(row, comparison, style))
        axes.plot(
            [max(-limit, min(limit, factor * comparison.change))], [at], marker=style.marker, markersize=6, gid=gid,
            color=style.colour, markerfacecolor="none" if style.is_hollow else style.colour, in_layout=False,
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xlim(-1.06 * limit, 1.06 * limit)
    axes.set_xlabel(label, fontsize=9.5)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    axes.tick_params(axis="x", labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)


def style_of(comparison: MeasureComparison) -> OutcomeStyle:
    """Return how the outcome of a comparison is drawn."""
    if comparison.outcome == "equal":
        return _EQUAL
    if comparison.outcome == "different":
        return _BETTER if comparison.is_better else _WORSE
    return _OPEN


def hover_text(row: EffectRow, comparison: MeasureComparison, style: OutcomeStyle) -> str:
    """Return what a point shows: name, change, interval and outcome."""
    change, interval = change_words(comparison, row.task), signed_interval_words(comparison, row.task)
    return f"{row.label} {row.heading}: {label_of(comparison.measure)} {change} {interval}, {style.label}"


def _interval(
    axes: Any, at: int, comparison: MeasureComparison, factor: float, limit: float, style: OutcomeStyle
) -> list[Any]:
    """Draw the interval, with an arrow where it is longer than the axis; return the artists."""
    if comparison.low is None or comparison.high is None:
        return []
    low, high = factor * comparison.low, factor * comparison.high
    ends = [max(low, -limit), min(high, limit)]
    drawn = axes.plot(ends, [at, at], color=style.colour, linewidth=1.8, in_layout=False)
    for end, marker, is_outside in ((-limit, "<", low < -limit), (limit, ">", high > limit)):
        if is_outside:
            drawn += axes.plot([end], [at], marker=marker, color=style.colour, markersize=5, in_layout=False)
    return list(drawn)


def _scale(measure: str, task: str, *, is_ratio: bool) -> tuple[float, str]:
    """Return the factor of the unit that is drawn, and the label of the axis."""
    if is_ratio:
        return 100.0, f"{measure.capitalize()} (%)"
    better = "; less is better" if is_lower_better(measure) else ""
    if is_in_points(measure):
        return (1.0 if task == "qa" else 100.0), f"{label_of(measure)} (points{better})"
    return 1.0, f"{label_of(measure)}{better}"


def _limit(comparisons: Sequence[MeasureComparison]) -> float:
    """Return the largest change on the axis: all of the intervals, but at most three times the largest change."""
    known = [comparison for comparison in comparisons if comparison.change is not None]
    ends = [abs(end) for item in known for end in (item.low, item.high) if end is not None]
    changes = [abs(item.change or 0.0) for item in known]
    margin = max((item.margin or 0.0 for item in comparisons), default=0.0)
    most = max([3 * max(changes, default=0.0), 6 * margin])
    return max(min(max([*ends, *changes], default=0.0), most), 2 * margin) or 1.0
