"""From the words of a command line to verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paratune.base.text import plain
from paratune.report.certificates import Certificate, find_certificates
from paratune.report.differing import differs_of
from paratune.report.read import RunRecord, Unfinished
from paratune.report.versus.arrange import BaselineFamily, arrange
from paratune.report.versus.figures import FigureRow, figure_rows
from paratune.verdicts import Group, Margin, Verdict, judge

GENERATOR = "paratune compare"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Compared:
    """Configurations against one baseline."""

    family: BaselineFamily
    verdicts: tuple[Verdict, ...]
    """Of all groups but the baseline's, in order."""
    rows: tuple[FigureRow, ...]

    @property
    def is_refused(self) -> bool:
        """Whether none of them trained what the baseline did."""
        return all(verdict.differs.refused for verdict in self.verdicts)


@dataclass(frozen=True)
class Comparison:
    """All that was compared."""

    families: tuple[Compared, ...]
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Certificate, ...]
    notes: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether there is no pair that may be compared."""
        return all(each.is_refused for each in self.families)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; unknown values are None."""
        return {
            "generator": GENERATOR,
            "schema_version": SCHEMA_VERSION,
            "families": [_family_dict(each) for each in self.families],
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "certificates": [one.as_dict() for one in self.certificates],
            "notes": list(self.notes),
        }


def make_comparison(
    words: Sequence[str],
    *,
    baseline: str | None = None,
    by: Sequence[str] = (),
    margins: Mapping[str, Margin] | None = None,
    allowed: frozenset[str] = frozenset(),
) -> Comparison:
    """Read runs and judge them; writes nothing.

    Args:
        words: Runs, groups of runs, or the folder of a matrix; see `arrange`.
        baseline: What the others are held against; the first when None.
        by: Axes of a matrix whose values are compared.
        margins: As `judge` takes them.
        allowed: Names of `paratune.report.differing.ALLOW`: what may differ because it is what is compared.

    Raises:
        ConfigError: The words cannot be understood.
        CheckpointError: A folder is not a run, or there is nothing to compare.
    """
    found = arrange(words, baseline, by)
    certificates, of_others = find_certificates(found.runs, found.certificates)
    allowed = allowed | found.allowed
    by_name = {run.name: run for run in found.runs}
    families = tuple(_compared(family, by_name, margins or {}, allowed) for family in found.families)
    return Comparison(families, found.unfinished, certificates, (*found.notes, *of_others, *_notes(families)))


def _compared(
    family: BaselineFamily, by_name: Mapping[str, RunRecord], margins: Mapping[str, Margin], allowed: frozenset[str]
) -> Compared:
    of = {group.label: [by_name[run.name] for run in group.runs] for group in family.groups}
    base = of[family.baseline]
    differs = {label: differs_of(base, runs, allowed) for label, runs in of.items() if label != family.baseline}
    verdicts = judge(family.groups, family.baseline, margins, differs=differs)
    return Compared(family, tuple(verdicts), tuple(figure_rows(family.groups, family.baseline, verdicts)))


def _notes(families: Sequence[Compared]) -> list[str]:
    """Return what has to be known of all verdicts."""
    verdicts = [verdict for each in families for verdict in each.verdicts]
    notes = [f"{plain(verdict.label)}: {note}." for verdict in verdicts for note in verdict.notes]
    most = max(len(each.verdicts) for each in families)
    if most > 1:
        notes.append(
            f"Intervals are 95% each. Up to {most} configurations are held against one baseline: that one differs, or "
            "is equal, is held to 5% over all of them together (Holm)."
        )
    return notes


def _family_dict(one: Compared) -> dict[str, Any]:
    return {
        "within": one.family.title or None,
        "baseline": one.family.baseline,
        "groups": [_group_dict(group) for group in one.family.groups],
        "verdicts": [verdict.as_dict() for verdict in one.verdicts],
        "figures": {
            row.key: {verdict.label: asdict(found) for verdict, found in zip(one.verdicts, row.findings, strict=True)}
            for row in one.rows
        },
    }


def _group_dict(group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "runs": [{"run": run.name, "folder": str(run.folder), "seed": run.get("run.seed")} for run in group.runs],
    }
