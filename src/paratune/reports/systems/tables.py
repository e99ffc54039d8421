"""The tables of a matrix, selected by the subjects of its axes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from paratune.records.efficiency import NoiseKind
from paratune.reports.amounts import Amount
from paratune.reports.measures import (
    EFFICIENCY,
    GOODPUT,
    MEASURES,
    STEP_PARTS,
    Measure,
    cost,
    named,
    noise_words,
    score,
)
from paratune.reports.runs.slice_tables import SlicedRuns, slice_tables
from paratune.reports.systems import subjects
from paratune.reports.systems.building import FigureColumn, LabelColumn, build, measure_column, memory_notes, names
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import (
    NOISE_SCALES,
    configuration_noise,
    efficiency,
    goodput,
    noise_kind_of,
    reference_words,
)
from paratune.reports.systems.model import Systems
from paratune.reports.systems.speed_ups import SCALING, SPEED_UP, scaling_efficiency, speed_up
from paratune.reports.systems.subjects import Scaling, SubjectFamily
from paratune.reports.tables.table import Table

MAX_COLUMNS = 24
"""Configurations in a table of slices: the baseline and the first ones."""
_PHASE_DIFFERENCE = 0.05
_TIMES = named("train_s", "epoch_s")
RESOURCES = named(
    *("utilisation", "mfu", "communication_share", "communication_exposed_share", "wait_share", "get_batch_share"),
    *("bubble_share", "padding_share", "energy_j", "total_s", "device_hours"),
)
_SUBJECTS = (
    ("strategy", "Strategy", subjects.is_strategy),
    ("nodes", "Nodes", subjects.is_nodes),
    ("precision", "Precision", subjects.is_precision),
    ("workers", "Loader workers", subjects.is_workers),
    ("environment", "Environment variables", subjects.is_environment),
    ("offload", "Offload", subjects.is_offload),
)
"""Tables of a subject: key, title, and the settings that belong to it."""


def scaling_tables(systems: Systems) -> Iterator[Table]:
    """Yield time and memory over the number of devices, with constant total batch and with constant batch per
    device.
    """
    all_scalings = subjects.scalings(systems.measured)
    for rule, title in (("strong", "Constant total batch"), ("weak", "Constant batch per device")):
        of_rule = [scaling for scaling in all_scalings if scaling.rule == rule]
        if of_rule:
            yield scaling_table(systems, of_rule, f"scaling-{rule}", title)


def subject_tables(systems: Systems) -> Iterator[Table]:
    """Yield the tables of the subjects that vary: strategies, nodes, precisions, loader workers, ..."""
    for key, title, belongs in _SUBJECTS:
        if families := subjects.families(systems.measured, belongs):
            yield family_table(systems, families, key, title)


def all_configurations(systems: Systems) -> Table:
    """Return time, memory and quality of every configuration."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [member.label for member in members]), *_sizes(members)]
    figures = [*_time(systems, members), *_memory(systems), *quality_columns(systems, members)]
    title = "Time and memory of all configurations"
    return build(systems, "configurations", title, labels, members, figures, memory_notes(members))


def scaling_table(systems: Systems, scalings: Sequence[Scaling], key: str, title: str) -> Table:
    """Return time and memory over the number of devices, for the families under one rule for the batch."""
    families = [scaling.family for scaling in scalings]
    members = [member for family in families for member in family.members]
    first_of = _first_of(families)
    labels = [*_where(families), *_sizes(members)]

    figures = [
        *_time(systems, members),
        _against_first(SPEED_UP, speed_up, first_of),
        _against_first(SCALING, scaling_efficiency, first_of),
        *_memory(systems),
        *quality_columns(systems, members),
    ]
    base = (
        "Speed-up and efficiency compare samples/s with those of the smallest number of devices of the same kind. A "
        "strategy without a run on one device is compared with the run of the strategy single."
    )
    return build(systems, key, title, labels, members, figures, [base, *memory_notes(members)], first_of=first_of)


def _first_of(families: Sequence[SubjectFamily]) -> dict[str, Configuration]:
    """Return the first member of each configuration's family, by label of the configuration."""
    return {member.label: family.members[0] for family in families for member in family.members}


def _where(families: Sequence[SubjectFamily]) -> list[LabelColumn]:
    """Return the column that distinguishes families; none if there is one family."""
    if len(families) == 1:
        return []
    return [names("Common settings", "of", [family.where for family in families for _ in family.members])]


def _against_first(
    measure: Measure,
    find: Callable[[Configuration, Configuration], Amount],
    first_of: Mapping[str, Configuration],
) -> FigureColumn:
    """Return a column of figures of each configuration against the first member of its family."""
    return FigureColumn(measure, lambda member: find(first_of[member.label], member), is_always_shown=True)


def family_table(systems: Systems, families: Sequence[SubjectFamily], key: str, title: str) -> Table:
    """Return time, memory and quality for each value of a subject; the title is the subject."""
    members = [member for family in families for member in family.members]
    values = [name for family in families for name in family.names]
    labels = [*_where(families), names(title, key, values), *_sizes(members)]
    first_of = _first_of(families)
    more: list[FigureColumn] = []
    if key in ("precision", "nodes"):
        more = [_against_first(SPEED_UP, speed_up, first_of)]
    elif key == "workers":
        more = [measure_column(systems, STEP_PARTS[0]), measure_column(systems, MEASURES["get_batch_share"])]
    elif key == "environment":
        more = [measure_column(systems, measure) for measure in STEP_PARTS]
    figures = [*_time(systems, members), *more, *_memory(systems), *quality_columns(systems, members)]
    notes = [*_note_on_others(systems, families), *memory_notes(members)]
    return build(systems, key, title, labels, members, figures, notes, first_of=first_of)


def _note_on_others(systems: Systems, families: Sequence[SubjectFamily]) -> list[str]:
    """Return the note on configurations in no family of the subject."""
    num_left = len(systems.measured) - sum(len(family.members) for family in families)
    who = "1 configuration has" if num_left == 1 else f"{num_left} configurations have"
    return [f"{who} no other configuration that differs only in this."] if num_left > 0 else []


def efficiency_table(systems: Systems) -> Table:
    """Return time, throughput, loss, utilisation, efficiency and goodput, each with its change in per cent."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [member.label for member in members])]
    figures = [
        *(measure_column(systems, measure, is_always_shown=True) for measure in _TIMES),
        measure_column(systems, MEASURES["samples_per_s"], is_always_shown=True),
        measure_column(systems, score("validation", "loss"), is_always_shown=True),
        measure_column(systems, MEASURES["utilisation"], is_always_shown=True),
        *(FigureColumn(measure, partial(_noise, systems, kind)) for kind, measure in NOISE_SCALES.items()),
        FigureColumn(EFFICIENCY, lambda member: efficiency(systems, member), is_always_shown=True),
        FigureColumn(GOODPUT, lambda member: goodput(systems, member), is_always_shown=True),
    ]
    bases = list(dict.fromkeys(systems.baseline_of(member).label for member in members))
    against = f"against {bases[0]}" if len(bases) == 1 else "against the baseline of its kind, in bold"
    references = dict.fromkeys(reference_words(systems, member) for member in members)
    notes = [
        f"In brackets: the change {against}. Arrows after a value show its direction, arrows in a heading the better "
        "one. Coloured: a change that is shown, for samples/s and goodput by the verdict, else by its 95% interval. "
        "Grey: cannot tell.",
        f"Statistical efficiency is (phi + m0) / (phi + m): phi {noise_words(noise_kind_of(systems))}, m the global "
        f"batch, m0 {' or '.join(references)}. Goodput is samples/s times statistical efficiency.",
        *_utilisation_kind(members),
    ]
    return build(systems, "efficiency", "Efficiency and changes", labels, members, figures, notes, compares=True)


def phases_table(systems: Systems) -> Table:
    """Return the phases of a step and of a run."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [member.label for member in members]), *_sizes(members)]
    steps = [
        measure_column(systems, MEASURES["mean_step_ms"]),
        *(measure_column(systems, measure) for measure in STEP_PARTS),
    ]
    notes = ["Means over measured steps (without warm-up) and all ranks; the five phases sum to the step."]
    return build(systems, "phases", "Time of a step by phase", labels, members, steps, notes)


def do_phases_differ(systems: Systems) -> bool:
    """Return whether a phase has other shares of the step in some configurations: by a twentieth of the step."""
    shares = []
    for member in systems.measured:
        times = [time for measure in STEP_PARTS if (time := systems.amount(measure, member).center) is not None]
        total = math.fsum(times)
        if len(times) == len(STEP_PARTS) and total > 0:
            shares.append([time / total for time in times])
    columns = zip(*shares, strict=True)
    return any(max(column) - min(column) > _PHASE_DIFFERENCE for column in columns)


def resources_table(systems: Systems) -> Table:
    """Return utilisation, communication, energy, device-hours and cost."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [member.label for member in members])]
    figures = [measure_column(systems, measure) for measure in RESOURCES]
    notes = _utilisation_kind(members)
    if known := {price for member in members if (price := systems.price_of(member)) is not None}:
        figures.append(FigureColumn(cost(max(known)), systems.cost))
        by_matrix = ", ".join(f"{name} {price:g}" for name, price in systems.prices.items() if price is not None)
        at = f"{max(known):g} a device-hour" if len(known) == 1 else f"the price of its device-hour ({by_matrix})"
        notes.append(f"Cost: the whole run at {at}.")
    return build(systems, "resources", "Resources", labels, members, figures, notes)


def quality_columns(
    systems: Systems, members: Sequence[Configuration], splits: Sequence[str] = ("test",)
) -> list[FigureColumn]:
    """Return the scores of the task on the splits that have any, else on validation."""
    cells = [cell_run.cell for member in members for cell_run in member.cell_runs if cell_run.cell.counts]
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.metrics)
    scored = [run for member in members for run in member.scored]
    known = [split for split in splits if any(run.summary.scores.get(split) for run in scored)]
    scores = (score(split, metric) for split in known or ["validation"] for metric in metrics)
    return [measure_column(systems, score) for score in scores] if scored else []


def _time(systems: Systems, members: Sequence[Configuration]) -> list[FigureColumn]:
    is_any_full = any(not member.is_probe for member in members)
    full = [measure_column(systems, measure, is_always_shown=True) for measure in _TIMES] if is_any_full else []
    steps = [measure_column(systems, MEASURES["mean_step_ms"])] if any(member.is_probe for member in members) else []
    return [*full, measure_column(systems, MEASURES["samples_per_s"], is_always_shown=True), *steps]


def _memory(systems: Systems) -> list[FigureColumn]:
    return [
        measure_column(systems, measure, is_always_shown=True)
        for measure in named("peak_memory_largest_bytes", "peak_memory_sum_bytes")
    ]


def _sizes(members: Sequence[Configuration]) -> list[LabelColumn]:
    """Return the columns of devices and global batch."""
    return [
        names("Devices", "num_devices", [member.world_size for member in members]),
        names("Global batch", "global_batch_size", [member.global_batch_size for member in members]),
    ]


def _noise(systems: Systems, kind: NoiseKind, configuration: Configuration) -> Amount:
    noise = configuration_noise(systems, configuration, kind)
    values = {} if noise.value is None else dict.fromkeys(noise.runs, noise.value)
    num_runs = len(values) or len(configuration.runs)
    return Amount(NOISE_SCALES[kind], values, noise.value, num_runs, is_of_all=True, interval=noise.interval)


def _utilisation_kind(members: Sequence[Configuration]) -> list[str]:
    kinds = sorted({str(kind) for member in members for run in member.runs if (kind := run.summary.utilisation.kind)})
    words = {"nvml": "of the GPUs (NVML: the share of time in which a kernel runs)", "cpu": "of the CPU"}
    return [f"Utilisation {', '.join(words.get(kind, kind) for kind in kinds)}."] if kinds else []


def sliced_configurations(systems: Systems) -> Iterator[Table]:
    """Yield the tables of scores by slice, with a column for each configuration that is no probe."""
    scored = [member for member in systems.measured if member.scored]
    shown = sorted(scored, key=lambda member: member is not systems.baseline)[:MAX_COLUMNS]
    members = [SlicedRuns(member.label, member.scored) for member in scored if member in shown]
    remark = f"{len(members)} of {len(scored)} configurations; report.json has the slices of all runs."
    for table in slice_tables(members):
        yield replace(table, notes=(*table.notes, remark)) if len(members) < len(scored) else table
