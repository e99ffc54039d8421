"""Published studies: tables in their layout, their figures beside measured and planned ones, and whether claims hold.

A layout is a view: a list of measures with the labels and units of the study, and an orientation.
docs/howto/studies.md names the matrix of each.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.base.units import counted, format_number
from paratune.config.metric_names import metric_label
from paratune.errors import CheckpointError
from paratune.records.finished import number_in, steps_taken
from paratune.records.sweep import MEASURE_UNITS, NOT_ALLOCATED, SYSTEM_MEASURES, Published, PublishedClaim
from paratune.reports.amounts import Scale
from paratune.reports.measures import MEASURES, OF_CONFIGURATIONS, Measure, score
from paratune.reports.outcomes import SweepReport
from paratune.reports.systems.building import build, memory_kinds, scalings
from paratune.reports.systems.model import NODES, Configuration, Systems, values_label
from paratune.reports.systems.tables import quality_measures
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table, number_cell
from paratune.verdicts import Group, Margin, MeasureComparison
from paratune.verdicts.estimate import ALPHA
from paratune.verdicts.finding import PLACEBO, change_of_log, why_no_times
from paratune.verdicts.judge import shared_split
from paratune.verdicts.scores import differences
from paratune.verdicts.speeds import ratio
from paratune.verdicts.words import change_words, signed_interval_words

PLAN_GENERATOR = "paratune plan of a matrix"
PLAN_SCHEMA_VERSION = 1
Planned = Mapping[str, Mapping[str, float]]  # figures of `planned_figures` by cell, of a plan; empty without one
_STATES = ("weights", "gradients", "optimizer")
_MEASURES: Mapping[str, Measure] = {
    "time": MEASURES["train_s"],
    "total_time": MEASURES["total_s"],
    "memory": MEASURES["peak_memory_largest_bytes"],
    "total_memory": MEASURES["peak_memory_sum_bytes"],
    "samples_per_s": MEASURES["samples_per_s"],
    "utilisation": MEASURES["utilisation"],
}
HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot tell"
LIKE, UNLIKE = "as published, one run", "not as published, one run"
_WORST_FIRST = (FAILS, UNLIKE, UNTOLD, LIKE, HOLDS)
_GOOD = {HOLDS: True, FAILS: False}
KEY = "layout"
CLOCK, SECONDS, MEGABYTES = Scale("mm:ss", 1.0, 0), Scale("s", 1.0, 1), Scale("MB", 1e6, 0)
PER_CENT, RATE, TIMES, LOSS = Scale("%", 0.01, 1), Scale("samples/s", 1.0, 1), Scale("×", 1.0, 2), Scale("", 1.0, 4)


def figures_table(report: SweepReport, published: Published, plan: Planned) -> Table:
    """Return each published figure with the measured and the planned figure, in the unit of the publication."""
    axes = [axis for axis in report.record.axes if any(axis.label in entry.values for entry in published.figures)]
    columns: list[Heading] = [
        *(axis.label for axis in axes), ("Measure", "measure"), ("Unit", "unit"), ("Published", "published"),
        ("Measured", "measured"), ("Planned", "planned"), ("Measured / published", "measured_over_published"),
        ("Planned / published", "planned_over_published"), Column("Where", "where", is_text=True),
    ]  # fmt: skip
    rows: list[Row] = []
    notes: dict[str, None] = {}
    for figure in published.figures:
        matching = _with_values(report, figure.values)
        chosen = [  # where the figure names all axes in `select_per`
            member
            for group in report.groups
            if group.chosen is not None and group.values and group.values.items() <= figure.values.items()
            for member in matching
            if {**group.values, **group.chosen.values}.items() <= member.values.items()
        ]
        matching = chosen if len(matching) > 1 and chosen else matching
        member, measure, source = matching[0] if len(matching) == 1 else None, _MEASURES.get(figure.measure), ""
        size, amount, own, planned = MEASURE_UNITS[figure.measure][figure.unit], None, None, None
        if member is None:
            values = ", ".join(report.shown(label, name) for label, name in figure.values.items()) or "the matrix"
            notes[f"{len(matching)} configurations have the values {values}: the figure is n/a."] = None
        else:
            is_score = figure.measure not in SYSTEM_MEASURES
            if is_score:  # on test, or else on validation
                split = "test" if any(run.summary.scores.get("test") for run in member.scored) else "validation"
                measure = score(split, figure.measure)
            amount = None if measure is None else report.amount(measure, member)
            if amount is not None and amount.center is not None:
                # The scores of question answering are per cent already.
                own = amount.center / (1.0 if is_score and member.cell_runs[0].cell.task == "qa" else size)
            planned, source = _planned(plan, member, figure.measure)
            planned = None if planned is None else planned / size
        if figure.measure == "state_memory":
            notes["Model states are weights, gradients and optimizer states: plans have them, runs do not."] = None
        ratios = [None if value is None or not figure.value else value / figure.value for value in (own, planned)]
        measured = (tuple(amount.values), amount.measure.source) if amount is not None else ((), "")
        rows.append([
            *(axis.values[name] if (name := figure.values.get(axis.label)) else "" for axis in axes),
            _title(figure.measure, measure), figure.unit, TableCell(format_number(figure.value), figure.value),
            TableCell(format_number(own), own, *measured), TableCell(format_number(planned), planned, source=source),
            *(number_cell(ratio, ".2f") for ratio in ratios), figure.where,
        ])  # fmt: skip
    about = [*notes, f"Published: {published.source}."]
    return make_table("published", "Published and measured", columns, rows, len(axes) + 2, about)


def _title(name: str, measure: Measure | None) -> str:
    if name in SYSTEM_MEASURES:
        return SYSTEM_MEASURES[name][0]
    return metric_label(name) if measure is None else measure.label


def _with_values(systems: Systems, values: Mapping[str, str]) -> list[Configuration]:
    return [member for member in systems.configurations if values.items() <= member.values.items()]


def _planned(plan: Planned, configuration: Configuration, measure: str) -> tuple[float | None, str]:
    """Return the planned figure and its source: the given plan, or else the predictions in the run records."""
    cell_names = (cell_run.cell.name for cell_run in configuration.cell_runs)
    cells, source = [plan[name] for name in cell_names if name in plan], "plan of the matrix"
    if not cells:
        source = "summary.prediction"
        for run in configuration.runs:
            steps, found = steps_taken(run), run.summary.prediction
            time_s = None if found.step_s is None or steps is None else found.step_s[0] * steps
            cells.append(planned_figures(time_s, found.memory_bytes, found.memory_terms))
    values = [cell[measure] for cell in cells if measure in cell]
    return (math.fsum(values) / len(values), source) if values else (None, "")


def claims_table(systems: Systems, published: Published) -> Table:
    """Return whether each published claim holds, with the changes that decide it."""
    rows = []
    for claim in published.claims:
        judged = [_judged(systems, claim, pair.than, pair.of) for pair in claim.pairs]
        result = min((outcome for outcome, _ in judged), key=_WORST_FIRST.index, default=UNTOLD)
        runs: dict[str, None] = {}
        changes = []
        for pair, (_, words) in zip(claim.pairs, judged, strict=True):
            # The values in which both sides differ, as tables show them.
            axes = [axis for axis in systems.record.axes if pair.of.get(axis.label) != pair.than.get(axis.label)]
            sides = (values_label([axis for axis in axes if axis.label in side], side) for side in (pair.of, pair.than))
            changes.append(f"{' against '.join(sides)}: {words}")
            members = [*_with_values(systems, pair.of), *_with_values(systems, pair.than)]
            runs |= dict.fromkeys(run.name for member in members for run in member.runs)
        outcome = TableCell(result, runs=(*runs,), better=_GOOD.get(result))
        rows.append((claim.text, outcome, TableCell("; ".join(changes), runs=(*runs,)), claim.where))
    note = (
        "A claim holds when the 95% interval of the change lies completely in the range that the claim states, "
        "in each comparison. It does not hold when one interval lies completely outside of that range, at 95% divided "
        "among the comparisons. With one run of a configuration there is no interval: the change is in the range (as "
        "published) or not."
    )
    columns = ((name.capitalize(), name) for name in ("claim", "result", "change", "where"))
    return make_table("claims", "Published claims", columns, rows, 4, (note, f"Published: {published.source}."))


def _judged(systems: Systems, claim: PublishedClaim, than: Mapping[str, str], of: Mapping[str, str]) -> tuple[str, str]:
    """Return whether a claim holds for two configurations, by their values, and the change in words."""
    sides = [_with_values(systems, values) for values in (than, of)]
    if any(len(side) != 1 for side in sides):
        return UNTOLD, f"{' and '.join(str(len(side)) for side in sides)} configurations have these values"
    (base,), (other,) = sides
    if not base.runs or not other.runs:
        return UNTOLD, "no finished run"
    differs = systems.differs(other, base)
    if differs.refused:
        return UNTOLD, f"not the same experiment: they differ in {'; '.join(differs.refused)}"
    if differs.elsewhere and claim.measure in _MEASURES:
        return UNTOLD, "they ran on different machines"
    finding = _comparison(claim, base, other)
    if isinstance(finding, str):
        return UNTOLD, finding
    estimate = finding.estimate
    if finding.change is None:
        return UNTOLD, finding.reason or "unknown"
    low, high = _range(claim, finding.sign)
    split = shared_split([*base.scored, *other.scored]) or "validation"
    words = f"{_title(claim.measure, score(split, claim.measure))} {change_words(finding)}"
    if min(finding.num_runs) < 2:
        return (LIKE if low <= finding.change <= high else UNLIKE), words
    if estimate is None or not estimate.sides:
        return UNTOLD, f"{words}: {finding.reason or 'over samples alone'}"
    # "All comparisons hold" needs no correction (intersection-union test); "one of several fails" needs it.
    as_change = change_of_log if finding.is_ratio else float
    least, most = map(as_change, estimate.interval())
    holds = low <= least and most <= high
    least, most = map(as_change, estimate.interval(1 - ALPHA / len(claim.pairs)))
    fails = most < low or least > high
    return (HOLDS if holds else FAILS if fails else UNTOLD), f"{words} {signed_interval_words(finding)}"


def _comparison(claim: PublishedClaim, base: Configuration, other: Configuration) -> MeasureComparison | str:
    if (measure := _MEASURES.get(claim.measure)) is not None:
        if claim.measure in ("time", "total_time") and (base.is_probe or other.is_probe):
            return "probes have no time of a whole run"
        kinds = memory_kinds([*base.runs, *other.runs]) if measure.unit == "bytes" else ()
        if len(kinds) > 1:
            return f"memory was measured in different ways: {', '.join(kinds)}"
        why = why_no_times(base.group, other.group)
        if measure.unit != "bytes" and why is not None and why != PLACEBO:
            return why[1]
        values = [[measure.of(run) for run in configuration.runs] for configuration in (base, other)]
        return ratio(claim.measure, base.group, other.group, *values)
    if not base.scored or not other.scored:
        return "probes have no scores"
    scored = [*base.scored, *other.scored]
    split = shared_split(scored)
    if split is None or any(run.score(split, claim.measure) is None for run in scored):
        return f"not all runs have {metric_label(claim.measure)}"
    first, second = (Group(configuration.label, configuration.scored) for configuration in (base, other))
    return differences(first, [second], split, claim.measure, Margin(claim.by))[0]


def _range(claim: PublishedClaim, sign: int) -> tuple[float, float]:
    """Return the changes for which a claim is true, ends included; `sign` is -1 for scores of which less is better."""
    match claim.kind:
        case "less":
            return -math.inf, -claim.by or -math.ulp(0.0)  # 0 is not less
        case "not_less":
            return -claim.by, math.inf
        case "equal":
            return -claim.by, claim.by
    past = math.nextafter(claim.by, math.inf)  # worse by more than the margin
    return (-math.inf, -past) if sign > 0 else (past, math.inf)


def planned_figures(time_s: Any, memory_bytes: Any, terms: Any) -> dict[str, float]:
    """Return the known planned figures of a run by published measure: time (s), memory and state_memory (bytes).

    Args:
        time_s: Of all steps.
        memory_bytes: Of the fullest rank, with the CUDA context and fragmentation, which PyTorch does not count and
            which are left out.
        terms: Of the memory, by name.
    """
    by_term = {name: number_in(value) for name, value in terms.items()} if isinstance(terms, Mapping) else {}
    time, memory = number_in(time_s), number_in(memory_bytes)
    figures = {} if time is None else {"time": time}
    left_out = [part for name in NOT_ALLOCATED if (part := by_term.get(name, 0.0)) is not None]
    if memory is not None and len(left_out) == len(NOT_ALLOCATED):
        figures["memory"] = memory - math.fsum(left_out)
    states = [part for name in _STATES if (part := by_term.get(name)) is not None]
    if len(states) == len(_STATES):
        figures["state_memory"] = math.fsum(states)
    return figures


def read_plan(path: Path, matrix: str) -> dict[str, dict[str, float]]:
    """Return the planned figures of each cell of a matrix by its name, from a file of `paratune plan MATRIX --json`.

    Raises:
        CheckpointError: The file is absent, damaged, of another kind, or of another matrix.
    """
    plan = records.read_json(path)
    is_plan = isinstance(plan, dict) and plan.get("generator") == PLAN_GENERATOR
    name = plan.get("matrix") if is_plan else None
    if name != matrix or plan.get("schema_version") != PLAN_SCHEMA_VERSION or not isinstance(plan.get("cells"), dict):
        what = f"the plan of the matrix {plain(str(name))}" if name is not None else "not the plan of a matrix"
        remedy = f"write its plan: paratune plan MATRIX --json > {plain(path.name)}"
        text = f"{plain(path)} is {what}, and the report is about {plain(matrix)}; {remedy}"
        raise CheckpointError(text, code="report.no_plan", path=path, matrix=name)
    figures = {}
    for cell, option in plan["cells"].items():
        memory = option.get("memory") if isinstance(option, dict) else None
        if isinstance(memory, dict):
            span = option.get("run_s")
            time_s = span[0] if isinstance(span, list) and span else None
            figures[str(cell)] = planned_figures(time_s, memory.get("total_bytes"), memory.get("terms"))
    return figures


@dataclass(frozen=True)
class StudyLayout:
    title: str
    figures: Mapping[str, tuple[str, Scale]]  # label and unit of the study, by key of the measure
    splits: tuple[str, ...] = ()  # whose headline scores follow the figures; validation where runs have no others
    has_configurations_in_columns: bool = False
    compares: bool = False  # whether each figure has its change against the baseline in per cent, with an arrow


LAYOUTS: Mapping[str, StudyLayout] = {
    "evora": StudyLayout("Évora, tables 1 to 5", {
        "train_s": ("Time", CLOCK),
        "peak_memory_largest_bytes": ("Peak memory allocated per GPU", MEGABYTES),
        "peak_memory_sum_bytes": ("Total memory", MEGABYTES),
    }, ("test",), has_configurations_in_columns=True),
    "ielts": StudyLayout("IELTS: scores and time per epoch", {
        "epoch_s": ("Time per epoch", CLOCK),
    }, ("validation", "test"), has_configurations_in_columns=True, compares=True),
    "oakridge": StudyLayout("Oak Ridge: seconds of the four operations", {
        "get_batch_s": ("Get train batch", SECONDS),
        "forward_s": ("Forward", SECONDS),
        "backward_s": ("Backward", SECONDS),
        "optimizer_s": ("Optimizer", SECONDS),
    }),
    "imdb": StudyLayout("IMDB: time, speed-up and accuracy", {
        "train_s": ("Time", CLOCK),
        "speed_up": ("Speed-up", TIMES),
    }, ("test",)),
    "squad": StudyLayout("Chasing efficiency", {
        "train_s": ("Run time", CLOCK),
        "samples_per_s": ("Throughput", RATE),
        "validation_loss": ("Validation loss", LOSS),
        "utilisation": ("GPU utilisation", PER_CENT),
        "statistical_efficiency": ("Statistical efficiency", PER_CENT),
        "goodput_samples_per_s": ("Goodput", RATE),
    }, compares=True),
}  # fmt: skip
"""Layouts by the name of the study's folder below configs/studies."""
_LAYOUT_MEASURES = {**OF_CONFIGURATIONS, "validation_loss": score("validation", "loss")}


def layout_tables(systems: Systems, name: str) -> Iterator[Table]:
    """Yield the measured configurations, at least one, in a layout of `LAYOUTS`.

    A study with configurations in columns has a table for each line over the number of devices. Where the number of
    nodes varies, it has one table with a line for each configuration: equal numbers of devices beside each other, with
    the change against the baseline.
    """
    layout, measured = LAYOUTS[name], [*systems.measured]
    if len({member.settings.get(NODES) for member in measured}) > 1:
        layout = replace(layout, splits=(), has_configurations_in_columns=False, compares=True)
        measured.sort(key=lambda member: member.world_size)
    lines = scalings(systems.measured) if layout.has_configurations_in_columns and not layout.compares else ()
    shown = {member.label for line in lines for member in line.members}
    rest = [member for member in measured if member.label not in shown]
    for number, members in enumerate([*(line.members for line in lines), *([rest] if rest else [])]):
        line = lines[number] if number < len(lines) else None
        key = f"{KEY}-others" if lines and line is None else f"{KEY}-{number + 1}" if number else KEY
        title, heads = layout.title, [member.label for member in members]
        if line is not None:
            batch = f"{line.batch:g} samples a {'step' if line.rule == 'strong' else 'device'}"
            title = ", ".join(filter(None, [layout.title, line.where, batch]))
            heads = [counted(member.world_size, "device") for member in members]
        measures = [replace(_LAYOUT_MEASURES[key], label=label) for key, (label, _) in layout.figures.items()]
        measures += quality_measures(members, layout.splits) if layout.splits else []
        notes = ["In brackets: the change against the baseline; an arrow shows its direction."] * layout.compares
        table = build(
            systems, key, title, {"configuration": heads}, members, measures, notes,
            compares=layout.compares, shows_all=True,
            first_of={} if line is None else {member.label: members[0] for member in members},
            scales={key: scale for key, (_, scale) in layout.figures.items()},
        )  # fmt: skip
        if layout.has_configurations_in_columns:
            columns: list[Heading] = [("", "figure"), *(cells[0].shown for cells in table.lines)]
            by_column = zip(table.columns, zip(*table.lines, strict=True), strict=True)
            rows: list[Row] = [[column.label, *cells] for column, cells in by_column]
            table = make_table(key, title, columns, rows[1:], 1, table.notes)
        yield table
