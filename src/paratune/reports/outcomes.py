"""The results of a matrix: scores of every run, mean and spread over seeds, the chosen candidates, and their tables.

The choice is by the mean over seeds of one metric on validation, never by test scores. A candidate that lacks the score
of a seed is shown with the scores that exist, and not chosen. Of a seed with several runs one score is enough. Probes,
repeats and runs that cannot run here are left out.

Candidates differ in axes that may change the quality. Runs that differ only in other axes (devices, strategy, loader
workers) are one candidate: a choice among them would be random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, counted, format_as
from paratune.config.metric_names import direction, metric_name
from paratune.records.constant import is_better_score
from paratune.records.sweep import Axis, SweepRecord
from paratune.reports.amounts import amount_text, scale_of
from paratune.reports.document import ReportSection, StatementBox
from paratune.reports.runs.sameness import allowed_by_axes
from paratune.reports.systems.judging import AxisEffects
from paratune.reports.systems.model import CellRun, Configuration, Systems, values_label
from paratune.reports.tables.table import Row, Table, TableCell, make_table
from paratune.reports.text import GENERATOR
from paratune.verdicts import Group, LookHistory, MeasureComparison, default_margin
from paratune.verdicts.finding import decide
from paratune.verdicts.scores import differences
from paratune.verdicts.sequential import look_history

SWEEP_REPORT_SCHEMA_VERSION = 1
_OF_RECORD = ("matrix", "matrix_text", "command", "created", "version", "code", "select_per", "past")
_OTHERS = "Others"  # heading of the values that are in no group of the matrix


@dataclass(frozen=True)
class CandidateGroup:
    """Candidates from which one is chosen."""

    values: Mapping[str, str]  # values of the axes in `select_per`
    task: str
    metric: str
    metrics: tuple[str, ...]  # metrics that tables show
    candidates: tuple[Configuration, ...]
    chosen: Configuration | None
    remarks: tuple[str, ...]  # remarks on the choice
    compared: tuple[tuple[Configuration, MeasureComparison], ...] = ()
    """Each other candidate that has all of its seeds, compared with the chosen one in the metric on validation."""
    not_chosen_among: tuple[str, ...] = ()  # labels of axes that do not change what is trained
    constant: float | None = None
    """Validation score of a constant prediction by the metric; None when it is not recorded."""
    predicts: str | None = None  # what the constant prediction is, such as the majority class

    @property
    def tied(self) -> tuple[Configuration, ...]:
        """The candidates that cannot be distinguished from the chosen one; none with one seed, which tells nothing."""
        known = [(other, found) for other, found in self.compared if min(found.num_runs) > 1]
        return tuple(other for other, found in known if found.outcome != "different")

    @property
    def is_below_constant(self) -> bool:
        """Whether the chosen candidate is not better on validation than a constant prediction."""
        score = None if self.chosen is None else self.chosen.score_over_seeds("validation", self.metric).center
        return not (score is None or self.constant is None or is_better_score(self.metric, score, self.constant))

    @property
    def split_shown(self) -> str:
        """The split whose scores are shown: test, or validation when no run has test scores."""
        runs = (cell_run for candidate in self.candidates for cell_run in candidate.cell_runs)
        return "test" if any(cell_run.scores.get("test") for cell_run in runs) else "validation"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in report.json."""
        candidates = []
        for candidate in self.candidates:
            scores: dict[str, dict[str, Any]] = {}
            by_split = (pair for item in candidate.cell_runs for pair in item.scores.items())
            known = [(split, metric) for split, own in by_split for metric in own]
            for split, metric in sorted(dict.fromkeys(known), key=lambda pair: pair[0] != "validation"):
                found, num_left_out = candidate.score_over_seeds(split, metric), candidate.num_left_out
                scores.setdefault(split, {})[metric] = {
                    "mean": found.center, "standard_deviation": found.deviation, "num_runs": len(found.values),
                    "num_planned": found.num_runs - num_left_out, "num_left_out": num_left_out,
                    "values": [found.values.get(seed) for seed in candidate.by_seed],
                }  # fmt: skip
            names = [item.cell.name for item in candidate.cell_runs]
            candidates.append({"values": dict(candidate.values), "runs": names, "scores": scores})
        return {
            "values": dict(self.values),
            "task": self.task,
            "chosen_by": {"split": "validation", "metric": self.metric},
            "chosen": None if self.chosen is None else dict(self.chosen.values),
            "remarks": list(self.remarks),
            "tied": [dict(candidate.values) for candidate in self.tied],
            "not_chosen_among": list(self.not_chosen_among),
            "constant": None if self.constant is None else {"predicts": self.predicts, "score": self.constant},
            "is_below_constant": self.is_below_constant,
            "candidates": candidates,
        }


@dataclass(frozen=True, kw_only=True)
class SweepReport(Systems):
    """A matrix of runs with its results."""

    folder: Path
    groups: tuple[CandidateGroup, ...]
    files: tuple[Path, ...] = ()
    verdict_notes: tuple[str, ...] = ()  # remarks on configurations without a verdict
    effects: tuple[AxisEffects, ...] = ()  # main effects of the axes; empty with fewer than two axes
    sections: tuple[ReportSection, ...] = ()

    @cached_property
    def seed_axis(self) -> Axis:
        """The axis of seeds or folds; one without values when the matrix has none."""
        return next((axis for axis in self.record.axes if axis.is_seed), Axis("", "", {}, is_seed=True))

    def shown(self, label: str, name: str) -> str:
        """Return the text that tables show for a value of an axis."""
        return next(axis.values[name] for axis in self.record.axes if axis.label == label)

    @property
    def is_choice(self) -> bool:
        """Whether a group has several candidates."""
        return any(len(group.candidates) > 1 for group in self.groups)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        record = self.record
        return {
            "generator": GENERATOR,
            "schema_version": SWEEP_REPORT_SCHEMA_VERSION,
            "sweep": record.name,
            "folder": str(self.folder),
            **{name: getattr(record, name) for name in _OF_RECORD},
            "num_runs": len(self.cell_runs),
            "num_finished": len(self.runs),
            "axes": [asdict(axis) for axis in record.axes],
            "groups": [group.as_dict() for group in self.groups],
            "runs": [
                asdict(item.cell)
                | {"folder": str(item.folder), "reason": item.reason, "scores": dict(item.scores)}
                | {"slices": {} if item.record is None else dict(item.record.summary.slices)}
                for item in self.cell_runs
            ],
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "effects": [{**vars(one), "effects": [effect.as_dict() for effect in one.effects]} for one in self.effects],
            "summary": [
                asdict(part) | {"statements": [*map(asdict, part.statements)]}
                for section in self.sections
                for part in section.parts
                if isinstance(part, StatementBox)
            ],
            "tables": [table.as_dict() for section in self.sections for table in section.tables],
            "files": [str(path) for path in self.files],
        }

    def _repr_html_(self) -> str:
        from paratune.console.notebook import html_of
        from paratune.reports.terminal import terminal_sweep

        return html_of(terminal_sweep(self))


def candidate_groups(record: SweepRecord, cell_runs: Sequence[CellRun]) -> tuple[CandidateGroup, ...]:
    """Return the candidates for each combination of the axes in `select_per`."""
    per = [axis for label in record.select_per for axis in record.axes if axis.label == label]
    free = [axis for axis in record.axes if not axis.is_seed and axis not in per]
    tried = [axis for axis in free if _may_change_quality(axis, record, cell_runs)]
    others = tuple(axis.label for axis in free if axis not in tried)
    seeds = [axis for axis in record.axes if axis.is_seed]

    def values_of(cell_run: CellRun, axes: Sequence[Axis]) -> tuple[str, ...]:
        return tuple(cell_run.cell.values[axis.label] for axis in axes)

    not_needed = {
        values_of(item, [*per, *tried, *seeds]) for item in cell_runs
        if not item.cell.counts and not item.cell.is_needed
    }  # fmt: skip
    groups = []
    for names, members in grouped((values_of(item, per), item) for item in cell_runs if item.cell.counts).items():
        # A seed that no candidate of the group has does not make a candidate incomplete.
        all_seeds = {values_of(item, seeds) for item in members}
        candidates = []
        for names_tried, runs in grouped((values_of(item, tried), item) for item in members).items():
            missing = all_seeds - {values_of(item, seeds) for item in runs}
            num_left_out = sum((*names, *names_tried, *seed) not in not_needed for seed in missing)
            values = {axis.label: name for axis, name in zip(tried, names_tried, strict=True)}
            candidates.append(Configuration(
                values_label(tried, values), values, tuple(runs), seeds=tuple(axis.label for axis in seeds),
                num_left_out=num_left_out,
            ))  # fmt: skip
        cell = members[0].cell
        chosen, remarks = choose(candidates, cell.metric)
        constants = (
            (score, run.summary.baseline.predicts)
            for candidate in candidates
            for run in candidate.runs
            if (score := (run.summary.baseline.scores.get("validation") or {}).get(cell.metric)) is not None
        )
        constant, predicts = next(constants, (None, None))
        compared = compare_with_chosen(candidates, chosen, cell.metric, look_history(record))
        group_values = {axis.label: name for axis, name in zip(per, names, strict=True)}
        groups.append(CandidateGroup(
            group_values, cell.task, cell.metric, cell.metrics, tuple(candidates), chosen, tuple(remarks), compared,
            others, constant, predicts,
        ))  # fmt: skip
    return tuple(groups)


def _may_change_quality(axis: Axis, record: SweepRecord, cell_runs: Sequence[CellRun]) -> bool:
    """Return whether runs that differ only on an axis may train something different.

    Runs with different batch settings or numbers of processes may, unless all have the same, known global batch size.
    """
    names = allowed_by_axes(axis.keys or (axis.key,))
    if not names or not names <= {"batch", "steps"}:
        return bool(names)
    sizes: dict[tuple[str, ...], set[float | None]] = {}
    for item in cell_runs:
        if item.record is not None and item.cell.counts:
            rest = tuple(item.cell.values[other.label] for other in record.axes if other is not axis)
            sizes.setdefault(rest, set()).add(item.record.run.batch.global_batch_size)
    return not sizes or any(None in batch_sizes or len(batch_sizes) > 1 for batch_sizes in sizes.values())


def compare_with_chosen(
    candidates: Sequence[Configuration], chosen: Configuration | None, metric: str, history: LookHistory
) -> tuple[tuple[Configuration, MeasureComparison], ...]:
    """Return each other candidate that has all of its seeds, with its verdict against the chosen one on validation.

    They are verdicts as those of `paratune compare`: over seeds and rows, corrected for their number and for looks.
    """
    others = [one for one in candidates if one is not chosen and one.is_whole(metric)]
    if chosen is None or not others or not chosen.is_whole(metric):
        return ()
    sides = []
    for label, candidate in enumerate((chosen, *others)):
        runs = []
        for seed, cell_runs in candidate.by_seed.items():  # runs of a seed that differ in how they train are repeats
            for item in cell_runs:
                if item.record is not None and item.score("validation", metric) is not None:
                    task = item.record.run.task.model_copy(update={"kind": item.cell.task})
                    run = item.record.run.model_copy(update={"seed": seed, "task": task})
                    runs.append(replace(item.record, run=run))
        sides.append(Group(f"{label}", tuple(runs)))
    base, *groups = sides
    margin = default_margin(metric, chosen.cell_runs[0].cell.task)
    looks = [history.at(base.runs, group.runs) for group in groups]
    found = decide(differences(base, groups, "validation", metric, margin), looks, history.num_planned)
    return tuple(zip(others, found, strict=True))


def choose(candidates: Sequence[Configuration], metric: str) -> tuple[Configuration | None, list[str]]:
    """Return the best candidate by the mean of a metric on validation, and remarks on the choice.

    Only candidates with a value for every seed that any of them has are chosen; of equal ones the first. The one
    candidate of a matrix without anything to choose is taken as it is.
    """
    cell_runs = [item for candidate in candidates for item in candidate.cell_runs]
    num_unfinished = sum(item.record is None for item in cell_runs)
    remarks = [f"{num_unfinished} of {counted(len(cell_runs), 'run')} unfinished"] if num_unfinished else []
    if len(candidates) == 1:
        return candidates[0], remarks
    if unscored := sum(item.record is not None and item.score("validation", metric) is None for item in cell_runs):
        remarks.append(f"{counted(unscored, 'finished run')} without a finite {metric} on validation")
    whole = [
        (candidate, mean) for candidate in candidates if candidate.is_whole(metric)
        if (mean := candidate.score_over_seeds("validation", metric).center) is not None
    ]  # fmt: skip
    if not whole:
        return None, [*remarks, "nothing is chosen: no candidate has a score of every seed"]
    best = (max if direction(metric) == "max" else min)(mean for _, mean in whole)
    tied = [candidate for candidate, mean in whole if mean == best]
    if len(tied) > 1:
        remarks.append(f"{len(tied)} candidates are equal in {metric} on validation; the first one is chosen")
    if len(whole) < len(candidates):
        remarks.append(f"chosen among the {len(whole)} of {len(candidates)} candidates with a score of every seed")
    return tied[0], remarks


def chosen_table(report: SweepReport) -> Table:
    """Return the chosen candidate of each group: a line for each model, a column for each metric of each task."""
    per = report.record.select_per
    across = next((axis.label for axis in report.record.axes if axis.is_column and axis.label in per), None)
    down = [label for label in per if label != across]
    labels, columns = dict[str, None](), dict[str, None]()
    rows: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for group in report.groups:
        row = rows.setdefault(tuple(report.shown(label, group.values[label]) for label in down), {})
        name = report.shown(across, group.values[across]) if across else ""
        split, one = group.split_shown, group.chosen
        if report.is_choice:
            tie = f" (tied with {counted(len(group.tied), 'other')})" if group.tied else ""
            text = f"{one.label or 'the only one'}{tie}" if one else "none"
            names = tuple(item.cell.name for item in one.cell_runs) if one else ()
            row[head := f"{name} chosen".strip()] = TableCell(text, runs=names, source="sweep.json" if one else "")
            labels[head] = None
        for metric in group.metrics:
            row[head := " ".join(filter(None, [name, split, metric_name(metric)]))] = _mean(one, split, metric)
            columns[head] = None
    # The first axis whose values are in groups decides the headings of the lines.
    label = next((label for label in down if label in report.record.groups), "")
    groups = report.record.groups.get(label, {})
    by_value = {report.shown(label, name): text for text, members in groups.items() for name in members}
    headings = {names: by_value.get(names[down.index(label)], _OTHERS) if groups else "" for names in rows}
    order = [*groups, _OTHERS, ""]
    lines = sorted(rows, key=lambda names: order.index(headings[names]))
    cells: list[Row] = [
        [*(names or (report.record.name,)), *(rows[names].get(head, TableCell("")) for head in (*labels, *columns))]
        for names in lines
    ]
    listed = [headings[names] for names in lines]
    starts = tuple((at, text) for at, text in enumerate(listed) if text and (at == 0 or listed[at - 1] != text))
    seeds, noun = report.seed_axis.values.values(), report.seed_axis.repeats
    about = f"One {noun}: no spread over {noun}s."
    if len(seeds) > 1:
        which = f"over {len(seeds)} {noun}s ({', '.join(seeds)}), or over those in brackets"
        about = f"Mean ± sample standard deviation {which}."
    notes = [about]
    if report.is_choice:
        metrics = sorted({group.metric for group in report.groups})
        notes.append(f"Chosen: the best mean of {' or '.join(metrics)} on validation, without test scores.")
        axes, constants = [axis.label for axis in report.record.axes if axis.is_column], dict[str, None]()
        for group in report.groups:
            task = ", ".join(report.shown(label, group.values[label]) for label in axes if label in group.values)
            if group.constant is not None:
                score = f"{metric_name(group.metric)} {group.constant:.4f} on validation"
                constants[f"{f'{task}: ' if task else ''}A constant prediction ({group.predicts}) has {score}."] = None
        notes += constants
        if any(group.split_shown == "validation" for group in report.groups):
            why = "they are optimistic"
            notes.append(f"Without a test set, scores are those of the validation set that decided the choice: {why}.")
    title, first = "Chosen by validation" if report.is_choice else "Results", [*(down or ["matrix"]), *labels]
    return make_table("chosen", title, [*first, *columns], cells, len(first), notes, groups=starts)


def candidates_table(report: SweepReport, group: CandidateGroup, number: int) -> Table:
    """Return all candidates of a group, with the score of every run."""
    tried = list(group.candidates[0].values)
    tests = group.metrics if group.split_shown == "test" else ()
    axis = report.seed_axis
    seeds = axis.values if len(axis.values) > 1 else {}
    by_seed = "test" if axis.repeats != "seed" and group.split_shown == "test" else "validation"  # of columns of seeds
    header = [*(tried or ["runs"]), f"validation {metric_name(group.metric)}"]
    header += [
        f"{axis.repeats} {seed}{f': test {metric_name(group.metric)}' * (by_seed == 'test')}" for seed in seeds.values()
    ]
    header += [f"test {metric_name(metric)}" for metric in tests]
    rows, marked = [], []
    for position, candidate in enumerate(group.candidates):
        is_chosen = candidate is group.chosen and len(group.candidates) > 1
        marked += [position] if is_chosen else []
        names = [report.shown(label, candidate.values[label]) for label in tried] or ["all"]
        names[0] = f"{'* ' if is_chosen else ''}{names[0]}"
        row: list[str | TableCell] = [*names, _mean(candidate, "validation", group.metric)]
        values = candidate.score_over_seeds(by_seed, group.metric).values
        for seed in seeds:
            cell_runs = candidate.by_seed.get(seed, [])
            known = [item for item in cell_runs if item.score(by_seed, group.metric) is not None]
            runs = tuple(item.cell.name for item in known or cell_runs if item.record is not None)
            source = f"{'mean of ' * (len(runs) > 1)}summary.scores.{by_seed}.{group.metric}"
            # Without a run its state, and nothing where a seed is excluded.
            state = cell_runs[0].cell.state if cell_runs else ""
            few = f" ({len(known)} of {len(cell_runs)})" if 0 < len(known) < len(cell_runs) else ""
            text = format_as(value := values.get(seed), ".4f") + few
            row.append(TableCell(text, value, runs, source) if runs else state)
        rows.append((*row, *(_mean(candidate, "test", metric) for metric in tests)))
    title = ", ".join(f"{label}: {report.shown(label, name)}" for label, name in group.values.items()) or "All runs"
    notes = ["* chosen"] if group.chosen is not None and len(group.candidates) > 1 else []
    notes += [f"{text[0].upper()}{text[1:]}." for text in group.remarks]
    return make_table(f"candidates-{number}", title, header, rows, len(tried) or 1, notes, marked)


def _mean(candidate: Configuration | None, split: str, metric: str) -> TableCell:
    if candidate is None:
        return TableCell(NOT_AVAILABLE)
    found = candidate.score_over_seeds(split, metric)
    runs_ = tuple(item.cell.name for item in candidate.cell_runs if item.score(split, metric) is not None)
    text, source = amount_text(found, scale_of("score", ())), f"mean of summary.scores.{split}.{metric}"
    text += f" ({found.remark})" if found.remark else ""
    return TableCell(text, found.center, runs_, source, deviation=found.deviation)
