"""Figures of configurations and of runs: phases, predictions, values over the steps, scaling, time and memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from paratune import records
from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.base.units import counted, format_as, format_bytes, format_share
from paratune.errors import CheckpointError
from paratune.records import ALL_PHASES
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.records.finished import RunRecord, number_in
from paratune.reports.amounts import amount_text, decimals, scale_of
from paratune.reports.figures import plots
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.measures import MEASURES, PHASE_NAMES, STEP_PARTS, TOTAL_PARTS
from paratune.reports.systems.building import Scaling, scalings
from paratune.reports.systems.model import Systems, speed_up
from paratune.verdicts.judge import shared_split
from paratune.verdicts.scoring import CannotTell, read_rows
from paratune.verdicts.speeds import noise_kind

PHASE_COLOURS = {
    "get_batch": "#e3b23c", "forward": "#8cc0e6", "backward": "#4f8fc4", "optimizer": "#e08a7d", "other": "#b9b9b9"
}  # fmt: skip
Predictions = tuple[str, Any, Any]  # split, labels and predictions, (N,) float64 each
OVER_STEPS = "Loss, speed and efficiency over the steps"
MAX_LINES = 8  # of a figure
MAX_DRAWN_BYTES = 200_000_000  # largest size of the events of a figure: they are read in about ten seconds
NUM_BINS = 40  # points of a line at most; each covers the same number of steps
NOISE_WINDOW = 20  # sampled steps over which a noise scale is estimated: one bin may have too few
PANELS = {
    "loss": "Loss", "utilisation": "Utilisation (%)", "throughput": "Throughput (samples/s)",
    "noise": "Noise scale (samples)", "goodput": "Goodput (samples/s)",
}  # fmt: skip
_COLUMNS = ("step", "loss", "wall_ms", "utilisation", "seconds", "trace", "squared_norm")
Band = tuple[Any, Any, Any, Any]  # step, mean, and of several runs smallest and largest value
_RULES = {
    "strong": ("Strong scaling: constant total batch", "{:g} samples a step"),
    "weak": ("Weak scaling: constant batch per device", "{:g} samples a device"),
}
_TIME, _DEVICE, _TOTAL = RUN_COLOURS[0], RUN_COLOURS[2], MUTED
_FAINT = 0.35


def read_predictions(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation, without rows that have no finite label.

    The reason is returned where there are none to draw.
    """
    if (split := shared_split([run])) is None:
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
        bins = zip(counts, edges[:-1], edges[1:], strict=True)
        texts = [f"{count} rows from {first:.3g} to {below:.3g}" for count, first, below in bins]
        sides = (
            partial(plots.points, [plots.Points(labels, values)], diagonal=True, xlim=limit, ylim=limit, aspect="equal",
                    xlabel="Actual", ylabel="Predicted"),
            partial(plots.histogram, edges, [plots.Bars(counts, texts=texts)], marks={0.0: ""},
                    xlabel="Error (predicted - actual)", ylabel="Rows"),
        )  # fmt: skip
        num_shown = len(plots.thinned(labels)[0])
        shown = f"{num_shown:,} evenly spaced rows of " if num_shown < len(labels) else ""
        caption = (
            f"Predictions on {split}; points: {shown}{len(labels):,} rows; histogram: all rows. Dashed: predicted "
            f"equals actual. Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
        )
        key = "predictions" if len(predictions) == 1 else f"predictions-{number}"
        title = f"{run}: predicted against actual, and the histogram of errors"
        draw = partial(plots.panels, sides, width_ratios=(1, 1.15))
        yield Drawing(key, title, caption, draw, 3.3, whole=True)


@dataclass(frozen=True)
class StepLine:
    """Measurements of the runs of a configuration over their steps, from the events of rank 0; unknown values are NaN.

    Times are without warm-up and without steps under the profiler.
    """

    steps: Any  # (bins,) last step of each bin
    values: Mapping[str, Any]  # by panel, (runs, bins)
    batch: float | None  # samples of a step
    validation: Any  # losses at the steps of the evaluations that all runs have, a column for each run


def band(steps: Any, values: Any) -> Band:
    is_known = ~np.isnan(values).all(axis=0)
    steps, values = steps[is_known], values[:, is_known]
    ends = (np.nanmin(values, axis=0), np.nanmax(values, axis=0)) if len(values) > 1 else (None, None)
    return steps, np.nanmean(values, axis=0), *ends


def step_drawings(
    groups: Sequence[tuple[str, Sequence[RunRecord]]], reference_batch: float | None, selection: str = ""
) -> Iterator[Drawing]:
    """Yield for each task the figure of the first `MAX_LINES` configurations under their names, if a value is known.

    `reference_batch` has the samples of a step at which the statistical efficiency is 1; `selection` is a sentence
    about the drawn configurations.
    """
    by_task = grouped((runs[0].task, (label, runs)) for label, runs in groups if not runs[0].is_fitted)
    drawn = [run for members in by_task.values() for _, runs in members[:MAX_LINES] for run in runs]
    paths = (run.folder / records.events_file(0) for run in drawn)
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size > MAX_DRAWN_BYTES:
        limit = f"a figure is drawn of at most {format_bytes(MAX_DRAWN_BYTES)}; report fewer runs at once"
        note = f"{OVER_STEPS}: the event logs have {format_bytes(size)}, and {limit}."
        yield Drawing("over_steps", OVER_STEPS, "", partial(plots.bars, [], []), 0.0, note=note)
        return
    kind = noise_kind(run for _, runs in groups for run in runs)
    for number, (task, members) in enumerate(by_task.items(), start=1):
        found = {label: step_line(runs, reference_batch, kind) for label, runs in members[:MAX_LINES]}
        shown = [panel for panel in PANELS if any(not np.isnan(line.values[panel]).all() for line in found.values())]
        values = [line.values for line in found.values()]
        if all(np.array_equal(own["goodput"], own["throughput"], equal_nan=True) for own in values):
            shown = [panel for panel in shown if panel != "goodput"]  # the batch is that of the reference everywhere
        if not shown:
            continue
        batches = {line.batch for line in found.values()}
        by_samples = len(batches) > 1 and None not in batches
        draws = []
        for panel in shown:  # a line for each configuration, over the samples seen or over the steps
            series = []
            for at, (label, line) in enumerate(found.items()):
                scale = (line.batch or 1.0) if by_samples else 1.0
                x, mean, low, high = band(line.steps, line.values[panel])
                series.append(plots.Line(x * scale, mean, at, low, high, width=1.5))
                if panel == "loss" and len(line.validation):
                    x, mean, low, high = band(line.validation.index.to_numpy(), line.validation.to_numpy().T)
                    texts = [f"{label}: validation loss {y:.4f} at step {at:g}" for at, y in zip(x, mean, strict=True)]
                    series.append(plots.Line(x * scale, mean, at, low, high, texts, 0.7, 0.7))
            ylim: dict[str, Any] = {} if panel == "loss" else {"ylim": (0, None)}
            x_label = "Samples seen" if by_samples else "Optimizer step"
            draws.append(partial(plots.lines, series, title=PANELS[panel], xlim=(0, None), xlabel=x_label, **ylim))
        caption = ["Lines: means over bins of steps, of rank 0; times without warm-up. Points: validation loss."]
        if any(len(own["throughput"]) > 1 for own in values):
            caption.append("Bands: smallest to largest value of the runs of a configuration.")
        if "noise" in shown:
            under = " under AdamW" if kind == "preconditioned" else ""
            caption.append(f"Noise scale{under}: over the last {NOISE_WINDOW} sampled steps.")
        if "goodput" in shown:
            efficiency = f"statistical efficiency, which is 100% at {reference_batch:,.0f} samples a step"
            caption.append(f"Goodput: throughput times {efficiency}.")
        if selection or len(members) > MAX_LINES:
            caption.append(selection or f"The first {MAX_LINES} of {len(members)} configurations.")
        title = f"Over the steps: {', '.join(PANELS[panel].partition(' (')[0].lower() for panel in shown)}"
        key, title = ("over_steps", title) if len(by_task) == 1 else (f"over_steps-{number}", f"{task}: {title}")
        keys = tuple(Key(label, *plots.run_style(at)) for at, label in enumerate(found)) if len(found) > 1 else ()
        draw, height = partial(plots.panels, draws, share_x=True), 0.4 + 2.3 * -(-len(shown) // 2)
        yield Drawing(key, title, " ".join(caption), draw, height, whole=True, legend=keys)


def step_line(runs: Sequence[RunRecord], reference: float | None, kind: NoiseKind = "plain") -> StepLine:
    """Return the bins of the steps of runs with one global batch size."""
    import pandas as pd

    measured = [_measured(run, kind) for run in runs]
    last = int(max((table["step"].max() for table, _ in measured if len(table)), default=0))
    width = max(1, -(-last // NUM_BINS))
    num_bins = -(-last // width)
    batch = runs[0].run.batch.global_batch_size or math.nan
    values = np.full((len(PANELS), len(runs), num_bins), math.nan)
    for at, (table, _) in enumerate(measured):
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
        own = (table["loss"].groupby(bins).mean(), 100 * busy, rate, scale, rate * share)
        for row, found in zip(values[:, at], own, strict=True):
            row[:] = found.reindex(range(num_bins))
    ends = np.minimum(last, np.arange(1, num_bins + 1) * width).astype(np.float64)
    validation = pd.concat([losses for _, losses in measured], axis=1, join="inner").dropna().sort_index()
    return StepLine(ends, dict(zip(PANELS, values, strict=True)), runs[0].run.batch.global_batch_size, validation)


def _measured(run: RunRecord, kind: NoiseKind) -> tuple[Any, Any]:
    """Return a table of the steps and samples of rank 0, and the validation losses by step; empty for damaged events.

    Of warm-up steps and of steps under the profiler the table has the loss alone.
    """
    import pandas as pd

    rows: list[list[float | None]] = []
    losses: dict[float, float | None] = {}
    try:
        for event in records.read_events(run.folder):
            if event["event"] in ("step", "sample"):
                if event.get("warmup") or event.get("profiled"):
                    event = {key: event.get(key) for key in ("step", "loss")}
                sample = event.get("noise_scale")
                sample = sample.get(kind) if kind != "plain" and isinstance(sample, Mapping) else sample
                fields = {**event, **(sample if isinstance(sample, Mapping) else {})}
                rows.append([number_in(fields.get(key)) for key in _COLUMNS])
            elif event["event"] == "evaluation" and event.get("split") == "validation":
                at, scores = number_in(event.get("step")) or 0.0, event.get("scores")
                losses[at] = number_in(scores.get("loss")) if isinstance(scores, dict) else None
    except (CheckpointError, TypeError):
        rows, losses = [], {}
    table = pd.DataFrame(rows, columns=list(_COLUMNS), dtype=np.float64)
    return table[table["step"] > 0], pd.Series(losses, dtype=np.float64)


def phase_drawing(systems: Systems, *, per_step: bool = False) -> Drawing:
    """Draw a bar for each configuration, stacked from its phases: seconds of the run, or of a step if asked or for
    probes. A configuration of which a phase is unknown has no bar.
    """
    drawn, selection = systems.drawn()
    per_step = per_step or any(member.is_probe for member in drawn)
    parts, unit = (STEP_PARTS, "ms") if per_step else (TOTAL_PARTS, "s")
    centers = [[systems.amount(part, member).center for part in parts] for member in drawn]
    rows = [[] if None in row else [value or 0.0 for value in row] for row in centers]
    places, names = decimals([max(row) for row in rows if row]), [member.label for member in drawn]
    layers = []
    for at, phase in enumerate(ALL_PHASES):
        values = [row[at] if row else None for row in rows]
        numbers = [format_as(value, f",.{places}f") for value in values]
        shares = [format_share(row[at] / sum(row) if sum(row) else None) for row in rows]
        known = zip(names, numbers, shares, strict=True)
        texts = [f"{name}: {PHASE_NAMES[phase].lower()} {text} {unit} ({share})" for name, text, share in known]
        layers.append(plots.Bars(values, PHASE_COLOURS[phase], texts, alpha=1.0, numbers=numbers))
    about = "Seconds of a run by phase over all training steps: means over ranks and runs."
    label = "Time of all training steps of a run (s)"
    if per_step:
        about = "Mean measured step by phase, without warm-up; steps with different global batches do different work."
        label = "Time of a measured step (ms)"
    legend = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
    draw, height = partial(plots.bars, names, layers, stacked=True, xlabel=label), plots.height_of_rows(len(names))
    title, caption = "Time by phase and configuration", f"{about} {selection}".strip()
    return Drawing("phases", title, caption, draw, height, legend=legend)


def scaling_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield speed-up and efficiency over the devices, under each rule for the batch."""
    for rule, found in grouped((scaling.rule, scaling) for scaling in scalings(systems.measured)).items():
        (title, batch), longest = _RULES[rule], sorted(found, key=lambda scaling: -len(scaling.members))[:MAX_LINES]
        names = [", ".join(filter(None, [scaling.where, batch.format(scaling.batch)])) for scaling in longest]
        sizes = sorted({member.world_size for scaling in longest for member in scaling.members})
        left = [plots.Line(sizes, [size / sizes[0] for size in sizes], -1, width=0.9)]
        right = [plots.Line(sizes, [100.0 for _ in sizes], -1, width=0.9)]
        for position, (name, scaling) in enumerate(zip(names, longest, strict=True)):
            known = speed_ups(scaling, sizes[0])
            x = [size for size, _ in known]
            texts = [
                f"{name}: {size} devices, speed-up {mean:.2f}{f' [{low:.2f}, {high:.2f}]' if low < high else ''}, "
                f"efficiency {100 * mean * sizes[0] / size:.1f}%"
                for size, (mean, low, high) in known
            ]
            ups = [[ends[at] for _, ends in known] for at in range(3)]
            shares = [[100 * up * sizes[0] / size for size, up in zip(x, column, strict=True)] for column in ups]
            left.append(plots.Line(x, ups[0], position, ups[1], ups[2], texts))
            right.append(plots.Line(x, shares[0], position, shares[1], shares[2], texts))
        best = max(max(line.y, default=0.0) for line in right)
        axes = ((left, "Speed-up (samples/s, ×)", None), (right, "Efficiency (%)", 1.08 * best))
        sides = [
            partial(plots.lines, series, log=2, ticks=sizes, xlabel="Devices", ylabel=label, ylim=(0, end))
            for series, label, end in axes
        ]
        caption = (
            "Speed-up: samples/s divided by those of the smallest number of devices. Efficiency: speed-up divided by "
            "the increase in devices. Bands: 95% intervals over runs. Dashed: ideal; a line that starts with more "
            "devices is assumed ideal up to its start."
        )
        if len(found) > len(longest):
            caption += f" Drawn: {MAX_LINES} of {len(found)} lines."
        legend = (*(Key(name, *plots.run_style(at)) for at, name in enumerate(names)), Key("ideal", MUTED, (4, 3)))
        yield Drawing(f"scaling-{rule}", title, caption, partial(plots.panels, sides), 3.2, whole=True, legend=legend)


def speed_ups(scaling: Scaling, first: int) -> list[tuple[int, tuple[float, float, float]]]:
    """Return number of devices, and speed-up against `first` devices with its 95% interval, of each known member.

    The interval of one run is its value. A line that begins with more devices than `first` is taken to be ideal up to
    there.
    """
    base, found = scaling.members[0], []
    for member in scaling.members:
        up = speed_up(base, member, by=first / base.world_size)
        if up.center is not None:
            found.append((member.world_size, (up.center, *(up.interval or (up.center, up.center)))))
    return found


def time_and_memory(systems: Systems) -> Drawing:
    members, selection = systems.drawn()
    time = MEASURES["mean_step_ms"] if any(member.is_probe for member in members) else MEASURES["train_s"]
    device, total = MEASURES["peak_memory_largest_bytes"], MEASURES["peak_memory_sum_bytes"]
    scale = scale_of(time.unit, [systems.amount(time, member).center for member in members])
    sizes = [systems.amount(measure, member).center for measure in (device, total) for member in members]
    of_memory = scale_of("bytes", sizes)
    labels = [member.label for member in members]

    layers = []
    for measure, size, colour, thick, alpha in (
        (time, scale.size, _TIME, 0.62, 0.9),
        (total, of_memory.size, _TOTAL, 0.62, _FAINT),
        (device, of_memory.size, _DEVICE, 0.36, 0.9),
    ):
        amounts = [systems.amount(measure, member) for member in members]
        texts = []
        for member, amount in zip(members, amounts, strict=True):
            own = scale_of(measure.unit, [amount.center])
            value = f"{amount_text(amount, own)} {own.unit}".strip()
            texts.append(f"{member.label}: {measure.label.lower()} {value} ({counted(len(amount.values), 'run')})")
        values = [None if amount.center is None else amount.center / size for amount in amounts]
        deviations = [(amount.deviation or 0.0) / size for amount in amounts]
        layers.append(plots.Bars(values, colour, texts, alpha, thick, deviations))
    sides = (
        partial(plots.bars, labels, layers[:1], xlabel=scale.label(time.label)),
        partial(plots.bars, labels, layers[1:], xlabel=of_memory.label("Peak memory")),
    )
    legend = (
        Key(scale.label(time.label), _TIME, is_area=True),
        Key("Memory of the largest device", _DEVICE, is_area=True),
        Key("Memory of all devices", _TOTAL, is_area=True, alpha=_FAINT),
    )
    caption = f"Bars: mean over the runs of a configuration; whiskers: ± one standard deviation. {selection}".strip()
    title, draw = "Time and memory of all configurations", partial(plots.panels, sides, share_y=True)
    return Drawing("overview", title, caption, draw, plots.height_of_rows(len(members)), whole=True, legend=legend)
