"""Utilisation, throughput, noise scale and goodput over the steps of runs, with a line for each configuration.

All values are those of the events of rank 0: warm-up steps and steps under the profiler are left out. A line is the
mean over the runs of a configuration, a band goes from the smallest to the largest of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
"""Sampled steps over which a noise scale is estimated."""
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
    steps: tuple[float, ...]
    """Last step of each bin."""
    values: Mapping[str, tuple[tuple[float | None, ...], ...]]
    """Values by panel and run, one for each bin; None where unknown."""
    batch: float | None
    """Samples of a step."""

    def band(self, panel: str) -> tuple[list[float], list[float], list[float], list[float]]:
        """Return step, mean, smallest and largest value over the runs, for the bins with known values."""
        rows = []
        for at, step in enumerate(self.steps):
            known = [value for run in self.values[panel] if (value := run[at]) is not None]
            if known:
                rows.append((step, math.fsum(known) / len(known), min(known), max(known)))
        x, mean, low, high = ([row[at] for row in rows] for at in range(4))
        return x, mean, low, high


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
    found = [_line(label, runs, reference_batch, kind) for label, runs in groups[:MAX_LINES]]
    shown = [panel for panel in PANELS if any(line.band(panel)[0] for line in found)]
    if all(line.values["goodput"] == line.values["throughput"] for line in found):
        shown = [panel for panel in shown if panel != "goodput"]  # the batch is that of the reference everywhere
    if not selection and len(groups) > MAX_LINES:
        selection = f"The first {MAX_LINES} of {len(groups)} configurations."
    if shown:
        yield _drawing(found, shown, reference_batch, kind, selection)


def _line(label: str, runs: Sequence[RunRecord], reference_batch: float | None, kind: NoiseKind = "plain") -> StepLine:
    events = [_events(run) for run in runs]
    last = max((int(event["step"]) for run_events in events for event in run_events), default=0)
    width = max(1, -(-last // NUM_BINS))
    num_bins = -(-last // width)
    values: dict[str, list[tuple[float | None, ...]]] = {panel: [] for panel in PANELS}
    for run, run_events in zip(runs, events, strict=True):
        bins: list[list[Mapping[str, Any]]] = [[] for _ in range(num_bins)]
        for event in run_events:
            bins[min(num_bins - 1, max(0, event["step"] - 1) // width)].append(event)
        rows = list(_bin_values(run.run.batch.global_batch_size, bins, reference_batch, kind))
        for at, panel in enumerate(PANELS):
            values[panel].append(tuple(row[at] for row in rows))
    steps = tuple(float(min(last, (at + 1) * width)) for at in range(num_bins))
    by_panel = {panel: tuple(of_runs) for panel, of_runs in values.items()}
    return StepLine(label, steps, by_panel, runs[0].run.batch.global_batch_size)


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


def _bin_values(
    batch: float | None, bins: Sequence[Sequence[Mapping[str, Any]]], reference_batch: float | None, kind: NoiseKind
) -> Iterator[tuple[float | None, ...]]:
    """Yield utilisation (%), samples/s, noise scale and goodput of each bin, in the order of `PANELS`."""
    noise: list[Mapping[str, Any]] = []
    for members in bins:
        steps = [event for event in members if event["event"] == "step"]
        found = [event["noise_scale"] for event in steps if isinstance(event.get("noise_scale"), Mapping)]
        sampled = found if kind == "plain" else [each[kind] for each in found if isinstance(each.get(kind), Mapping)]
        # The window includes earlier bins: one bin may have too few sampled steps for an estimate.
        noise = [*noise, *sampled][-NOISE_WINDOW:]
        times = [number_in(event.get("wall_ms")) for event in steps]
        total = math.fsum(time for time in times if time is not None)
        is_known = batch is not None and times and None not in times and total > 0
        rate = 1000 * batch * len(times) / total if batch is not None and is_known else None
        # tr(Sigma) / |G|^2 of the means over sampled steps; unknown where an estimate is not above 0.
        trace, norm = _sums(noise, "trace", "squared_norm")
        scale = trace / norm if steps and trace > 0 and norm > 0 else None
        goodput = rate if batch == reference_batch else None
        if None not in (rate, scale, batch, reference_batch) and batch != reference_batch:
            goodput = rate * statistical_efficiency(scale, batch, reference_batch)  # type: ignore[operator, arg-type]
        pairs = [(number_in(event.get("utilisation")), number_in(event.get("seconds"))) for event in members]
        known = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
        seconds = math.fsum(seconds for _, seconds in known)
        weighted = math.fsum(value * seconds for value, seconds in known)
        yield 100 * weighted / seconds if seconds > 0 else None, rate, scale, goodput


def _sums(samples: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    """Return the sum of each number over the samples that have all of them."""
    rows = [[number_in(sample.get(key)) for key in keys] for sample in samples]
    known = [row for row in rows if None not in row]
    return [math.fsum(row[at] or 0.0 for row in known) for at in range(len(keys))]


def _drawing(
    found: Sequence[StepLine], shown: Sequence[str], reference_batch: float | None, kind: NoiseKind, selection: str
) -> Drawing:
    by_samples = len({line.batch for line in found}) > 1 and all(line.batch for line in found)

    def series(panel: str) -> Iterator[Line]:
        for position, line in enumerate(found):
            x, mean, low, high = line.band(panel)
            x = [step * line.batch for step in x] if by_samples and line.batch else x
            is_band = len(line.values[panel]) > 1
            yield Line(x, mean, position, low if is_band else None, high if is_band else None, width=1.5)

    draws = [
        lines([*series(panel)], title=PANELS[panel], xlabel="Samples seen" if by_samples else "Optimizer step",
              xlim=(0, None), ylim=(0, None))
        for panel in shown
    ]  # fmt: skip
    several = any(len(line.values["throughput"]) > 1 for line in found)
    parts = [
        "Lines: means over bins of steps, without warm-up.",
        "Bands: smallest to largest value of the runs of a configuration." if several else "",
        f"Noise scale{' under AdamW' if kind == 'preconditioned' else ''}: over the last {NOISE_WINDOW} sampled steps."
        if "noise" in shown
        else "",
        f"Goodput: throughput times statistical efficiency, which is 100% at {reference_batch:,.0f} samples a step."
        if "goodput" in shown
        else "",
        "Utilisation: device of rank 0." if "utilisation" in shown else "",
        selection,
    ]
    title = f"Over the steps: {', '.join(PANELS[panel].partition(' (')[0].lower() for panel in shown)}"
    height = 0.4 + 2.3 * -(-len(shown) // 2)
    legend = line_keys([line.label for line in found])
    caption = " ".join(filter(None, parts))
    return Drawing("over_steps", title, caption, panels(*draws, share_x=True), height, whole=True, legend=legend)
