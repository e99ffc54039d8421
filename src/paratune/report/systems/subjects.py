"""What the axes of a matrix are of, and the configurations that differ in one subject alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.hardware.environment import UNSET
from paratune.report.systems.configurations import ENV, NODES, NPROC, Configuration

_OFFLOAD = ("offload", "cpu_adam")
KIND = "strategy.kind"
_KIND_IN_RECORD = "run.strategy.kind"
_STATES_ON = "run.strategy.traits.states_on"


def is_devices(key: str) -> bool:
    """Return whether a setting says on how many devices, with how many samples each."""
    return key == NPROC or is_batch(key)


def is_batch(key: str) -> bool:
    return key.partition(".")[0] == "batch" and key != "batch.layout"


def is_precision(key: str) -> bool:
    return key.partition(".")[0] == "precision"


def is_offload(key: str) -> bool:
    return key.startswith("strategy.") and any(part in key.rpartition(".")[2] for part in _OFFLOAD)


def is_strategy(key: str) -> bool:
    return key.partition(".")[0] == "strategy"


def is_workers(key: str) -> bool:
    return "workers" in key.rpartition(".")[2]


def is_environment(key: str) -> bool:
    return key.startswith(f"{ENV}.")


@dataclass(frozen=True)
class SubjectFamily:
    """Configurations that differ in one subject, and are equal in all else that the matrix varies."""

    where: str
    """What they have in common, of what the matrix varies; empty where that is nothing."""
    members: tuple[Configuration, ...]
    names: tuple[str, ...]
    """How the members are called: their value of the subject."""


@dataclass(frozen=True)
class Scaling:
    """Configurations that differ in their number of devices, by which rule the batch follows."""

    rule: str
    """strong: the total batch is the same; weak: that of each device is."""
    batch: float
    """Samples a step of all devices (strong), or of each (weak)."""
    family: SubjectFamily


def families(configurations: Sequence[Configuration], is_of: Callable[[str], bool]) -> tuple[SubjectFamily, ...]:
    """Return the families in which settings of a subject take at least two values.

    Args:
        configurations: Of the matrix; those without a finished run are in none.
        is_of: Says of a key whether it belongs to the subject.
    """
    found = []
    telling = _telling(configurations, is_of)
    mixed = len({one.is_probe for one in configurations}) > 1
    for members in _groups(configurations, is_of):
        values = [_own(one, is_of) for one in members]
        if len(set(map(_canonical, values))) > 1:
            names = tuple(_value_name(values, one) for one in values)
            where = _where(members[0], telling, some_are_probes=mixed)
            found.append(SubjectFamily(where, tuple(members), names))
    return tuple(found)


def strategy_families(configurations: Sequence[Configuration]) -> tuple[SubjectFamily, ...]:
    """Return the families of strategies that differ in more than what they keep on the CPU."""
    found = families(configurations, is_strategy)
    return tuple(family for family in found if _kinds(family) > 1)


def _kinds(family: SubjectFamily) -> int:
    """Return how many strategies there are in a family, whatever they keep on the CPU."""
    said = [{key: one.settings[key] for key in one.settings if is_strategy(key)} for one in family.members]
    return len({_canonical({key: each[key] for key in each if not is_offload(key)}) for each in said})


def offload_families(configurations: Sequence[Configuration]) -> tuple[SubjectFamily, ...]:
    """Return the families with and without states on the CPU; of other strategies only where none has both."""
    own = families(configurations, is_offload)
    if own:
        return own
    return tuple(
        family
        for family in families(configurations, is_strategy)
        if len({one.runs[0].get(_STATES_ON) for one in family.members} - {None}) > 1
    )


def scalings(configurations: Sequence[Configuration]) -> tuple[Scaling, ...]:
    """Return the families of at least two numbers of devices at the same total batch, or the same batch a device.

    The strategy `single` is the one device of strategies that have no run on one device.
    """
    found: list[Scaling] = []
    telling = _telling(configurations, is_devices)
    mixed = len({one.is_probe for one in configurations}) > 1
    for members in _groups(configurations, is_devices, _single_device(configurations)):
        where = _where(members[-1], telling, some_are_probes=mixed)
        known = [one for one in members if one.global_batch_size]
        rules: dict[tuple[str, float], list[Configuration]] = {}
        for one in known:
            total = one.global_batch_size or 0
            rules.setdefault(("strong", total), []).append(one)
            rules.setdefault(("weak", total / one.world_size), []).append(one)
        for (rule, batch), group in rules.items():
            found += [_scaling(rule, batch, where, each) for each in _of_one_rule(group)]
    order = list(dict.fromkeys(one.family.where for one in found))  # that of the configurations
    return tuple(sorted(found, key=lambda one: (one.rule, order.index(one.family.where), one.batch)))


def _of_one_rule(group: Sequence[Configuration]) -> list[list[Configuration]]:
    """Return the members of several sizes, apart by how their batch was said where that leaves several sizes each."""
    said: dict[str, list[Configuration]] = {}
    for one in group:
        said.setdefault(_canonical(_own(one, is_batch)), []).append(one)
    several = [each for each in said.values() if _has_sizes(each)]
    return several or ([list(group)] if _has_sizes(group) else [])


def _has_sizes(group: Sequence[Configuration]) -> bool:
    return len({one.world_size for one in group}) > 1


def _scaling(rule: str, batch: float, where: str, group: Sequence[Configuration]) -> Scaling:
    members = tuple(sorted(group, key=lambda one: one.world_size))
    return Scaling(rule, batch, SubjectFamily(where, members, tuple(str(one.world_size) for one in members)))


def _groups(
    configurations: Sequence[Configuration],
    is_of: Callable[[str], bool],
    single_device: Sequence[Configuration] = (),
) -> Iterator[list[Configuration]]:
    """Yield the configurations that are equal in all settings but those of a subject.

    Args:
        configurations: Of the matrix.
        is_of: Says of a key whether it belongs to the subject.
        single_device: Runs of the strategy `single`, which join each group that has no member with one device and whose
            other settings, apart from strategy and nodes, are theirs.
    """
    groups: dict[str, list[Configuration]] = {}
    for one in configurations:
        if one.runs:
            groups.setdefault(_canonical([one.is_probe, _rest(one, is_of)]), []).append(one)
    for group in groups.values():
        if all(member.world_size > 1 for member in group):
            group[:0] = [one for one in single_device if _is_one_device_of(one, group[0], is_of)]
    yield from (group for group in groups.values() if len(group) > 1)


def _is_one_device_of(single: Configuration, other: Configuration, is_of: Callable[[str], bool]) -> bool:
    """Return whether a run on one device has the settings of another one, apart from strategy and nodes."""

    def is_left_out(key: str) -> bool:
        return is_of(key) or is_strategy(key) or key == NODES

    return single.is_probe == other.is_probe and _rest(single, is_left_out) == _rest(other, is_left_out)


def _single_device(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations that train on one device without a strategy for several."""
    measured = [one for one in configurations if one.runs and one.world_size == 1]
    return [one for one in measured if one.runs[0].get(_KIND_IN_RECORD) == "single"]


def _own(one: Configuration, is_of: Callable[[str], bool]) -> dict[str, Any]:
    return {key: value for key, value in one.settings.items() if is_of(key)}


def _rest(one: Configuration, is_of: Callable[[str], bool]) -> dict[str, Any]:
    return {key: value for key, value in one.settings.items() if not is_of(key)}


def _value_name(values: Sequence[dict[str, Any]], own: dict[str, Any]) -> str:
    """Return the settings in which the members differ: the value alone where it is one that is no variable."""
    keys = [key for key in own if len({_canonical(each.get(key)) for each in values}) > 1]
    if len(keys) == 1 and not is_environment(keys[0]):
        return written(own[keys[0]])
    named = (key for key in keys if own[key] is not None or is_environment(key))
    return ", ".join(
        # A strategy is called by its kind, as where it differs in nothing else.
        written(own[key])
        if key == KIND
        else f"{key.rpartition('.')[2]} {UNSET if own[key] is None else written(own[key])}"
        for key in sorted(named, key=lambda key: key != KIND)
    )


def _telling(configurations: Sequence[Configuration], is_of: Callable[[str], bool]) -> list[str]:
    """Return the settings beside a subject in which configurations differ."""
    measured = [one for one in configurations if one.runs]
    keys = dict.fromkeys(key for one in measured for key in one.settings if not is_of(key))
    return [key for key in keys if len({_canonical(one.settings.get(key)) for one in measured}) > 1]


def _where(first: Configuration, telling: Sequence[str], *, some_are_probes: bool) -> str:
    """Return what the members of a family have in common and others of the matrix have not."""
    parts = []
    for key in telling:
        value = first.settings.get(key)
        if value is not None:
            name = key.removeprefix(f"{ENV}.") if is_environment(key) else key.rpartition(".")[2].replace("_", " ")
            parts.append(value if isinstance(value, str) else f"{name} {written(value)}")
    return ", ".join(dict.fromkeys([*parts, *(["probes"] if first.is_probe and some_are_probes else [])]))


def written(value: Any) -> str:
    """Return a setting for a table: texts as they are, absent ones as n/a, switches as on and off."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
