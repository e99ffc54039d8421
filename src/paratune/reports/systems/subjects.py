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

Belongs = Callable[[str], bool]
"""Whether a setting, by its dotted key, belongs to a subject."""
KIND = "strategy.kind"


def is_devices(key: str) -> bool:
    """Return whether a setting is the number of devices or the batch."""
    return key == NPROC or is_batch(key)


def is_nodes(key: str) -> bool:
    return key == NODES


def is_batch(key: str) -> bool:
    return key.partition(".")[0] == "batch" and key != "batch.layout"


def is_precision(key: str) -> bool:
    """Return whether a setting is the dtype of the computation, or that of the weights beside it."""
    return key.partition(".")[0] == "precision" or key.rpartition(".")[2] == "param_dtype"


def is_strategy(key: str) -> bool:
    """Return whether a setting is the strategy, or an option of it other than its precision and CPU offload."""
    return key.partition(".")[0] == "strategy" and not is_precision(key) and not is_offload(key)


def is_offload(key: str) -> bool:
    return key.startswith("strategy.") and any(part in key.rpartition(".")[2] for part in ("offload", "cpu_adam"))


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


def families(configurations: Sequence[Configuration], belongs: Belongs) -> tuple[SubjectFamily, ...]:
    """Return the families of measured configurations in which a subject has at least two values."""
    found = []
    varied = _varied_keys(configurations, belongs)
    for members in _groups(configurations, belongs):
        values = [_settings(member, belongs) for member in members]
        if len(set(map(canonical, values))) > 1:
            names = tuple(_value_name(values, own) for own in values)
            found.append(SubjectFamily(_where(members[0], varied), tuple(members), names))
    return tuple(found)


def scalings(configurations: Sequence[Configuration]) -> tuple[Scaling, ...]:
    """Return the families of at least two numbers of devices with equal total batch, or equal batch per device.

    Only the number counts: with one device, a total batch of 64 is also 64 for each device, however it was set.
    """
    found: list[Scaling] = []
    varied = _varied_keys(configurations, is_devices)
    for members in _groups(configurations, is_devices, one_device=True):
        rules = grouped(
            (rule, member)
            for member in members
            if (total := member.global_batch_size)
            for rule in (("strong", float(total)), ("weak", total / member.world_size))
        )
        for (rule, batch), same_batch in rules.items():
            lines = list(_lines(same_batch))
            apart = _varied_keys([line[-1] for line in lines], lambda key: not is_batch(key))
            for line in lines:
                sizes = tuple(str(member.world_size) for member in line)
                family = SubjectFamily(_where(line[-1], [*varied, *apart]), tuple(line), sizes)
                found.append(Scaling(rule, batch, family))
    order = list(dict.fromkeys(scaling.family.where for scaling in found))  # that of the configurations
    return tuple(sorted(found, key=lambda scaling: (scaling.rule, order.index(scaling.family.where), scaling.batch)))


def _lines(members: Sequence[Configuration]) -> Iterator[list[Configuration]]:
    """Yield lines over the number of devices, from members with an equal batch.

    Settings of the batch, such as accumulation, separate lines. A member that is alone with its settings is in each
    line that has no member of its size.
    """
    alike = grouped((canonical(_settings(member, is_batch)), member) for member in members)
    by_size = [{member.world_size: member for member in reversed(group)} for group in alike.values()]
    lines = [sizes for sizes in by_size if len(sizes) > 1]
    others = {size: member for sizes in reversed(by_size) if len(sizes) == 1 for size, member in sizes.items()}
    for line in lines or [{}]:
        sizes = sorted((others | line).items())
        if len(sizes) > 1:
            yield [member for _, member in sizes]


def _groups(
    configurations: Sequence[Configuration], belongs: Belongs, *, one_device: bool = False
) -> Iterator[list[Configuration]]:
    """Yield the configurations with a run that are equal in all settings except those of a subject.

    With `one_device`, configurations on one device join each group without any: those of the strategy single, which is
    one device of every strategy, and those that differ only in the number of nodes.
    """

    def others(member: Configuration, *left_out: Belongs) -> str:
        settings = _settings(member, lambda key: not any(leave_out(key) for leave_out in (belongs, *left_out)))
        # An option that is off is one that another strategy does not have.
        is_on = {key: value for key, value in settings.items() if value is not None and value is not False}
        return canonical([member.is_probe, is_on])

    measured = [member for member in configurations if member.runs]
    singles = [member for member in measured if one_device and member.world_size == 1]
    for group in grouped((others(member), member) for member in measured).values():
        if all(member.world_size > 1 for member in group):
            for single in singles:
                is_any = single.runs[0].run.strategy.kind == "single"
                left_out = (is_nodes, is_strategy) if is_any else (is_nodes,)
                if others(single, *left_out) == others(group[-1], *left_out):
                    group.insert(0, single)
        if len(group) > 1:
            yield group


def _settings(configuration: Configuration, belongs: Belongs) -> dict[str, Any]:
    return {key: value for key, value in configuration.settings.items() if belongs(key)}


def _value_name(values: Sequence[dict[str, Any]], settings: dict[str, Any]) -> str:
    """Return the settings in which the members differ; only the value if all of them have the same."""
    keys = [key for key in settings if len({canonical(value.get(key)) for value in values}) > 1]
    if len({written(settings[key]) for key in keys}) == 1 and not is_environment(keys[0]):
        return written(settings[keys[0]])
    named = (key for key in keys if settings[key] is not None or is_environment(key))
    return ", ".join(
        # The kind alone names a strategy, as when it is the only difference.
        written(settings[key])
        if key == KIND
        else f"{key.rpartition('.')[2]} {UNSET if settings[key] is None else written(settings[key])}"
        for key in sorted(named, key=lambda key: key != KIND)
    )


def _varied_keys(configurations: Sequence[Configuration], belongs: Belongs) -> list[str | None]:
    """Return the settings outside of a subject in which configurations differ; None: some are probes and some not."""
    measured = [member for member in configurations if member.runs]
    keys = dict.fromkeys(key for member in measured for key in member.settings if not belongs(key))
    varied = [key for key in keys if len({canonical(member.settings.get(key)) for member in measured}) > 1]
    return [*varied, *([None] if len({member.is_probe for member in measured}) > 1 else [])]


def _where(first: Configuration, varied: Sequence[str | None]) -> str:
    """Return the values that the members of a family share and other configurations do not."""
    parts = []
    for key in varied:
        value = ("probes" if first.is_probe else None) if key is None else first.settings.get(key)
        if value is not None and key is not None and (is_environment(key) or not isinstance(value, str)):
            name = key.removeprefix(f"{ENV}.") if is_environment(key) else key.rpartition(".")[2].replace("_", " ")
            value = f"{name} {written(value)}"
        parts.append(value)
    return ", ".join(dict.fromkeys(filter(None, parts)))


def written(value: Any) -> str:
    """Return a setting as text: strings unchanged, None as n/a, booleans as on and off."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, default=str)
