"""The tables of a matrix, selected by the subjects of its axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from paratune.base.grouping import grouped
from paratune.config.targets import ScoreTarget
from paratune.records.finished import RunRecord
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
from paratune.reports.runs.targets import TargetResult, evaluate_targets, time_until
from paratune.reports.systems.building import LabelColumn, build, memory_notes, names
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import noise_kind_of
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import SCALING, SPEED_UP, scalings
from paratune.reports.tables.table import Table

MAX_COLUMNS = 24
"""Configurations in a table of slices: the baseline and the first ones."""
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
    by_rule = grouped((scaling.rule, scaling) for scaling in scalings(systems.measured))
    for rule, title in (("strong", "Constant total batch"), ("weak", "Constant batch per device")):
        lines = by_rule.get(rule, [])
        members = [member for line in lines for member in line.members]
        if not members:
            continue
        where = names("Common settings", "of", [line.where for line in lines for _ in line.members])
        base = (
            "Speed-up and efficiency compare samples/s with those of the smallest number of devices of the same kind. "
            "A strategy without a run on one device is compared with the run of the strategy single."
        )
        yield build(
            systems, f"scaling-{rule}", title, [*([where] if len(lines) > 1 else []), *_sizes(members)], members,
            [*_time(members), SPEED_UP, SCALING, *_MEMORY, *quality_measures(members)],
            [base, *memory_notes(members)],
            first_of={member.label: line.members[0] for line in lines for member in line.members},
        )  # fmt: skip


def configurations_table(systems: Systems) -> Table:
    """Return time, memory, quality, efficiency and goodput of each configuration, with the changes in per cent."""
    members = systems.measured
    measures = [
        *_time(members), *_MEMORY, *quality_measures(members), score("validation", "loss"), MEASURES["utilisation"],
        *named(*NOISE_KEYS.values()), EFFICIENCY, GOODPUT,
    ]  # fmt: skip
    bases = list(dict.fromkeys(systems.baseline_of(member).label for member in members))
    against = f"against {bases[0]}" if len(bases) == 1 else "against the baseline of its kind, in bold"
    changes = (
        f"In brackets: the change {against}. Arrows after a value show its direction, arrows in a heading the better "
        "one. Coloured: a change that is shown, for samples/s, goodput and scores by the verdict, else by its 95% "
        "interval. Grey: cannot tell."
    )
    notes = [
        *([changes] if len(members) > 1 else []),
        f"Statistical efficiency is (phi + m0) / (phi + m): phi {noise_words(noise_kind_of(systems))}, m the global "
        "batch, m0 measure.reference_batch of the baseline, or else its global batch. Goodput is samples/s times "
        "statistical efficiency.",
        *_utilisation_kind(members),
        *memory_notes(members),
    ]
    labels = [_names(members), *_sizes(members)]
    # Of masked language models the validation loss is the quality.
    measures = list({measure.key: measure for measure in measures}.values())
    return build(systems, "configurations", "Configurations", labels, members, measures, notes, compares=True)


def phases_table(systems: Systems) -> Table:
    """Return the phases of a step and of a run."""
    members, measures = systems.measured, [MEASURES["mean_step_ms"], *STEP_PARTS]
    notes = ["Means over measured steps (without warm-up) and all ranks; the five phases sum to the step."]
    labels = [_names(members), *_sizes(members)]
    return build(systems, "phases", "Time of a step by phase", labels, members, measures, notes)


def resources_table(systems: Systems) -> Table:
    """Return utilisation, communication, energy, device-hours and cost."""
    members, measures = systems.measured, [*RESOURCES]
    notes = _utilisation_kind(members)
    if known := {price for member in members if (price := systems.price_of(member)) is not None}:
        by_matrix = ", ".join(f"{name} {price:g}" for name, price in systems.prices.items() if price is not None)
        measures.append(cost(max(known)))
        notes.append(f"Cost: the whole run at the price of its device-hour ({by_matrix or f'{max(known):g}'}).")
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


def _best(run: RunRecord, results: Mapping[str, TargetResult]) -> float | None:
    return results[run.name].best if run.name in results else None


def target_tables(systems: Systems, targets: Sequence[ScoreTarget]) -> Iterator[Table]:
    """Yield for each target when the configurations first reached it; reads the events of all runs except probes.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
    """
    members = [member for member in systems.measured if not member.is_probe]
    if not targets or not members:
        return
    note = (
        "From the evaluations during training. Times are means over the runs that reached the score, so they are too "
        "short when some runs did not. The whole run includes start-up, evaluations and checkpoints until then."
    )
    by_target, damaged = evaluate_targets([run for member in members for run in member.runs], targets)
    notes = [note, *damaged]
    for at, (target, results) in enumerate(zip(targets, by_target, strict=True)):
        of_score = score("validation", target.metric)
        measures = [
            time_until("train", "Training until then", target, results),
            time_until("total", "Whole run until then", target, results),
            replace(
                of_score, key=f"best_{target.metric}", label=f"Best {of_score.label}", source="events: evaluation",
                read=partial(_best, results=results),
            ),
        ]  # fmt: skip
        title = f"Time to {target.text} on validation"
        labels, key = [_names(members)], f"target-{at + 1}"
        yield build(systems, key, title, labels, members, measures, notes, compares=True, shows_all=True)
