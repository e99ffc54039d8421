"""Stacked bars of the phases: for each configuration, number of loader workers, and environment variable."""

from collections.abc import Iterator, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE
from paratune.reports.figures.canvas import Drawing, Hovers, label_rows
from paratune.reports.figures.runs import PHASE_LEGEND, stack_phases
from paratune.reports.systems import measures, subjects
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.labels import drawn_configurations, figure_labels, height_of_bars, join_sentences
from paratune.reports.systems.model import Systems
from paratune.reports.systems.subjects import SubjectFamily


def phase_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the stacked bars of all configurations, then of each family of loader workers and variables."""
    members, selection = drawn_configurations(systems, systems.measured)
    labels, notes = figure_labels(systems, members)
    yield stacked(
        systems, members, labels, "phases", "Time by phase and configuration", join_sentences(selection, notes)
    )
    for key, title, belongs in (
        ("workers", "Time by phase and loader workers", subjects.is_workers),
        ("environment", "Time by phase and environment variable", subjects.is_environment),
    ):
        for number, family in enumerate(subjects.families(systems.measured, belongs)):
            yield _of_family(systems, family, f"phases-{key}-{number}", title)


def _of_family(systems: Systems, family: SubjectFamily, key: str, title: str) -> Drawing:
    members, selection = drawn_configurations(systems, family.members)
    _, notes = figure_labels(systems, members)
    name_of = {id(member): name for member, name in zip(family.members, family.names, strict=True)}
    common = f" ({family.where})" if family.where else ""
    names = [name_of[id(member)] for member in members]
    return stacked(systems, members, names, key, title + common, join_sentences(selection, notes))


def stacked(
    systems: Systems, members: Sequence[Configuration], labels: Sequence[str], key: str, title: str, notes: str
) -> Drawing:
    """Draw a bar of the phases for each configuration: seconds of the run, or of a step for probes.

    `notes` are sentences after the caption.
    """
    per_step = any(member.is_probe for member in members)
    parts = measures.STEP_PARTS if per_step else measures.TOTAL_PARTS
    amounts = [[systems.amount(part, member) for part in parts] for member in members]
    rows = [[amount.center or 0.0 for amount in row] for row in amounts]

    def draw(axes: Any, hovers: Hovers) -> None:
        stack_phases(axes, hovers, rows, [member.label for member in members], "ms" if per_step else "s")
        for row in (row for row, values in enumerate(rows) if not any(values)):
            gid = hovers.part_of(members[row].label, row=row)
            axes.text(0, row, f" {NOT_AVAILABLE}", va="center", fontsize=9, gid=gid)
        label_rows(axes, hovers, labels, [(member.label,) for member in members], fontsize=9)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0, left=False)
        axes.grid(axis="x")
        axes.set_xlabel("Time of a measured step (ms)" if per_step else "Time of all training steps of a run (s)")

    about = (
        "Mean measured step by phase, without warm-up; steps with different global batches do different work."
        if per_step
        else "Seconds of a run by phase over all training steps: means over ranks and runs."
    )
    return Drawing(key, title, join_sentences(about, notes), draw, height_of_bars(len(members)), legend=PHASE_LEGEND)
