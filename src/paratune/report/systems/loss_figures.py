"""The course of the loss, a line a configuration: of its first run."""

from collections.abc import Iterator
from dataclasses import replace

from paratune import records
from paratune.errors import CheckpointError
from paratune.report.canvas import Drawing
from paratune.report.figures import loss_curves
from paratune.report.read import RunRecord, with_curves
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.labels import drawn, sentences
from paratune.report.systems.model import Systems

MAX_LINES = 8
_MAX_BYTES = 40_000_000
"""Of events that are read for the figure; a longer matrix has none."""


def loss_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the loss of the configurations that were trained whole, one figure a task."""
    by_task: dict[str, list[Configuration]] = {}
    for one in systems.measured:
        if one.scored and not one.scored[0].is_baseline:
            by_task.setdefault(one.runs[0].task, []).append(one)
    for number, members in enumerate(by_task.values()):
        few, some = drawn(systems, members, MAX_LINES)
        runs = _curves(few)
        if runs:
            styles = {run.name: position for position, run in enumerate(runs)}
            picture = loss_curves(runs, styles, name="loss" if number == 0 else f"loss-{number}")
            caption = sentences(picture.caption, "Of each configuration its first run.", some)
            title = "Course of the loss" if len(by_task) == 1 else f"Course of the loss: {runs[0].task}"
            yield replace(picture, title=title, caption=caption)


def _curves(members: list[Configuration]) -> list[RunRecord]:
    """Return the first run of each configuration under its name, with its curves; what is damaged is left out."""
    runs, size = [], 0
    for one in members:
        first = one.scored[0]
        path = first.folder / records.events_file(0)
        size += path.stat().st_size if path.is_file() else 0
        if size > _MAX_BYTES:
            return []
        try:
            runs.append(replace(with_curves(first), name=one.label))
        except CheckpointError:
            continue
    return runs
