"""Names of configurations, the notes on what makes them different experiments, and those that are drawn."""

import math
from collections.abc import Iterable, Sequence
from string import ascii_lowercase
from typing import Any

from paratune.records.finished import gpus_of
from paratune.reports.measures import MEASURES
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.reports.text import shorten
from paratune.verdicts import Differs

MAX_BARS = 30
"""Figures with bars show at most so many configurations."""
_WIDTH = 42
_MAX_NAMES = 3


class Notes:
    """The notes of a table: each text once, with the letter of its mark."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter of a note."""
        number, letters = len(self._letters), ""
        while number >= 0:  # a to z, then aa, ab, ...
            number, last = number // 26 - 1, number % 26
            letters = ascii_lowercase[last] + letters
        return self._letters.setdefault(text, letters)

    def marks(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.mark(text) for text in texts)

    @property
    def lines(self) -> tuple[str, ...]:
        """The notes in the order of their letters."""
        return tuple(f"[{letter}] {text}" for text, letter in self._letters.items())


def comparison_notes(differs: Differs, base: str = "the baseline") -> tuple[str, ...]:
    """Return the remarks on the differences of a configuration; `base` names the other one."""
    refused, allowed = (
        ", ".join(label.removeprefix("the ") for label in labels) for labels in (differs.refused, differs.allowed)
    )
    texts = []
    if refused:
        texts.append(f"not comparable with {base}: different {refused}, which is not on an axis")
    if allowed:
        texts.append(f"trained differently from {base}: different {allowed}")
    if differs.samples is not None:
        texts.append(f"another training budget than {base}: do not compare scores and times of whole runs")
    if differs.elsewhere:
        texts.append(f"ran on a different machine from {base}: do not compare times and memory")
    return tuple(texts)


def figure_labels(systems: Systems, members: Sequence[Configuration]) -> tuple[list[str], str]:
    """Return the names of configurations, and the notes on their marks as sentences of a caption."""
    notes = Notes()
    of_run = {
        run.folder: name
        for name, runs in zip(machine_names(systems), systems.machines.values(), strict=True)
        for run in runs
    }
    labels = []
    for member in members:
        texts = comparison_notes(systems.differing[member.label])
        marks = ",".join(notes.marks([*texts, *(["a probe"] if member.is_probe else [])]))
        machines = ", ".join(sorted({of_run[run.folder] for run in member.runs}))
        system_text = f" ({machines})" if systems.num_machines > 1 and machines not in member.label else ""
        labels.append(shorten(member.label, _WIDTH) + system_text + (f" [{marks}]" if marks else ""))
    return labels, " ".join(f"{line}." for line in notes.lines)


def machine_names(systems: Systems) -> list[str]:
    """Return a name for each kind of machine: its matrix, or its GPUs or CPU, if that is unique; else a letter."""
    groups = list(systems.machines.values())
    matrices = {run.folder: systems.matrix_of(member) for member in systems.measured for run in member.runs}
    by_matrix = [_texts(matrices[run.folder] for run in runs) for runs in groups]
    models = []
    for runs in groups:
        nodes = [node for run in runs for node in run.run.hardware]
        gpus = _texts(part.get("name") for node in nodes for part in gpus_of(node))
        models.append(gpus or _texts(node.get("cpu_model") for node in nodes))
    for names in (by_matrix, models):
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"System {chr(ord('A') + at) if at < 26 else at + 1}" for at in range(len(groups))]


def _texts(values: Iterable[Any]) -> str:
    """Return the different texts; empty where there are many."""
    texts = [str(value) for value in dict.fromkeys(values) if value]
    return ", ".join(texts) if len(texts) <= _MAX_NAMES else ""


def drawn_configurations(
    systems: Systems, members: Sequence[Configuration], limit: int = MAX_BARS
) -> tuple[list[Configuration], str]:
    """Return the baseline and the fastest members, in their order; and a sentence about the selection."""
    if len(members) <= limit:
        return list(members), ""
    # One of unknown speed is not known to be slow: it is drawn.
    rates = {
        id(member): math.inf if rate is None else rate
        for member in members
        for rate in [systems.amount(MEASURES["samples_per_s"], member).center]
    }
    fastest = sorted(members, key=lambda member: (member is not systems.baseline, -rates[id(member)]))[:limit]
    drawn = {id(member) for member in fastest}
    sentence = f"Drawn: the {limit} fastest of {len(members)} configurations (by samples/s); the table has all of them."
    return [member for member in members if id(member) in drawn], sentence


def join_sentences(*parts: str) -> str:
    """Return the parts of a caption that are not empty, as one text."""
    return " ".join(part for part in parts if part)
