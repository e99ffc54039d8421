"""Utilisation, throughput, noise scale and goodput over the steps of runs, with a line for each configuration.

All values are those of the events of rank 0: warm-up steps and steps under the profiler are left out. A line is the
mean over the runs of a configuration, a band goes from the smallest to the largest of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paratune import records
from paratune.errors import CheckpointError
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.reports.figures.canvas import Drawing, Hovers
from paratune.reports.figures.runs import draw_band, line_keys, line_style
from paratune.reports.runs.read import MAX_DRAWN_BYTES, RunRecord, events_bytes, number_in
from paratune.verdicts.rates import noise_kind

HEADING = "Speed and efficiency over the steps"
MAX_LINES = 8
NUM_BINS = 40
"""Points of a line at most; each covers the same number of steps."""
NOISE_WINDOW = 20
"""Sampled steps over which a noise scale is estimated."""
PANELS = ("utilisation", "throughput", "noise", "goodput")
_LABELS = {
    "utilisation": "Utilisation (%)",
    "throughput": "Throughput (samples/s)",
    "noise": "Noise scale (samples)",
    "goodput": "Goodput (samples/s)",
}


@dataclass(frozen=True)
class StepLine:
    """Measurements of the runs of a configuration over their steps."""

    label: str
    steps: tuple[float, ...]
    """Last step of each bin."""
    values: Mapping[str, tuple[tuple[float | None, ...], ...]]
    """Values by panel and run, one for each bin; None where unknown."""
    batch: float | None
    """Samples of a step."""
    owners: tuple[str, ...] = ()
    """Names of the configuration and of its runs."""

    def has_values(self, panel: str) -> bool:
        return any(value is not None for run in self.values[panel] for value in run)

    def band(self, panel: str) -> tuple[Any, Any, Any, Any]:
        """Return step, mean, smallest and largest value over the runs, for the bins with known values."""
        rows = []
        for at, step in enumerate(self.steps):
            known = [value for run in self.values[panel] if (value := run[at]) is not None]
            if known:
                rows.append((step, math.fsum(known) / len(known), min(known), max(known)))
        columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        return columns[0], columns[1], columns[2], columns[3]


def step_drawings(
    groups: Sequence[tuple[str, Sequence[RunRecord]]], reference_batch: float | None, selection: str = ""
) -> Iterator[Drawing]:
    """Yield the figure of the runs of each configuration under its name, if any of its values is known.

    Args:
        groups: Of which the first `MAX_LINES` are drawn.
        reference_batch: Samples of a step at which the statistical efficiency is 1.
        selection: Sentence about the drawn configurations, where not all are drawn.
    """
    if events_bytes(run for _, runs in groups for run in runs) > MAX_DRAWN_BYTES:
        return
    kind = noise_kind(run for _, runs in groups for run in runs)
    lines = [_line(label, runs, reference_batch, kind) for label, runs in groups[:MAX_LINES]]
    panels = [panel for panel in PANELS if any(line.has_values(panel) for line in lines)]
    if not selection and len(groups) > MAX_LINES:
        selection = f"The first {MAX_LINES} of {len(groups)} configurations."
    if panels:
        yield _drawing(lines, panels, reference_batch, kind, selection)


def _line(label: str, runs: Sequence[RunRecord], reference_batch: float | None, kind: NoiseKind = "plain") -> StepLine:
    events = [_events(run) for run in runs]
    last = max((int(event["step"]) for run_events in events for event in run_events), default=0)
    width = max(1, -(-last // NUM_BINS))
    num_bins = -(-last // width)
    values_by_run = [
        _run_values(run, _noise_samples(run_events, kind), width, num_bins, reference_batch)
        for run, run_events in zip(runs, events, strict=True)
    ]
    steps = tuple(float(min(last, (at + 1) * width)) for at in range(num_bins))
    values = {panel: tuple(tuple(run_values[panel]) for run_values in values_by_run) for panel in PANELS}
    owners = (label, *(run.name for run in runs))
    return StepLine(label, steps, values, runs[0].number("run.batch.global_batch_size"), owners)


def _events(run: RunRecord) -> list[dict[str, Any]]:
    """Return the measured steps and samples of rank 0; none when the events are damaged."""
    try:
        return [
            event
            for event in records.read_events(run.folder)
            if event["event"] in ("step", "sample")
            and type(event.get("step")) is int
            and not (event.get("warmup") or event.get("profiled"))
        ]
    except (CheckpointError, TypeError):
        return []


def _noise_samples(events: Sequence[dict[str, Any]], kind: NoiseKind) -> list[dict[str, Any]]:
    """Return events whose `noise_scale` is of this kind."""
    if kind == "plain":
        return list(events)
    return [
        {**event, "noise_scale": event["noise_scale"].get(kind)}
        if isinstance(event.get("noise_scale"), Mapping)
        else event
        for event in events
    ]


def _run_values(
    run: RunRecord, events: Sequence[Mapping[str, Any]], width: int, num_bins: int, reference_batch: float | None
) -> dict[str, list[float | None]]:
    batch = run.number("run.batch.global_batch_size")
    bins: list[list[Mapping[str, Any]]] = [[] for _ in range(num_bins)]
    for event in events:
        bins[min(num_bins - 1, max(0, event["step"] - 1) // width)].append(event)
    noise: list[Mapping[str, Any]] = []
    values: dict[str, list[float | None]] = {panel: [] for panel in PANELS}
    for members in bins:
        steps = [event for event in members if event["event"] == "step"]
        sampled = [event["noise_scale"] for event in steps if isinstance(event.get("noise_scale"), Mapping)]
        # The window includes earlier bins: one bin may have too few sampled steps for an estimate.
        noise = [*noise, *sampled][-NOISE_WINDOW:]
        rate = _rate(steps, batch)
        scale = _noise(noise) if steps else None
        values["utilisation"].append(_utilisation(members))
        values["throughput"].append(rate)
        values["noise"].append(scale)
        values["goodput"].append(_goodput(rate, scale, batch, reference_batch))
    return values


def _rate(steps: Sequence[Mapping[str, Any]], batch: float | None) -> float | None:
    """Return the samples of all ranks divided by the time of the steps."""
    times = [number_in(event.get("wall_ms")) for event in steps]
    total = math.fsum(time for time in times if time is not None)
    return None if batch is None or not times or None in times or total <= 0 else 1000 * batch * len(times) / total


def _utilisation(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean of samples, weighted by their time, in per cent."""
    pairs = [(number_in(event.get("utilisation")), number_in(event.get("seconds"))) for event in events]
    known = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
    total = math.fsum(seconds for _, seconds in known)
    return 100 * math.fsum(value * seconds for value, seconds in known) / total if total > 0 else None


def _noise(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Return tr(Sigma) / |G|^2 of the means over sampled steps; None where an estimate is not above 0."""
    pairs = [(number_in(sample.get("trace")), number_in(sample.get("squared_norm"))) for sample in samples]
    known = [(trace, norm) for trace, norm in pairs if trace is not None and norm is not None]
    trace, norm = (math.fsum(pair[at] for pair in known) for at in (0, 1))
    return trace / norm if trace > 0 and norm > 0 else None


def _goodput(
    rate: float | None, noise: float | None, batch: float | None, reference_batch: float | None
) -> float | None:
    """Return throughput times statistical efficiency, which is 1 at the reference batch for any noise scale."""
    if rate is None or batch is None or reference_batch is None:
        return None
    if batch == reference_batch:
        return rate
    return None if noise is None else rate * statistical_efficiency(noise, batch, reference_batch)


def _drawing(
    lines: Sequence[StepLine], panels: Sequence[str], reference_batch: float | None, kind: NoiseKind, selection: str
) -> Drawing:
    by_samples = len({line.batch for line in lines}) > 1 and all(line.batch for line in lines)
    num_rows = -(-len(panels) // 2)

    def draw(figure: Any, hovers: Hovers) -> None:
        axes = list(figure.subplots(num_rows, min(2, len(panels)), squeeze=False, sharex=True).flat)
        for panel, panel_axes in zip(panels, axes, strict=False):
            _panel(panel_axes, hovers, lines, panel, by_samples=by_samples)
        for spare in axes[len(panels) :]:
            spare.set_axis_off()
        for panel_axes in axes[max(0, len(panels) - 2) : len(panels)]:
            panel_axes.set_xlabel("Samples seen" if by_samples else "Optimizer step")
            panel_axes.tick_params(labelbottom=True)

    several = any(len(line.values["throughput"]) > 1 for line in lines)
    parts = [
        "Lines: means over bins of steps, without warm-up.",
        "Bands: smallest to largest value of the runs of a configuration." if several else "",
        f"Noise scale{' under AdamW' if kind == 'preconditioned' else ''}: over the last {NOISE_WINDOW} sampled steps."
        if "noise" in panels
        else "",
        f"Goodput: throughput times statistical efficiency, which is 100% at {reference_batch:,.0f} samples a step."
        if "goodput" in panels
        else "",
        "Utilisation: device of rank 0." if "utilisation" in panels else "",
        selection,
    ]
    keys = line_keys([line.label for line in lines], [line.owners for line in lines])
    title = f"Over the steps: {', '.join(_LABELS[panel].partition(' (')[0].lower() for panel in panels)}"
    caption = " ".join(filter(None, parts))
    return Drawing("over_steps", title, caption, draw, 0.4 + 2.3 * num_rows, whole=True, legend=keys)


def _panel(axes: Any, hovers: Hovers, lines: Sequence[StepLine], panel: str, *, by_samples: bool) -> None:
    for at, line in enumerate(lines):
        x, mean, low, high = line.band(panel)
        x = x * line.batch if by_samples and line.batch else x
        style = line_style(at) | ({"marker": "o", "markersize": 3.5} if len(x) == 1 else {})
        axes.plot(x, mean, linewidth=1.5, gid=hovers.part_of(*line.owners), **style)
        if len(line.values[panel]) > 1:
            draw_band(axes, hovers, x, low, high, style["color"], line.owners)
    axes.set_title(_LABELS[panel], fontsize=9.5, loc="left")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
