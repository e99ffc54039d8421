"""Stacked bars of the phases: of every configuration, per loader worker count, per value of a variable."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.records import ALL_PHASES
from paratune.report.canvas import ON_PHASE, Drawing, Key
from paratune.report.figures import PHASE_COLOURS
from paratune.report.rows import decimals
from paratune.report.speed_rows import PHASE_NAMES
from paratune.report.systems import measures as of
from paratune.report.systems import subjects
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.labels import drawn, figure_labels, height_of_bars, sentences
from paratune.report.systems.model import Systems
from paratune.report.systems.subjects import SubjectFamily

LEGEND = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
_MAX_NUMBERED = 24
"""More bars than this have no numbers in them."""


def phase_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the stacked bars of all configurations, then those of each family of workers and variables."""
    members, some = drawn(systems, systems.measured)
    labels, notes = figure_labels(systems, members)
    yield stacked(systems, members, labels, "phases", "Where the time goes, by configuration", sentences(some, notes))
    for key, title, is_of in (
        ("workers", "Where the time goes, by loader workers", subjects.is_workers),
        ("environment", "Where the time goes, by environment variable", subjects.is_environment),
    ):
        for number, family in enumerate(subjects.families(systems.measured, is_of)):
            yield _of_family(systems, family, f"phases-{key}-{number}", title)


def _of_family(systems: Systems, family: SubjectFamily, key: str, title: str) -> Drawing:
    members, some = drawn(systems, family.members)
    _, notes = figure_labels(systems, members)
    called = {id(one): name for one, name in zip(family.members, family.names, strict=True)}
    where = f" ({family.where})" if family.where else ""
    return stacked(systems, members, [called[id(one)] for one in members], key, title + where, sentences(some, notes))


def stacked(
    systems: Systems, members: Sequence[Configuration], labels: Sequence[str], key: str, title: str, notes: str
) -> Drawing:
    """Draw a bar of the phases for each configuration: seconds of the run, or of a step where one is a probe.

    Args:
        systems: The matrix.
        members: The bars, from the top.
        labels: Their names.
        key: Of the figure.
        title: Of the figure.
        notes: Behind the caption.
    """
    per_step = any(one.is_probe for one in members)
    parts = of.STEP_PARTS if per_step else of.TOTAL_PARTS
    found = [[systems.amount(part, one) for part in parts] for one in members]
    unit = "ms" if per_step else "s"
    totals = [sum(amount.center or 0.0 for amount in row) for row in found]
    most = max(totals, default=0.0) or 1.0
    places = decimals([max((amount.center or 0.0 for amount in row), default=0.0) for row in found])

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        left = [0.0] * len(members)
        for number, phase in enumerate(ALL_PHASES):
            widths = [row[number].center or 0.0 for row in found]
            bars = axes.barh(range(len(members)), widths, left=left, height=0.64, color=PHASE_COLOURS[phase])
            for row, (bar, width) in enumerate(zip(bars, widths, strict=True)):
                text = f"{width:,.{places}f}"
                gid = f"hover-{phase}-{row}"
                bar.set_gid(gid)
                share = f"{100 * width / totals[row]:.1f}%" if totals[row] else NOT_AVAILABLE
                hovers[gid] = f"{members[row].label}: {PHASE_NAMES[phase].lower()} {text} {unit} ({share})"
                if width > 0.08 * most and len(members) <= _MAX_NUMBERED:
                    middle = left[row] + width / 2
                    axes.text(middle, row, text, ha="center", va="center", color=ON_PHASE, fontsize=9)
                left[row] += width
        for row in (row for row, total in enumerate(totals) if not total):
            axes.text(0, row, f" {NOT_AVAILABLE}", va="center", fontsize=9)
        axes.set_yticks(range(len(members)), labels, fontsize=9)
        axes.set_ylim(len(members) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0, left=False)
        axes.grid(axis="x")
        axes.set_xlabel("Time of a measured step (ms)" if per_step else "Time of all training steps of a run (s)")

    what = (
        "Mean measured step by phase, warm-up left out; steps of other global batches do other work."
        if per_step
        else "Seconds of a run by phase, the mean of its ranks, over all training steps; mean of the runs."
    )
    return Drawing(key, title, sentences(what, notes), draw, height_of_bars(len(members)), legend=LEGEND)
