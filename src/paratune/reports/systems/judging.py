"""Verdicts on the configurations of a matrix, each compared with its baseline, and the main effects of its axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paratune import verdicts
from paratune.base.grouping import grouped
from paratune.errors import CheckpointError
from paratune.reports.systems.configurations import MATRIX, Configuration
from paratune.reports.systems.efficiency import noise_kind_of
from paratune.reports.systems.labels import drawn_configurations
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.verdicts import Margin, Verdict
from paratune.verdicts.factorial import FactorCell, FactorEffect, factor_effects
from paratune.verdicts.sequential import look_history
from paratune.verdicts.words import head_of

MAX_JUDGED = 24
"""Configurations with a verdict; of more only the fastest have one."""
MAX_RUNS = 240
"""Runs whose predictions are read."""


def judged(
    systems: Systems, margins: Mapping[str, Margin] | None = None, *,
    all_of_them: bool = False,
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:  # fmt: skip
    """Return the verdicts of a matrix, and notes on missing verdicts.

    At most `MAX_JUDGED` configurations and `MAX_RUNS` runs are judged unless `all_of_them`; `margins` as in `judge`.
    """
    members, selection = list(systems.measured), ""
    if not all_of_them:
        members, selection = drawn_configurations(systems, systems.measured, MAX_JUDGED)
    while not all_of_them and sum(len(configuration.runs) for configuration in members) > MAX_RUNS and len(members) > 1:
        members, selection = drawn_configurations(systems, systems.measured, len(members) - 1)
    families: dict[int, list[Configuration]] = {}
    for configuration in members:
        base = systems.baseline_of(configuration)
        if configuration is not base and configuration.is_probe == base.is_probe:
            families.setdefault(id(base), [base]).append(configuration)
    judgements: list[Verdict] = []
    notes = [selection.replace("Drawn", "Judged")] * bool(selection)
    history = look_history(systems.record)
    for base, *others in families.values():
        groups = [replace(group_of(member), noise_kind=noise_kind_of(systems)) for member in (base, *others)]
        differs = {member.label: systems.differs(member, base) for member in others}
        try:
            judgements += verdicts.judge(groups, base.label, margins, differs=differs, history=history)
        except CheckpointError as error:
            notes.append(f"No verdict against {base.label}: {error}")
    return tuple(judgements), tuple(notes)


def verdict_table(judgements: Sequence[Verdict], remarks: Sequence[str], *, is_closed: bool = False) -> Iterator[Table]:
    """Yield the table of verdicts with a sentence for each configuration; closed in a page that has a figure of them.

    Notes that differ only in their figures are one note, with the configurations that they apply to.
    """
    if not judgements and not remarks:
        return
    rows = []
    for verdict in judgements:
        words = verdict.sentence.removeprefix(f"{head_of(verdict)}: ")  # names may contain ": " themselves
        text = TableCell(f"{words[:1].upper()}{words[1:]}", runs=(*verdict.runs, *verdict.baseline_runs))
        rows.append((TableCell(verdict.label, runs=verdict.runs), text))
    bases = list(dict.fromkeys(verdict.baseline for verdict in judgements))
    against = f"Each configuration against the baseline of its kind: {'; '.join(bases)}."
    if len(bases) == 1:
        against = f"Against {bases[0]}."
    level = "Intervals are 95% confidence intervals; those against one baseline are corrected for their number."
    notes = (*filter(None, (against, level, *remarks)), *_shared_notes(judgements))
    title = "Verdicts in words" if is_closed else "Verdicts"
    columns = (("Configuration", "configuration"), ("Verdict", "verdict"))
    yield make_table("verdicts", title, columns, rows, 2, notes, is_closed=is_closed)


def _shared_notes(judgements: Sequence[Verdict]) -> Iterator[str]:
    """Yield each note once, as a sentence, with its configurations if it does not apply to all of them."""
    labels = grouped((note, verdict.label) for verdict in judgements for note in verdict.notes)
    for note, names in labels.items():
        sentence = f"{note[:1].upper()}{note[1:]}."
        yield sentence if len(names) == len(judgements) else f"{', '.join(names)}: {sentence}"


def group_of(configuration: Configuration) -> verdicts.Group:
    """Return the runs of a configuration as verdicts compare them: probes without scores."""
    runs = configuration.runs
    if configuration.is_probe:
        runs = tuple(replace(run, summary=run.summary.model_copy(update={"scores": {}})) for run in runs)
    return verdicts.Group(configuration.label, runs)


@dataclass(frozen=True)
class AxisEffects:
    """The main effects within one combination of the axes in `select_per`."""

    title: str
    """Values of these axes; empty where there are none."""
    effects: tuple[FactorEffect, ...]
    task: str


def axis_effects(systems: Systems, margins: Mapping[str, Margin] | None = None) -> tuple[AxisEffects, ...]:
    """Return the main effects of axes, where two or more of them vary.

    Configurations that trained something different, for another reason than an axis, are left out; so are probes next
    to full runs. Matrices of more than `MAX_RUNS` runs have no effects here. `margins` as in `verdicts.judge`.
    """
    if systems.baseline is None or sum(len(member.runs) for member in systems.measured) > MAX_RUNS:
        return ()
    per = systems.record.select_per
    families = grouped((tuple(member.values[label] for label in per), member) for member in systems.measured)
    family_effects = (_effects_of(systems, members, margins) for members in families.values())
    return tuple(effects for effects in family_effects if effects is not None)


def _effects_of(
    systems: Systems, members: list[Configuration], margins: Mapping[str, Margin] | None
) -> AxisEffects | None:
    held = systems.record.select_per
    axes = [
        axis
        for axis in systems.record.axes
        if not axis.is_seed
        and axis.label not in held
        and MATRIX not in axis.keys
        and len({member.values[axis.label] for member in members}) > 1
    ]
    assert systems.baseline is not None
    named = {axis.label: systems.baseline.values[axis.label] for axis in axes}
    base = next((member for member in members if named.items() <= member.values.items()), None)
    if len(axes) < 2 or base is None:
        return None
    kept = [
        member for member in members if member.is_probe == base.is_probe and not systems.differs(member, base).refused
    ]

    def levels(member: Configuration) -> dict[str, str]:
        return {axis.label: axis.values[member.values[axis.label]] for axis in axes}

    cells = [FactorCell(levels(member), group_of(member)) for member in kept]
    try:
        effects = factor_effects(cells, levels(base), margins, history=look_history(systems.record))
    except CheckpointError:  # a damaged file of predictions, which the verdicts name
        return None
    titles = {axis.label: axis.values for axis in systems.record.axes}
    title = ", ".join(titles[label][base.values[label]] for label in held)
    return AxisEffects(title, tuple(effects), base.runs[0].task)
