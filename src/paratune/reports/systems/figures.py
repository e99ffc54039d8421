"""Figures of a matrix: losses, phases, predictions, scaling over devices, time and memory, and the Pareto front."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paratune.base.grouping import grouped
from paratune.base.units import counted
from paratune.config.metric_names import direction
from paratune.errors import CheckpointError
from paratune.records.finished import RunRecord, with_curves
from paratune.reports.amounts import amount_text, scale_of
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import Bars, Line, Points, bars, height_of_rows, lines, panels, points, run_style
from paratune.reports.figures.runs import Predictions, losses, phases, prediction_figures, read_predictions
from paratune.reports.measures import MEASURES, STEP_PARTS, TOTAL_PARTS, Measure, Unit, metric_name, named, score
from paratune.reports.runs.read import MAX_DRAWN_BYTES, events_bytes
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, figure_labels, join_sentences
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import Scaling, scaling_efficiency, scalings
from paratune.verdicts.estimate import mean_interval

MAX_LINES = 8
_MAX_PREDICTIONS = 8
_MAX_NUMBERED = 12
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}
_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35
FRONT, BEATEN, OPEN = "not beaten", "beaten", "not distinguishable"
_STYLES = {
    FRONT: Key(FRONT, RUN_COLOURS[0], marker="o"),
    BEATEN: Key(BEATEN, "#9a9ca0", marker="o"),
    OPEN: Key(OPEN, MUTED, marker="o", is_hollow=True),
}
_UNITS_OF_POINTS: tuple[tuple[int, Unit], ...] = ((0, "s"), (1, "bytes"))
Interval = tuple[float, float]


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


def time_and_memory(systems: Systems) -> Drawing:
    """Draw time and memory of every configuration as bars."""
    members, selection = drawn_configurations(systems, systems.measured)
    time = MEASURES["mean_step_ms"] if any(member.is_probe for member in members) else MEASURES["train_s"]
    scale = scale_of(time.unit, [systems.amount(time, member).center for member in members])
    sizes = [
        systems.amount(measure, member).center
        for measure in named("peak_memory_largest_bytes", "peak_memory_sum_bytes")
        for member in members
    ]
    of_memory = scale_of("bytes", sizes)
    labels, notes = figure_labels(systems, members)

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

    memory = [
        layer(MEASURES["peak_memory_sum_bytes"], of_memory.size, _TOTAL, 0.62, _FAINT),
        layer(MEASURES["peak_memory_largest_bytes"], of_memory.size, _DEVICE, 0.36),
    ]
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
    caption = join_sentences(
        "Bars: mean over the runs of a configuration; whiskers: ± one standard deviation.", selection, notes
    )
    title = "Time and memory of all configurations"
    return Drawing("overview", title, caption, draw, height_of_rows(len(members)), whole=True, legend=legend)


@dataclass(frozen=True)
class Point:
    """A configuration in the Pareto figure: time and memory, and quality if all have it."""

    one: Configuration
    values: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    """95% confidence intervals of the values over runs; None for a single run."""
    state: str = OPEN
    """`FRONT`, `BEATEN` or `OPEN`."""


def pareto(systems: Systems) -> Iterator[Drawing]:
    """Yield a Pareto figure of time, memory and quality for each task."""

    def task_and_data(member: Configuration) -> str:
        run = member.runs[0]
        return f"{run.task} {run.data('test').fingerprint or run.data('validation').fingerprint}"

    by_task = grouped((task_and_data(member), member) for member in systems.measured)
    for number, members in enumerate(by_task.values()):
        found = pareto_points(systems, members)
        if len(found) > 1:
            yield _pareto(systems, found, "pareto" if number == 0 else f"pareto-{number}")


def pareto_points(systems: Systems, members: Sequence[Configuration]) -> list[Point]:
    """Return the comparable configurations with their states; quality counts where all have it.

    Two configurations are told apart in a value where their intervals do not overlap. One is not beaten if it is told
    apart from each other one by a better value. It is beaten if another one is as good in all means, and is told apart
    by a better value. Otherwise neither is known.
    """
    measures = [*named("train_s", "peak_memory_largest_bytes"), *([score(*systems.quality)] if systems.quality else [])]
    kept = [member for member in members if not member.is_probe and not systems.differing[member.label].refused]
    found = [(member, [systems.amount(measure, member) for measure in measures]) for member in kept]
    found = [(member, amounts) for member, amounts in found if None not in (amounts[0].center, amounts[1].center)]
    size = 3 if len(measures) == 3 and all(amounts[2].center is not None for _, amounts in found) else 2
    several = [
        Point(
            member,
            tuple(amount.center or 0.0 for amount in amounts[:size]),
            tuple(mean_interval([*amount.values.values()]) for amount in amounts[:size]),
        )
        for member, amounts in found
    ]
    signs = (1, 1, -1 if systems.quality and direction(systems.quality[1]) == "max" else 1)[:size]
    return [replace(point, state=_state(point, several, signs)) for point in several]


def _state(point: Point, several: Sequence[Point], signs: Sequence[int]) -> str:
    others = [other for other in several if other is not point]
    if all(_is_told_better(point, other, signs) for other in others):
        return FRONT
    beating = (
        other
        for other in others
        if all(sign * a <= sign * b for sign, a, b in zip(signs, other.values, point.values, strict=True))
        and _is_told_better(other, point, signs)
    )
    return BEATEN if any(beating) else OPEN


def _is_told_better(first: Point, second: Point, signs: Sequence[int]) -> bool:
    """Return whether an interval of the first one is on the better side of that of the second one."""
    return any(
        a is not None and b is not None and (a[1] < b[0] if sign > 0 else a[0] > b[1])
        for sign, a, b in zip(signs, first.intervals, second.intervals, strict=True)
    )


def _pareto(systems: Systems, found: Sequence[Point], key: str) -> Drawing:
    judged = systems.quality if len(found[0].values) == 3 else None
    ordered = sorted(found, key=lambda point: (point.state == BEATEN, point.values[0]))
    numbers = {id(point): f"{at}" for at, point in enumerate(ordered[:_MAX_NUMBERED], 1) if point.state != BEATEN}
    scales = [scale_of(unit, [point.values[at] for point in found]) for at, unit in _UNITS_OF_POINTS]
    sizes = (*(scale.size for scale in scales), 1.0)

    def text(point: Point) -> str:
        quality = f", {' '.join(judged)} {point.values[2]:.4f}" if judged else ""
        time = f"{scales[0].text(point.values[0])} {scales[0].unit}"
        return f"{point.one.label}: {time}, {point.values[1] / sizes[1]:.3g} {scales[1].unit}{quality}; {point.state}"

    def scaled(point: Point, at: int) -> Interval | None:
        ends = point.intervals[at]
        return ends and (ends[0] / sizes[at], ends[1] / sizes[at])

    def groups(at: int) -> Iterator[Points]:
        for state, style in _STYLES.items():
            members = [point for point in found if point.state == state]
            yield Points(
                [point.values[0] / sizes[0] for point in members], [point.values[at] / sizes[at] for point in members],
                style.colour, [*map(text, members)], [numbers.get(id(point), "") for point in members],
                [scaled(point, 0) for point in members], [scaled(point, at) for point in members],
                is_hollow=style.is_hollow,
            )  # fmt: skip

    time = scales[0].label("Training time")
    draws = [points([*groups(1)], xlabel=time, ylabel=scales[1].label("Peak memory per device"))]
    if judged is not None:
        label = f"{judged[0].capitalize()} {metric_name(judged[1])}"
        draws.append(points([*groups(2)], xlabel=time, ylabel=label))
    criteria = "time and memory" if judged is None else "time, memory and quality"
    names = [f"{numbers[id(point)]} {point.one.label}" for point in ordered if id(point) in numbers]
    num_left_out = len(systems.measured) - len(found)
    caption = join_sentences(
        f"{'; '.join(names)}." if names else "",
        f"Not beaten: told apart by its {criteria} from each other one. Beaten: another one is as good in all, and is "
        "told apart by one. Not distinguishable: neither is known, since 95% intervals of the means overlap (lines), "
        "or there is one run.",
        "" if judged else "The quality of some configurations is unknown.",
        f"Not drawn: {num_left_out} (probes, runs of another task, or runs with a difference that is not on an axis)."
        if num_left_out else "",
    )  # fmt: skip
    legend = tuple(style for state, style in _STYLES.items() if any(point.state == state for point in found))
    title = f"Pareto front of {criteria}: {found[0].one.runs[0].task}"
    return Drawing(key, title, caption, panels(*draws), 3.4, whole=True, legend=legend)
