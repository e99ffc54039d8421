"""Speed-up and efficiency over the number of devices beside the ideal line; throughput and goodput over the batch."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.report.canvas import MUTED, Drawing, Key
from paratune.report.figures import run_style
from paratune.report.systems import measures as of
from paratune.report.systems import subjects
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.efficiency import goodput, noise_of
from paratune.report.systems.labels import sentences
from paratune.report.systems.model import Systems
from paratune.report.systems.subjects import Scaling, SubjectFamily, scalings

MAX_LINES = 8
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}


def scaling_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield speed-up and efficiency under each rule for the batch, and goodput over the batch where it is known."""
    found = scalings(systems.measured)
    for rule in _RULES:
        of_rule = [each for each in found if each.rule == rule]
        if of_rule:
            yield _speed_ups(systems, of_rule, rule)
    yield from _goodput(systems)


def _speed_ups(systems: Systems, found: Sequence[Scaling], rule: str) -> Drawing:
    longest = sorted(found, key=lambda each: -len(each.family.members))[:MAX_LINES]
    title, batch = _RULES[rule]
    names = [", ".join(filter(None, [each.family.where, batch.format(each.batch)])) for each in longest]
    sizes = sorted({one.world_size for each in longest for one in each.family.members})

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        left, right = figure.subplots(1, 2)
        first = min(sizes)
        left.plot(sizes, [size / first for size in sizes], color=MUTED, linewidth=0.9, dashes=(4, 3))
        right.plot(sizes, [100.0 for _ in sizes], color=MUTED, linewidth=0.9, dashes=(4, 3))
        for line, each in enumerate(longest):
            points = speed_ups(systems, each, first)
            for number, (axes, values) in enumerate(
                ((left, [speed for _, speed, _ in points]), (right, [100 * share for *_, share in points]))
            ):
                _line(axes, [size for size, *_ in points], values, line)
                for (size, speed, share), value in zip(points, values, strict=True):
                    gid = f"hover-{line}-{number}-{size}"
                    axes.plot([size], [value], "o", markersize=6, color=run_style(line)[0], gid=gid, in_layout=False)
                    hovers[gid] = f"{names[line]}: {size} devices, speed-up {speed:.2f}, efficiency {100 * share:.1f}%"
        _device_axis((left, right), sizes)
        left.set_ylabel("Speed-up (samples/s, ×)")
        right.set_ylabel("Efficiency (%)")
        _log_axis(left, "y", sorted({size / first for size in sizes}))
        best = max((100 * share for each in longest for *_, share in speed_ups(systems, each, first)), default=0.0)
        right.set_ylim(0, 1.08 * max(100.0, best))

    legend = (*(Key(name, *run_style(line)) for line, name in enumerate(names)), Key("ideal", MUTED, (4, 3)))
    more = f"Drawn are {MAX_LINES} of {len(found)} lines." if len(found) > len(longest) else ""
    caption = sentences(
        "Speed-up: samples/s over those of the smallest number of devices. Efficiency: speed-up over the number of "
        "devices against the smallest. Dashed: ideal, up to where a line begins as well.",
        more,
    )
    return Drawing(f"scaling-{rule}", title, caption, draw, 3.3, whole=True, legend=legend)


def speed_ups(systems: Systems, scaling: Scaling, first: int) -> list[tuple[int, float, float]]:
    """Return number of devices, speed-up against `first` devices, and efficiency, of each member with a rate.

    A line that begins with more devices than `first` is taken to be ideal up to there.
    """
    members = scaling.family.members
    base = systems.amount(of.SAMPLES_PER_S, members[0]).center
    points = []
    for one in members:
        rate = systems.amount(of.SAMPLES_PER_S, one).center
        if rate is not None and base:
            ratio = rate / base
            begin = members[0].world_size
            points.append((one.world_size, ratio * begin / first, ratio * begin / one.world_size))
    return points


def _goodput(systems: Systems) -> Iterator[Drawing]:
    """Yield samples/s and goodput over the global batch, where there are several batches and noise scales."""
    found = subjects.families(systems.measured, subjects.is_batch) or subjects.families(
        systems.measured, subjects.is_devices
    )
    all_lines = [(family.where, _goodputs(systems, family)) for family in found]
    several = [(name, points) for name, points in all_lines if len({batch for batch, *_ in points}) > 1]
    lines = several[:MAX_LINES]
    batches = sorted({batch for _, points in lines for batch, *_ in points})
    if len(batches) < 2:
        return

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        for line, (_, points) in enumerate(lines):
            xs = [batch for batch, *_ in points]
            colour, _ = run_style(line)
            axes.plot(xs, [rate for _, rate, *_ in points], color=colour, linewidth=1, dashes=(2, 2), alpha=0.8)
            _line(axes, xs, [good for *_, good, _ in points], line)
            for number, (batch, rate, good, one) in enumerate(points):
                gid = f"hover-{line}-{number}"
                axes.plot([batch], [good], "o", markersize=6, color=colour, gid=gid)
                hovers[gid] = f"{one.label}: batch {batch}: {rate:.4g} samples/s, goodput {good:.4g} samples/s"
        _log_axis(axes, "x", batches)
        axes.set_xlabel("Global batch (samples)")
        axes.set_ylabel("Samples/s")
        axes.set_ylim(bottom=0)
        axes.grid()

    keys = [Key(f"goodput, {name}" if name else "goodput", *run_style(line)) for line, (name, _) in enumerate(lines)]
    caption = sentences(
        "Solid: goodput, which is samples/s times statistical efficiency. Dotted: samples/s.",
        f"Drawn are {MAX_LINES} of {len(several)} lines." if len(several) > MAX_LINES else "",
    )
    legend = (*keys, Key("samples/s", MUTED, (2, 2)))
    yield Drawing("goodput", "Throughput and goodput over the batch", caption, draw, 3.3, legend=legend)


def _goodputs(systems: Systems, family: SubjectFamily) -> list[tuple[int, float, float, Configuration]]:
    """Return global batch, samples/s and goodput of the members of which all is known, where a noise scale is."""
    points = []
    for one in family.members:
        rate, good = systems.amount(of.SAMPLES_PER_S, one).center, goodput(systems, one).center
        if rate is not None and good is not None and one.global_batch_size is not None:
            points.append((one.global_batch_size, rate, good, one))
    known = any(noise_of(systems, one).value is not None for *_, one in points)
    return sorted(points, key=lambda point: point[0]) if known else []


def _line(axes: Any, xs: Sequence[float], ys: Sequence[float], line: int) -> None:
    colour, dashes = run_style(line)
    axes.plot(xs, ys, color=colour, linewidth=1.8, dashes=dashes or (None, None))


def _device_axis(panels: Sequence[Any], sizes: Sequence[int]) -> None:
    for axes in panels:
        _log_axis(axes, "x", sizes)
        axes.set_xlabel("Devices")
        axes.grid()


def _log_axis(axes: Any, which: str, ticks: Sequence[float]) -> None:
    """Make an axis one of powers of two with ticks where the figures are."""
    from matplotlib.ticker import NullLocator

    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(ticks, labels=[f"{tick:,g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())
