"""How configurations are called in figures, with the marks of their notes, and which are drawn where not all fit."""

from collections.abc import Sequence

from paratune.report.systems.configurations import Configuration
from paratune.report.systems.measures import SAMPLES_PER_S
from paratune.report.systems.model import Systems
from paratune.report.systems.sameness import Notes, notes_of
from paratune.report.text import shorten

MAX_BARS = 30
"""More configurations than this are not drawn as bars."""
_WIDTH = 42
_BAR, _BARS, _REST = 0.32, 7.2, 0.9
"""Inches of a bar, of all bars at most, and of what stands around them: a figure fits on a sheet of the PDF."""


def height_of_bars(num_bars: int) -> float:
    """Return the height in inches of a figure with so many bars below each other."""
    return _REST + min(_BAR * num_bars, _BARS)


def figure_labels(systems: Systems, members: Sequence[Configuration]) -> tuple[list[str], str]:
    """Return the names of configurations, and what their marks mean as sentences of a caption."""
    notes = Notes()
    machines = machine_letters(systems)
    labels = []
    for one in members:
        said = notes_of(systems.differing[one.label])
        marks = ",".join(notes.marks([*said, *(["a probe"] if one.is_probe else [])]))
        where = f" ({machines[one.label]})" if systems.num_machines > 1 else ""
        labels.append(shorten(one.label, _WIDTH) + where + (f" [{marks}]" if marks else ""))
    return labels, " ".join(f"{line}." for line in notes.lines)


def machine_letters(systems: Systems) -> dict[str, str]:
    """Return the system of each configuration, by the letters of the table of systems."""
    letters = {
        run.folder: f"System {chr(ord('A') + at) if at < 26 else at + 1}"
        for at, runs in enumerate(systems.machines.values())
        for run in runs
    }
    return {one.label: ", ".join(sorted({letters[run.folder] for run in one.runs})) for one in systems.measured}


def drawn(systems: Systems, members: Sequence[Configuration], limit: int = MAX_BARS) -> tuple[list[Configuration], str]:
    """Return the members that are drawn, in their order: the fastest and the baseline, and what is to be said of it."""
    if len(members) <= limit:
        return list(members), ""
    rates = {id(one): systems.amount(SAMPLES_PER_S, one).center or 0.0 for one in members}
    fastest = sorted(members, key=lambda one: (one is not systems.baseline, -rates[id(one)]))[:limit]
    kept = {id(one) for one in fastest}
    said = f"Drawn are the {limit} fastest of {len(members)} configurations (by samples/s); the table has all of them."
    return [one for one in members if id(one) in kept], said


def sentences(*parts: str) -> str:
    """Return the parts of a caption that say something."""
    return " ".join(part for part in parts if part)
