"""Utilisation, throughput, noise scale and goodput over the steps of runs, with a line for each configuration.

All values are those of the events of rank 0: warm-up steps and steps under the profiler are left out. A line is the
mean over the runs of a configuration, a band goes from the smallest to the largest of them. Unknown values are NaN.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paratune import records
from paratune.errors import CheckpointError
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.records.finished import RunRecord, number_in
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.plots import Line, line_keys, lines, panels
from paratune.reports.runs.read import MAX_DRAWN_BYTES, events_bytes
from paratune.verdicts.speeds import noise_kind

HEADING = "Speed and efficiency over the steps"
MAX_LINES = 8
NUM_BINS = 40
"""Points of a line at most; each covers the same number of steps."""
NOISE_WINDOW = 20
"""Sampled steps over which a noise scale is estimated: one bin may have too few."""
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
