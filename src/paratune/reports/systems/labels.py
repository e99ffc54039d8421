"""Names of configurations in figures, and the selection of configurations that are drawn."""

from collections.abc import Sequence

from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.measures import SAMPLES_PER_S
from paratune.reports.systems.model import Systems
from paratune.reports.systems.sameness import Notes, comparison_notes
from paratune.reports.text import shorten

MAX_BARS = 30
"""Figures with bars show at most so many configurations."""
_WIDTH = 42


def figure_labels(systems: Systems, members: Sequence[Configuration]) -> tuple[list[str], str]:
    """Return the names of configurations, and the notes on their marks as sentences of a caption."""
    notes = Notes()
    machines = machine_letters(systems)
    labels = []
    for member in members:
        texts = comparison_notes(systems.differing[member.label])
        marks = ",".join(notes.marks([*texts, *(["a probe"] if member.is_probe else [])]))
        system_text = f" ({machines[member.label]})" if systems.num_machines > 1 else ""
        labels.append(shorten(member.label, _WIDTH) + system_text + (f" [{marks}]" if marks else ""))
    return labels, " ".join(f"{line}." for line in notes.lines)


def machine_letters(systems: Systems) -> dict[str, str]:
    """Return the system of each configuration, by the letters of the table of systems."""
    letters = {
        run.folder: f"System {machine_letter(at)}" for at, runs in enumerate(systems.machines.values()) for run in runs
    }
    return {
        member.label: ", ".join(sorted({letters[run.folder] for run in member.runs})) for member in systems.measured
    }


def machine_letter(position: int) -> str:
    """Return the letter of a column in the table of systems; its number after the 26th."""
    return chr(ord("A") + position) if position < 26 else str(position + 1)


def drawn_configurations(
    systems: Systems, members: Sequence[Configuration], limit: int = MAX_BARS
) -> tuple[list[Configuration], str]:
    """Return the baseline and the fastest members, in their order; and a sentence about the selection."""
    if len(members) <= limit:
        return list(members), ""
    rates = {id(member): systems.amount(SAMPLES_PER_S, member).center or 0.0 for member in members}
    fastest = sorted(members, key=lambda member: (member is not systems.baseline, -rates[id(member)]))[:limit]
    drawn = {id(member) for member in fastest}
    sentence = f"Drawn: the {limit} fastest of {len(members)} configurations (by samples/s); the table has all of them."
    return [member for member in members if id(member) in drawn], sentence


def join_sentences(*parts: str) -> str:
    """Return the parts of a caption that are not empty, as one text."""
    return " ".join(part for part in parts if part)
