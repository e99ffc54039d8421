"""Forest plots: every effect on speed and quality with its interval, next to the margin that counts as equal."""

from collections.abc import Iterator, Mapping, Sequence

from paratune.base.grouping import grouped
from paratune.config.metric_names import is_lower_better
from paratune.reports.document import ReportSection
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import Interval, forest, height_of_rows, panels
from paratune.reports.systems.judging import AxisEffects, verdict_table
from paratune.reports.systems.labels import join_sentences
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.words import change_words, is_in_points, label_of, name_of, signed_interval_words

MAX_SCORES = 2
"""Panels of scores in a figure, next to that of speed."""
BETTER = Key("better", RUN_COLOURS[0], marker="o")
WORSE = Key("worse", RUN_COLOURS[1], marker="s")
EQUAL = Key("equal within the margin", RUN_COLOURS[2], marker="D")
OPEN = Key("cannot tell", MUTED, marker="o", is_hollow=True)
"""How outcomes are drawn: shape, colour and outline differ, so that colours are not needed."""

Rows = Mapping[tuple[str, str], tuple[str, Sequence[MeasureComparison]]]
"""Task and comparisons of each row, by its heading and its name."""


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
        (
            (f"{effect.axis}, against {effect.baseline}{f', {family.title}' if family.title else ''}", effect.level),
            (family.task, effect.comparison),
        )
        for family in effects
        for effect in family.effects
    )
    rows: Rows = {row: (found[0][0], [each for _, each in found]) for row, found in by_value.items()}
    if rows:
        caption = "Mean effect of a value over the combinations of the other axes."
        yield _drawing("axis_effects", "Effects of the axes", rows, caption)
    rows = {
        (f"against {verdict.baseline}", verdict.label): (verdict.task, (verdict.speed, *verdict.quality))
        for verdict in verdicts
        if not verdict.differs.refused
    }
    if rows:
        yield _drawing("effects", "Effects of the configurations", rows, "")


def _drawing(key: str, title: str, rows: Rows, caption: str) -> Drawing:
    found = [(task, comparison) for task, comparisons in rows.values() for comparison in comparisons]
    names = list(dict.fromkeys(comparison.measure for _, comparison in found))
    speeds = dict.fromkeys(comparison.measure for _, comparison in found if comparison.is_ratio)
    measures = [*speeds, *[name for name in names if name not in speeds][:MAX_SCORES]]
    by_heading = grouped((heading, (heading, name)) for heading, name in rows)
    lines: list[str | tuple[str, str]] = []
    for heading, members in by_heading.items():
        lines += [heading, *members]

    def panel(measure: str) -> tuple[dict[int, Interval], str]:
        intervals, label = {}, ""
        for at, line in enumerate(lines):
            task, comparisons = rows[line] if isinstance(line, tuple) else ("", ())
            for comparison in comparisons:
                if comparison.measure == measure:
                    factor, label = _scale(comparison, task)
                    intervals[at] = _interval(comparison, factor, f"{line[1]} {line[0]}", task)
        return intervals, label

    texts = [line if isinstance(line, str) else line[1] for line in lines]
    bold = [at for at, line in enumerate(lines) if isinstance(line, str)]
    found_panels = [panel(measure) for measure in measures]
    draw = panels(*(forest(texts, rows, bold=bold, xlabel=label) for rows, label in found_panels), share_y=True)
    more = len(names) - len(measures)
    full_caption = join_sentences(
        caption,
        "Points: change; lines: 95% confidence intervals, an arrow has the number of an end outside; shaded: the "
        "margin within which a change counts as equal.",
        f"{more} more scores are in the table." if more else "",
    )
    height = height_of_rows(len(lines))
    return Drawing(key, title, full_caption, draw, height, whole=True, legend=(BETTER, WORSE, EQUAL, OPEN))


def _interval(comparison: MeasureComparison, factor: float, name: str, task: str) -> Interval:
    if comparison.change is None:
        return Interval(None, margin=factor * (comparison.margin or 0.0))
    style = style_of(comparison)
    value, low, high = (
        None if number is None else factor * number for number in (comparison.change, comparison.low, comparison.high)
    )
    change, interval = change_words(comparison, task), signed_interval_words(comparison, task)
    text = f"{name}: {name_of(comparison)} {change} {interval}, {style.label}"
    return Interval(value, low, high, factor * (comparison.margin or 0.0), style, text)


def style_of(comparison: MeasureComparison) -> Key:
    """Return how the outcome of a comparison is drawn."""
    if comparison.outcome == "different" and comparison.is_better is not None:
        return BETTER if comparison.is_better else WORSE
    return EQUAL if comparison.outcome == "equal" else OPEN


def _scale(comparison: MeasureComparison, task: str) -> tuple[float, str]:
    """Return the factor of the unit that is drawn, and the label of the axis."""
    measure = comparison.measure
    if comparison.is_ratio:
        return 100.0, f"{measure.capitalize()} (%)"
    better = "; less is better" if is_lower_better(measure) else ""
    # The split on a line of its own: labels of panels stand beside each other.
    label = "\n".join(filter(None, ((comparison.split or "").capitalize(), label_of(measure))))
    if is_in_points(measure):
        return (1.0 if task == "qa" else 100.0), f"{label} (points{better})"
    return 1.0, f"{label}{better}"
