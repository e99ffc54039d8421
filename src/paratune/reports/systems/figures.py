"""Figures of a matrix: losses, phases, scaling over devices, and time and memory."""

from collections.abc import Iterator

from paratune.base.grouping import grouped
from paratune.base.units import counted
from paratune.errors import CheckpointError
from paratune.records.finished import RunRecord, with_curves
from paratune.reports.amounts import amount_text, scale_of
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import Bars, Line, bars, height_of_rows, lines, panels, run_style
from paratune.reports.figures.runs import losses, phases
from paratune.reports.measures import MEASURES, STEP_PARTS, TOTAL_PARTS, Measure
from paratune.reports.runs.read import MAX_DRAWN_BYTES, events_bytes
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import Scaling, scaling_efficiency, scalings

MAX_LINES = 8
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}
_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35


def loss_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the loss curves of the configurations that are no probes, one figure for each task."""
    members_with_steps = (member for member in systems.measured if member.scored and not member.scored[0].is_baseline)
    by_task = grouped((member.runs[0].task, member) for member in members_with_steps)
    for number, (task, members) in enumerate(by_task.items()):
        few, selection = systems.drawn(members, MAX_LINES)
        curves: dict[str, list[RunRecord]] = {}
        if events_bytes(run for member in few for run in member.scored) > MAX_DRAWN_BYTES:
            continue
        for label, run in ((member.label, run) for member in few for run in member.scored):
            try:
                curves.setdefault(label, []).append(with_curves(run))
            except CheckpointError:
                continue
        if curves:
            title = "Loss curves" if len(by_task) == 1 else f"Loss curves: {task}"
            yield losses("loss" if number == 0 else f"loss-{number}", title, curves, range(len(curves)), selection)


def phase_drawing(systems: Systems) -> Drawing:
    """Draw a bar of the phases for each configuration: seconds of the run, or of a step for probes."""
    drawn, selection = systems.drawn(systems.measured)
    per_step = any(member.is_probe for member in drawn)
    parts = STEP_PARTS if per_step else TOTAL_PARTS
    rows = [[systems.amount(part, member).center for part in parts] for member in drawn]
    about = (
        "Mean measured step by phase, without warm-up; steps with different global batches do different work."
        if per_step
        else "Seconds of a run by phase over all training steps: means over ranks and runs."
    )
    axis = "Time of a measured step (ms)" if per_step else "Time of all training steps of a run (s)"
    labels = [member.label for member in drawn]
    return phases("phases", "Time by phase and configuration", f"{about} {selection}".strip(), labels, rows, axis)


def scaling_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield speed-up and efficiency over the devices, under each rule for the batch."""
    by_rule = grouped((scaling.rule, scaling) for scaling in scalings(systems.measured))
    for rule, (title, batch) in _RULES.items():
        longest = sorted(by_rule.get(rule, []), key=lambda scaling: -len(scaling.members))[:MAX_LINES]
        if not longest:
            continue
        names = [", ".join(filter(None, [scaling.where, batch.format(scaling.batch)])) for scaling in longest]
        sizes = sorted({member.world_size for scaling in longest for member in scaling.members})
        left = [Line(sizes, [size / sizes[0] for size in sizes], -1, width=0.9)]
        right = [Line(sizes, [100.0 for _ in sizes], -1, width=0.9)]
        for position, (name, scaling) in enumerate(zip(names, longest, strict=True)):
            found = speed_ups(scaling, sizes[0])
            x = [size for size, _ in found]
            texts = [
                f"{name}: {size} devices, speed-up {mean:.2f}{f' [{low:.2f}, {high:.2f}]' if low < high else ''}, "
                f"efficiency {100 * mean * sizes[0] / size:.1f}%"
                for size, (mean, low, high) in found
            ]
            ups = [[ends[at] for _, ends in found] for at in range(3)]
            shares = [[100 * up * sizes[0] / size for size, up in zip(x, column, strict=True)] for column in ups]
            left.append(Line(x, ups[0], position, ups[1], ups[2], texts))
            right.append(Line(x, shares[0], position, shares[1], shares[2], texts))
        best = max(max(line.y, default=0.0) for line in right)
        draw = panels(
            lines(left, log=2, ticks=sizes, xlabel="Devices", ylabel="Speed-up (samples/s, ×)", ylim=(0, None)),
            lines(right, log=2, ticks=sizes, xlabel="Devices", ylabel="Efficiency (%)", ylim=(0, 1.08 * best)),
        )
        caption = (
            "Speed-up: samples/s divided by those of the smallest number of devices. Efficiency: speed-up divided by "
            "the increase in devices. Bands: 95% intervals over runs. Dashed: ideal; a line that starts with more "
            "devices is assumed ideal up to its start."
        )
        if len(by_rule[rule]) > len(longest):
            caption += f" Drawn: {MAX_LINES} of {len(by_rule[rule])} lines."
        legend = (*(Key(name, *run_style(at)) for at, name in enumerate(names)), Key("ideal", MUTED, (4, 3)))
        yield Drawing(f"scaling-{rule}", title, caption, draw, 3.2, whole=True, legend=legend)


def speed_ups(scaling: Scaling, first: int) -> list[tuple[int, tuple[float, ...]]]:
    """Return number of devices, and speed-up against `first` devices with its 95% interval, of each known member.

    The interval of one run is its value. A line that begins with more devices than `first` is taken to be ideal up to
    there.
    """
    found = []
    for member in scaling.members:
        share = scaling_efficiency(scaling.members[0], member)
        if share.center is not None:
            low, high = share.interval or (share.center, share.center)
            values = (value * member.world_size / first for value in (share.center, low, high))
            found.append((member.world_size, tuple(values)))
    return found


def time_and_memory(systems: Systems) -> Drawing:
    """Draw time and memory of every configuration as bars."""
    members, selection = systems.drawn(systems.measured)
    time = MEASURES["mean_step_ms"] if any(member.is_probe for member in members) else MEASURES["train_s"]
    device, total = MEASURES["peak_memory_largest_bytes"], MEASURES["peak_memory_sum_bytes"]
    scale = scale_of(time.unit, [systems.amount(time, member).center for member in members])
    of_memory = scale_of(
        "bytes", [systems.amount(size, member).center for size in (device, total) for member in members]
    )
    labels = [member.label for member in members]

    def layer(measure: Measure, size: float, colour: str, height: float, alpha: float = 0.9) -> Bars:
        amounts = [systems.amount(measure, member) for member in members]
        texts = []
        for member, amount in zip(members, amounts, strict=True):
            own = scale_of(measure.unit, [amount.center])
            value = f"{amount_text(amount, own)} {own.unit}".strip()
            texts.append(f"{member.label}: {measure.label.lower()} {value} ({counted(len(amount.values), 'run')})")
        values = [None if amount.center is None else amount.center / size for amount in amounts]
        deviations = [(amount.deviation or 0.0) / size for amount in amounts]
        return Bars(values, colour, texts, alpha, height, deviations)

    memory = [layer(total, of_memory.size, _TOTAL, 0.62, _FAINT), layer(device, of_memory.size, _DEVICE, 0.36)]
    draw = panels(
        bars(labels, [layer(time, scale.size, _TIME, 0.62)], xlabel=scale.label(time.label)),
        bars(labels, memory, xlabel=of_memory.label("Peak memory")),
        share_y=True,
    )
    legend = (
        Key(scale.label(time.label), _TIME, is_area=True),
        Key("Memory of the largest device", _DEVICE, is_area=True),
        Key("Memory of all devices", _TOTAL, is_area=True, alpha=_FAINT),
    )
    caption = f"Bars: mean over the runs of a configuration; whiskers: ± one standard deviation. {selection}".strip()
    title = "Time and memory of all configurations"
    return Drawing("overview", title, caption, draw, height_of_rows(len(members)), whole=True, legend=legend)
