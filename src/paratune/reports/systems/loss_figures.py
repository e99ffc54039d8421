"""Loss curves with a line for each configuration: the mean over its seeds, with a band over them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune import records
from paratune.errors import CheckpointError
from paratune.reports.figures.canvas import Drawing, Hovers, Key
from paratune.reports.figures.runs import curve_points, loss_caption, run_style, running_mean, thinned, window_size
from paratune.reports.runs.read import Curve, RunRecord, with_curves
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, join_sentences
from paratune.reports.systems.model import Systems

MAX_LINES = 8
_MAX_BYTES = 40_000_000
"""Largest size of the events of a figure; larger matrices have no figure."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LossBand:
    """A curve of several runs of a configuration, at the steps that all of them have."""

    x: Floats
    """(N,), steps or epochs."""
    mean: Floats
    """(N,)."""
    low: Floats
    """(N,), smallest value of the runs."""
    high: Floats


def loss_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the loss curves of the configurations that are no probes, one figure for each task."""
    by_task: dict[str, list[Configuration]] = {}
    for member in systems.measured:
        if member.scored and not member.scored[0].is_baseline:
            by_task.setdefault(member.runs[0].task, []).append(member)
    for number, members in enumerate(by_task.values()):
        few, selection = drawn_configurations(systems, members, MAX_LINES)
        curves = _curves(few)
        if curves:
            title = "Loss curves" if len(by_task) == 1 else f"Loss curves: {members[0].runs[0].task}"
            yield _drawing("loss" if number == 0 else f"loss-{number}", title, curves, selection)


def _curves(members: Sequence[Configuration]) -> dict[str, list[RunRecord]]:
    """Return the runs of each configuration with their curves, by its name."""
    curves: dict[str, list[RunRecord]] = {}
    size = 0
    for member in members:
        for run in member.scored:
            path = run.folder / records.events_file(0)
            size += path.stat().st_size if path.is_file() else 0
            if size > _MAX_BYTES:
                return {}
            try:
                curves.setdefault(member.label, []).append(with_curves(run))
            except CheckpointError:
                continue
    return curves


def _drawing(name: str, title: str, curves: Mapping[str, Sequence[RunRecord]], selection: str) -> Drawing:
    runs = [run for members in curves.values() for run in members]
    by_epoch = len({run.get("run.batch.global_batch_size") for run in runs}) > 1

    def draw(axes: Any, hovers: Hovers) -> None:
        for number, (label, members) in enumerate(curves.items()):
            # Lines of the same experiment coincide: the earlier one stays visible as the edge of the later one.
            width = 1.4 + 1.8 * (len(curves) - 1 - number) / max(1, len(curves) - 1)
            colour, dashes = run_style(number)
            line = {"color": colour, "dashes": dashes or (None, None)}
            window = window_size(min(len(run.train.steps) for run in members))
            band = loss_band([run.train for run in members], by_epoch=by_epoch, window=window)
            if len(band.x) > 1:
                axes.plot(*thinned(band.x, band.mean), linewidth=width, gid=hovers.part_of(label), **line)
                if len(members) > 1:
                    x, low, high = thinned(band.x, band.low, band.high)
                    gid = hovers.part_of(label)
                    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, gid=gid)
            scored = loss_band([run.validation for run in members], by_epoch=by_epoch)
            axes.plot(scored.x, scored.mean, linewidth=0.7, alpha=0.7, gid=hovers.part_of(label), **line)
            for position, (at, loss) in enumerate(zip(scored.x, scored.mean, strict=True)):
                gid = hovers.part_of(label)
                low, high = scored.low[position], scored.high[position]
                if len(members) > 1:
                    axes.plot([at, at], [low, high], color=colour, linewidth=1.0, gid=hovers.part_of(label))
                axes.plot([at], [loss], marker="o", markersize=3.6 + width, color=colour, gid=gid)
                spread = f" ({low:.4f} to {high:.4f} over {len(members)} runs)" if len(members) > 1 else ""
                place = f"{'epoch' if by_epoch else 'step'} {at:g}"
                hovers[gid] = f"{label}: validation loss {loss:.4f}{spread} at {place}"
        axes.set_xlabel("Epoch" if by_epoch else "Optimizer step")
        axes.set_ylabel("Loss")
        axes.set_xlim(left=0)
        axes.grid(axis="y")

    several = max(map(len, curves.values())) > 1
    caption = join_sentences(
        loss_caption(runs),
        "Means over the runs of a configuration; bands and bars: smallest to largest." if several else "",
        "Where lines coincide, the earlier one is wider." if len(curves) > 1 else "",
        selection,
    )
    keys = tuple(Key(label, *run_style(at)) for at, label in enumerate(curves)) if len(curves) > 1 else ()
    return Drawing(name, title, caption, draw, 3.5, legend=keys)


def loss_band(curves: Sequence[Curve], *, by_epoch: bool, window: int = 1) -> LossBand:
    """Return mean, smallest and largest loss over runs, at the steps or epochs that all of them have.

    Args:
        curves: Of each run.
        by_epoch: Whether the places are epochs instead of steps.
        window: Steps of the running mean of each run.
    """
    points = [curve_points(curve, by_epoch) for curve in curves]
    shared = sorted(set.intersection(*(set(x.tolist()) for x, _ in points)))
    rows = []
    for x, y in points:
        means = dict(zip(x.tolist(), running_mean(y, window).tolist(), strict=True))
        rows.append([means[at] for at in shared])
    values = np.array(rows, dtype=np.float64).reshape(len(points), len(shared))
    places = np.array(shared, dtype=np.float64)
    if not shared:
        return LossBand(places, places, places, places)
    return LossBand(places, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
