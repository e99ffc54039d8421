"""Speed-up and scaling efficiency: samples/s of one configuration against another, with the interval of verdicts."""

from paratune.reports.amounts import Amount
from paratune.reports.measures import MEASURES, Measure
from paratune.reports.systems.changes import changes
from paratune.reports.systems.configurations import Configuration
from paratune.verdicts import Group

SPEED_UP = Measure("speed_up", "Speed-up", "Scaling", "rate", 1, "samples/s over those of the first line")
SCALING = Measure(
    "scaling_efficiency",
    "Efficiency",
    "Scaling",
    "share",
    1,
    "speed-up over the number of devices, against the first line",
)


def speed_up(first: Configuration, member: Configuration, measure: Measure = SPEED_UP, by: float = 1.0) -> Amount:
    """Return samples/s over those of another configuration: the ratio of geometric means over runs, divided by `by`."""
    (found,) = changes(MEASURES["samples_per_s"], Group(first.label, first.runs), [Group(member.label, member.runs)])
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
