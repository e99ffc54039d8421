"""Speed-up and scaling efficiency: one configuration against another, with the interval of verdicts."""

from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.measures import SAMPLES_PER_S, TRAIN_S, Amount, ReportMeasure
from paratune.verdicts import Group, change_of

SPEED_UP = ReportMeasure("speed_up", "Speed-up", "rate", 1, "samples/s over those of the first line")
SCALING = ReportMeasure(
    "scaling_efficiency", "Efficiency", "share", 1, "speed-up over the number of devices, against the first line"
)
TIME_SPEED_UP = ReportMeasure("time_speed_up", "Speed-up", "rate", 1, "training time of the baseline over its own")


def speed_up(first: Configuration, member: Configuration) -> Amount:
    """Return samples/s over those of another configuration: the ratio of geometric means over runs."""
    return _over(SPEED_UP, SAMPLES_PER_S, first, member)


def scaling_efficiency(first: Configuration, member: Configuration) -> Amount:
    """Return the speed-up over the increase in devices."""
    return _over(SCALING, SAMPLES_PER_S, first, member, member.world_size / first.world_size)


def time_speed_up(first: Configuration, member: Configuration) -> Amount:
    """Return the training time of another configuration over that of this one."""
    return _over(TIME_SPEED_UP, TRAIN_S, member, first)


def _over(
    measure: ReportMeasure, of: ReportMeasure, below: Configuration, above: Configuration, by: float = 1.0
) -> Amount:
    if of is TRAIN_S and (below.is_probe or above.is_probe):
        return Amount(measure, {}, None, len(above.runs))
    first, second = Group(below.label, below.runs), Group(above.label, above.runs)
    found = change_of(first, second, of.key, lambda run: run.number(of.source))
    if found.change is None:
        return Amount(measure, {}, None, len(above.runs))
    value = (1 + found.change) / by
    runs = dict.fromkeys((run.name for run in (*above.runs, *below.runs)), value)
    limits = None
    if above is not below and found.low is not None and found.high is not None:
        limits = ((1 + found.low) / by, (1 + found.high) / by)
    return Amount(measure, runs, value, len(runs), is_of_all=True, interval=limits)
