"""Utilisation, throughput, noise scale and goodput over the steps of runs, with a line for each configuration.

All values are those of the events of rank 0: warm-up steps and steps under the profiler are left out. A line is the
mean over the runs of a configuration, a band goes from the smallest to the largest of them. Unknown values are NaN.
"""

import math
from collections import deque
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
from paratune.verdicts.rates import noise_kind

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


@dataclass(frozen=True)
class StepLine:
    """Measurements of the runs of a configuration over their steps."""

    label: str
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
    found = [step_line(label, runs, reference_batch, kind) for label, runs in groups[:MAX_LINES]]
    shown = [panel for panel in PANELS if any(len(line.band(panel)[0]) for line in found)]
    if all(np.array_equal(line.values["goodput"], line.values["throughput"], equal_nan=True) for line in found):
        shown = [panel for panel in shown if panel != "goodput"]  # the batch is that of the reference everywhere
    if not shown:
        return
    by_samples = len({line.batch for line in found}) > 1 and all(line.batch for line in found)

    def line_of(panel: str, position: int, line: StepLine) -> Line:
        x, mean, low, high = line.band(panel)
        return Line(x * line.batch if by_samples else x, mean, position, low, high, width=1.5)

    draws = [
        lines([line_of(panel, at, line) for at, line in enumerate(found)], title=PANELS[panel], xlim=(0, None),
              ylim=(0, None), xlabel="Samples seen" if by_samples else "Optimizer step")
        for panel in shown
    ]  # fmt: skip
    caption = ["Lines: means over bins of steps, without warm-up."]
    if any(len(line.values["throughput"]) > 1 for line in found):
        caption.append("Bands: smallest to largest value of the runs of a configuration.")
    if "noise" in shown:
        under = " under AdamW" if kind == "preconditioned" else ""
        caption.append(f"Noise scale{under}: over the last {NOISE_WINDOW} sampled steps.")
    if "goodput" in shown:
        efficiency = f"statistical efficiency, which is 100% at {reference_batch:,.0f} samples a step"
        caption.append(f"Goodput: throughput times {efficiency}.")
    if "utilisation" in shown:
        caption.append("Utilisation: device of rank 0.")
    if selection or len(groups) > MAX_LINES:
        caption.append(selection or f"The first {MAX_LINES} of {len(groups)} configurations.")
    title = f"Over the steps: {', '.join(PANELS[panel].partition(' (')[0].lower() for panel in shown)}"
    draw, height = panels(*draws, share_x=True), 0.4 + 2.3 * -(-len(shown) // 2)
    legend = line_keys([line.label for line in found])
    yield Drawing("over_steps", title, " ".join(caption), draw, height, whole=True, legend=legend)


def step_line(label: str, runs: Sequence[RunRecord], reference: float | None, kind: NoiseKind = "plain") -> StepLine:
    """Return the bins of the steps of runs with one global batch size."""
    events = [_events(run) for run in runs]
    last = max((event["step"] for of_run in events for event in of_run), default=0)
    width = max(1, -(-last // NUM_BINS))
    num_bins = -(-last // width)
    batch = runs[0].run.batch.global_batch_size
    values = np.full((len(PANELS), len(runs), num_bins), math.nan)
    for at, of_run in enumerate(events):
        bins: list[list[Mapping[str, Any]]] = [[] for _ in range(num_bins)]
        for event in of_run:
            bins[(event["step"] - 1) // width].append(event)
        noise: deque[tuple[float, float]] = deque(maxlen=NOISE_WINDOW)
        for number, members in enumerate(bins):
            pairs = [(_number(event, "utilisation"), _number(event, "seconds")) for event in members]
            known = [(value * seconds, seconds) for value, seconds in pairs if math.isfinite(value) and seconds > 0]
            busy_s, seconds = np.reshape(known, (-1, 2)).sum(axis=0)
            steps = [event for event in members if event["event"] == "step"]
            total_s = math.fsum(_number(event, "wall_ms") for event in steps) / 1000
            rate = batch * len(steps) / total_s if batch is not None and total_s > 0 else math.nan
            noise += [pair for event in steps for pair in _noise_of(event, kind)]
            # tr(Sigma) / |G|^2 of the means over sampled steps; unknown where an estimate is not above 0.
            trace, norm = np.reshape(noise, (-1, 2)).sum(axis=0)
            scale = trace / norm if steps and trace > 0 and norm > 0 else math.nan
            share = 1.0 if batch == reference else math.nan
            if batch is not None and reference is not None and batch != reference:
                share = statistical_efficiency(scale, batch, reference)
            used = 100 * busy_s / seconds if known else math.nan
            values[:, at, number] = used, rate, scale, rate * share
    ends = np.minimum(last, np.arange(1, num_bins + 1) * width).astype(np.float64)
    return StepLine(label, ends, dict(zip(PANELS, values, strict=True)), batch)


def _events(run: RunRecord) -> list[dict[str, Any]]:
    """Return the measured steps and samples of rank 0; none when the events are damaged."""
    try:
        return [
            event
            for event in records.read_events(run.folder)
            if event["event"] in ("step", "sample")
            and type(event.get("step")) is int
            and event["step"] > 0
            and not (event.get("warmup") or event.get("profiled"))
        ]
    except (CheckpointError, TypeError):
        return []


def _noise_of(event: Mapping[str, Any], kind: NoiseKind) -> Iterator[tuple[float, float]]:
    """Yield trace and squared norm of a sampled step."""
    sample = event.get("noise_scale")
    sample = sample.get(kind) if kind != "plain" and isinstance(sample, Mapping) else sample
    if isinstance(sample, Mapping):
        pair = _number(sample, "trace"), _number(sample, "squared_norm")
        yield from [pair] if math.isfinite(sum(pair)) else []


def _number(event: Mapping[str, Any], key: str) -> float:
    number = number_in(event.get(key))
    return math.nan if number is None else number
