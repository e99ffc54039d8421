"""`make_comparison`: the arguments of `paratune compare` to verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord
from paratune.reports.comparison.arrange import Compared, arrange, baseline_of, by_configuration
from paratune.reports.comparison.figures import figure_rows
from paratune.reports.runs.certificates import Certificate
from paratune.reports.runs.read import Unfinished
from paratune.reports.runs.sameness import OTHER_LOAD, differs_of, execution_differences
from paratune.reports.systems.judging import MAX_JUDGED, MAX_RUNS
from paratune.verdicts import Group, LookHistory, Margin, judge
from paratune.verdicts.factorial import FactorCell, FactorEffect, factor_effects
from paratune.verdicts.rates import noise_kind

GENERATOR = "paratune compare"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """All comparisons of a command."""

    families: tuple[Compared, ...]
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Certificate, ...]
    notes: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether there is no comparable pair."""
        return all(verdict.differs.refused for family in self.families for verdict in family.verdicts)

    def _repr_html_(self) -> str:
        """Return what `paratune compare` prints, for notebooks."""
        from paratune.console.html import html_of
        from paratune.reports.terminal import terminal_comparison

        return html_of(terminal_comparison(self))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; unknown values are None."""
        return {
            "generator": GENERATOR,
            "schema_version": SCHEMA_VERSION,
            "families": [_family_dict(family) for family in self.families],
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "certificates": [certificate.as_dict() for certificate in self.certificates],
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
        words: Runs, patterns, or the folder of a matrix; see `arrange`.
        baseline: Configuration that the others are compared with; the first when None.
        by: Axes of a matrix whose values are compared.
        margins: As `judge` takes them.
        allowed: Names of `paratune.reports.runs.sameness.ALLOW`: differences that are the subject of the comparison.

    Raises:
        ConfigError: The words cannot be understood.
        CheckpointError: A folder is not a run, or there is nothing to compare.
    """
    arrangement = arrange(words, baseline, by)
    found = arrangement.found
    kind = noise_kind(found.runs)
    families = tuple(
        _judged(family, margins or {}, allowed | arrangement.allowed, arrangement.history, kind)
        for family in arrangement.families
    )
    return Comparison(families, found.unfinished, found.certificates, (*found.notes, *_notes(families)))


def compare_runs(
    runs: Sequence[RunRecord], baseline: str | None = None, margins: Mapping[str, Margin] | None = None
) -> tuple[Compared | None, tuple[str, ...]]:
    """Return the comparison of the configurations of runs, and the reason where there is none to be expected.

    Probes are not compared with full runs. `baseline` is the name of a run of the baseline, by default of the first
    run; `margins` as in `judge`.
    """
    groups = by_configuration(runs)
    base = baseline_of(groups, baseline)
    is_probe = {group.label: group.runs[0].is_probe for group in groups}
    groups = [group for group in groups if is_probe[group.label] == is_probe[base]]
    if len(groups) < 2:
        return None, (f"Nothing is compared with {base}: all runs are of its configuration.",) if baseline else ()
    if len(groups) > MAX_JUDGED or sum(len(group.runs) for group in groups) > MAX_RUNS:
        limit = f"{MAX_JUDGED} configurations and {MAX_RUNS} runs"
        return None, (f"No verdicts on more than {limit}; paratune compare judges any number.",)
    try:
        family = Compared("", tuple(groups), base)
        return _judged(family, margins or {}, frozenset(), LookHistory(), noise_kind(runs)), ()
    except CheckpointError as error:
        return None, (f"No verdict against {base}: {error}",)


def _judged(
    family: Compared, margins: Mapping[str, Margin], allowed: frozenset[str], history: LookHistory, kind: NoiseKind
) -> Compared:
    """Return a family with its verdicts, figures and main effects."""
    differs = {group.label: differs_of(family.base.runs, group.runs, allowed) for group in family.others}
    groups = [replace(group, noise_kind=kind) for group in family.groups]
    verdicts = tuple(judge(groups, family.baseline, margins, differs=differs, history=history))
    family = replace(family, verdicts=verdicts, execution=tuple(_execution(family.groups)))
    effects = _effects(family, margins, history)
    return replace(family, rows=tuple(figure_rows(family)), effects=effects)


def _execution(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for each kind of execution that differs; verdicts have the load by other programs."""
    for difference in execution_differences([run for group in groups for run in group.runs]):
        if difference.key != OTHER_LOAD:
            values = (
                f"{plain(group.label)} {', '.join(dict.fromkeys(difference.values[run.name] for run in group.runs))}"
                for group in groups
            )
            yield f"{difference.label} differ, which changes times: {'; '.join(values)}."


def _effects(family: Compared, margins: Mapping[str, Margin], history: LookHistory) -> tuple[FactorEffect, ...]:
    """Return the main effects of the compared axes, over the comparable configurations."""
    refused = {verdict.label for verdict in family.verdicts if verdict.differs.refused}
    baseline = family.levels.get(family.baseline, {})
    varied = {axis for axis in baseline if len({levels[axis] for levels in family.levels.values()}) > 1}
    if len(varied) < 2:
        return ()
    cells = [FactorCell(family.levels[group.label], group) for group in family.groups if group.label not in refused]
    return tuple(factor_effects(cells, baseline, margins, history=history))


def _notes(families: Sequence[Compared]) -> list[str]:
    """Return the notes that apply to all verdicts."""
    verdicts = [verdict for compared in families for verdict in compared.verdicts]
    notes = [sentence for compared in families for sentence in compared.execution]
    notes += [f"{plain(verdict.label)}: {note}." for verdict in verdicts for note in verdict.notes]
    most = max(len(compared.verdicts) for compared in families)
    if most > 1:
        notes.append(
            f"Intervals are 95% confidence intervals. Up to {most} configurations are compared with one baseline, so "
            "differences and equality are tested at 5% over all of them."
        )
    return notes


def _family_dict(compared: Compared) -> dict[str, Any]:
    def runs_of(group: Group) -> list[dict[str, Any]]:
        return [{"run": run.name, "folder": str(run.folder), "seed": run.run.seed} for run in group.runs]

    labels = [verdict.label for verdict in compared.verdicts]
    return {
        "within": compared.title or None,
        "baseline": compared.baseline,
        "groups": [{"label": group.label, "runs": runs_of(group)} for group in compared.groups],
        "verdicts": [verdict.as_dict() for verdict in compared.verdicts],
        "effects": [effect.as_dict() for effect in compared.effects],
        "figures": {
            row.measure.key: {label: one.as_dict() for label, one in zip(labels, row.findings, strict=True)}
            for row in compared.rows
        },
    }
