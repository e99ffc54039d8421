"""Main effects of the axes of a matrix, within each combination of the axes in `select_per`."""

from collections.abc import Mapping
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.errors import CheckpointError
from paratune.reports.systems.configurations import MATRIX, Configuration
from paratune.reports.systems.judging import MAX_RUNS, group_of
from paratune.reports.systems.model import Systems
from paratune.verdicts import Margin
from paratune.verdicts.factorial import FactorCell, FactorEffect, factor_effects
from paratune.verdicts.sequential import look_history


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
    family_effects = (_effects(systems, members, margins) for members in families.values())
    return tuple(effects for effects in family_effects if effects is not None)


def _effects(
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
