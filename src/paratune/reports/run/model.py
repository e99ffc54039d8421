"""The contents of a report of runs as data."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_count
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.records import ALL_PHASES
from paratune.records.confusion import Confusion, read_confusion
from paratune.records.finished import RunRecord, rank_memory
from paratune.reports.comparison.arrange import Compared, by_configuration
from paratune.reports.comparison.make import compare_runs
from paratune.reports.comparison.tables import Member
from paratune.reports.measures import not_better_than_constant, over_sessions, unknown_reasons
from paratune.reports.rows import ReportRow, build_rows
from paratune.reports.runs.certificates import Certificate, find_certificates
from paratune.reports.runs.execution import execution_differences
from paratune.reports.runs.read import FoundRuns, Unfinished
from paratune.reports.runs.sameness import Difference, Sameness, compare, config_differences, seed_groups
from paratune.reports.text import GENERATOR
from paratune.verdicts import Margin, Verdict

REPORT_SCHEMA_VERSION = 1
MAX_CLASSES = 24
"""Confusion matrices of more classes are shown as a list of the most frequent confusions."""
_MAY_CHANGE = {
    "strategy": "run.strategy.kind",
    "world size": "run.world_size",
    "device": "run.device",
    "precision": "run.config.precision",
    "micro-batch": "run.batch.micro_batch_size",
}
"""Settings that may change when a run is resumed, and their fields in run.json."""
_SPREAD_KEYS = ("train_s", "epoch_s", "samples_per_s", "tokens_per_s", "step_median_ms", "peak_memory_largest_bytes")


@dataclass(frozen=True)
class Report:
    """Finished runs, compared."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    rows: tuple[ReportRow, ...]
    sameness: Sameness
    differences: tuple[Difference, ...]
    certificates: tuple[Certificate, ...]
    notes: tuple[str, ...]
    """How the figures were measured, and what was left out; the warnings first."""
    warnings: tuple[str, ...] = ()
    """The notes without which the figures mislead."""
    baseline: str | None = None
    """Name of the run with which the others are compared, if one was named."""
    compared: Compared | None = None
    """The comparison with the baseline; None with one configuration."""
    verdict_notes: tuple[str, ...] = ()
    """Reasons for missing verdicts."""
    price: float | None = None
    """Price of a device-hour."""
    files: tuple[Path, ...] = field(default=())
    """Written files; empty when no folder was given."""

    @property
    def title(self) -> str:
        return f"Run {self.runs[0].name}" if len(self.runs) == 1 else f"{len(self.runs)} runs compared"

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on each configuration except the baseline."""
        return () if self.compared is None else self.compared.verdicts

    @cached_property
    def configurations(self) -> list[tuple[str, list[RunRecord]]]:
        """The runs that differ only in seed and repeat, under the name that verdicts use."""
        by_name = {run.name: run for run in self.runs}
        return [(group.label, [by_name[run.name] for run in group.runs]) for group in by_configuration(self.runs)]

    @property
    def members(self) -> list[Member]:
        """The configurations for tables of their main figures; probes have no scores."""
        return [Member(label, runs, [run for run in runs if not run.is_probe]) for label, runs in self.configurations]

    @property
    def shown_rows(self) -> tuple[ReportRow, ...]:
        """The rows that tables show: those in which a value is known."""
        return tuple(row for row in self.rows if row.shown)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What the shown measures mean."""
        return tuple(dict.fromkeys(row.measure.note for row in self.shown_rows if row.measure.note))

    def _repr_html_(self) -> str:
        """Return what `paratune report` prints, for notebooks."""
        from paratune.console.html import html_of
        from paratune.reports.terminal import terminal_runs

        return html_of(terminal_runs(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        return {
            "generator": GENERATOR,
            "schema_version": REPORT_SCHEMA_VERSION,
            "runs": [_run_dict(run, self.rows, position) for position, run in enumerate(self.runs)],
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "same_experiment": {
                "verdict": self.sameness.verdict,
                "sentence": self.sameness.sentence,
                "differ": {entry.key: dict(entry.values) for entry in self.sameness.differ},
                "not_recorded": list(self.sameness.unknown),
            },
            "config_differences": {entry.key: dict(entry.values) for entry in self.differences},
            "seed_groups": [_spreads(group, self.rows) for group in seed_groups(self.runs)],
            "certificates": [entry.as_dict() for entry in self.certificates],
            "baseline": self.baseline,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }


def build_report(
    records: FoundRuns, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (), price: float | None = None,
    margins: Mapping[str, Margin] | None = None,
) -> Report:  # fmt: skip
    """Return the report of runs that were read; writes nothing.

    Args:
        records: The runs.
        baseline: Folder of the run with which the others are compared.
        targets: Scores; the report shows when runs reached them.
        price: Price of a device-hour.
        margins: Differences that count as equal, by measure; `default_margin` for other measures.

    Raises:
        CheckpointError: The baseline or all other runs are not finished.
        ConfigError: No run was evaluated by the metric of a target.
    """
    certificates, of_others = find_certificates(records.runs, records.certificates)
    base = None if baseline is None else _name_of(baseline, records)
    reference = next((run for run in records.runs if run.name == base), records.runs[0])
    machine = execution_differences(records.runs)
    warnings, notes = _notes(records.runs)
    compared, verdict_notes = compare_runs(records.runs, base, margins)
    return Report(
        runs=records.runs,
        unfinished=records.unfinished,
        rows=build_rows(records.runs, certificates, reference=reference, targets=targets, price=price),
        sameness=replace(compare(records.runs), execution=tuple(entry.label for entry in machine)),
        differences=(*config_differences(records.runs), *machine),
        certificates=certificates,
        notes=(*warnings, *notes, *records.notes, *of_others),
        warnings=tuple(warnings),
        baseline=base,
        compared=compared,
        verdict_notes=verdict_notes,
        price=price,
    )


def _name_of(folder: Path, records: FoundRuns) -> str:
    """Return the name of the run in a folder."""
    name = next((run.name for run in records.runs if run.folder.resolve() == folder.resolve()), None)
    if name is not None and len(records.runs) > 1:
        return name
    problem = f"{plain(folder)} is not a finished run, and there is nothing to compare with"
    if name is not None:
        problem = f"{plain(folder)}: no other finished run is given; add its folder, or leave out --baseline"
    raise CheckpointError(f"--baseline {problem}", code="report.no_baseline", option="--baseline", value=folder)


def split_shown(run: RunRecord) -> str | None:
    """Return the split whose predictions are drawn: test, or validation when a run has no test scores."""
    return next((split for split in ("test", "validation") if run.summary.scores.get(split)), None)


def _notes(runs: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Return the warnings and the other notes; a note that applies to several runs appears once."""
    warnings = _shared(runs, ((text, run.name) for run in runs for text in _warnings_of(run)))
    if len({run.summary.memory.kind for run in runs}) > 1:
        warnings.append("Peak memory was measured in different ways and is not comparable: see the row Kind of memory.")
    if len({run.task for run in runs}) > 1:
        warnings.append("The runs have different tasks; their scores and losses cannot be compared.")
    texts = [(text, run.name) for run in runs for text in (*_notes_of(run), *unknown_reasons(run, runs))]
    cost, measured_runs = _cost_of_measuring(runs)
    return warnings, _shared(runs, [*texts, *((cost, name) for name in measured_runs)])


def _shared(runs: Sequence[RunRecord], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return each text once, with the names of its runs unless there is only one run."""
    notes = []
    for text, names in grouped(texts).items():
        who = "" if len(runs) == 1 else "All runs: " if len(names) == len(runs) else f"{', '.join(names)}: "
        notes.append(f"{who}{text}" if who else text[0].upper() + text[1:])
    return notes


def _cost_of_measuring(runs: Sequence[RunRecord]) -> tuple[str, list[str]]:
    """Return the note on the cost of measuring, and the names of the runs that recorded it."""
    costs_by_run = [
        (run.name, cost, 100 * share)
        for run in runs
        if (cost := run.summary.recorder.cost_ms_per_step) is not None
        and (share := run.summary.recorder.cost_share) is not None
    ]
    if not costs_by_run:
        return "", []
    names, costs, shares = zip(*costs_by_run, strict=True)
    of_step = " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(costs), max(costs))))
    of_time = " to ".join(dict.fromkeys(f"{value:.2f}%" for value in (min(shares), max(shares))))
    return f"measuring itself cost {of_step} ms a step ({of_time}).", list(names)


def _how_fitted(run: RunRecord) -> str:
    """Return how a fitted baseline, which has no steps, was fitted and chosen."""
    fitted = run.summary.fitted
    name, features = fitted.estimator, fitted.num_features
    c = NOT_AVAILABLE if fitted.c is None else fitted.c
    metric, tried = run.summary.fitted.chosen_by.metric, run.summary.fitted.candidates
    among = f", the best {metric} on validation of {len(tried)} values" if tried[1:] else ""
    return f"no model was trained: {name} of {format_count(features)} features, with C = {c}{among}."


def _warnings_of(run: RunRecord) -> Iterator[str]:
    """Yield what makes the figures of a run misleading."""
    if not run.is_baseline and not run.summary.throughput.num_steps_measured:
        steps = format_count(run.summary.num_steps)
        yield f"no step was measured: all {steps} were warm-up, so rates and phases are n/a."
    if (sentence := not_better_than_constant(run)) is not None:
        yield sentence
    changes = [
        f"{name} {over_sessions(run.session_values(source))}"
        for name, source in _MAY_CHANGE.items()
        if len(run.session_values(source)) > 1
    ]
    if changes:
        steps_taken = ", ".join(format_count(session.run.step) for session in run.sessions[1:])
        yield (
            f"resumed with other settings (after step {steps_taken}): {', '.join(changes)}. Times, rates and phases "
            "are those of all its sessions together, memory is that of the last."
        )


def _notes_of(run: RunRecord) -> Iterator[str]:
    """Yield how a run was measured and ended."""
    measured, steps = run.summary.throughput.num_steps_measured, run.summary.num_steps
    warm_up = run.setting("measure.warmup_steps")
    if run.is_baseline:
        yield _how_fitted(run)
    elif measured:
        first = "" if warm_up is None else f" (the first {format_count(warm_up)}, and as many after each resume)"
        profiled = run.summary.profile.num_steps or run.summary.communication.num_steps
        too = f"; so are {format_count(profiled)} steps under the profiler" if profiled else ""
        yield f"{format_count(measured)} of {format_count(steps)} steps measured; warm-up is left out{first}{too}."
    for event, text in (
        ("interruptions", "interrupted {times}; steps trained again after a resume count once."),
        ("requeued", "its job was queued again {times} by Slurm."),
        ("restarts", "its processes were started again {times} by torchrun."),
    ):
        if number := getattr(run.summary, f"num_{event}"):
            yield text.format(times="once" if number == 1 else f"{format_count(number)} times")
    if run.summary.stop_reason == "early_stopping":
        yield f"stopped early, after {format_count(steps)} steps, because validation did not improve."


def _run_dict(run: RunRecord, rows: Sequence[ReportRow], position: int) -> dict[str, Any]:
    cells = {row.key: row.cells[position] for row in rows}
    return {
        "run": run.name,
        "run_id": run.run.run_id,
        "folder": str(run.folder),
        "task": run.run.task.model_dump(exclude_unset=True),
        "values": {key: cell.value for key, cell in cells.items()},
        "sources": {key: cell.source for key, cell in cells.items()},
        "phases_contain": {phase: run.get(("run", "strategy", "traits", "phases", phase)) for phase in ALL_PHASES[:-1]},
        "peak_memory_bytes_by_rank": rank_memory(run),
        "confusion": run.summary.confusion or None,
        "slices": dict(run.slices),
        "hardware": run.run.hardware or None,
        "versions": run.run.versions or None,
        "code": run.run.code or None,
        "command": run.run.command or None,
        "sessions": [_session_dict(session) for session in run.sessions] if len(run.sessions) > 1 else [],
    }


def _session_dict(session: RunRecord) -> dict[str, Any]:
    names = {"began", "step", "world_size", "device", "batch", "loader", "hardware", "versions", "code", "command"}
    return {
        **session.run.model_dump(include=names, exclude_unset=True),
        "strategy": session.run.strategy.kind,
        "precision": session.setting("precision"),
    }


def confusion_matrix(run: RunRecord) -> tuple[str, Confusion | None]:
    """Return split and confusion matrix of test, else of validation; None if neither exists."""
    for split in ("test", "validation"):
        if (matrix := read_confusion(run.summary.confusion.get(split))) is not None:
            return split, matrix
    return "test", None


def class_names(run: RunRecord, size: int) -> list[str]:
    """Return the names of the classes; their ids when the record has another number of names."""
    return run.labels if len(run.labels) == size else [str(number) for number in range(size)]


def _spreads(group: Sequence[RunRecord], rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Return mean and sample standard deviation (n - 1) of the figures of runs that differ only in their seed."""
    names = [run.name for run in group]
    spreads = {}
    for row in rows:
        if row.key in _SPREAD_KEYS or row.group.endswith(" scores"):
            values = [cell.value for cell in row.cells if cell.runs[0] in names and cell.value is not None]
            if len(values) > 1:
                spreads[row.key] = {
                    "mean": statistics.fmean(values),
                    "standard_deviation": statistics.stdev(values),
                    "min": min(values),
                    "max": max(values),
                    "num_runs": len(values),
                }
    return {"runs": names, "spread": spreads}
