"""Verdicts on the configurations of a matrix, each beside its baseline: how much faster, and whether as good."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paratune import verdicts
from paratune.errors import CheckpointError
from paratune.report.read import RunRecord
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.labels import drawn
from paratune.report.systems.model import Systems
from paratune.report.tabular import Column, Table, TableCell
from paratune.verdicts import Margin, Verdict
from paratune.verdicts.words import head_of

MAX_JUDGED = 24
"""Configurations; more are judged as far as they are the fastest."""
MAX_RUNS = 240
"""Whose predictions are read."""


def judged(
    systems: Systems, margins: Mapping[str, Margin] | None = None
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Return the verdicts of a matrix, and what is to be said of those that are left out.

    Args:
        systems: The configurations.
        margins: Differences that count as equal, by measure; `default_margin` for those that are absent.
    """
    members, some = drawn(systems, systems.measured, MAX_JUDGED)
    while sum(len(one.runs) for one in members) > MAX_RUNS and len(members) > 1:
        members, some = drawn(systems, systems.measured, len(members) - 1)
    families: dict[int, list[Configuration]] = {}
    for one in members:
        base = systems.baseline_of(one)
        if one is not base and one.is_probe == base.is_probe:
            families.setdefault(id(base), [base]).append(one)
    found: list[Verdict] = []
    said = [some.replace("Drawn", "Judged")] * bool(some)
    for family in families.values():
        try:
            found += _of_family(systems, family, margins)
        except CheckpointError as error:
            said.append(f"No verdict against {family[0].label}: {error}")
    return tuple(found), tuple(said)


def verdict_table(found: Sequence[Verdict], said: Sequence[str]) -> Iterator[Table]:
    """Yield the table of verdicts, a sentence a configuration."""
    if not found and not said:
        return
    columns = (Column("Configuration", "configuration", is_text=True), Column("Verdict", "verdict", is_text=True))
    lines = []
    for one in found:
        words = one.sentence.removeprefix(f"{head_of(one)}: ")  # names may hold ": " themselves
        runs = (*one.runs, *one.baseline_runs)
        lines.append((TableCell(one.label, runs=one.runs), TableCell(f"{words[:1].upper()}{words[1:]}", runs=runs)))
    bases = list(dict.fromkeys(one.baseline for one in found))
    against = (
        f"Against {bases[0]}." if len(bases) == 1 else f"Each against the baseline of its kind: {'; '.join(bases)}."
    )
    level = "Intervals are of 95%; with several configurations against one baseline, outcomes are held to Holm's rule."
    notes = dict.fromkeys(note for one in found for note in one.notes)
    yield Table("verdicts", "Verdicts", columns, tuple(lines), tuple(filter(None, (against, level, *said, *notes))))


def _of_family(
    systems: Systems, family: Sequence[Configuration], margins: Mapping[str, Margin] | None
) -> list[Verdict]:
    """Return the verdicts of configurations beside the first of them."""
    base, *others = family
    groups = [
        verdicts.Group(one.label, tuple(map(_without_scores, one.runs)) if one.is_probe else one.runs) for one in family
    ]
    return verdicts.judge(
        groups, base.label, margins, differs={one.label: systems.differs(one, base) for one in others}
    )


def _without_scores(run: RunRecord) -> RunRecord:
    """Return a probe, which has no quality, without the scores of its few steps."""
    return replace(run, summary={**run.summary, "scores": {}})
