"""The results of a matrix: scores of every run, mean and spread over seeds, and the chosen candidates.

The choice is by the mean over seeds of one metric on validation, never by test scores. A candidate without all of its
seeds is shown with the scores that exist, and not chosen; so is one without a seed that another candidate has.
Probes, repeats and runs that cannot run here are left out.

Candidates differ in axes that may change the quality. Runs that differ only in other axes (devices, strategy, loader
workers) are one candidate: a choice among them would be random.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import counted
from paratune.config.metric_names import direction
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.records.constant import is_better_score
from paratune.records.finished import RunRecord, read_typed
from paratune.records.sweep import Axis, CellRecord, SweepRecord, cell_run_folder, read_sweep, with_finished_runs
from paratune.records.typed import RunFile, Summary
from paratune.reports.document import ReportSection
from paratune.reports.runs.differing import allowed_by_axes
from paratune.reports.systems.effects import AxisEffects
from paratune.reports.systems.model import Systems
from paratune.verdicts import Group, LookHistory, MeasureComparison, Verdict, default_margin, judge_scores
from paratune.verdicts.sequential import look_history


@dataclass(frozen=True)
class Outcome:
    """One run."""

    cell: CellRecord
    folder: Path
    scores: Mapping[str, Mapping[str, float | None]]
    """Scores by split and metric; empty for an unfinished run and for a probe."""
    reason: str | None
    """Reason why there are no scores; None for a finished run."""
    constant: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Scores of a constant prediction, such as the majority class, by split and metric."""
    predicts: str | None = None
    """What the constant prediction is."""
    record: RunRecord | None = None
    """None for an unfinished run, a probe, and a record that cannot be read."""

    @property
    def global_batch_size(self) -> float | None:
        return None if self.record is None else self.record.run.batch.global_batch_size

    @property
    def is_finished(self) -> bool:
        return self.reason is None

    def score(self, split: str, metric: str) -> float | None:
        """Return a score; None where the run has none."""
        return self.scores.get(split, {}).get(metric)


@dataclass(frozen=True)
class Figure:
    """A metric over the seeds of a candidate."""

    values: tuple[float | None, ...]
    """Value of each run, in the order of the seeds; None where it is missing."""
    num_left_out: int = 0
    """Runs that other candidates have, and that `exclude` leaves out or that cannot run here."""

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """Mean over the existing runs; `is_whole` is whether these are all runs."""
        return statistics.fmean(self.known) if self.known else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); None for fewer than two runs."""
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def is_whole(self) -> bool:
        return len(self.known) == self.num_wanted

    @property
    def num_wanted(self) -> int:
        """Number of runs that a comparison with other candidates needs."""
        return len(self.values) + self.num_left_out


@dataclass(frozen=True)
class CandidateRuns:
    """The runs of a combination of values: for each seed one, or several that differ only in how they train."""

    values: Mapping[str, str]
    """Values of the axes that may change the quality, without seeds and the axes in `select_per`."""
    outcomes: tuple[Outcome, ...]
    num_left_out: int = 0
    """Seeds that other candidates have, and that are excluded or cannot run here."""
    seeds: tuple[str, ...] = ()
    """Labels of the axes of seeds."""
    repeats: str = "seed"
    """As `SweepReport.repeats`."""

    @property
    def by_seed(self) -> Mapping[tuple[str, ...], list[Outcome]]:
        """The runs of each seed."""
        return grouped((tuple(item.cell.values[label] for label in self.seeds), item) for item in self.outcomes)

    def scores(self, split: str, metric: str) -> dict[tuple[str, ...], float | None]:
        """Return the score of each seed, the mean over its runs; None when no run has it."""
        scores = {}
        for seed, outcomes in self.by_seed.items():
            known = [score for outcome in outcomes if (score := outcome.score(split, metric)) is not None]
            scores[seed] = statistics.fmean(known) if known else None
        return scores

    def figure(self, split: str, metric: str) -> Figure:
        """Return a metric over the seeds."""
        return Figure(tuple(self.scores(split, metric).values()), self.num_left_out)


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates from which one is chosen."""

    values: Mapping[str, str]
    """Values of the axes in `select_per`."""
    task: str
    metric: str
    metrics: tuple[str, ...]
    """Metrics that tables show."""
    candidates: tuple[CandidateRuns, ...]
    chosen: CandidateRuns | None
    remarks: tuple[str, ...]
    """Remarks on the choice."""
    compared: tuple[tuple[CandidateRuns, MeasureComparison], ...] = ()
    """Each other candidate that has all of its runs, compared with the chosen one in the metric on validation."""
    not_chosen_among: tuple[str, ...] = ()
    """Labels of axes that do not change what is trained."""
    constant: float | None = None
    """Validation score of a constant prediction by the metric; None when it is not recorded."""
    predicts: str | None = None
    """What the constant prediction is, such as the majority class."""

    @property
    def tied(self) -> tuple[CandidateRuns, ...]:
        """The candidates that cannot be distinguished from the chosen one; none with one seed, which tells nothing."""
        return tuple(
            other for other, found in self.compared if found.outcome != "different" and min(found.num_runs) > 1
        )

    @property
    def is_best(self) -> bool | None:
        """Whether the chosen candidate is shown to be better than all others on other seeds and rows; None: unknown."""
        shown = all(found.is_shown and found.outcome == "different" for _, found in self.compared)
        return True if self.compared and shown else None

    @property
    def is_below_constant(self) -> bool:
        """Whether the chosen candidate is not better on validation than a constant prediction."""
        score = None if self.chosen is None else self.chosen.figure("validation", self.metric).mean
        if score is None or self.constant is None:
            return False
        return not is_better_score(self.metric, score, self.constant)

    def split_shown(self) -> str:
        """Return the split whose scores are shown: test, or validation when no run has test scores."""
        outcomes = [outcome for candidate in self.candidates for outcome in candidate.outcomes]
        return "test" if any(outcome.scores.get("test") for outcome in outcomes) else "validation"


@dataclass(frozen=True)
class SweepReport:
    """A matrix of runs with its results."""

    record: SweepRecord
    folder: Path
    outcomes: tuple[Outcome, ...]
    groups: tuple[CandidateGroup, ...]
    files: tuple[Path, ...] = ()
    systems: Systems | None = None
    """Speed, memory and machines of the runs; None when only scores were read."""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts on the configurations, each compared with its baseline."""
    verdict_notes: tuple[str, ...] = ()
    """Remarks on configurations without a verdict."""
    effects: tuple[AxisEffects, ...] = ()
    """Main effects of the axes."""
    targets: tuple[ScoreTarget, ...] = ()
    """Scores; the report shows when configurations reached them."""
    layout: str | None = None
    """Name of the study in whose layout a table is added."""
    plan: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Planned figures of the cells by name, from `paratune plan`; empty when no plan was given."""
    sections: tuple[ReportSection, ...] = ()
    """Sections of the report; empty before a format needs them."""
    joined: tuple[SweepRecord, ...] = ()
    """Records of each of several matrices; empty for a single one."""
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Prices of a device-hour of several matrices by their names; empty for a single one."""

    @property
    def matrices(self) -> tuple[SweepRecord, ...]:
        """The records of the matrices."""
        return self.joined or (self.record,)

    @property
    def seeds(self) -> tuple[str, ...]:
        """The seeds as tables show them; none when the matrix has no axis of seeds."""
        return next((tuple(axis.values.values()) for axis in self.record.axes if axis.is_seed), ())

    @property
    def repeats(self) -> str:
        """What the runs of a candidate differ in: seed or fold."""
        return next((axis.repeats for axis in self.record.axes if axis.is_seed), "seed")

    def shown(self, label: str, name: str) -> str:
        """Return the text that tables show for a value of an axis."""
        return next(axis.values[name] for axis in self.record.axes if axis.label == label)

    @property
    def num_finished(self) -> int:
        return sum(outcome.is_finished for outcome in self.outcomes)

    @property
    def are_probes(self) -> bool:
        """Whether no run can have scores, because all are probes."""
        return bool(self.outcomes) and all(outcome.cell.kind == "probe" for outcome in self.outcomes)

    @property
    def num_skipped(self) -> int:
        """Number of runs that cannot run here."""
        return sum(outcome.cell.state == "skipped" and outcome.cell.is_needed for outcome in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        from paratune.reports.matrix.export import as_dict

        return as_dict(self)

    def _repr_html_(self) -> str:
        """Return what `paratune report` prints, for notebooks."""
        from paratune.console.html import html_of
        from paratune.reports.terminal import terminal_sweep

        return html_of(terminal_sweep(self))


def read_outcomes(folder: Path) -> SweepReport:
    """Read a matrix and the scores of its runs.

    Raises:
        CheckpointError: sweep.json is absent, damaged or of another schema version.
    """
    record = with_finished_runs(folder, read_sweep(folder))
    outcomes = tuple(_outcome(folder, cell) for cell in record.cells)
    return SweepReport(record, folder, outcomes, candidate_groups(record, outcomes))


def _outcome(folder: Path, cell: CellRecord) -> Outcome:
    run = cell_run_folder(folder, cell.name)
    if cell.state == "pending":
        return Outcome(cell, run, {}, cell.reason or "not trained yet")
    if cell.state != "finished":
        return Outcome(cell, run, {}, f"{cell.state}: {cell.reason}" if cell.reason else cell.state)
    if cell.kind == "probe":
        return Outcome(cell, run, {}, None)
    try:
        summary = read_typed(run, Summary)
    except CheckpointError as error:
        return Outcome(cell, run, {}, f"its record cannot be read: {error}")
    try:
        facts = read_typed(run, RunFile)
    except CheckpointError:  # without it the scores are known, and how they were trained is not
        facts = RunFile()
    record, constant = RunRecord(cell.name, run, facts, summary), summary.baseline
    return Outcome(cell, run, summary.scores, None, constant.scores, constant.predicts, record)


def candidate_groups(record: SweepRecord, outcomes: Sequence[Outcome]) -> tuple[CandidateGroup, ...]:
    """Return the candidates for each combination of the axes in `select_per`."""
    per = record.select_per
    free = [axis for axis in record.axes if not axis.is_seed and axis.label not in per]
    tried = [axis.label for axis in free if _may_change_quality(axis, record, outcomes)]
    others = tuple(axis.label for axis in free if axis.label not in tried)
    seeds = [axis.label for axis in record.axes if axis.is_seed]
    repeats = next((axis.repeats for axis in record.axes if axis.is_seed), "seed")

    def seed_of(outcome: Outcome) -> tuple[str, ...]:
        return tuple(outcome.cell.values[label] for label in seeds)

    candidates_by_group: dict[tuple[str, ...], dict[tuple[str, ...], list[Outcome]]] = {}
    not_needed: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for outcome in outcomes:
        values = outcome.cell.values
        if not outcome.cell.counts:
            if not outcome.cell.is_needed:
                not_needed.setdefault(tuple(values[label] for label in (*per, *tried)), set()).add(seed_of(outcome))
            continue
        group = candidates_by_group.setdefault(tuple(values[label] for label in per), {})
        group.setdefault(tuple(values[label] for label in tried), []).append(outcome)
    groups = []
    for names, candidates in candidates_by_group.items():
        # A seed that no candidate of the group has does not make a candidate incomplete.
        all_seeds = {seed_of(run) for runs in candidates.values() for run in runs}
        members = []
        for names_tried, runs in candidates.items():
            num_left_out = len(all_seeds - set(map(seed_of, runs)) - not_needed.get((*names, *names_tried), set()))
            tried_values = dict(zip(tried, names_tried, strict=True))
            members.append(CandidateRuns(tried_values, tuple(runs), num_left_out, tuple(seeds), repeats))
        groups.append(_group(dict(zip(per, names, strict=True)), members, others, look_history(record)))
    return tuple(groups)


def _may_change_quality(axis: Axis, record: SweepRecord, outcomes: Sequence[Outcome]) -> bool:
    """Return whether runs that differ only on an axis may train something different.

    Runs with different batch settings or numbers of processes may, unless all have the same, known global batch size.
    """
    names = allowed_by_axes(axis.keys or (axis.key,))
    if not names <= {"batch", "steps"}:
        return True
    if not names:
        return False
    sizes: dict[tuple[str, ...], set[float | None]] = {}
    for outcome in outcomes:
        if outcome.is_finished and outcome.cell.counts:
            rest = tuple(outcome.cell.values[other.label] for other in record.axes if other is not axis)
            sizes.setdefault(rest, set()).add(outcome.global_batch_size)
    return not sizes or any(None in batch_sizes or len(batch_sizes) > 1 for batch_sizes in sizes.values())


def _group(
    values: Mapping[str, str], candidates: Sequence[CandidateRuns], others: tuple[str, ...], history: LookHistory
) -> CandidateGroup:
    cell = candidates[0].outcomes[0].cell
    chosen, remarks = choose(candidates, cell.metric)
    runs = [outcome for candidate in candidates for outcome in candidate.outcomes]
    scored = next((run for run in runs if run.constant.get("validation", {}).get(cell.metric) is not None), None)
    constant = None if scored is None else scored.constant["validation"][cell.metric]
    predicts = None if scored is None else scored.predicts
    compared = compare_with_chosen(candidates, chosen, cell.metric, history)
    group = CandidateGroup(
        values, cell.task, cell.metric, cell.metrics, tuple(candidates), chosen, tuple(remarks), compared, others,
        constant, predicts,
    )  # fmt: skip
    return replace(group, remarks=(*remarks, *_choice_remarks(group)))


def compare_with_chosen(
    candidates: Sequence[CandidateRuns], chosen: CandidateRuns | None, metric: str, history: LookHistory
) -> tuple[tuple[CandidateRuns, MeasureComparison], ...]:
    """Return each other candidate that has all of its runs, with its verdict against the chosen one on validation.

    They are verdicts as those of `paratune compare`: over seeds and rows, corrected for their number and for looks.
    """
    if chosen is None:
        return ()
    complete = [candidate for candidate in candidates if candidate.figure("validation", metric).is_whole]
    others = [candidate for candidate in complete if candidate is not chosen]
    if chosen not in complete or not others:
        return ()
    base, *groups = (_group_of(candidate, metric, str(at)) for at, candidate in enumerate((chosen, *others)))
    margin = default_margin(metric, chosen.outcomes[0].cell.task)
    found = judge_scores(base, groups, "validation", metric, margin, history)
    return tuple(zip(others, found, strict=True))


def _group_of(candidate: CandidateRuns, metric: str, label: str) -> Group:
    """Return the runs of a candidate for verdicts; those of a seed that differ only in how they train are repeats."""
    runs = []
    for seed, outcomes in candidate.by_seed.items():
        for outcome in outcomes:
            if outcome.score("validation", metric) is None:
                continue
            known = outcome.record or RunRecord(outcome.cell.name, outcome.folder, RunFile())
            task = known.run.task.model_copy(update={"kind": outcome.cell.task})
            run = known.run.model_copy(update={"seed": seed, "task": task})
            runs.append(
                replace(
                    known, run=run, summary=Summary(scores={name: dict(own) for name, own in outcome.scores.items()})
                )
            )
    return Group(label, tuple(runs))


def _choice_remarks(group: CandidateGroup) -> Iterator[str]:
    if group.not_chosen_among:
        are = "does" if len(group.not_chosen_among) == 1 else "do"
        yield f"no choice among {', '.join(group.not_chosen_among)}, which {are} not change what is trained"
    if group.chosen is not None and len(group.candidates) > 1:
        if group.tied:
            others, do = counted(len(group.tied), "other candidate"), "does" if len(group.tied) == 1 else "do"
            yield f"{others} {do} not differ significantly from it"
        elif len(group.chosen.scores("validation", group.metric)) < 2:
            yield f"with one {group.chosen.repeats} it is unknown whether another candidate is as good"
        if any(found.scope == "seeds" for _, found in group.compared):
            yield f"compared over {group.chosen.repeats}s on these validation rows, not over other rows"
    if group.is_below_constant:
        assert group.constant is not None
        constant = f"a constant prediction ({group.predicts}: {group.constant:.4f})"
        yield f"on validation, the chosen candidate is not better than {constant}"


def choose(candidates: Sequence[CandidateRuns], metric: str) -> tuple[CandidateRuns | None, list[str]]:
    """Return the best candidate by the mean of a metric on validation, and remarks on the choice.

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
        remarks.append(f"{len(tied)} candidates are equal in {metric} on validation; the first one is chosen")
    if len(whole) < len(candidates):
        remarks.append(f"chosen among the {len(whole)} of {len(candidates)} candidates that have all of their runs")
    return tied[0], remarks


def _missing(candidates: Sequence[CandidateRuns]) -> list[str]:
    outcomes = [outcome for candidate in candidates for outcome in candidate.outcomes]
    num_missing = sum(not outcome.is_finished for outcome in outcomes)
    are = "is" if num_missing == 1 else "are"
    return [f"{num_missing} of {counted(len(outcomes), 'run')} {are} missing"] if num_missing else []
