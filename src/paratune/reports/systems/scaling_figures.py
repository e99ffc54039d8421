"""Speed-up and efficiency over the number of devices; throughput and goodput over the batch."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.reports.figures.canvas import MUTED, Drawing, Hovers, Key
from paratune.reports.figures.runs import line_style, run_style
from paratune.reports.systems import measures, subjects
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import configuration_noise, goodput
from paratune.reports.systems.labels import join_sentences
from paratune.reports.systems.model import Systems
from paratune.reports.systems.speed_ups import scaling_efficiency
from paratune.reports.systems.subjects import Scaling, SubjectFamily, scalings

MAX_LINES = 8
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}


def scaling_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield speed-up and efficiency under each rule for the batch, and goodput over the batch if it is known."""
    all_scalings = scalings(systems.measured)
    for rule in _RULES:
        of_rule = [scaling for scaling in all_scalings if scaling.rule == rule]
        if of_rule:
            yield _speed_ups(of_rule, rule)
    yield from _goodput(systems)


def _speed_ups(scalings_of_rule: Sequence[Scaling], rule: str) -> Drawing:
    longest = sorted(scalings_of_rule, key=lambda scaling: -len(scaling.family.members))[:MAX_LINES]
    title, batch = _RULES[rule]
    names = [", ".join(filter(None, [scaling.family.where, batch.format(scaling.batch)])) for scaling in longest]
    sizes = sorted({member.world_size for scaling in longest for member in scaling.family.members})

    def draw(figure: Any, hovers: Hovers) -> None:
        left, right = figure.subplots(1, 2)
        first = min(sizes)
        left.plot(sizes, [size / first for size in sizes], color=MUTED, linewidth=0.9, dashes=(4, 3))
        right.plot(sizes, [100.0 for _ in sizes], color=MUTED, linewidth=0.9, dashes=(4, 3))
        for line, scaling in enumerate(longest):
            points = speed_ups(scaling, first)
            labels = {member.world_size: member.label for member in scaling.family.members}
            gid = hovers.part_of(*labels.values())
            style = {"linewidth": 1.8, "gid": gid, **line_style(line)}
            left.plot([point[0] for point in points], [point[1] for point in points], **style)
            right.plot([point[0] for point in points], [100 * point[2] for point in points], **style)
            dot = {"color": run_style(line)[0], "in_layout": False}
            for size, speed, share, limits in points:
                text = f"{names[line]}: {size} devices, speed-up {speed:.2f}, efficiency {100 * share:.1f}%"
                gid = hovers.part_of(labels[size], text=text)
                for axes, scale in ((left, size / first), (right, 100)):
                    axes.plot([size], [share * scale], "o", markersize=6, gid=gid, **dot)
                    if limits is not None:
                        axes.plot([size, size], [limit * scale for limit in limits], linewidth=1.2, gid=gid, **dot)
        for axes in (left, right):
            _log_axis(axes, "x", sizes)
            axes.set_xlabel("Devices")
            axes.grid()
        left.set_ylabel("Speed-up (samples/s, ×)")
        right.set_ylabel("Efficiency (%)")
        _log_axis(left, "y", sorted({size / first for size in sizes}))
        all_points = [point for scaling in longest for point in speed_ups(scaling, first)]
        best = max((max(share, *(limits or (0.0,))) for *_, share, limits in all_points), default=0.0)
        right.set_ylim(0, 108 * max(1.0, best))

    owners = [tuple(member.label for member in scaling.family.members) for scaling in longest]
    keys = (Key(name, *run_style(line), owners=owners[line]) for line, name in enumerate(names))
    legend = (*keys, Key("ideal", MUTED, (4, 3)))
    more = f"Drawn: {MAX_LINES} of {len(scalings_of_rule)} lines." if len(scalings_of_rule) > len(longest) else ""
    caption = join_sentences(
        "Speed-up: samples/s divided by those of the smallest number of devices. Efficiency: speed-up divided by the "
        "increase in devices. Dashed: ideal; a line that starts with more devices is assumed ideal up to its start. "
        "Vertical lines: 95% confidence intervals over runs, for several runs of a configuration.",
        more,
    )
    return Drawing(f"scaling-{rule}", title, caption, draw, 3.3, whole=True, legend=legend)


Limits = tuple[float, float] | None


def speed_ups(scaling: Scaling, first: int) -> list[tuple[int, float, float, Limits]]:
    """Return number of devices, speed-up against `first` devices, efficiency, and the interval of the efficiency.

    Members without a known rate are left out.

    A line that begins with more devices than `first` is taken to be ideal up to there.
    """
    members = scaling.family.members
    points = []
    for member in members:
        share = scaling_efficiency(members[0], member)
        if share.center is not None:
            size = member.world_size
            points.append((size, share.center * size / first, share.center, share.interval))
    return points


def _goodput(systems: Systems) -> Iterator[Drawing]:
    """Yield samples/s and goodput over the global batch, if there are several batches with known noise scales."""
    families = subjects.families(systems.measured, subjects.is_batch) or subjects.families(
        systems.measured, subjects.is_devices
    )
    all_lines = [(family.where, _goodputs(systems, family)) for family in families]
    several = [(name, points) for name, points in all_lines if len({batch for batch, *_ in points}) > 1]
    lines = several[:MAX_LINES]
    batches = sorted({batch for _, points in lines for batch, *_ in points})
    if len(batches) < 2:
        return

    def draw(axes: Any, hovers: Hovers) -> None:
        for line, (_, points) in enumerate(lines):
            xs = [batch for batch, *_ in points]
            colour, _ = run_style(line)
            owners = [member.label for *_, member in points]
            rates, gid = [rate for _, rate, *_ in points], hovers.part_of(*owners)
            axes.plot(xs, rates, color=colour, linewidth=1, dashes=(2, 2), alpha=0.8, gid=gid)
            goodputs = [good for *_, good, _ in points]
            axes.plot(xs, goodputs, linewidth=1.8, gid=hovers.part_of(*owners), **line_style(line))
            for batch, rate, good, member in points:
                text = f"{member.label}: batch {batch}: {rate:.4g} samples/s, goodput {good:.4g} samples/s"
                gid = hovers.part_of(member.label, text=text)
                axes.plot([batch], [good], "o", markersize=6, color=colour, gid=gid)
        _log_axis(axes, "x", batches)
        axes.set_xlabel("Global batch (samples)")
        axes.set_ylabel("Samples/s")
        axes.set_ylim(bottom=0)
        axes.grid()

    keys = [Key(f"goodput, {name}" if name else "goodput", *run_style(line)) for line, (name, _) in enumerate(lines)]
    caption = join_sentences(
        "Solid: goodput, which is samples/s times statistical efficiency. Dotted: samples/s.",
        f"Drawn: {MAX_LINES} of {len(several)} lines." if len(several) > MAX_LINES else "",
    )
    legend = (*keys, Key("samples/s", MUTED, (2, 2)))
    yield Drawing("goodput", "Throughput and goodput over the batch", caption, draw, 3.3, legend=legend)


def _goodputs(systems: Systems, family: SubjectFamily) -> list[tuple[int, float, float, Configuration]]:
    """Return global batch, samples/s and goodput of the members with known values."""
    points = []
    for member in family.members:
        rate, good = systems.amount(measures.SAMPLES_PER_S, member).center, goodput(systems, member).center
        if rate is not None and good is not None and member.global_batch_size is not None:
            points.append((member.global_batch_size, rate, good, member))
    known = any(configuration_noise(systems, member).value is not None for *_, member in points)
    return sorted(points, key=lambda point: point[0]) if known else []


def _log_axis(axes: Any, which: str, ticks: Sequence[float]) -> None:
    """Give an axis a logarithmic scale of base 2, with ticks at the values."""
    from matplotlib.ticker import NullLocator

    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(ticks, labels=[f"{tick:,g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())
