"""Figures of a matrix over steps, phases, devices and batches; and predictions of regressions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.grouping import grouped
from paratune.errors import CheckpointError
from paratune.records.finished import RunRecord, with_curves
from paratune.reports.figures.canvas import MUTED, Drawing, Key
from paratune.reports.figures.plots import Line, lines, panels, run_style
from paratune.reports.figures.runs import Predictions, losses, phases, prediction_figures, read_predictions
from paratune.reports.measures import STEP_PARTS, TOTAL_PARTS
from paratune.reports.runs.read import MAX_DRAWN_BYTES, events_bytes
from paratune.reports.systems.labels import drawn_configurations, figure_labels, join_sentences
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import Scaling, scaling_efficiency, scalings

MAX_LINES = 8
_MAX_PREDICTIONS = 8
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}


def loss_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the loss curves of the configurations that are no probes, one figure for each task."""
    members_with_steps = (member for member in systems.measured if member.scored and not member.scored[0].is_baseline)
    by_task = grouped((member.runs[0].task, member) for member in members_with_steps)
    for number, (task, members) in enumerate(by_task.items()):
        few, selection = drawn_configurations(systems, members, MAX_LINES)
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
    drawn, selection = drawn_configurations(systems, systems.measured)
    labels, notes = figure_labels(systems, drawn)
    per_step = any(member.is_probe for member in drawn)
    parts = STEP_PARTS if per_step else TOTAL_PARTS
    rows = [[systems.amount(part, member).center for part in parts] for member in drawn]
    about = (
        "Mean measured step by phase, without warm-up; steps with different global batches do different work."
        if per_step
        else "Seconds of a run by phase over all training steps: means over ranks and runs."
    )
    axis = "Time of a measured step (ms)" if per_step else "Time of all training steps of a run (s)"
    caption = join_sentences(about, selection, notes)
    return phases("phases", "Time by phase and configuration", caption, labels, rows, axis)


def prediction_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the predictions of the first run of each regression, all with the same axes.

    The caption of the first one gives the reasons why others have none.
    """
    members = [member for member in systems.measured if member.scored and member.scored[0].task == "regression"]
    drawn, remark = drawn_configurations(systems, members, _MAX_PREDICTIONS)
    known: dict[str, Predictions] = {}
    for member in drawn:
        predictions = read_predictions(member.scored[0])
        if isinstance(predictions, str):
            remark = join_sentences(remark, predictions)
        else:
            known[member.label] = predictions
    runs = {member.label: member.scored[0].name for member in drawn}
    for label, picture in zip(known, prediction_figures(known), strict=True):
        yield replace(picture, caption=join_sentences(picture.caption, f"Run: {runs[label]}.", remark))
        remark = ""


def scaling_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield speed-up and efficiency over the devices, under each rule for the batch."""
    all_scalings = scalings(systems.measured)
    for rule in _RULES:
        of_rule = [scaling for scaling in all_scalings if scaling.rule == rule]
        if of_rule:
            yield _speed_ups(of_rule, rule)


def _speed_ups(scalings_of_rule: Sequence[Scaling], rule: str) -> Drawing:
    longest = sorted(scalings_of_rule, key=lambda scaling: -len(scaling.members))[:MAX_LINES]
    title, batch = _RULES[rule]
    is_one = len({scaling.batch for scaling in longest}) == 1 and len(longest) > 1
    title += f", {batch.format(longest[0].batch)}" if is_one else ""
    names = [
        ", ".join(filter(None, [scaling.where, "" if is_one else batch.format(scaling.batch)])) for scaling in longest
    ]
    sizes = sorted({member.world_size for scaling in longest for member in scaling.members})
    left = [Line(sizes, [size / sizes[0] for size in sizes], -1, width=0.9)]
    right = [Line(sizes, [100.0 for _ in sizes], -1, width=0.9)]
    for position, (name, scaling) in enumerate(zip(names, longest, strict=True)):
        found = speed_ups(scaling, sizes[0])
        x = [size for size, _ in found]
        texts = [
            f"{name}: {size} devices, speed-up {mean:.2f} [{low:.2f}, {high:.2f}], efficiency "
            f"{100 * mean * sizes[0] / size:.1f}%" if low < high else
            f"{name}: {size} devices, speed-up {mean:.2f}, efficiency {100 * mean * sizes[0] / size:.1f}%"
            for size, (mean, low, high) in found
        ]  # fmt: skip
        columns = [[numbers[at] for _, numbers in found] for at in range(3)]
        left.append(Line(x, columns[0], position, columns[1], columns[2], texts))
        shares = [[100 * value * sizes[0] / size for size, value in zip(x, column, strict=True)] for column in columns]
        right.append(Line(x, shares[0], position, shares[1], shares[2], texts))
    best = max(max(line.y, default=0.0) for line in right)
    draw = panels(
        lines(left, log=2, ticks=sizes, xlabel="Devices", ylabel="Speed-up (samples/s, ×)", ylim=(0, None)),
        lines(right, log=2, ticks=sizes, xlabel="Devices", ylabel="Efficiency (%)", ylim=(0, 1.08 * best)),
    )
    keys = (Key(name, *run_style(position)) for position, name in enumerate(names))
    caption = join_sentences(
        "Speed-up: samples/s divided by those of the smallest number of devices. Efficiency: speed-up divided by the "
        "increase in devices. Bands: 95% intervals over runs. Dashed: ideal; a line that starts with more devices is "
        "assumed ideal up to its start.",
        f"Drawn: {MAX_LINES} of {len(scalings_of_rule)} lines." if len(scalings_of_rule) > len(longest) else "",
    )
    legend = (*keys, Key("ideal", MUTED, (4, 3)))
    return Drawing(f"scaling-{rule}", title, caption, draw, 3.2, whole=True, legend=legend)


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
