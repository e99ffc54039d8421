"""Figures of runs and of configurations: losses, phases, predictions, values over the steps, scaling, time and memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paratune import records
from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import counted, format_as, format_share
from paratune.errors import CheckpointError
from paratune.records import ALL_PHASES
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.records.finished import Curve, RunRecord, number_in, with_curves
from paratune.reports.amounts import amount_text, decimals, scale_of
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import (
    Bars,
    Line,
    Points,
    bars,
    height_of_rows,
    histogram,
    line_keys,
    lines,
    panels,
    points,
    run_style,
    thinned,
)
from paratune.reports.measures import MEASURES, PHASE_NAMES, STEP_PARTS, TOTAL_PARTS, Measure
from paratune.reports.runs.read import MAX_DRAWN_BYTES, events_bytes
from paratune.reports.systems.building import Scaling, scaling_efficiency, scalings
from paratune.reports.systems.model import Systems
from paratune.reports.text import shorten
from paratune.verdicts.rates import noise_kind
from paratune.verdicts.scoring import CannotTell, read_rows

PHASE_COLOURS = {
    "get_batch": "#e3b23c", "forward": "#8cc0e6", "backward": "#4f8fc4", "optimizer": "#e08a7d", "other": "#b9b9b9"
}  # fmt: skip
Predictions = tuple[str, Any, Any]  # split, labels and predictions, (N,) float64 each


def losses(
    key: str, title: str, runs_by_line: Mapping[str, Sequence[RunRecord]], positions: Sequence[int], notes: str = ""
) -> Drawing:
    """Draw the running mean of the training loss and, as points, the validation loss.

    Of a line of several runs the mean is drawn, and a band from the smallest to the largest value. `positions` are
    those of the colour and dashes of each line; `notes` are sentences after the caption.
    """
    runs = [run for members in runs_by_line.values() for run in members]
    windows = sorted({window_size(run) for run in runs})
    by_epoch = len({run.run.batch.global_batch_size for run in runs}) > 1
    means = f"running mean of the training loss over the last {', '.join(map(str, windows))} steps"
    caption = (
        f"Lines: {means if windows != [1] else 'training loss of each step'}. Points: validation loss."
        + (" Bands and bars: smallest to largest of the runs of a line." if len(runs) > len(runs_by_line) else "")
        + (" Where lines coincide, the earlier one is wider." if len(runs_by_line) > 1 else "")
        + (f" {notes}" if notes else "")
    )
    series: list[Line] = []
    for number, ((label, members), position) in enumerate(zip(runs_by_line.items(), positions, strict=True)):
        window = min(map(window_size, members))
        x, mean, low, high = loss_band([run.train for run in members], by_epoch=by_epoch, window=window)
        if len(x) > 1:
            width = 1.4 + 1.8 * (len(runs_by_line) - 1 - number) / max(1, len(runs_by_line) - 1)
            series.append(Line(x, mean, position, low, high, width=width))
        x, mean, low, high = loss_band([run.validation for run in members], by_epoch=by_epoch)
        texts = [
            f"{label}: validation loss {loss:.4f}"
            + (f" ({low[number]:.4f} to {high[number]:.4f} over {len(members)} runs)" if len(members) > 1 else "")
            + f" at {'epoch' if by_epoch else 'step'} {at:g}"
            for number, (at, loss) in enumerate(zip(x, mean, strict=True))
        ]
        series.append(Line(x, mean, position, low, high, texts, 0.7, 0.7))
    draw = lines(series, xlabel="Epoch" if by_epoch else "Optimizer step", ylabel="Loss", xlim=(0, None))
    keys = tuple(Key(label, *run_style(at)) for label, at in zip(runs_by_line, positions, strict=True))
    return Drawing(key, title, caption, draw, 3.5, legend=() if [*positions] == [0] else keys)


def loss_band(curves: Sequence[Curve], *, by_epoch: bool, window: int = 1) -> tuple[Any, Any, Any, Any]:
    """Return steps or epochs that all runs have, and mean, and of several runs smallest and largest loss there, (N,).

    The losses of each run are running means over `window` steps.
    """
    import pandas as pd

    columns = []
    for curve in curves:
        places = np.array(curve.epochs if by_epoch else curve.steps, dtype=np.float64)
        losses = pd.Series(np.array(curve.losses, dtype=np.float64), places)
        losses = losses[np.isfinite(places) & np.isfinite(losses)]
        # A sum and a difference would lose digits after a very large value.
        means = losses if window == 1 else losses.rolling(window, min_periods=1).mean()
        columns.append(means[~means.index.duplicated(keep="last")])
    table = pd.concat(columns, axis=1, join="inner").sort_index()
    ends = (table.min(axis=1), table.max(axis=1)) if len(curves) > 1 else (None, None)
    return table.index.to_numpy(), *(None if end is None else end.to_numpy() for end in (table.mean(axis=1), *ends))


def window_size(run: RunRecord) -> int:
    """Return the number of steps in the running mean of the training loss."""
    return max(1, len(run.train.steps) // 25)


def phase_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the mean step of each run as a bar of its phases."""
    rows = [[measure.of(run) for measure in STEP_PARTS] for run in runs]
    caption = "Mean step by phase, over measured steps and all ranks. The table of results has the values."
    title, names = f"Phases of a step: {names_of(runs)}", [run.name for run in runs]
    return phases("phases", title, caption, names, rows, "Mean time of a measured step (ms)")


def phases(
    key: str, title: str, caption: str, names: Sequence[str], rows: Sequence[Sequence[float | None]], label: str
) -> Drawing:
    """Draw a bar for each name, stacked from the times of its phases in the order of `ALL_PHASES`.

    `label` is the label of the axis; it ends in the unit in brackets. A name of which a phase is unknown has no bar.
    """
    unit = label.rpartition("(")[2].rstrip(")")
    known = [[] if None in row else [part or 0.0 for part in row] for row in rows]
    places = decimals([max(parts) for parts in known if parts])
    layers = []
    for number, phase in enumerate(ALL_PHASES):
        values = [parts[number] if parts else None for parts in known]
        numbers = [format_as(value, f",.{places}f") for value in values]
        shares = [format_share(parts[number] / sum(parts) if sum(parts) else None) for parts in known]
        texts = [
            f"{name}: {PHASE_NAMES[phase].lower()} {text} {unit} ({share})"
            for name, text, share in zip(names, numbers, shares, strict=True)
        ]
        layers.append(Bars(values, PHASE_COLOURS[phase], texts, alpha=1.0, numbers=numbers))
    legend = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
    draw = bars(names, layers, stacked=True, xlabel=label)
    return Drawing(key, title, caption, draw, height_of_rows(len(names)), legend=legend)


def read_predictions(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation, without rows that have no finite label.

    The reason is returned where there are none to draw.
    """
    split = next((split for split in ("test", "validation") if run.summary.scores.get(split)), None)
    if split is None:
        return f"No figure: {run.name} has no scores on test or validation."
    try:
        rows = read_rows(run, split)
        labels, values = (np.asarray(rows[name], dtype=np.float64) for name in ("label", "prediction"))
    except (CannotTell, TypeError, ValueError) as error:
        return f"No figure: {plain(error)}."
    known = np.isfinite(labels) & np.isfinite(values)
    return (split, labels[known], values[known]) if known.any() else f"No figure: {run.name} has no row with a label."


def prediction_figures(predictions: Mapping[str, Predictions]) -> Iterator[Drawing]:
    """Yield predicted over actual values and a histogram of the errors of each run, by its name; axes are the same."""
    arrays = [array for _, *pair in predictions.values() for array in pair]
    low, high = (min(map(np.min, arrays)), max(map(np.max, arrays))) if arrays else (0.0, 1.0)
    pad = 0.04 * (high - low) or 0.5
    limit = (low - pad, high + pad)
    for number, (run, (split, labels, values)) in enumerate(predictions.items(), start=1):
        errors = values - labels
        # By the Freedman-Diaconis rule, between 8 and 40.
        width = 2 * np.subtract(*np.percentile(errors, [75, 25])) / len(errors) ** (1 / 3)
        counts, edges = np.histogram(errors, bins=int(np.clip(np.ptp(errors) / width, 8, 40)) if width > 0 else 8)
        texts = [
            f"{count} rows from {first:.3g} to {below:.3g}"
            for count, first, below in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
        draw = panels(
            points([Points(labels, values)], diagonal=True, xlim=limit, ylim=limit,
                   aspect="equal", xlabel="Actual", ylabel="Predicted"),
            histogram(edges, [Bars(counts, texts=texts)], marks={0.0: ""}, xlabel="Error (predicted - actual)",
                      ylabel="Rows"),
            width_ratios=(1, 1.15),
        )  # fmt: skip
        num_shown = len(thinned(labels)[0])
        shown = f"{num_shown:,} evenly spaced rows of " if num_shown < len(labels) else ""
        caption = (
            f"Predictions on {split}; points: {shown}{len(labels):,} rows; histogram: all rows. Dashed: predicted "
            f"equals actual. Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
        )
        key = "predictions" if len(predictions) == 1 else f"predictions-{number}"
        title = f"{run}: predicted against actual, and the histogram of errors"
        yield Drawing(key, title, caption, draw, 3.3, whole=True)


def names_of(runs: Sequence[RunRecord]) -> str:
    """Return the names for a title; only the first of many, since the figure shows all of them."""
    return listing([shorten(run.name, 60) for run in runs], 6)


OVER_STEPS = "Speed and efficiency over the steps"
NUM_BINS = 40  # points of a line at most; each covers the same number of steps
NOISE_WINDOW = 20  # sampled steps over which a noise scale is estimated: one bin may have too few
PANELS = {
    "utilisation": "Utilisation (%)",
    "throughput": "Throughput (samples/s)",
    "noise": "Noise scale (samples)",
    "goodput": "Goodput (samples/s)",
}
_COLUMNS = ("step", "wall_ms", "utilisation", "seconds", "trace", "squared_norm")


@dataclass(frozen=True)
class StepLine:
    """Measurements of the runs of a configuration over their steps."""

    steps: Any  # (bins,) last step of each bin
    values: Mapping[str, Any]  # by panel, (runs, bins)
    batch: float | None  # samples of a step

    def band(self, panel: str) -> tuple[Any, Any, Any, Any]:
        """Return step, mean, and of several runs smallest and largest value, for the bins with known values."""
        is_known = ~np.isnan(self.values[panel]).all(axis=0)
        known = self.values[panel][:, is_known]
        ends = (np.nanmin(known, axis=0), np.nanmax(known, axis=0)) if len(known) > 1 else (None, None)
        return self.steps[is_known], np.nanmean(known, axis=0), *ends


def step_drawings(
    groups: Sequence[tuple[str, Sequence[RunRecord]]], reference_batch: float | None, selection: str = ""
) -> Iterator[Drawing]:
    """Yield the figure of the runs of the first `MAX_LINES` configurations under their names, if a value is known.

    `reference_batch` has the samples of a step at which the statistical efficiency is 1; `selection` is a sentence
    about the drawn configurations.
    """
    if events_bytes(run for _, runs in groups for run in runs) > MAX_DRAWN_BYTES:
        return
    kind = noise_kind(run for _, runs in groups for run in runs)
    found = [step_line(runs, reference_batch, kind) for _, runs in groups[:MAX_LINES]]
    shown = [panel for panel in PANELS if any(len(line.band(panel)[0]) for line in found)]
    if all(np.array_equal(line.values["goodput"], line.values["throughput"], equal_nan=True) for line in found):
        shown = [panel for panel in shown if panel != "goodput"]  # the batch is that of the reference everywhere
    if not shown:
        return
    by_samples = len({line.batch for line in found}) > 1 and all(line.batch for line in found)
    draws = []
    for panel in shown:
        series = []
        for at, line in enumerate(found):
            x, mean, low, high = line.band(panel)
            series.append(Line(x * line.batch if by_samples else x, mean, at, low, high, width=1.5))
        x_label = "Samples seen" if by_samples else "Optimizer step"
        draws.append(lines(series, title=PANELS[panel], xlim=(0, None), ylim=(0, None), xlabel=x_label))
    caption = ["Lines: means over bins of steps, without warm-up; of rank 0."]
    if any(len(line.values["throughput"]) > 1 for line in found):
        caption.append("Bands: smallest to largest value of the runs of a configuration.")
    if "noise" in shown:
        under = " under AdamW" if kind == "preconditioned" else ""
        caption.append(f"Noise scale{under}: over the last {NOISE_WINDOW} sampled steps.")
    if "goodput" in shown:
        efficiency = f"statistical efficiency, which is 100% at {reference_batch:,.0f} samples a step"
        caption.append(f"Goodput: throughput times {efficiency}.")
    if selection or len(groups) > MAX_LINES:
        caption.append(selection or f"The first {MAX_LINES} of {len(groups)} configurations.")
    title = f"Over the steps: {', '.join(PANELS[panel].partition(' (')[0].lower() for panel in shown)}"
    draw, height = panels(*draws, share_x=True), 0.4 + 2.3 * -(-len(shown) // 2)
    legend = line_keys([label for label, _ in groups[:MAX_LINES]])
    yield Drawing("over_steps", title, " ".join(caption), draw, height, whole=True, legend=legend)


def step_line(runs: Sequence[RunRecord], reference: float | None, kind: NoiseKind = "plain") -> StepLine:
    """Return the bins of the steps of runs with one global batch size."""
    tables = [_measured(run, kind) for run in runs]
    last = int(max((table["step"].max() for table in tables if len(table)), default=0))
    width = max(1, -(-last // NUM_BINS))
    num_bins = -(-last // width)
    batch = runs[0].run.batch.global_batch_size or math.nan
    values = np.full((len(PANELS), len(runs), num_bins), math.nan)
    for at, table in enumerate(tables):
        bins = (table["step"] - 1) // width
        used = table[["utilisation", "seconds"]].dropna()
        busy = used.prod(axis=1).groupby(bins).sum() / used["seconds"].groupby(bins).sum()
        rate = 1000 * batch / table["wall_ms"].groupby(bins).mean()
        sampled = table[["trace", "squared_norm"]].dropna()
        # tr(Sigma) / |G|^2 of the means over sampled steps; unknown where an estimate is not above 0.
        sums = sampled.rolling(NOISE_WINDOW, min_periods=1).sum().groupby(bins).last()
        sums = sums.reindex(range(num_bins)).ffill().where(rate.reindex(range(num_bins)).notna())
        scale = sums["trace"].where(sums["trace"] > 0) / sums["squared_norm"].where(sums["squared_norm"] > 0)
        share = 1.0 if batch == reference else statistical_efficiency(scale, batch, reference or math.nan)
        for row, found in zip(values[:, at], (100 * busy, rate, scale, rate * share), strict=True):
            row[:] = found.reindex(range(num_bins))
    ends = np.minimum(last, np.arange(1, num_bins + 1) * width).astype(np.float64)
    return StepLine(ends, dict(zip(PANELS, values, strict=True)), runs[0].run.batch.global_batch_size)


def _measured(run: RunRecord, kind: NoiseKind) -> Any:
    """Return a table of the measured steps and samples of rank 0; without lines when the events are damaged."""
    import pandas as pd

    rows = []
    try:
        for event in records.read_events(run.folder):
            if event["event"] in ("step", "sample") and not (event.get("warmup") or event.get("profiled")):
                sample = event.get("noise_scale")
                sample = sample.get(kind) if kind != "plain" and isinstance(sample, Mapping) else sample
                fields = {**event, **(sample if isinstance(sample, Mapping) else {})}
                rows.append([number_in(fields.get(key)) for key in _COLUMNS])
    except (CheckpointError, TypeError):
        rows = []
    table = pd.DataFrame(rows, columns=list(_COLUMNS), dtype=np.float64)
    return table[table["step"] > 0]


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
