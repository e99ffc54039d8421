"""Loss curves with a line for each configuration: the mean over its seeds, with a band over them."""

from collections.abc import Iterator, Mapping, Sequence

from paratune.base.grouping import grouped
from paratune.errors import CheckpointError
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.runs import draw_losses, line_keys, loss_caption
from paratune.reports.runs.read import MAX_DRAWN_BYTES, RunRecord, events_bytes, with_curves
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, join_sentences
from paratune.reports.systems.model import Systems

MAX_LINES = 8


def loss_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the loss curves of the configurations that are no probes, one figure for each task."""
    members_with_steps = (member for member in systems.measured if member.scored and not member.scored[0].is_baseline)
    by_task = grouped((member.runs[0].task, member) for member in members_with_steps)
    for number, members in enumerate(by_task.values()):
        few, selection = drawn_configurations(systems, members, MAX_LINES)
        curves = _curves(few)
        if curves:
            title = "Loss curves" if len(by_task) == 1 else f"Loss curves: {members[0].runs[0].task}"
            yield _drawing("loss" if number == 0 else f"loss-{number}", title, curves, selection)


def _curves(members: Sequence[Configuration]) -> dict[str, list[RunRecord]]:
    """Return the runs of each configuration with their curves, by its name."""
    curves: dict[str, list[RunRecord]] = {}
    if events_bytes(run for member in members for run in member.scored) > MAX_DRAWN_BYTES:
        return {}
    for member in members:
        for run in member.scored:
            try:
                curves.setdefault(member.label, []).append(with_curves(run))
            except CheckpointError:
                continue
    return curves


def _drawing(name: str, title: str, curves: Mapping[str, Sequence[RunRecord]], selection: str) -> Drawing:
    several = max(map(len, curves.values())) > 1
    caption = join_sentences(
        loss_caption([run for members in curves.values() for run in members]),
        "Means over the runs of a configuration; bands and bars: smallest to largest." if several else "",
        "Where lines coincide, the earlier one is wider." if len(curves) > 1 else "",
        selection,
    )
    draw = draw_losses(curves, range(len(curves)))
    return Drawing(name, title, caption, draw, 3.5, legend=line_keys(list(curves)))
