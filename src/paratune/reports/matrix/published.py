"""Published figures of a study, compared with measured and planned figures, and whether its claims hold."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paratune.base.units import NOT_AVAILABLE, format_as, format_number
from paratune.records.published import (
    RATIO_CLAIMS,
    SYSTEM_MEASURES,
    ComparedPair,
    PublishedClaim,
    PublishedFigure,
    measure_units,
)
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.matrix.planned import PlannedCell
from paratune.reports.runs.read import RunRecord, steps_taken
from paratune.reports.systems import measures
from paratune.reports.systems.building import memory_kinds
from paratune.reports.systems.configurations import Configuration, label_of
from paratune.reports.systems.measures import ReportMeasure
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table
from paratune.verdicts import Group, Margin, MeasureComparison
from paratune.verdicts.estimate import ALPHA, LEVEL
from paratune.verdicts.finding import UncorrectedComparison
from paratune.verdicts.judge import shared_split
from paratune.verdicts.ratios import ratio
from paratune.verdicts.scores import difference
from paratune.verdicts.words import change_words, signed_interval_words
from paratune.verdicts.words import label_of as metric_label

_MEASURES: Mapping[str, ReportMeasure] = {
    "time": measures.TRAIN_S,
    "total_time": measures.TOTAL_S,
    "memory": measures.PEAK_BYTES,
    "total_memory": measures.SUM_BYTES,
    "samples_per_s": measures.SAMPLES_PER_S,
    "utilisation": measures.UTILISATION,
}
HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot tell"
_GOOD = {HOLDS: True, FAILS: False}


def published_tables(report: SweepReport) -> Iterator[Table]:
    """Yield the table of published figures and the table of claims, if the matrix has any."""
    published = report.record.published
    if published is None or report.systems is None:
        return
    if published.figures:
        yield figures_table(report, report.systems, published.figures)
    if published.claims:
        yield claims_table(report.systems, published.claims)


def figures_table(report: SweepReport, systems: Systems, figures: Sequence[PublishedFigure]) -> Table:
    """Return each published figure with the measured and the planned figure, in the unit of the publication."""
    axes = [axis for axis in report.record.axes if any(axis.label in entry.values for entry in figures)]
    columns: list[Heading] = [
        *(axis.label for axis in axes), ("Measure", "measure"), ("Unit", "unit"), ("Published", "published"),
        ("Measured", "measured"), ("Planned", "planned"), ("Measured / published", "measured_over_published"),
        ("Planned / published", "planned_over_published"), Column("Where", "where", is_text=True),
    ]  # fmt: skip
    rows: list[Row] = []
    notes: dict[str, None] = {}
    places, sources = _places(figures)
    for figure, place in zip(figures, places, strict=True):
        measured = _figure_of(report, systems, figure)
        notes |= dict.fromkeys(measured.notes)
        names = [axis.values[name] if (name := figure.values.get(axis.label)) else "" for axis in axes]
        rows.append(
            (
                *names,
                _words_of(figure.measure),
                figure.unit,
                TableCell(format_number(figure.value), figure.value, source=figure.source),
                TableCell(format_number(measured.measured), measured.measured, measured.runs, measured.source),
                TableCell(format_number(measured.planned), measured.planned, source=measured.plan_source),
                _over(measured.measured, figure.value),
                _over(measured.planned, figure.value),
                place,
            )
        )
    notes |= dict.fromkeys(sources)
    return make_table("published", "Published and measured", columns, rows, len(axes) + 2, notes)


@dataclass(frozen=True)
class _OwnFigure:
    """Measured and planned figure for a published one, in its unit."""

    measured: float | None = None
    planned: float | None = None
    runs: tuple[str, ...] = ()
    source: str = ""
    plan_source: str = ""
    notes: tuple[str, ...] = ()


def _figure_of(report: SweepReport, systems: Systems, figure: PublishedFigure) -> _OwnFigure:
    matching = _matching(report, systems, figure.values)
    if len(matching) != 1:
        values_text = ", ".join(report.shown(label, name) for label, name in figure.values.items()) or "the matrix"
        count, have = (f"{len(matching)} configurations", "have") if matching else ("no configuration", "has")
        return _OwnFigure(notes=(f"{count} of the matrix {have} the values {values_text}.",))
    (configuration,) = matching
    size = measure_units(figure.measure)[figure.unit]
    plan = _planned(report, configuration, figure.measure)
    planned, plan_source = (None, "") if plan is None else plan
    planned = None if planned is None else planned / size
    if figure.measure == "state_memory":
        note = "Model states are weights, gradients and optimizer states. Runs do not record their memory; plans do."
        return _OwnFigure(planned=planned, plan_source=plan_source, notes=(note,))
    notes: list[str] = []
    measure = _MEASURES.get(figure.measure)
    if measure is None:
        split = "test" if any(run.get("summary.scores.test") for run in configuration.scored) else "validation"
        measure = measures.score(split, figure.measure)
        # The scores of question answering are per cent already.
        size = 1.0 if configuration.cell_runs[0].cell.task == "qa" else size
        notes.append(f"Measured scores are those on {split}.")
    if not configuration.runs:
        return _OwnFigure(planned=planned, plan_source=plan_source)
    amount = systems.amount(measure, configuration)
    measured = None if amount.center is None else amount.center / size
    if configuration.is_probe and figure.measure in ("time", "total_time"):
        notes.append("Probes take a few steps: they have no time of a whole run.")
        measured = None
    return _OwnFigure(measured, planned, tuple(amount.values), measure.source, plan_source, tuple(notes))


def _matching(report: SweepReport, systems: Systems, values: Mapping[str, str]) -> list[Configuration]:
    """Return the configurations with these values; the chosen one when they name all axes in `select_per`."""
    matching = _with_values(systems.configurations, values)
    if len(matching) < 2:
        return matching
    chosen = [
        _with_values(matching, {**group.values, **group.chosen.values})
        for group in report.groups
        if group.chosen is not None and group.values and group.values.items() <= values.items()
    ]
    return [configuration for configurations in chosen for configuration in configurations] or matching


def _with_values(configurations: Sequence[Configuration], values: Mapping[str, str]) -> list[Configuration]:
    return [configuration for configuration in configurations if values.items() <= configuration.values.items()]


def _planned(report: SweepReport, configuration: Configuration, measure: str) -> tuple[float, str] | None:
    """Return the planned figure and its source: the given plan, or else the predictions in the run records."""
    names = (cell_run.cell.name for cell_run in configuration.cell_runs)
    cells, source = [report.plan[name] for name in names if name in report.plan], "plan of the matrix"
    if not cells:
        source = "summary.prediction"
        cells = [cell for run in configuration.runs if (cell := _predicted(run)) is not None]
    values = [value for cell in cells if (value := cell.figure(measure)) is not None]
    return (math.fsum(values) / len(values), source) if values else None


def _predicted(run: RunRecord) -> PlannedCell | None:
    """Return the prediction in the record of a run."""
    steps, span = steps_taken(run), run.get("summary.prediction.step_s")
    step_s = span[0] if isinstance(span, list) and span and isinstance(span[0], int | float) else None
    return PlannedCell.from_plan(
        None if step_s is None or steps is None else step_s * steps,
        run.number("summary.prediction.memory_bytes"),
        run.get("summary.prediction.memory_terms"),
    )


def _words_of(measure: str) -> str:
    return SYSTEM_MEASURES[measure][0] if measure in SYSTEM_MEASURES else metric_label(measure)


def _over(value: float | None, published: float) -> TableCell:
    ratio = None if value is None or not published else value / published
    return TableCell(format_as(ratio, ".2f"), ratio)


def claims_table(systems: Systems, claims: Sequence[PublishedClaim]) -> Table:
    """Return each claim with its result and the intervals that decide it."""
    rows = []
    places, sources = _places(claims)
    for claim, place in zip(claims, places, strict=True):
        result, changes, runs = judged_claim(systems, claim)
        outcome = TableCell(result, runs=runs, better=_GOOD.get(result))
        rows.append((claim.text, outcome, TableCell("; ".join(changes), runs=runs), place))
    note = (
        "A claim holds when the 95% interval of the change lies completely in the range that the claim states, "
        "in each comparison. It does not hold when one interval lies completely outside of that range, at 95% divided "
        "among the comparisons."
    )
    columns = ((name.capitalize(), name) for name in ("claim", "result", "change", "where"))
    return make_table("claims", "Published claims", columns, rows, 4, (note, *sources))


def _places(published: Sequence[PublishedFigure] | Sequence[PublishedClaim]) -> tuple[list[str], list[str]]:
    """Return the place of each entry in its publication, and the notes that name the publications."""
    sources = list(dict.fromkeys(entry.source for entry in published))
    if len(sources) == 1:
        return [entry.where for entry in published], [f"Published: {sources[0]}."]
    numbers = {source: f"[{number}]" for number, source in enumerate(sources, start=1)}
    places = [" ".join(filter(None, [numbers[entry.source], entry.where])) for entry in published]
    return places, [f"{number} {source}." for source, number in numbers.items()]


def judged_claim(systems: Systems, claim: PublishedClaim) -> tuple[str, list[str], tuple[str, ...]]:
    """Return whether a claim holds, each change with its interval in words, and the names of the runs."""
    outcomes: list[str] = []
    changes: list[str] = []
    runs: dict[str, None] = {}
    for pair in claim.pairs:
        base, other = (_side(systems, values) for values in (pair.than, pair.of))
        if isinstance(base, str) or isinstance(other, str):
            outcome, words = UNTOLD, base if isinstance(base, str) else str(other)
        else:
            runs |= dict.fromkeys(run.name for run in (*base.runs, *other.runs))
            outcome, words = _judged_pair(systems, claim, base, other)
        outcomes.append(outcome)
        changes.append(f"{_label(systems, pair)}: {words}")
    if FAILS in outcomes:
        return FAILS, changes, tuple(runs)
    return (HOLDS if outcomes and set(outcomes) == {HOLDS} else UNTOLD), changes, tuple(runs)


def _side(systems: Systems, values: Mapping[str, str]) -> Configuration | str:
    """Return the configuration with these values; a message when there is none."""
    matching = _with_values(systems.configurations, values)
    if not matching:
        return "no configuration has these values"
    if len(matching) > 1:
        return f"{len(matching)} configurations have these values"
    return matching[0] if matching[0].runs else "no finished run"


def _label(systems: Systems, pair: ComparedPair) -> str:
    """Return the values in which both sides differ, as tables show them."""
    axes = [axis for axis in systems.record.axes if pair.of.get(axis.label) != pair.than.get(axis.label)]
    return " against ".join(
        label_of([axis for axis in axes if axis.label in side], side) for side in (pair.of, pair.than)
    )


def _judged_pair(systems: Systems, claim: PublishedClaim, base: Configuration, other: Configuration) -> tuple[str, str]:
    differs = systems.differs(other, base)
    if differs.refused:
        return UNTOLD, f"not the same experiment: they differ in {'; '.join(differs.refused)}"
    if differs.elsewhere and claim.kind in RATIO_CLAIMS:
        return UNTOLD, "they ran on different machines"
    compared = _comparison(claim, base, other)
    if isinstance(compared, str):
        return UNTOLD, compared
    finding, estimate = compared.finding, compared.estimate
    if finding.change is None or estimate is None:
        return UNTOLD, " ".join(filter(None, [_change(finding, claim), finding.reason or ""]))
    if not estimate.sides:
        return UNTOLD, f"{_change(finding, claim)}: {finding.reason or 'over samples alone'}"
    # "All comparisons hold" needs no correction (intersection-union test); "one of several fails" needs it.
    holds = _is_inside(claim, *_ends(finding, estimate.interval(LEVEL)), compared.sign)
    fails = _is_outside(claim, *_ends(finding, estimate.interval(1 - ALPHA / max(1, len(claim.pairs)))), compared.sign)
    return (HOLDS if holds else FAILS if fails else UNTOLD), _change(finding, claim)


def _comparison(claim: PublishedClaim, base: Configuration, other: Configuration) -> UncorrectedComparison | str:
    if claim.kind in RATIO_CLAIMS:
        if claim.measure in ("time", "total_time") and (base.is_probe or other.is_probe):
            return "probes have no time of a whole run"
        measure = _MEASURES[claim.measure]
        if measure in (measures.PEAK_BYTES, measures.SUM_BYTES):
            kinds = memory_kinds([*base.runs, *other.runs])
            if len(kinds) > 1:
                return f"memory was measured in different ways: {', '.join(kinds)}"
        first, second = (Group(configuration.label, configuration.runs) for configuration in (base, other))
        values = [[measure.read(run) for run in configuration.runs] for configuration in (base, other)]
        return ratio(claim.measure, first, second, *values)
    if not base.scored or not other.scored:
        return "probes have no scores"
    scored = [*base.scored, *other.scored]
    split = shared_split(scored)
    if split is None or any(run.number(("summary", "scores", split, claim.measure)) is None for run in scored):
        return f"not all runs have {metric_label(claim.measure)}"
    first, second = (Group(configuration.label, configuration.scored) for configuration in (base, other))
    return difference(first, second, split, claim.measure, Margin(claim.by))


def _ends(finding: MeasureComparison, interval: tuple[float, float]) -> tuple[float, float]:
    """Return the limits of an interval as changes; intervals of ratios are on a logarithmic scale."""
    low, high = interval
    return (math.expm1(low), math.expm1(high)) if finding.is_ratio else (low, high)


def _is_inside(claim: PublishedClaim, low: float, high: float, sign: int) -> bool:
    """Return whether the whole interval is inside the range of the claim."""
    match claim.kind:
        case "less":
            return high <= -claim.by if claim.by else high < 0
        case "not_less":
            return low >= -claim.by
        case "equal":
            return -claim.by <= low and high <= claim.by
    return high < -claim.by if sign > 0 else low > claim.by


def _is_outside(claim: PublishedClaim, low: float, high: float, sign: int) -> bool:
    """Return whether the whole interval is outside of the range of the claim."""
    match claim.kind:
        case "less":
            return low > -claim.by
        case "not_less":
            return high < -claim.by
        case "equal":
            return high < -claim.by or low > claim.by
    return low > -claim.by if sign > 0 else high < claim.by


def _change(finding: MeasureComparison, claim: PublishedClaim) -> str:
    """Return a change with its interval."""
    if finding.change is None:
        return NOT_AVAILABLE
    name = _words_of(claim.measure)
    return f"{name} {change_words(finding)} {signed_interval_words(finding)}"
