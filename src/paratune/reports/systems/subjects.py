"""The subjects of the axes of a matrix, and families of configurations that differ in one subject only."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE
from paratune.hardware.environment import UNSET
from paratune.reports.runs.sameness import canonical
from paratune.reports.systems.configurations import ENV, NODES, NPROC, Configuration

_OFFLOAD = ("offload", "cpu_adam")
KIND = "strategy.kind"
_KIND_IN_RECORD = "run.strategy.kind"
_STATES_ON = "run.strategy.traits.states_on"


def is_devices(key: str) -> bool:
    """Return whether a setting is the number of devices or the batch."""
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
    """Configurations that differ in one subject only, of all that the matrix varies."""

    where: str
    """Values that all members share and other configurations do not; empty if there are none."""
    members: tuple[Configuration, ...]
    names: tuple[str, ...]
    """Value of the subject of each member."""


@dataclass(frozen=True)
class Scaling:
    """Configurations that differ in their number of devices, under one rule for the batch."""

    rule: str
    """strong: equal total batch; weak: equal batch per device."""
    batch: float
    """Samples a step of all devices (strong), or of each device (weak)."""
    family: SubjectFamily


def families(configurations: Sequence[Configuration], belongs: Callable[[str], bool]) -> tuple[SubjectFamily, ...]:
    """Return the families of measured configurations in which a subject has at least two values.

    `belongs` returns whether a key belongs to the subject.
    """
    found_families = []
    distinguishing = _distinguishing_keys(configurations, belongs)
    mixed = len({member.is_probe for member in configurations}) > 1
    for members in _groups(configurations, belongs):
        values = [_subject_settings(member, belongs) for member in members]
        if len(set(map(canonical, values))) > 1:
            names = tuple(_value_name(values, member) for member in values)
            common = _where(members[0], distinguishing, some_are_probes=mixed)
            found_families.append(SubjectFamily(common, tuple(members), names))
    return tuple(found_families)


def strategy_families(configurations: Sequence[Configuration]) -> tuple[SubjectFamily, ...]:
    """Return the families of strategies that differ in more than CPU offload."""
    of_strategies = families(configurations, is_strategy)
    return tuple(family for family in of_strategies if _kinds(family) > 1)


def _kinds(family: SubjectFamily) -> int:
    """Return the number of strategies in a family, apart from CPU offload."""
    settings = [{key: member.settings[key] for key in member.settings if is_strategy(key)} for member in family.members]
    return len({canonical({key: own[key] for key in own if not is_offload(key)}) for own in settings})


def offload_families(configurations: Sequence[Configuration]) -> tuple[SubjectFamily, ...]:
    """Return the families with and without CPU offload; families of strategies only when there are none."""
    with_and_without = families(configurations, is_offload)
    if with_and_without:
        return with_and_without
    return tuple(
        family
        for family in families(configurations, is_strategy)
        if len({member.runs[0].get(_STATES_ON) for member in family.members} - {None}) > 1
    )


def scalings(configurations: Sequence[Configuration]) -> tuple[Scaling, ...]:
    """Return the families of at least two numbers of devices with equal total batch, or equal batch per device.

    The strategy `single` is the one device of strategies that have no run on one device.
    """
    found_scalings: list[Scaling] = []
    distinguishing = _distinguishing_keys(configurations, is_devices)
    mixed = len({member.is_probe for member in configurations}) > 1
    for members in _groups(configurations, is_devices, _single_device(configurations)):
        common = _where(members[-1], distinguishing, some_are_probes=mixed)
        rules = grouped(
            (rule, member)
            for member in members
            if (total := member.global_batch_size)
            for rule in (("strong", float(total)), ("weak", total / member.world_size))
        )
        for (rule, batch), group in rules.items():
            found_scalings += [_scaling(rule, batch, common, sized) for sized in _one_rule_groups(group)]
    order = list(dict.fromkeys(member.family.where for member in found_scalings))  # that of the configurations
    return tuple(
        sorted(found_scalings, key=lambda member: (member.rule, order.index(member.family.where), member.batch))
    )


def _one_rule_groups(group: Sequence[Configuration]) -> list[list[Configuration]]:
    """Return the members with several sizes, separated by how their batch was set if that leaves several sizes each."""
    by_batch_setting = grouped((canonical(_subject_settings(member, is_batch)), member) for member in group)
    several = [members for members in by_batch_setting.values() if _has_sizes(members)]
    return several or ([list(group)] if _has_sizes(group) else [])


def _has_sizes(group: Sequence[Configuration]) -> bool:
    return len({member.world_size for member in group}) > 1


def _scaling(rule: str, batch: float, common: str, group: Sequence[Configuration]) -> Scaling:
    members = tuple(sorted(group, key=lambda member: member.world_size))
    return Scaling(rule, batch, SubjectFamily(common, members, tuple(str(member.world_size) for member in members)))


def _groups(
    configurations: Sequence[Configuration], belongs: Callable[[str], bool], single_device: Sequence[Configuration] = ()
) -> Iterator[list[Configuration]]:
    """Yield the configurations that are equal in all settings except those of a subject (see `families`).

    Runs of `single_device`, with the strategy `single`, join each group that has no member with one device and whose
    other settings, apart from strategy and nodes, are theirs.
    """
    groups = grouped(
        (canonical([candidate.is_probe, _other_settings(candidate, belongs)]), candidate)
        for candidate in configurations
        if candidate.runs
    )
    for group in groups.values():
        if all(member.world_size > 1 for member in group):
            group[:0] = [candidate for candidate in single_device if _is_one_device_of(candidate, group[0], belongs)]
    yield from (group for group in groups.values() if len(group) > 1)


def _is_one_device_of(single: Configuration, other: Configuration, belongs: Callable[[str], bool]) -> bool:
    """Return whether a run on one device has the settings of another run, apart from strategy and nodes."""

    def is_left_out(key: str) -> bool:
        return belongs(key) or is_strategy(key) or key == NODES

    settings, others = (_other_settings(member, is_left_out) for member in (single, other))
    return single.is_probe == other.is_probe and settings == others


def _single_device(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations with strategy `single` on one device."""
    measured = [member for member in configurations if member.runs and member.world_size == 1]
    return [member for member in measured if member.runs[0].get(_KIND_IN_RECORD) == "single"]


def _subject_settings(configuration: Configuration, belongs: Callable[[str], bool]) -> dict[str, Any]:
    return {key: value for key, value in configuration.settings.items() if belongs(key)}


def _other_settings(configuration: Configuration, belongs: Callable[[str], bool]) -> dict[str, Any]:
    return {key: value for key, value in configuration.settings.items() if not belongs(key)}


def _value_name(values: Sequence[dict[str, Any]], settings: dict[str, Any]) -> str:
    """Return the settings in which the members differ; only the value if it is a single option."""
    keys = [key for key in settings if len({canonical(value.get(key)) for value in values}) > 1]
    if len(keys) == 1 and not is_environment(keys[0]):
        return written(settings[keys[0]])
    named = (key for key in keys if settings[key] is not None or is_environment(key))
    return ", ".join(
        # The kind alone names a strategy, as when it is the only difference.
        written(settings[key])
        if key == KIND
        else f"{key.rpartition('.')[2]} {UNSET if settings[key] is None else written(settings[key])}"
        for key in sorted(named, key=lambda key: key != KIND)
    )


def _distinguishing_keys(configurations: Sequence[Configuration], belongs: Callable[[str], bool]) -> list[str]:
    """Return the settings outside of a subject in which configurations differ."""
    measured = [member for member in configurations if member.runs]
    keys = dict.fromkeys(key for member in measured for key in member.settings if not belongs(key))
    return [key for key in keys if len({canonical(member.settings.get(key)) for member in measured}) > 1]


def _where(first: Configuration, distinguishing: Sequence[str], *, some_are_probes: bool) -> str:
    """Return the values that the members of a family share and other configurations do not."""
    parts = []
    for key in distinguishing:
        value = first.settings.get(key)
        if value is not None:
            name = key.removeprefix(f"{ENV}.") if is_environment(key) else key.rpartition(".")[2].replace("_", " ")
            parts.append(value if isinstance(value, str) else f"{name} {written(value)}")
    return ", ".join(dict.fromkeys([*parts, *(["probes"] if first.is_probe and some_are_probes else [])]))


def written(value: Any) -> str:
    """Return a setting as text: strings unchanged, None as n/a, booleans as on and off."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, default=str)
