"""Verdicts on the configurations of a matrix and on the values of its axes: as forest plots and in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paratune.base.grouping import grouped
from paratune.config.metric_names import is_lower_better, metric_label
from paratune.errors import CheckpointError, option_error
from paratune.reports.document import ReportSection
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Draw, Drawing, Key
from paratune.reports.figures.plots import Interval, forest, height_of_rows, panels
from paratune.reports.systems.model import MATRIX, Configuration, Systems
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.verdicts import Differs, Margin, MeasureComparison, Verdict, judge
from paratune.verdicts.groups import SPEED
from paratune.verdicts.judge import FactorEffect, factor_effects
from paratune.verdicts.sequential import look_history
from paratune.verdicts.words import NOT_IN_POINTS, change_words, name_of, signed_interval_words

UNKNOWN = MeasureComparison(SPEED, True, None, None, (0, 0), reason="it has no verdict")
MAX_JUDGED = 24  # configurations with a verdict; of more only the fastest have one
MAX_RUNS = 240  # runs whose predictions are read
MAX_SCORES = 2  # panels of scores in a figure, next to that of speed
BETTER = Key("better", RUN_COLOURS[0], marker="o")
WORSE = Key("worse", RUN_COLOURS[1], marker="s")
EQUAL = Key("equal within the margin", RUN_COLOURS[2], marker="D")
OPEN = Key("cannot tell", MUTED, marker="o", is_hollow=True)
"""How outcomes are drawn: shape, colour and outline differ, so that colours are not needed."""


def judged(
    systems: Systems, margins: Mapping[str, Margin] | None = None, *, all_of_them: bool = False
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Return the verdicts of a matrix, and notes on missing verdicts.

    At most `MAX_JUDGED` configurations and `MAX_RUNS` runs are judged unless `all_of_them`; `margins` as in `judge`,
    and a `ConfigError` for a score that no run has.
    """
    scores = (by_metric for run in systems.runs for by_metric in run.summary.scores.values())
    known = dict.fromkeys((SPEED, *(metric for by_metric in scores for metric in by_metric or ())))
    if unknown := [measure for measure in margins or () if measure not in known]:
        reason = f"no run has this score; known are {', '.join(known)}"
        raise option_error("--margin", unknown[0], reason, code="cli.invalid_value")
    members, selection = systems.drawn(len(systems.measured) if all_of_them else MAX_JUDGED)
    while not all_of_them and sum(len(configuration.runs) for configuration in members) > MAX_RUNS and len(members) > 1:
        members, selection = systems.drawn(len(members) - 1)
    pairs = [(systems.baseline_of(member), member) for member in members]
    families = grouped((base, one) for base, one in pairs if one is not base and one.is_probe == base.is_probe)
    judgements: list[Verdict] = []
    notes = [selection.replace("Drawn", "Judged")] * bool(selection)
    history = look_history(systems.record)
    for base, others in families.items():
        groups = [replace(member.group, noise_kind=systems.noise_kind) for member in (base, *others)]
        differs = {member.label: systems.differs(member, base) for member in others}
        try:
            judgements += judge(groups, base.label, margins, differs=differs, history=history)
        except CheckpointError as error:
            notes.append(f"No verdict against {base.label}: {error}")
    return tuple(judgements), tuple(notes)


@dataclass(frozen=True)
class AxisEffects:
    """The main effects within one combination of the axes in `select_per`."""

    title: str  # values of these axes; empty where there are none
    effects: tuple[FactorEffect, ...]
    task: str


def axis_effects(systems: Systems, margins: Mapping[str, Margin] | None = None) -> tuple[AxisEffects, ...]:
    """Return the main effects of axes, where two or more of them vary.

    Configurations that trained something different, for another reason than an axis, are left out; so are probes next
    to full runs. What could run and is in no combination has an effect of which nothing is known. Matrices of more
    than `MAX_RUNS` runs have no effects here. `margins` as in `judge`.
    """
    if systems.baseline is None or sum(len(member.runs) for member in systems.measured) > MAX_RUNS:
        return ()
    per = systems.record.select_per
    families = grouped((tuple(member.values[label] for label in per), member) for member in systems.configurations)
    found = (_effects_of(systems, members, margins) for members in families.values())
    return tuple(effects for effects in found if effects is not None)


def _effects_of(
    systems: Systems, possible: Sequence[Configuration], margins: Mapping[str, Margin] | None
) -> AxisEffects | None:
    assert systems.baseline is not None
    record, members = systems.record, [member for member in possible if member.runs]
    free = [axis for axis in record.axes if not axis.is_seed and axis.label not in record.select_per]
    varied = [axis for axis in free if len({member.values[axis.label] for member in members}) > 1]
    axes = [axis for axis in varied if MATRIX not in axis.keys]
    named = {axis.label: systems.baseline.values[axis.label] for axis in axes}
    base = next((member for member in members if named.items() <= member.values.items()), None)
    if len(axes) < 2 or base is None:
        return None
    levels = {one.label: {axis.label: axis.values[one.values[axis.label]] for axis in axes} for one in possible}
    alike = [one for one in members if one.is_probe == base.is_probe]
    cells = [replace(one.group, levels=levels[one.label]) for one in alike if not systems.differs(one, base).refused]
    try:
        effects = factor_effects(cells, levels[base.label], margins, history=look_history(record))
    except CheckpointError:  # a damaged file of predictions, which the verdicts name
        return None
    known = {(effect.axis, effect.level) for effect in effects}
    can_run = [member for member in possible if member.can_run]
    values = dict.fromkeys(value for member in can_run for value in levels[member.label].items())
    # A value without one of its combinations may be better or worse in it.
    lost = [levels[member.label] for member in can_run if not member.runs and member.is_probe == base.is_probe]
    for at, effect in enumerate(effects):
        if effect.comparison.code is None and any(own[effect.axis] in (effect.level, effect.baseline) for own in lost):
            found = replace(
                effect.comparison, outcome="cannot tell", is_better=None, code="one_run",
                reason="a combination has no finished run",
            )  # fmt: skip
            effects[at] = replace(effect, comparison=found)
    unknown = (value for value in values if value not in known and value not in levels[base.label].items())
    effects += [FactorEffect(axis, level, levels[base.label][axis], UNKNOWN, 0) for axis, level in unknown]
    shown = {axis.label: axis.values for axis in record.axes}
    title = ", ".join(shown[label][base.values[label]] for label in record.select_per)
    return AxisEffects(title, tuple(effects), base.runs[0].task)


def axis_verdicts(families: Sequence[AxisEffects]) -> dict[tuple[str, str], list[Verdict]]:
    """Return main effects as verdicts on the values of an axis, by the axis and the title of `AxisEffects`."""
    found = []
    for family in families:
        by_value = grouped(((one.axis, one.level, one.baseline), one.comparison) for one in family.effects)
        for (axis, level, base), (speed, *quality) in by_value.items():
            names = f"{axis} {level}", f"{axis} {base}"
            verdict = Verdict(*names, (), (), speed, tuple(quality), None, family.task, Differs(), 1)
            found.append(((axis, family.title), verdict))
    return grouped(found)


def verdict_section(
    judgements: Sequence[Verdict], remarks: Sequence[str], effects: Sequence[AxisEffects] = ()
) -> ReportSection:
    """Return the section of verdicts: figures of axes and configurations, and the table in words, if there are any."""
    of_axes = {
        f"against {verdicts[0].baseline}{f', {title}' if title else ''}": verdicts
        for (_, title), verdicts in axis_verdicts(effects).items()
    }
    comparable = grouped((f"against {one.baseline}", one) for one in judgements if not one.differs.refused)
    drawings = []
    if of_axes:
        mean = "Mean effect of a value over the combinations of the other axes. "
        drawings.append(forest_plot(of_axes, "axis_effects", "Effects of the axes", mean))
    if comparable:
        drawings.append(forest_plot(comparable))
    tables = verdict_table(judgements, remarks, is_closed=bool(drawings))
    return ReportSection("verdicts", "Verdicts", (*drawings, *tables))


def verdict_table(judgements: Sequence[Verdict], remarks: Sequence[str], *, is_closed: bool = False) -> Iterator[Table]:
    """Yield the table of verdicts with a sentence for each configuration; closed in a page that has a figure of them.

    Notes that differ only in their figures are one note, with the configurations that they apply to.
    """
    if not judgements and not remarks:
        return
    rows = []
    for verdict in judgements:
        words = verdict.sentence.removeprefix(f"{verdict.head}: ")  # names may contain ": " themselves
        text = TableCell(f"{words[:1].upper()}{words[1:]}", runs=(*verdict.runs, *verdict.baseline_runs))
        rows.append((TableCell(verdict.label, runs=verdict.runs), text))
    bases = list(dict.fromkeys(verdict.baseline for verdict in judgements))
    against = f"Each configuration against the baseline of its kind: {'; '.join(bases)}."
    if len(bases) == 1:
        against = f"Against {bases[0]}."
    level = "Intervals are 95% confidence intervals; those against one baseline are corrected for their number."
    notes = [*filter(None, (against, level, *remarks))]
    for note, names in grouped((note, verdict.label) for verdict in judgements for note in verdict.notes).items():
        sentence = f"{note[:1].upper()}{note[1:]}."
        notes.append(sentence if len(names) == len(judgements) else f"{', '.join(names)}: {sentence}")
    title = "Verdicts in words" if is_closed else "Verdicts"
    columns = (("Configuration", "configuration"), ("Verdict", "verdict"))
    yield make_table("verdicts", title, columns, rows, 2, notes, is_closed=is_closed)


def forest_plot(
    families: Mapping[str, Sequence[Verdict]], key: str = "effects", title: str = "Effects of the configurations",
    caption: str = "",
) -> Drawing:  # fmt: skip
    """Draw the change of speed and of the first scores in each verdict, with interval and margin, by their headings."""
    judgements = [verdict for members in families.values() for verdict in members]
    lines: list[tuple[str, Verdict | None]] = []
    for heading, members in families.items():
        lines += [(heading, None), *((verdict.label, verdict) for verdict in members)]
    texts = [text for text, _ in lines]
    bold = [at for at, (_, verdict) in enumerate(lines) if verdict is None]
    speeds = dict.fromkeys(verdict.speed.measure for verdict in judgements)
    scores = [*dict.fromkeys(score.measure for verdict in judgements for score in verdict.quality)]

    draws: list[Draw] = []
    for measure in (*speeds, *scores[:MAX_SCORES]):
        rows, label = {}, ""
        for at, (_, verdict) in enumerate(lines):
            if verdict is None:
                continue
            for found in (verdict.speed, *verdict.quality):
                if found.measure == measure:
                    factor, better = 1.0, "; less is better" if is_lower_better(measure) else ""
                    # The split on a line of its own: labels of panels stand beside each other.
                    name = "\n".join(filter(None, ((found.split or "").capitalize(), metric_label(measure))))
                    label = f"{name}{better}"
                    if found.is_ratio:
                        factor, label = 100.0, f"{measure.capitalize()} (%)"
                    elif measure not in NOT_IN_POINTS:
                        factor, label = (1.0 if verdict.task == "qa" else 100.0), f"{name} (points{better})"
                    rows[at] = interval_of(found, factor, f"{verdict.label} against {verdict.baseline}", verdict.task)
        draws.append(partial(forest, texts, rows, bold=bold, xlabel=label))
    draw = partial(panels, draws, share_y=True)
    caption += (
        "Points: change; lines: 95% confidence intervals, an arrow has the number of an end outside; shaded: the "
        "margin within which a change counts as equal."
    )
    caption += f" {len(scores) - MAX_SCORES} more scores are in the table." if len(scores) > MAX_SCORES else ""
    height = height_of_rows(len(lines))
    return Drawing(key, title, caption, draw, height, whole=True, legend=(BETTER, WORSE, EQUAL, OPEN))


def interval_of(comparison: MeasureComparison, factor: float, name: str, task: str) -> Interval:
    """Return the row of a comparison: its style follows the outcome, and not the sign of the change."""
    margin = factor * (comparison.margin or 0.0)
    if comparison.change is None:
        return Interval(None, margin=margin)
    style = EQUAL if comparison.outcome == "equal" else OPEN
    if comparison.outcome == "different" and comparison.is_better is not None:
        style = BETTER if comparison.is_better else WORSE
    ends = (comparison.change, comparison.low, comparison.high)
    value, low, high = (None if end is None else factor * end for end in ends)
    change, interval = change_words(comparison, task), signed_interval_words(comparison, task)
    text = f"{name}: {name_of(comparison)} {change} {interval}, {style.label}"
    return Interval(value, low, high, margin, style, text)
