"""What became of a matrix of runs: the scores of every run, their mean and spread over seeds, and what is chosen.

Chosen is by the mean over seeds of one metric on validation; test scores are read, and never looked at for that. A
candidate of which a seed is missing is shown with what there is, and not chosen; so is one of which a seed is left out
that another candidate has. Probes, repeats of a run for its speed and what cannot run here are no part of it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.units import counted
from paratune.config.metric_names import direction
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.records.sweep import CellRecord, SweepRecord, as_found, read_sweep, run_folder_of
from paratune.report.read import read_whole
from paratune.report.section import ReportSection
from paratune.report.sweep.planned import PlannedCell
from paratune.report.systems.model import Systems
from paratune.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """One run."""

    cell: CellRecord
    folder: Path
    scores: Mapping[str, Mapping[str, float | None]]
    """By split and metric; empty of a run that is not finished, and of a probe, which has none."""
    reason: str | None
    """Why there are no scores."""

    @property
    def is_finished(self) -> bool:
        return self.reason is None

    def score(self, split: str, metric: str) -> float | None:
        """Return a score; None where the run has none."""
        return self.scores.get(split, {}).get(metric)


@dataclass(frozen=True)
class Figure:
    """One metric over the seeds of a candidate."""

    values: tuple[float | None, ...]
    """Of each run, in the order of the seeds; None where it is missing."""
    num_left_out: int = 0
    """Runs that `exclude` leaves out, or that cannot be made here, and other candidates have."""

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """Over the runs that there are; `is_whole` says whether these are all."""
        return statistics.fmean(self.known) if self.known else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); None of fewer than two."""
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def is_whole(self) -> bool:
        return len(self.known) == self.num_wanted

    @property
    def num_wanted(self) -> int:
        """Runs that a comparison with other candidates needs."""
        return len(self.values) + self.num_left_out


@dataclass(frozen=True)
class CandidateRuns:
    """The runs of a combination of values, one a seed."""

    values: Mapping[str, str]
    """Of the axes that are neither seeds nor in `select_per`: what is chosen among."""
    outcomes: tuple[Outcome, ...]
    num_left_out: int = 0
    """Seeds that other candidates have and this one has not, by `exclude` or because it cannot run here."""

    def figure(self, split: str, metric: str) -> Figure:
        return Figure(tuple(outcome.score(split, metric) for outcome in self.outcomes), self.num_left_out)


@dataclass(frozen=True)
class CandidateGroup:
    """The candidates of which one is chosen."""

    values: Mapping[str, str]
    """Of the axes in `select_per`."""
    task: str
    metric: str
    metrics: tuple[str, ...]
    """What is shown of the chosen one."""
    candidates: tuple[CandidateRuns, ...]
    chosen: CandidateRuns | None
    remarks: tuple[str, ...]
    """What a reader has to know of the choice."""

    def split_shown(self) -> str:
        """Return the split whose scores are shown: test, or validation where no run has test scores."""
        outcomes = [outcome for candidate in self.candidates for outcome in candidate.outcomes]
        return "test" if any(outcome.scores.get("test") for outcome in outcomes) else "validation"


@dataclass(frozen=True)
class SweepReport:
    """A matrix of runs with what became of it."""

    record: SweepRecord
    folder: Path
    outcomes: tuple[Outcome, ...]
    groups: tuple[CandidateGroup, ...]
    files: tuple[Path, ...] = ()
    systems: Systems | None = None
    """What the records of its runs say of speed, memory and machines; None where only scores were read."""
    verdicts: tuple[Verdict, ...] = ()
    """On its configurations, each beside its baseline."""
    verdict_notes: tuple[str, ...] = ()
    """What is to be said of those without a verdict."""
    targets: tuple[ScoreTarget, ...] = ()
    """Scores; when configurations reached them is shown."""
    plan: Mapping[str, PlannedCell] = field(default_factory=dict)
    """What `paratune plan` planned of its cells, by name; empty where no plan was given."""
    sections: tuple[ReportSection, ...] = ()
    """What it shows; empty where it was not made for any format yet."""
    joined: tuple[SweepRecord, ...] = ()
    """Of several matrices each as it was read; empty for one alone."""

    @property
    def matrices(self) -> tuple[SweepRecord, ...]:
        """The matrices as they were started."""
        return self.joined or (self.record,)

    @property
    def seeds(self) -> tuple[str, ...]:
        """The seeds as they are shown; none where the matrix has no axis of them."""
        return next((tuple(axis.values.values()) for axis in self.record.axes if axis.is_seed), ())

    def shown(self, label: str, name: str) -> str:
        """Return how a value of an axis is shown."""
        return next(axis.values[name] for axis in self.record.axes if axis.label == label)

    @property
    def num_finished(self) -> int:
        return sum(outcome.is_finished for outcome in self.outcomes)

    @property
    def are_probes(self) -> bool:
        """Whether no run could have scores, since each is a few steps to be timed."""
        return bool(self.outcomes) and all(outcome.cell.kind == "probe" for outcome in self.outcomes)

    @property
    def num_skipped(self) -> int:
        """Runs that cannot be made here."""
        return sum(outcome.cell.state == "skipped" for outcome in self.outcomes)


def read_outcomes(folder: Path) -> SweepReport:
    """Read a matrix and the scores of its runs.

    Raises:
        CheckpointError: sweep.json is absent, damaged or of another schema version.
    """
    record = as_found(folder, read_sweep(folder))
    outcomes = tuple(_outcome(folder, cell) for cell in record.cells)
    return SweepReport(record, folder, outcomes, groups_of(record, outcomes))


def _outcome(folder: Path, cell: CellRecord) -> Outcome:
    run = run_folder_of(folder, cell.name)
    if cell.state != "finished":
        return Outcome(cell, run, {}, cell.reason or "not trained yet" if cell.state == "pending" else _reason(cell))
    if cell.kind == "probe":
        return Outcome(cell, run, {}, None)
    try:
        scores = read_whole(run, records.SUMMARY_FILE)["scores"]
        return Outcome(cell, run, {split: _numbers(found) for split, found in scores.items() if found}, None)
    except (CheckpointError, KeyError, TypeError, AttributeError, ValueError) as error:
        return Outcome(cell, run, {}, f"its record cannot be read: {error}")


def _reason(cell: CellRecord) -> str:
    return f"{cell.state}: {cell.reason}" if cell.reason else cell.state


def _numbers(scores: Mapping[str, Any]) -> dict[str, float | None]:
    def number(value: Any) -> float | None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if is_number else None

    return {str(metric): number(value) for metric, value in scores.items()}


def groups_of(record: SweepRecord, outcomes: Sequence[Outcome]) -> tuple[CandidateGroup, ...]:
    """Return what is chosen among, for each combination of the axes in `select_per`."""
    per = record.select_per
    tried = [axis.label for axis in record.axes if not axis.is_seed and axis.label not in per]
    found: dict[tuple[str, ...], dict[tuple[str, ...], list[Outcome]]] = {}
    for outcome in outcomes:
        if not outcome.cell.counts:
            continue
        values = outcome.cell.values
        group = found.setdefault(tuple(values[label] for label in per), {})
        group.setdefault(tuple(values[label] for label in tried), []).append(outcome)
    seeds = [axis.label for axis in record.axes if axis.is_seed]
    groups = []
    for names, candidates in found.items():
        # A seed that no candidate of the group has makes none of them unlike the others.
        num_seeds = len({tuple(map(run.cell.values.get, seeds)) for runs in candidates.values() for run in runs})
        groups.append(
            _group(
                dict(zip(per, names, strict=True)),
                [
                    CandidateRuns(dict(zip(tried, values, strict=True)), tuple(runs), num_seeds - len(runs))
                    for values, runs in candidates.items()
                ],
            )
        )
    return tuple(groups)


def _group(values: Mapping[str, str], candidates: Sequence[CandidateRuns]) -> CandidateGroup:
    cell = candidates[0].outcomes[0].cell
    chosen, remarks = choose(candidates, cell.metric)
    return CandidateGroup(values, cell.task, cell.metric, cell.metrics, tuple(candidates), chosen, tuple(remarks))


def choose(candidates: Sequence[CandidateRuns], metric: str) -> tuple[CandidateRuns | None, list[str]]:
    """Return the best candidate by the mean of a metric on validation, and what a reader has to know of that.

    Only candidates with a value for every seed that any of them has are chosen; of equal ones the first. The one
    candidate of a matrix without anything to choose is taken as it is.
    """
    if len(candidates) == 1:
        return candidates[0], _missing(candidates)
    figures = [(candidate, candidate.figure("validation", metric)) for candidate in candidates]
    whole = [(candidate, figure.mean) for candidate, figure in figures if figure.is_whole and figure.mean is not None]
    remarks = _missing(candidates)
    unscored = sum(
        outcome.is_finished and outcome.score("validation", metric) is None
        for candidate in candidates
        for outcome in candidate.outcomes
    )
    if unscored:
        have = "has" if unscored == 1 else "have"
        remarks.append(f"{counted(unscored, 'finished run')} {have} no finite {metric} on validation")
    num_short = sum(candidate.num_left_out > 0 for candidate in candidates)
    if num_short:
        are = "is" if num_short == 1 else "are"
        remarks.append(f"{num_short} of {len(candidates)} candidates {are} without seeds that others have")
    if not whole:
        return None, [*remarks, "nothing is chosen: no candidate has all of its runs"]
    best = (max if direction(metric) == "max" else min)(mean for _, mean in whole)
    tied = [candidate for candidate, mean in whole if mean == best]
    if len(tied) > 1:
        remarks.append(f"{len(tied)} candidates are equal in {metric} on validation; the first of them is taken")
    if len(whole) < len(candidates):
        remarks.append(f"chosen among the {len(whole)} of {len(candidates)} candidates that have all of their runs")
    return tied[0], remarks


def _missing(candidates: Sequence[CandidateRuns]) -> list[str]:
    missing = [outcome for candidate in candidates for outcome in candidate.outcomes if not outcome.is_finished]
    total = sum(len(candidate.outcomes) for candidate in candidates)
    return (
        [f"{len(missing)} of {counted(total, 'run')} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    )
