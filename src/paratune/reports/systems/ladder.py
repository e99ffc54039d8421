"""The compression ladder: each configuration in each measured form, from the full model down, and what to use.

`paratune compress` measures the forms of a run (`compress:` of a matrix). An entry is a form of a configuration, with
the measurements of all its seeds; its quality is compared with that of the baseline in float32.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.compressed import FP32, measured_forms, read_measured
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.verdicts import Group, Margin, MeasureComparison, default_margin
from paratune.verdicts.agreement import mean_correlation
from paratune.verdicts.finding import decide
from paratune.verdicts.judge import metrics_of
from paratune.verdicts.rows import CannotTell, read_rows
from paratune.verdicts.scores import difference

Mean = tuple[float, float | None]
"""Mean over seeds, and standard deviation; None for one seed."""
Agreement = tuple[float, tuple[float, float] | None, int]
"""Mean over rows, its interval, and the number of rows."""


MIN_CPU_SHARE = 0.9
"""CPU seconds per second, below which a process waited for a processor."""


@dataclass(frozen=True)
class FormOfRun:
    """One form of one run."""

    cell: str
    record: RunRecord
    """The record of the run, with the scores and the predictions of the form."""
    measured: dict[str, Any]
    """See `paratune.records.compressed`."""


@dataclass(frozen=True)
class LadderEntry:
    """A form of a configuration."""

    configuration: Configuration
    form: str
    members: tuple[FormOfRun, ...]
    """One for each seed."""
    comparison: MeasureComparison | None = None
    """Of its quality with the baseline; None for the baseline, and where it cannot be compared."""
    reason: str = ""
    """Why it cannot be compared."""
    explanations: Agreement | None = None
    """Rank correlation of the effects of words with those of the baseline."""
    same_decisions: float | None = None
    """Share of rows with the prediction of the baseline of the same seed."""

    @property
    def label(self) -> str:
        return f"{self.configuration.label}, {self.form}"

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(member.cell for member in self.members)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(member.record for member in self.members)

    def mean(self, read: Callable[[dict[str, Any]], float]) -> Mean:
        """Return the mean over seeds of a measurement."""
        values = [read(member.measured) for member in self.members]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None

    @property
    def weights_bytes(self) -> float:
        return self.mean(lambda measured: measured["weights_bytes"])[0]

    @property
    def p50_ms(self) -> float:
        return self.mean(lambda measured: measured["p50_ms"])[0]

    @property
    def waited(self) -> bool:
        """Whether other programs used the processors during a measurement, so that its times are too long."""
        return any(member.measured["cpu_share"] < MIN_CPU_SHARE for member in self.members)

    @property
    def is_as_good(self) -> bool:
        """Whether its quality is shown to be equal to the baseline's, or better."""
        found = self.comparison
        return found is not None and (
            found.outcome == "equal" or (found.outcome == "different" and bool(found.is_better))
        )


@dataclass(frozen=True)
class Ladder:
    """The entries that are compared with one baseline."""

    base: LadderEntry
    entries: tuple[LadderEntry, ...]
    """All, the base included, in the order of configurations and forms."""
    split: str
    metric: str | None
    """Metric of the quality; None where the runs have none in common."""
    notes: tuple[str, ...] = ()


def build_ladders(systems: Systems, margins: Mapping[str, Margin] | None = None) -> tuple[Ladder, ...]:
    """Return a ladder for each baseline with measured forms; `margins` as in `verdicts.judge`."""
    notes: list[str] = []
    families: dict[int, tuple[Configuration, list[LadderEntry]]] = {}
    for configuration in systems.measured:
        if not configuration.is_probe:
            base = systems.baseline_of(configuration)
            families.setdefault(id(base), (base, []))[1].extend(_entries(configuration, notes))
    found = []
    for full, entries in families.values():
        baseline = next((entry for entry in entries if entry.configuration is full and entry.form == FP32), None)
        if baseline is not None:
            found.append(_ladder(systems, baseline, entries, margins or {}, notes))
    return tuple(found)


def _entries(configuration: Configuration, notes: list[str]) -> list[LadderEntry]:
    """Return the measured forms of a configuration; damaged measurements become notes."""
    members: dict[str, list[FormOfRun]] = {}
    for cell_run in configuration.cell_runs:
        if cell_run.record is None or not cell_run.cell.counts:
            continue
        for form, folder in measured_forms(cell_run.folder):
            try:
                measured = read_measured(folder)
            except CheckpointError as error:
                notes.append(plain(error))
                continue
            split = measured["split"]
            record = replace(
                cell_run.record,
                name=f"{cell_run.cell.name}, {form}",
                folder=folder,
                summary={"scores": {split: measured["scores"]}, "slices": {split: measured["slices"]}},
            )
            members.setdefault(form, []).append(FormOfRun(cell_run.cell.name, record, measured))
    return [LadderEntry(configuration, form, tuple(runs)) for form, runs in members.items()]


def _ladder(
    systems: Systems,
    base: LadderEntry,
    entries: Sequence[LadderEntry],
    margins: Mapping[str, Margin],
    notes: Sequence[str],
) -> Ladder:
    split = base.members[0].measured["split"]
    same_split = [entry for entry in entries if all(member.measured["split"] == split for member in entry.members)]
    notes = [
        *notes,
        *(f"{entry.label}: scored on another set than {split}" for entry in entries if entry not in same_split),
    ]
    metrics = metrics_of([run for entry in same_split for run in entry.runs], split, ())
    metric = metrics[0] if metrics else None
    reasons = {id(entry): _why_not(systems, base, entry, metric) for entry in same_split}
    compared = [entry for entry in same_split if entry is not base and not reasons[id(entry)]]
    comparisons: list[MeasureComparison] = []
    if metric is not None:
        margin = margins.get(metric) or default_margin(metric, base.runs[0].task)
        first = Group(base.label, base.runs)
        comparisons = decide(
            [difference(first, Group(entry.label, entry.runs), split, metric, margin) for entry in compared]
        )
    by_entry = {id(entry): comparison for entry, comparison in zip(compared, comparisons, strict=False)}
    done = [
        entry
        if entry is base
        else replace(
            entry,
            comparison=by_entry.get(id(entry)),
            reason=reasons[id(entry)],
            explanations=_explanations(base, entry),
            same_decisions=_same_decisions(base, entry, split),
        )
        for entry in same_split
    ]
    return Ladder(base, tuple(done), split, metric, tuple(dict.fromkeys([*notes, *_busy(done), *_machines(done)])))


def _why_not(systems: Systems, base: LadderEntry, entry: LadderEntry, metric: str | None) -> str:
    refused = systems.differs(entry.configuration, base.configuration).refused
    if refused:
        return f"not the same experiment: they differ in {'; '.join(refused)}"
    return "" if metric is not None else "no score that all of these runs have"


def _pairs(base: LadderEntry, entry: LadderEntry) -> list[tuple[FormOfRun, FormOfRun]]:
    """Return the runs of both entries with the same seed."""
    by_seed = {member.record.get("run.seed"): member for member in base.members}
    return [(by_seed[seed], member) for member in entry.members if (seed := member.record.get("run.seed")) in by_seed]


def _explanations(base: LadderEntry, entry: LadderEntry) -> Agreement | None:
    """Return how far the effects of words agree with those of the baseline, over rows with the same words."""
    by_row: dict[tuple[int, str], list[tuple[Any, Any]]] = {}
    for first, second in _pairs(base, entry):
        effects = {(row["row"], row["words_sha256"]): row["values"] for row in first.measured["effects"] or ()}
        for row in second.measured["effects"] or ():
            key = (row["row"], row["words_sha256"])
            if key in effects and len(effects[key]) == len(row["values"]):
                by_row.setdefault(key, []).append((np.asarray(effects[key]), np.asarray(row["values"])))
    return mean_correlation([*by_row.values()])


def _same_decisions(base: LadderEntry, entry: LadderEntry, split: str) -> float | None:
    """Return the share of rows with the same prediction; None for numbers, and where rows differ."""
    shares = []
    for first, second in _pairs(base, entry):
        if first.record.task == "regression":
            return None
        try:
            rows, others = read_rows(first.record, split), read_rows(second.record, split)
            if not rows.is_same_as(others):
                return None
            shares.append(float(np.mean(rows["prediction"] == others["prediction"])))
        except CannotTell:
            return None
    return statistics.fmean(shares) if shares else None


def _busy(entries: Sequence[LadderEntry]) -> list[str]:
    """Return a note on the entries that were measured while other programs used the processors."""
    waited = [entry.label for entry in entries if entry.waited]
    if not waited:
        return []
    names = "all forms" if len(waited) == len(entries) else "; ".join(waited)
    return [f"Other programs used the processors during the measurement, so that times are too long: {names}."]


def _machines(entries: Sequence[LadderEntry]) -> list[str]:
    """Return a note where forms were measured on different processors or with different numbers of threads."""
    machines = {tuple(member.measured["machine"].values()) for entry in entries for member in entry.members}
    return ["Measured on different machines: do not compare times and memory."] if len(machines) > 1 else []


def is_smaller(entry: LadderEntry, base: LadderEntry) -> bool:
    """Return whether an entry has fewer bytes of weights, or a shorter latency, than the baseline."""
    return entry.weights_bytes < base.weights_bytes or entry.p50_ms < base.p50_ms


def best_entry(ladder: Ladder) -> LadderEntry | None:
    """Return the entry with the shortest latency among the smaller ones that are as good; None without one.

    Of equal latencies, the one with fewer bytes.
    """
    good = [entry for entry in ladder.entries if entry.is_as_good and is_smaller(entry, ladder.base)]
    return min(good, key=lambda entry: (entry.p50_ms, entry.weights_bytes), default=None)
