"""Which runs are compared with which: groups of runs that are equal but for their seed, and a baseline among them."""

import glob
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError, ConfigError, did_you_mean
from paratune.records import RUN_FILE
from paratune.records.sweep import Axis, CellRecord, SweepRecord, holds_sweep, read_sweep, run_folder_of
from paratune.report.compare import config_differences, configuration_key
from paratune.report.differing import allowed_by_axes
from paratune.report.machine import machine_kinds
from paratune.report.read import FoundRuns, RunRecord, Unfinished, read_runs
from paratune.report.systems.configurations import label_of
from paratune.verdicts import Group

_OWN_TO_A_RUN = ("_VISIBLE_DEVICES", "_CACHE_DIR", "_CACHE_PATH")
"""Ends of variables that differ from run to run of one configuration: GPUs that a queue gave it, folders."""


@dataclass(frozen=True)
class BaselineFamily:
    """Configurations that are held against one baseline."""

    title: str
    """The values of a matrix within which they are compared; empty when there is nothing to say."""
    groups: tuple[Group, ...]
    baseline: str
    """Label of a group."""


@dataclass(frozen=True)
class Arrangement:
    """All that is compared."""

    families: tuple[BaselineFamily, ...]
    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Path, ...]
    notes: tuple[str, ...]
    allowed: frozenset[str] = frozenset()
    """What the axes of a matrix say to be compared."""


def arrange(words: Sequence[str], baseline: str | None, by: Sequence[str]) -> Arrangement:
    """Return what the words of a command line say to compare.

    Args:
        words: Run folders, which are grouped by their configuration; or groups of runs, each a pattern or a list with
            commas; or one folder of a matrix.
        baseline: A run, a group, or a value of an axis; None takes what the matrix names, or the first.
        by: Axes of a matrix whose values are compared; none compares what the matrix chooses among.

    Raises:
        ConfigError: The words name nothing, a run twice, or runs in one group that are not of one configuration.
        CheckpointError: A folder is not a run, or there are no two configurations with a finished run.
    """
    matrices = [word for word in words if holds_sweep(Path(word))]
    if matrices and len(words) > 1:
        raise ConfigError(
            f"{matrices[0]} is a matrix of runs: compare it by itself, or its runs: {matrices[0]}/runs/*",
            code="compare.mixed_matrix",
        )
    if matrices:
        return _of_matrix(Path(matrices[0]), baseline, by)
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
    expanded = {word: _expand(word) for word in words}
    is_grouped = any(folders != [Path(word)] for word, folders in expanded.items())
    _refuse_twice(expanded)
    found = read_runs([folder for folders in expanded.values() for folder in folders])
    if not is_grouped:
        groups = by_configuration(found.runs)
        return _arrangement(found, (BaselineFamily("", tuple(groups), baseline_of(groups, baseline)),))
    named = _as_named(expanded, found)
    groups = _distinct([_label(runs) for runs in named.values()], list(named), list(named.values()))
    of = next((group.label for word, group in zip(named, groups, strict=True) if word == baseline), baseline)
    return _arrangement(found, (BaselineFamily("", tuple(groups), baseline_of(groups, of)),))


def _arrangement(
    found: FoundRuns, families: tuple[BaselineFamily, ...], allowed: frozenset[str] = frozenset()
) -> Arrangement:
    comparable = tuple(family for family in families if len(family.groups) > 1)
    if not comparable:
        labels = [plain(group.label) for family in families for group in family.groups]
        left_out = "".join(f"\n  left out: {plain(each.folder)}: {plain(each.reason)}" for each in found.unfinished)
        raise CheckpointError(
            f"nothing to compare with: {found.runs[0].name if len(found.runs) == 1 else f'{len(found.runs)} runs'} of "
            f"one configuration ({', '.join(labels[:3])}); name runs of another{left_out}",
            code="report.nothing_to_compare",
        )
    return Arrangement(comparable, found.runs, found.unfinished, found.certificates, found.notes, allowed)


def _expand(word: str) -> list[Path]:
    """Return the folders of a word: itself, or those of its parts between commas, patterns replaced by matches."""
    if Path(word).exists():
        return [Path(word)]
    folders: list[Path] = []
    for part in (part.strip() for part in word.split(",")):
        if not part:
            raise ConfigError(f"{plain(word)!r} names no run between two commas", code="compare.unknown_run", word=word)
        if Path(part).exists() or not glob.has_magic(part):
            folders.append(Path(part))
            continue
        matches = [Path(path) for path in sorted(glob.glob(part)) if Path(path).is_dir()]  # noqa: PTH207
        if not matches:
            raise ConfigError(f"{plain(part)} matches no folder", code="compare.unknown_run", part=part)
        folders += matches
    return folders


def _refuse_twice(expanded: Mapping[str, Sequence[Path]]) -> None:
    """Raise where a run is in two groups: it would be compared with itself."""
    of: dict[Path, str] = {}
    for word, folders in expanded.items():
        for folder in folders:
            first = of.setdefault(folder.resolve(), word)
            if first != word:
                raise ConfigError(
                    f"{plain(folder)} is in {plain(first)} and in {plain(word)}: a run is in one group",
                    code="cli.named_twice",
                    folder=folder,
                    word=word,
                )


def _as_named(expanded: Mapping[str, Sequence[Path]], found: FoundRuns) -> dict[str, tuple[RunRecord, ...]]:
    """Return the runs of each word, of one configuration."""
    by_folder = {run.folder: run for run in found.runs}
    groups = {}
    for word, folders in expanded.items():
        runs = tuple(by_folder[folder] for folder in folders if folder in by_folder)
        if len({configuration_key(run) for run in runs}) > 1:
            keys = [one.key for one in config_differences(runs) if one.key != "run.seed"] or ["their data or processes"]
            raise ConfigError(
                f"the runs of {plain(word)} are not of one configuration: they differ in {', '.join(keys[:5])}"
                f"{', ...' if len(keys) > 5 else ''}; name each configuration by itself",
                code="compare.group_differs",
                word=word,
            )
        if runs:
            groups[word] = runs
    return groups


def by_configuration(runs: Sequence[RunRecord]) -> list[Group]:
    """Return the groups of runs that are equal but for seed and repeat, on one kind of machine."""
    found: dict[tuple[object, ...], list[RunRecord]] = {}
    for run, machine in zip(runs, machine_kinds(runs), strict=True):
        found.setdefault((configuration_key(run), _environment(run), machine), []).append(run)
    groups = [tuple(group) for group in found.values()]
    return _distinct([_label(group) for group in groups], [group[0].name for group in groups], groups)


def _distinct(labels: Sequence[str], others: Sequence[str], groups: Sequence[tuple[RunRecord, ...]]) -> list[Group]:
    """Return the groups by their labels, each by its other one where two have the same."""
    return [
        Group(label if labels.count(label) == 1 else other, runs)
        for label, other, runs in zip(labels, others, groups, strict=True)
    ]


def _environment(run: RunRecord) -> str:
    """Return the variables that a run was given, without those that name its own devices and folders."""
    found = run.get("run.environment")
    known = found.items() if isinstance(found, Mapping) else ()
    return str(sorted((str(name), value) for name, value in known if not str(name).endswith(_OWN_TO_A_RUN)))


def _label(group: Sequence[RunRecord]) -> str:
    """Return what the names of runs begin with, or the first one."""
    if len(group) == 1:
        return group[0].name
    names = [run.name for run in group]
    stem = (
        "".join(letters[0] for letters in takewhile(lambda each: len(set(each)) == 1, zip(*names, strict=False)))
        .rstrip("0123456789")
        .rstrip("-_. /")
    )
    for word in ("seed", "s", "run"):
        if stem.endswith(("-" + word, "_" + word, "." + word)):
            stem = stem[: -len(word) - 1]
    return stem or names[0]


def baseline_of(groups: Sequence[Group], wanted: str | None) -> str:
    """Return the label of the group that is named by its label, a run of it, or the folder of one."""
    if wanted is None or not groups:
        return groups[0].label if groups else ""
    for group in groups:
        names = {group.label, *(run.name for run in group.runs), *(str(run.folder) for run in group.runs)}
        if wanted in names or Path(wanted).resolve() in {run.folder.resolve() for run in group.runs}:
            return group.label
    known = [group.label for group in groups]
    listed = ", ".join(plain(label) for label in known[:5])
    raise ConfigError(
        f"--baseline {plain(wanted)} is not one of the compared configurations ({listed}){did_you_mean(wanted, known)}",
        code="compare.unknown_run",
        option="--baseline",
    )


def _of_matrix(folder: Path, baseline: str | None, by: Sequence[str]) -> Arrangement:
    record = read_sweep(folder)
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
    cells = {
        run_folder_of(folder, cell.name): cell for cell in record.cells if cell.state not in {"skipped", "pending"}
    }
    began = [path for path in cells if (path / RUN_FILE).is_file()]
    if not began:
        raise CheckpointError(
            f"no run of {plain(folder)} has started, so there is nothing to compare",
            code="report.nothing_to_compare",
            folder=folder,
        )
    found = read_runs(began)
    families = _families(record, axes, compared, [(run, cells[run.folder]) for run in found.runs], baseline)
    allowed = allowed_by_axes(key for axis in compared for key in (axis.keys or (axis.key,)))
    return _arrangement(found, tuple(families), allowed)


def _families(
    record: SweepRecord, axes: Sequence[Axis], compared: Sequence[Axis],
    runs: Sequence[tuple[RunRecord, CellRecord]], baseline: str | None,
) -> Iterable[BaselineFamily]:  # fmt: skip
    """Yield the groups within each combination of the values that are not compared."""
    held = [axis for axis in axes if axis not in compared]

    found: dict[str, dict[str, list[tuple[RunRecord, CellRecord]]]] = {}
    for run, cell in runs:
        probe = " (probe)" if cell.kind == "probe" else ""
        held_at = ", ".join(f"{axis.label} {axis.values[cell.values[axis.label]]}" for axis in held)
        title = f"{held_at}{probe}".strip()
        found.setdefault(title, {}).setdefault(label_of(compared, cell.values) or record.name, []).append((run, cell))
    is_base = _names_baseline(record, compared, baseline)
    for title, groups in found.items():
        members = tuple(Group(label, tuple(run for run, _ in of)) for label, of in groups.items())
        named = [label for label, of in groups.items() if is_base(label, of[0][1])]
        yield BaselineFamily(title, members, named[0] if named else members[0].label)


def _names_baseline(
    record: SweepRecord, compared: Sequence[Axis], wanted: str | None
) -> Callable[[str, CellRecord], bool]:
    """Return what tells the baseline of a family by its label and a cell of it."""
    if wanted is None:
        named = {label: value for label, value in record.baseline.items() if label in {axis.label for axis in compared}}
        return lambda _, cell: bool(named) and named.items() <= cell.values.items()
    values = {name for axis in compared for pair in axis.values.items() for name in pair}
    labels = {label_of(compared, cell.values) or record.name for cell in record.cells}
    if wanted not in values | labels:
        listed = ", ".join(plain(label) for label in sorted(labels)[:5])
        near = did_you_mean(wanted, values | labels)
        raise ConfigError(
            f"--baseline {plain(wanted)} is not one of the compared configurations ({listed}){near}",
            code="compare.unknown_run",
            option="--baseline",
        )
    return lambda label, cell: (
        wanted == label
        or any(wanted in (cell.values[axis.label], axis.values[cell.values[axis.label]]) for axis in compared)
    )
