"""The tables of a matrix, selected by the subjects of its axes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.reports.measures import (
    EFFICIENCY,
    GOODPUT,
    MEASURES,
    NOISE_KEYS,
    STEP_PARTS,
    Measure,
    cost,
    named,
    noise_words,
    score,
)
from paratune.reports.runs.slice_tables import slice_tables
from paratune.reports.systems.building import LabelColumn, build, memory_notes, names
from paratune.reports.systems.configurations import NODES, Configuration
from paratune.reports.systems.efficiency import (
    noise_kind_of,
    reference_words,
)
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import SCALING, SPEED_UP, Scaling, node_lines, scalings
from paratune.reports.tables.table import Table

MAX_COLUMNS = 24
"""Configurations in a table of slices: the baseline and the first ones."""
_PHASE_DIFFERENCE = 0.05
_TIMES = named("train_s", "epoch_s")
_MEMORY = named("peak_memory_largest_bytes", "peak_memory_sum_bytes")
RESOURCES = named(
    *("utilisation", "mfu", "communication_share", "communication_exposed_share", "wait_share", "get_batch_share"),
    *("bubble_share", "padding_share", "energy_j", "total_s", "device_hours"),
)


def scaling_tables(systems: Systems) -> Iterator[Table]:
    """Yield time and memory over the number of devices, with constant total batch and with constant batch per
    device.
    """
    all_scalings = scalings(systems.measured)
    for rule, title in (("strong", "Constant total batch"), ("weak", "Constant batch per device")):
        of_rule = [scaling for scaling in all_scalings if scaling.rule == rule]
        if of_rule:
            yield scaling_table(systems, of_rule, f"scaling-{rule}", title)
    if lines := node_lines(systems.measured):
        yield scaling_table(systems, lines, "nodes", "One node against several")


def all_configurations(systems: Systems) -> Table:
    """Return time, memory and quality of every configuration."""
    members = systems.measured
    labels = [_names(members), *_sizes(members)]
    measures = [*_time(members), *_MEMORY, *quality_measures(members)]
    title = "Time and memory of all configurations"
    return build(systems, "configurations", title, labels, members, measures, memory_notes(members))


def scaling_table(systems: Systems, lines: Sequence[Scaling], key: str, title: str) -> Table:
    """Return time and memory over the number of devices, for the families under one rule for the batch."""
    members = [member for line in lines for member in line.members]
    first_of = {member.label: line.members[0] for line in lines for member in line.members}
    where = [line.where for line in lines for _ in line.members]
    labels = [*([names("Common settings", "of", where)] if len(lines) > 1 else []), *_sizes(members)]
    if is_of_nodes := lines[0].rule == "nodes":
        labels.append(names("Nodes", "nodes", [member.settings.get(NODES) for member in members]))
    measures = [*_time(members), SPEED_UP, *([] if is_of_nodes else [SCALING]), *_MEMORY, *quality_measures(members)]
    base = (
        "Speed-up compares samples/s with those of the smallest number of nodes with as many devices."
        if is_of_nodes
        else "Speed-up and efficiency compare samples/s with those of the smallest number of devices of the same "
        "kind. A strategy without a run on one device is compared with the run of the strategy single."
    )
    return build(systems, key, title, labels, members, measures, [base, *memory_notes(members)], first_of=first_of)


def efficiency_table(systems: Systems) -> Table:
    """Return time, throughput, loss, utilisation, efficiency and goodput, each with its change in per cent."""
    members = systems.measured
    measures = [
        *_time(members), score("validation", "loss"), MEASURES["utilisation"],
        *named(*NOISE_KEYS.values()), EFFICIENCY, GOODPUT,
    ]  # fmt: skip
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
    title = "Efficiency and changes"
    return build(systems, "efficiency", title, [_names(members)], members, measures, notes, compares=True)


def phases_table(systems: Systems) -> Table:
    """Return the phases of a step and of a run."""
    members, measures = systems.measured, [MEASURES["mean_step_ms"], *STEP_PARTS]
    notes = ["Means over measured steps (without warm-up) and all ranks; the five phases sum to the step."]
    labels = [_names(members), *_sizes(members)]
    return build(systems, "phases", "Time of a step by phase", labels, members, measures, notes)


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
    members, measures = systems.measured, [*RESOURCES]
    notes = _utilisation_kind(members)
    if known := {price for member in members if (price := systems.price_of(member)) is not None}:
        measures.append(cost(max(known)))
        by_matrix = ", ".join(f"{name} {price:g}" for name, price in systems.prices.items() if price is not None)
        at = f"{max(known):g} a device-hour" if len(known) == 1 else f"the price of its device-hour ({by_matrix})"
        notes.append(f"Cost: the whole run at {at}.")
    return build(systems, "resources", "Resources", [_names(members)], members, measures, notes)


def quality_measures(members: Sequence[Configuration], splits: Sequence[str] = ("test",)) -> list[Measure]:
    """Return the scores of the task on the splits that have any, else on validation."""
    cells = [cell_run.cell for member in members for cell_run in member.cell_runs if cell_run.cell.counts]
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.metrics)
    scored = [run for member in members for run in member.scored]
    known = [split for split in splits if any(run.summary.scores.get(split) for run in scored)]
    return [score(split, metric) for split in known or ["validation"] for metric in metrics] if scored else []


def _time(members: Sequence[Configuration]) -> list[Measure]:
    are_probes = [member.is_probe for member in members]
    full = [] if all(are_probes) else _TIMES
    return [*full, MEASURES["samples_per_s"], *([MEASURES["mean_step_ms"]] if any(are_probes) else [])]


def _names(members: Sequence[Configuration]) -> LabelColumn:
    return names("Configuration", "configuration", [member.label for member in members])


def _sizes(members: Sequence[Configuration]) -> list[LabelColumn]:
    """Return the columns of devices and global batch."""
    return [
        names("Devices", "num_devices", [member.world_size for member in members]),
        names("Global batch", "global_batch_size", [member.global_batch_size for member in members]),
    ]


def _utilisation_kind(members: Sequence[Configuration]) -> list[str]:
    kinds = sorted({str(kind) for member in members for run in member.runs if (kind := run.summary.utilisation.kind)})
    words = {"nvml": "of the GPUs (NVML: the share of time in which a kernel runs)", "cpu": "of the CPU"}
    return [f"Utilisation {', '.join(words.get(kind, kind) for kind in kinds)}."] if kinds else []


def sliced_configurations(systems: Systems) -> Iterator[Table]:
    """Yield the tables of scores by slice, with a column for each configuration that is no probe."""
    scored = [member for member in systems.measured if member.scored]
    shown = sorted(scored, key=lambda member: member is not systems.baseline)[:MAX_COLUMNS]
    members = [(member.label, member.scored) for member in scored if member in shown]
    remark = f"{len(members)} of {len(scored)} configurations; report.json has the slices of all runs."
    for table in slice_tables(members):
        yield replace(table, notes=(*table.notes, remark)) if len(members) < len(scored) else table
