"""The runs of a comparison: groups of runs that differ only in their seed, and the baseline among them."""

import glob
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from pathlib import Path
from typing import NamedTuple

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.errors import CheckpointError, ConfigError, did_you_mean
from paratune.records.finished import RunRecord
from paratune.records.sweep import Axis, SweepRecord, holds_sweep, read_sweep, with_finished_runs
from paratune.reports.measures import Measure
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.runs.read import FoundRuns, Unfinished, read_runs
from paratune.reports.runs.sameness import allowed_by_axes, configuration_key
from paratune.reports.systems.configurations import Configuration, label_of
from paratune.reports.systems.judging import group_of
from paratune.reports.systems.model import build_systems
from paratune.verdicts import Group, LookHistory, MeasureComparison, Verdict
from paratune.verdicts.factorial import FactorEffect
from paratune.verdicts.sequential import look_history

_RUN_SPECIFIC = ("_VISIBLE_DEVICES", "_CACHE_DIR", "_CACHE_PATH")
"""Suffixes of environment variables that differ between runs of one configuration: GPUs assigned by a queue,
folders.
"""


class FigureRow(NamedTuple):
    """A figure of all configurations of a family."""

    measure: Measure
    findings: tuple[MeasureComparison, ...]
    """Comparison with the baseline for each other configuration, in order."""


@dataclass(frozen=True)
class Compared:
    """Configurations that are compared with one baseline."""

    title: str
    """Values of the axes that all configurations share; empty when there are none."""
    groups: tuple[Group, ...]
    baseline: str
    """Label of a group."""
    levels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Shown value of each compared axis of a matrix, by label of a group; empty without a matrix."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on all groups except the baseline, in order."""
    rows: tuple[FigureRow, ...] = ()
    effects: tuple[FactorEffect, ...] = ()
    """Main effects of the axes of a matrix; empty with fewer than two axes."""
    execution: tuple[str, ...] = ()
    """Sentences about threads and usable cores that differ between the configurations."""

    @property
    def base(self) -> Group:
        return next(group for group in self.groups if group.label == self.baseline)

    @property
    def others(self) -> list[Group]:
        return [group for group in self.groups if group.label != self.baseline]


@dataclass(frozen=True)
class Arrangement:
    """All runs of a comparison, grouped."""

    families: tuple[Compared, ...]
    found: FoundRuns
    allowed: frozenset[str] = frozenset()
    """Differences that the axes of a matrix allow."""
    history: LookHistory = field(default_factory=LookHistory)
    """Earlier looks at the runs of a matrix."""


def arrange(words: Sequence[str], baseline: str | None, by: Sequence[str]) -> Arrangement:
    """Return the runs that the arguments of a command line select, grouped for comparison.

    Args:
        words: Run folders or patterns of them, which are grouped by their configuration; or one folder of a matrix.
        baseline: A run, a configuration, or a value of an axis; None takes what the matrix names, or the first.
        by: Axes of a matrix whose values are compared; none compares what the matrix chooses among.

    Raises:
        ConfigError: The words name nothing.
        CheckpointError: A folder is not a run, or there are no two configurations with a finished run.
    """
    matrices = [word for word in words if holds_sweep(Path(word))]
    if matrices and len(words) > 1:
        raise ConfigError(
            f"{matrices[0]} is a matrix of runs: compare it by itself, or its runs: {matrices[0]}/runs/*",
            code="compare.mixed_matrix",
        )
    if matrices:
        return _arrange_matrix(Path(matrices[0]), baseline, by)
    if by:
        raise ConfigError(
            "--by names an axis of a matrix; give the folder of one, with sweep.json",
            code="cli.no_effect",
            option="--by",
        )
    if not words:
        raise ConfigError(
            "paratune compare needs runs, such as runs/first runs/second, or the folder of a matrix",
            code="cli.argument_missing",
        )
    found = read_runs([folder for word in words for folder in _expand(word)])
    groups = by_configuration(found.runs)
    return _comparable(Arrangement((Compared("", tuple(groups), baseline_of(groups, baseline)),), found))


def _comparable(arrangement: Arrangement) -> Arrangement:
    """Return only the families of two configurations or more."""
    families, found = arrangement.families, arrangement.found
    comparable = tuple(family for family in families if len(family.groups) > 1)
    if not comparable:
        labels = [plain(group.label) for family in families for group in family.groups]
        runs = found.runs[0].name if len(found.runs) == 1 else f"{len(found.runs)} runs"
        raise CheckpointError(
            f"nothing to compare with: {runs} of one configuration ({', '.join(labels[:3])}); name runs of another"
            f"{_left_out(found.unfinished)}",
            code="report.nothing_to_compare",
        )
    return replace(arrangement, families=comparable)


def _left_out(runs: Sequence[Unfinished]) -> str:
    return "".join(f"\n  left out: {plain(run.folder)}: {plain(run.reason)}" for run in runs)


def _expand(word: str) -> list[Path]:
    """Return the folder of an argument, or the folders that a pattern matches."""
    if Path(word).exists() or not glob.has_magic(word):
        return [Path(word)]
    matches = [Path(path) for path in sorted(glob.glob(word)) if Path(path).is_dir()]  # noqa: PTH207
    if not matches:
        raise ConfigError(f"{plain(word)} matches no folder", code="compare.unknown_run", part=word)
    return matches


def by_configuration(runs: Sequence[RunRecord]) -> list[Group]:
    """Return groups of runs that differ only in seed and repeat and ran on one kind of machine."""
    by_key = grouped(
        ((configuration_key(run), _environment(run), machine), run)
        for run, machine in zip(runs, machine_kinds(runs), strict=True)
    )
    labels = [_label(group) for group in by_key.values()]
    return [
        Group(label if labels.count(label) == 1 else group[0].name, tuple(group))
        for label, group in zip(labels, by_key.values(), strict=True)
    ]


def _environment(run: RunRecord) -> str:
    """Return the environment variables of a run, without those of its own devices and folders."""
    variables = run.run.environment
    known = variables.items() if isinstance(variables, Mapping) else ()
    return str(sorted((str(name), value) for name, value in known if not str(name).endswith(_RUN_SPECIFIC)))


def _label(group: Sequence[RunRecord]) -> str:
    """Return the common prefix of the names of runs, or the first name."""
    if len(group) == 1:
        return group[0].name
    names = [run.name for run in group]
    shared = commonprefix(names)  # noqa: RUF071 - characters are meant, not folders
    stem = shared.rstrip("0123456789").rstrip("-_. /")
    for word in ("seed", "s", "run"):
        if stem.endswith(("-" + word, "_" + word, "." + word)):
            stem = stem[: -len(word) - 1]
    return stem or names[0]


def baseline_of(groups: Sequence[Group], wanted: str | None) -> str:
    """Return the label of the group with this label, with a run of this name, or with a run in this folder."""
    if wanted is None or not groups:
        return groups[0].label if groups else ""
    for group in groups:
        names = {group.label, *(run.name for run in group.runs), *(str(run.folder) for run in group.runs)}
        if wanted in names or Path(wanted).resolve() in {run.folder.resolve() for run in group.runs}:
            return group.label
    known = [group.label for group in groups]
    raise _unknown_baseline(wanted, known, known)


def _unknown_baseline(wanted: str, labels: Sequence[str], known: Iterable[str]) -> ConfigError:
    """Return the error for a baseline that is not one of the configurations; `known` are all words for one."""
    listed = ", ".join(plain(label) for label in labels[:5])
    return ConfigError(
        f"--baseline {plain(wanted)} is not one of the compared configurations ({listed}){did_you_mean(wanted, known)}",
        code="compare.unknown_run",
        option="--baseline",
    )


def _arrange_matrix(folder: Path, baseline: str | None, by: Sequence[str]) -> Arrangement:
    record = with_finished_runs(folder, read_sweep(folder))
    axes = [axis for axis in record.axes if not axis.is_seed]
    labels = [axis.label for axis in axes]
    wanted = [part.strip() for word in by for part in word.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in labels]
    if unknown:
        near = did_you_mean(unknown[0], labels)
        raise ConfigError(
            f"--by {plain(unknown[0])} is no axis of {plain(folder)} ({', '.join(labels)}){near}",
            code="cli.unknown_name",
            option="--by",
            folder=folder,
        )
    compared = [axis for axis in axes if (axis.label in wanted if wanted else axis.label not in record.select_per)]
    systems = build_systems(folder, record)
    unfinished = tuple(
        Unfinished(item.cell.name, item.folder, item.reason or "")
        for item in systems.cell_runs
        if item.record is None and item.cell.state not in {"skipped", "pending"}
    )
    if not systems.measured:
        raise CheckpointError(
            f"nothing to compare: no run of {plain(folder)} is finished and readable{_left_out(unfinished)}",
            code="report.nothing_to_compare",
            folder=folder,
        )
    held = [axis for axis in axes if axis not in compared]
    by_title = grouped((_title(member, held), member) for member in systems.measured)
    is_base = _names_baseline(record, compared, baseline)
    families = tuple(_family(record, title, members, compared, is_base) for title, members in by_title.items())
    allowed = allowed_by_axes(key for axis in compared for key in (axis.keys or (axis.key,)))
    certificates, notes = systems.certificates
    found = FoundRuns(tuple(systems.runs), unfinished, notes, certificates)
    return _comparable(Arrangement(families, found, allowed, look_history(record)))


def _title(member: Configuration, held: Sequence[Axis]) -> str:
    """Return the values that are not compared."""
    held_at = ", ".join(f"{axis.label} {axis.values[member.values[axis.label]]}" for axis in held)
    return f"{held_at}{' (probe)' if member.is_probe else ''}".strip()


def _family(
    record: SweepRecord, title: str, members: Sequence[Configuration], compared: Sequence[Axis],
    is_base: Callable[[str, Mapping[str, str]], bool],
) -> Compared:  # fmt: skip
    """Return the configurations within one combination of the values that are not compared."""
    named = {label_of(compared, member.values) or record.name: member for member in members}
    levels = {
        label: {axis.label: axis.values[member.values[axis.label]] for axis in compared}
        for label, member in named.items()
    }
    baseline = next((label for label, member in named.items() if is_base(label, member.values)), next(iter(named)))
    groups = (Group(label, group_of(member).runs) for label, member in named.items())
    return Compared(title, tuple(groups), baseline, levels)


def _names_baseline(
    record: SweepRecord, compared: Sequence[Axis], wanted: str | None
) -> Callable[[str, Mapping[str, str]], bool]:
    """Return a function that identifies the baseline of a family by its label and its values."""
    if wanted is None:
        named = {label: value for label, value in record.baseline.items() if label in {axis.label for axis in compared}}
        return lambda _, values: bool(named) and named.items() <= values.items()
    known = {name for axis in compared for pair in axis.values.items() for name in pair}
    labels = {label_of(compared, cell.values) or record.name for cell in record.cells}
    if wanted not in known | labels:
        raise _unknown_baseline(wanted, sorted(labels), known | labels)
    return lambda label, values: (
        wanted == label or any(wanted in (values[axis.label], axis.values[values[axis.label]]) for axis in compared)
    )
