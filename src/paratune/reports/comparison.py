"""`make_comparison`: the arguments of `paratune compare` to verdicts on the configurations of runs or of a matrix."""

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.errors import CheckpointError, ConfigError, did_you_mean, option_error
from paratune.records.finished import RunRecord
from paratune.records.sweep import SWEEP_FILE, Axis, CellRecord, SweepRecord, read_sweep, with_finished_runs
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.runs.read import Certificate, FoundRuns, Unfinished, read_runs, reasons_text
from paratune.reports.runs.sameness import OTHER_LOAD, configuration_key, differing_settings, setting_text
from paratune.reports.systems.building import findings
from paratune.reports.systems.judging import AxisEffects, axis_effects, judged
from paratune.reports.systems.model import CellRun, Systems, read_cell_runs, values_label
from paratune.reports.systems.tables import MAX_BESIDE
from paratune.verdicts import Margin

GENERATOR = "paratune compare"
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Comparison:
    """Configurations with their verdicts."""

    systems: Systems
    effects: tuple[AxisEffects, ...]  # main effects of the axes of a matrix; empty with fewer than two axes
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Certificate, ...]
    warnings: tuple[str, ...]  # what records lack
    notes: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether there is no comparable pair."""
        return all(verdict.differs.refused for verdict in self.systems.verdicts)

    def _repr_html_(self) -> str:
        from paratune.console.notebook import html_of
        from paratune.reports.terminal import terminal_comparison

        return html_of(terminal_comparison(self))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; unknown values are None."""
        return {
            "generator": GENERATOR,
            "schema_version": SCHEMA_VERSION,
            "configurations": [
                {
                    "label": member.label,
                    "runs": [{"run": run.name, "folder": str(run.folder), "seed": run.run.seed} for run in member.runs],
                }
                for member in self.systems.measured
            ],
            "verdicts": [verdict.as_dict() for verdict in self.systems.verdicts],
            "effects": [effect.as_dict() for family in self.effects for effect in family.effects],
            "figures": {
                key: {label: finding.as_dict() for label, finding in by_label.items()}
                for key, by_label in findings(self.systems).items()
            },
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "certificates": [certificate.as_dict() for certificate in self.certificates],
            "notes": [*self.warnings, *self.notes],
        }


def make_comparison(
    words: Sequence[str], *, baseline: str | None = None, by: Sequence[str] = (),
    margins: Mapping[str, Margin] | None = None, allowed: frozenset[str] = frozenset(),
) -> Comparison:  # fmt: skip
    """Read runs and judge them; writes nothing.

    Args:
        words: Run folders or patterns of them, which are grouped by their configuration; or one folder of a matrix.
        baseline: A run, a configuration, or a value of an axis; None takes what the matrix names, or the first.
        by: Axes of a matrix whose values are compared; none compares what the matrix chooses among.
        margins: As `judge` takes them.
        allowed: Names of `paratune.reports.runs.sameness.ALLOW`: differences that are the subject of the comparison.

    Raises:
        ConfigError: The words cannot be understood.
        CheckpointError: A folder is not a run, or there is nothing to compare.
    """
    matrices = [word for word in words if (Path(word) / SWEEP_FILE).is_file()]
    if matrices and len(words) > 1:
        text = f"{matrices[0]} is a matrix of runs: compare it by itself, or its runs: {matrices[0]}/runs/*"
        raise ConfigError(text, code="cli.conflict")
    if matrices:
        systems, found = _of_matrix(Path(matrices[0]), baseline, by)
    elif by:
        raise option_error("--by", by[0], "only a matrix has axes; give the folder of one", code="cli.no_effect")
    elif not words:
        text = "paratune compare needs runs, such as runs/first runs/second, or the folder of a matrix"
        raise ConfigError(text, code="cli.required")
    else:
        folders: list[Path] = []
        for word in words:
            is_pattern = glob.has_magic(word) and not Path(word).exists()
            matches = [Path(path) for path in sorted(glob.glob(word)) if Path(path).is_dir()]  # noqa: PTH207
            if is_pattern and not matches:
                raise ConfigError(f"{plain(word)} matches no folder", code="run.not_found", part=word)
            folders += matches if is_pattern else [Path(word)]
        found = read_runs(folders)
        systems = systems_of_runs(found.runs, baseline)
    members = systems.measured
    if all(systems.baseline_of(member) is member for member in members):
        runs = found.runs[0].name if len(found.runs) == 1 else f"{len(found.runs)} runs"
        labels = ", ".join(plain(member.label) for member in members[:3])
        raise _nothing(f"{runs} of one configuration ({labels}); name runs of another", found)
    systems = replace(systems, allowed=allowed)
    verdicts, problems = judged(systems, margins, all_of_them=True)
    if not verdicts:
        raise _nothing("; ".join(problems) or "probes are not compared with whole runs", found)
    systems = replace(systems, verdicts=verdicts)
    effects, notes = axis_effects(systems, margins), (*found.notes, *problems, *_notes(systems))
    return Comparison(systems, effects, found.unfinished, found.certificates, found.warnings, notes)


def _nothing(why: str, found: FoundRuns) -> CheckpointError:
    left_out = reasons_text(found.unfinished)
    text = f"nothing to compare with: {why}{f'; left out:{left_out}' if left_out else ''}"
    return CheckpointError(text, code="report.nothing_to_compare")


def _of_matrix(folder: Path, baseline: str | None, by: Sequence[str]) -> tuple[Systems, FoundRuns]:
    """Return a matrix whose baselines have equal values on all axes that are not compared."""
    record = with_finished_runs(folder, read_sweep(folder))
    axes = [axis for axis in record.axes if not axis.is_seed]
    labels = [axis.label for axis in axes]
    by_word = {word: axis.label for axis in axes for word in (axis.key, *axis.keys)} | {name: name for name in labels}
    words = [part.strip() for word in by for part in word.split(",")]
    if unknown := [word for word in words if word not in by_word]:
        near = did_you_mean(unknown[0], by_word)
        reason = f"the axes of {plain(folder)} are {', '.join(labels)}{near}"
        raise option_error("--by", plain(unknown[0]) or "''", reason, code="cli.invalid_value", folder=folder)
    wanted = [by_word[word] for word in words]
    held = tuple(label for label in labels if label not in wanted) if wanted else record.select_per
    compared = [axis for axis in axes if axis.label not in held]
    named = {label: name for label, name in record.baseline.items() if label not in held}
    systems = Systems(record, read_cell_runs(folder, record))
    if baseline is not None:  # one value, or a label of the compared axes or of all axes
        by_label = {member.label: member.values for member in systems.configurations}
        known = by_label | {values_label(compared, values): values for values in by_label.values()}
        for axis in reversed(compared):
            for name, shown in axis.values.items():  # also as main effects are shown
                known |= {word: {axis.label: name} for word in (f"{axis.label} {shown}", shown, name)}
        if baseline not in known:
            values = [shown for axis in compared for shown in axis.values.values()]
            raise _unknown_baseline(baseline, [*values, *by_label], known)
        named = {axis.label: known[baseline][axis.label] for axis in compared if axis.label in known[baseline]}
    systems = replace(systems, record=replace(record, select_per=held, baseline=named))
    certificates, notes = systems.certificates
    found = FoundRuns(tuple(systems.runs), systems.unfinished, notes, certificates, systems.warnings)
    if not systems.measured:
        raise _nothing(f"no run of {plain(folder)} is finished and readable", found)
    return systems, found


def systems_of_runs(runs: Sequence[RunRecord], baseline: str | None = None, price: float | None = None) -> Systems:
    """Return runs as a matrix with one axis, whose values are their configurations.

    Runs of one configuration differ only in seed and repeat, and ran on one kind of machine.

    Args:
        runs: At least one.
        baseline: A configuration, a run or its folder; the first configuration when None.
        price: Of a device-hour.

    Raises:
        ConfigError: The baseline is none of them.
    """
    machines = machine_kinds(runs)
    by_key = grouped(((configuration_key(run), machine), run) for run, machine in zip(runs, machines, strict=True))
    groups, labels = [*by_key.values()], []
    for group in groups:
        shared = commonprefix([run.name for run in group])  # noqa: RUF071 - characters are meant, not folders
        stem = (
            shared
            if len(group) == 1
            else re.sub(r"[-_.](seed|s|run)$", "", shared.rstrip("0123456789").rstrip("-_. /"))
        )
        labels.append(stem or group[0].name)
    labels = [label if labels.count(label) == 1 else group[0].name for label, group in zip(labels, groups, strict=True)]
    if len(set(labels)) < len(labels):  # the name of a run may be the common prefix of others
        labels = [group[0].name for group in groups]
    cell_runs = []
    names: dict[str, str] = {}
    for label, group in zip(labels, groups, strict=True):
        for run in group:
            metrics = [metric for scores in run.summary.scores.values() for metric in scores if metric != "loss"]
            cell = CellRecord(
                run.name, {"": label}, int(run.run.world_size or 1), run.task,
                metrics=tuple(run.run.task.metrics or dict.fromkeys(metrics)),
                metric="", fingerprint="", state="finished", kind="probe" if run.is_probe else "full",
            )  # fmt: skip
            cell_runs.append(CellRun(cell, run.folder, run))
            for word in (label, run.name, str(run.folder), str(run.folder.resolve())):
                names.setdefault(word, label)
    base = {}
    if baseline is not None:
        label_of_it = names.get(baseline) or names.get(str(Path(baseline).resolve()))
        if label_of_it is None:
            raise _unknown_baseline(baseline, labels, labels)
        base = {"": label_of_it}
    axis, cells = Axis("", "", {label: label for label in labels}), tuple(item.cell for item in cell_runs)
    record = SweepRecord(labels[0], "", "", (), (axis,), (), cells, baseline=base, price_per_device_hour=price)
    return Systems(record, tuple(cell_runs))


def _unknown_baseline(wanted: str, labels: Sequence[str], known: Iterable[str]) -> ConfigError:
    """Return the error for a baseline that does not exist; `labels` are shown, `known` are all words for one."""
    reason = f"allowed are {listing((repr(plain(label)) for label in labels), 12)}{did_you_mean(wanted, known)}"
    return option_error("--baseline", plain(wanted), reason, code="run.not_found")


def _notes(systems: Systems) -> Iterator[str]:
    for members in grouped((systems.baseline_of(member).label, member) for member in systems.measured).values():
        settings = []
        for difference in differing_settings([run for member in members for run in member.runs]):
            texts = (dict.fromkeys(setting_text(difference, run.name) for run in one.runs) for one in members)
            values = "; ".join(f"{plain(one.label)} {', '.join(own)}" for one, own in zip(members, texts, strict=True))
            if not difference.key.startswith("machine."):
                settings.append(f"{difference.label} ({values})")
            elif difference.key != OTHER_LOAD:  # verdicts have the load by other programs
                yield f"{difference.label} differ, which changes times: {values}."
        if settings and not systems.record.matrix and len(members) <= MAX_BESIDE:  # names have the axes of a matrix
            yield f"Settings that differ: {listing(settings, 8)}."
    for verdict in systems.verdicts:
        yield from (f"{plain(verdict.label)}: {note}." for note in verdict.notes)
    if allow := dict.fromkeys(name for verdict in systems.verdicts for name in verdict.differs.allow):
        yield f"To compare different experiments nevertheless: --allow {','.join(allow)}."
    most = max(verdict.num_compared for verdict in systems.verdicts)
    if most > 1:
        yield (
            f"Intervals are 95% confidence intervals. Up to {most} configurations are compared with one baseline, so "
            "differences and equality are tested at 5% over all of them."
        )
