"""Lines of configurations over the number of devices, speed-up and scaling efficiency."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.config.traits import TRAITS
from paratune.reports.amounts import Amount
from paratune.reports.measures import MEASURES, Measure
from paratune.reports.runs.machine import value_text
from paratune.reports.runs.sameness import canonical
from paratune.reports.systems.configurations import ENV, NODES, NPROC, Configuration
from paratune.verdicts import Group
from paratune.verdicts.speeds import changes_of

SPEED_UP = Measure("Scaling", "speed_up", "Speed-up", "rate", 1, "samples/s over those of the first line")
_PER_DEVICE = "speed-up over the number of devices, against the first line"
SCALING = Measure("Scaling", "scaling_efficiency", "Efficiency", "share", 1, _PER_DEVICE)


def is_batch(key: str) -> bool:
    """Return whether a setting is of the batch."""
    return key.partition(".")[0] == "batch" and key != "batch.layout"


def is_devices(key: str) -> bool:
    """Return whether a setting is the number of devices or the batch."""
    return key == NPROC or is_batch(key)


@dataclass(frozen=True)
class Scaling:
    """Configurations that differ in their number of devices, under one rule for the batch."""

    rule: str
    """strong: equal total batch; weak: equal batch per device."""
    where: str
    """Values that all members share and other configurations do not; empty if there are none."""
    members: tuple[Configuration, ...]
    batch: float
    """Samples a step of all devices (strong), or of each device (weak)."""


def scalings(configurations: Sequence[Configuration]) -> tuple[Scaling, ...]:
    """Return the families of at least two numbers of devices with equal total batch, or equal batch per device.

    Only the number counts: with one device, a total batch of 64 is also 64 for each device, however it was set.
    """
    found: list[Scaling] = []
    measured = [member for member in configurations if member.runs]
    varied = _varied_keys(measured, is_devices)
    for members in _groups(measured):
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
                found.append(Scaling(rule, _where(line[-1], [*varied, *apart]), tuple(line), batch))
    order = list(dict.fromkeys(scaling.where for scaling in found))  # that of the configurations
    return tuple(sorted(found, key=lambda scaling: (scaling.rule, order.index(scaling.where), scaling.batch)))


def _lines(members: Sequence[Configuration]) -> Iterator[list[Configuration]]:
    """Yield lines over the number of devices, from members with an equal batch.

    Settings of the batch, such as accumulation, separate lines. A member that is alone with its settings is in each
    line that has no member of its size.
    """
    alike = grouped(
        (canonical({key: value for key, value in member.settings.items() if is_batch(key)}), member)
        for member in members
    )
    by_size = [{member.world_size: member for member in reversed(group)} for group in alike.values()]
    lines = [sizes for sizes in by_size if len(sizes) > 1]
    others = {size: member for sizes in reversed(by_size) if len(sizes) == 1 for size, member in sizes.items()}
    for line in lines or [{}]:
        sizes = sorted((others | line).items())
        if len(sizes) > 1:
            yield [member for _, member in sizes]


def _groups(measured: Sequence[Configuration]) -> Iterator[list[Configuration]]:
    """Yield the configurations that are equal in all settings except those of devices and batch.

    Configurations on one device join each group without any: those of the strategy single, which is one device of every
    strategy, and those that differ only in the number of nodes.
    """
    singles = [member for member in measured if member.world_size == 1]
    for group in grouped((_others(member), member) for member in measured).values():
        if all(member.world_size > 1 for member in group):
            for single in singles:
                traits = TRAITS.get(str(single.runs[0].run.strategy.kind))
                is_any = traits is not None and traits.max_world_size == 1
                if _others(single, nodes=False, strategy=not is_any) == _others(
                    group[-1], nodes=False, strategy=not is_any
                ):
                    group.insert(0, single)
        if len(group) > 1:
            yield group


def _others(member: Configuration, *, nodes: bool = True, strategy: bool = True) -> str:
    """Return the settings that are not of devices and batch; without those of nodes and of the strategy if so asked.

    An option that is off is one that another strategy does not have. Precision and CPU offload are not of the strategy.
    """
    settings = {}
    for key, value in member.settings.items():
        section, _, name = key.partition(".")
        is_strategy = section == "strategy" and not any(of in name for of in ("param_dtype", "offload", "cpu_adam"))
        is_left_out = is_devices(key) or (not nodes and key == NODES) or (not strategy and is_strategy)
        if not is_left_out and value is not None and value is not False:
            settings[key] = value
    return canonical([member.is_probe, settings])


def _varied_keys(measured: Sequence[Configuration], left_out: Callable[[str], bool]) -> list[str | None]:
    """Return the settings in which configurations differ; None: some are probes and some not."""
    keys = dict.fromkeys(key for member in measured for key in member.settings if not left_out(key))
    varied = [key for key in keys if len({canonical(member.settings.get(key)) for member in measured}) > 1]
    return [*varied, *([None] if len({member.is_probe for member in measured}) > 1 else [])]


def _where(first: Configuration, varied: Sequence[str | None]) -> str:
    """Return the values that the members of a family share and other configurations do not."""
    parts = ["probes"] if None in varied and first.is_probe else []
    for key in filter(None, varied):
        value, variable = first.settings.get(key), key.removeprefix(f"{ENV}.")
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value_text(value)
        if variable != key or not isinstance(value, str):
            text = f"{variable if variable != key else key.rpartition('.')[2].replace('_', ' ')} {text}"
        parts += [] if value is None else [text]
    return ", ".join(dict.fromkeys(filter(None, parts)))


def speed_up(first: Configuration, member: Configuration, measure: Measure = SPEED_UP, by: float = 1.0) -> Amount:
    """Return samples/s over those of another configuration: the ratio of geometric means over runs, divided by `by`."""
    base, other = Group(first.label, first.runs), Group(member.label, member.runs)
    before, after = ([MEASURES["samples_per_s"].of(run) for run in one.runs] for one in (first, member))
    # Of a pair alone, the order of the runs says too little to be adjusted for.
    (found,) = changes_of(base, [other], "samples_per_s", [(before, after)], is_speed=False)
    if found.change is None:
        return Amount(measure, {}, None, len(member.runs))
    value = (1 + found.change) / by
    runs = dict.fromkeys((run.name for run in (*member.runs, *first.runs)), value)
    limits = None
    # Runs that do not vary at all tell nothing about other runs.
    if first is not member and found.low is not None and found.high is not None and found.low < found.high:
        limits = ((1 + found.low) / by, (1 + found.high) / by)
    return Amount(measure, runs, value, len(runs), is_of_all=True, interval=limits)


def scaling_efficiency(first: Configuration, member: Configuration) -> Amount:
    """Return the speed-up over the increase in devices."""
    return speed_up(first, member, SCALING, member.world_size / first.world_size)
