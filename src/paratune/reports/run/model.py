"""The contents of a report of runs as data."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_count
from paratune.config.metric_names import ScoreTarget
from paratune.errors import CheckpointError
from paratune.records import ALL_PHASES
from paratune.records.finished import RunRecord
from paratune.reports.comparison import systems_of_runs
from paratune.reports.measures import not_better_than_constant, over_sessions, unknown_reasons
from paratune.reports.rows import ReportRow, build_rows
from paratune.reports.runs.certificates import Certificate
from paratune.reports.runs.read import FoundRuns, Unfinished
from paratune.reports.runs.sameness import Difference, Sameness, compare, config_differences, execution_differences
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import Systems
from paratune.reports.text import GENERATOR
from paratune.verdicts import Margin, Verdict

REPORT_SCHEMA_VERSION = 1
_MAY_CHANGE = {
    "strategy": "strategy.kind", "world size": "world_size", "device": "device", "precision": "config.precision",
    "micro-batch": "batch.micro_batch_size",
}  # fmt: skip
"""Settings that may change when a run is resumed, and their fields in run.json."""
_SPREAD_KEYS = ("train_s", "epoch_s", "samples_per_s", "tokens_per_s", "step_median_ms", "peak_memory_largest_bytes")


@dataclass(frozen=True)
class Report:
    """Finished runs, compared."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    certificates: tuple[Certificate, ...]
    rows: tuple[ReportRow, ...]
    sameness: Sameness
    differences: tuple[Difference, ...]  # of the settings, and of how the runs were executed
    notes: tuple[str, ...]  # how the figures were measured, and what was left out; the warnings first
    warnings: tuple[str, ...]  # the notes without which the figures mislead
    baseline: str | None  # name of the run with which the others are compared, if one was named
    systems: Systems  # the configurations of the runs, with the verdicts on them
    verdict_notes: tuple[str, ...]  # reasons for missing verdicts
    files: tuple[Path, ...] = ()  # written files; empty when no folder was given

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on each configuration except the baseline."""
        return self.systems.verdicts

    def _repr_html_(self) -> str:
        """Return what `paratune report` prints, for notebooks."""
        from paratune.console.notebook import html_of
        from paratune.reports.terminal import terminal_runs

        return html_of(terminal_runs(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as in report.json; unknown values are None."""
        same, groups = self.sameness, [member.runs for member in self.systems.measured]
        return {
            "generator": GENERATOR,
            "schema_version": REPORT_SCHEMA_VERSION,
            "runs": [_run_dict(run, self.rows, position) for position, run in enumerate(self.runs)],
            "unfinished": [
                {"run": run.name, "folder": str(run.folder), "reason": run.reason} for run in self.unfinished
            ],
            "same_experiment": {
                "verdict": same.verdict, "sentence": same.sentence, "not_recorded": list(same.unknown),
                "differ": {entry.key: dict(entry.values) for entry in same.differ},
            },
            "config_differences": {entry.key: dict(entry.values) for entry in self.differences},
            "seed_groups": [_spreads(runs, self.rows) for runs in groups if len({run.run.seed for run in runs}) > 1],
            "certificates": [entry.as_dict() for entry in self.certificates],
            "baseline": self.baseline,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }  # fmt: skip


def build_report(
    found: FoundRuns, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (), price: float | None = None,
    margins: Mapping[str, Margin] | None = None,
) -> Report:  # fmt: skip
    """Return the report of runs that were read, with the arguments of `paratune.reports.make`; writes nothing.

    Raises:
        CheckpointError: The baseline or all other runs are not finished.
        ConfigError: No run was evaluated by the metric of a target.
    """
    runs = found.runs
    base = next((run for run in runs if baseline and run.folder.resolve() == baseline.resolve()), None)
    if baseline is not None and (base is None or len(runs) == 1):
        problem = "it is not a finished run, and there is nothing to compare with"
        if base is not None:
            problem = "no other finished run is given; add its folder, or leave out --baseline"
        text = f"--baseline {plain(baseline)}: {problem}"
        raise CheckpointError(text, code="report.no_baseline", option="--baseline", value=baseline)
    name = None if base is None else base.name
    warnings, notes = _notes(runs)
    systems = systems_of_runs(runs, name, price)
    verdicts, verdict_notes = judged(systems, margins)
    if name is not None and not verdicts and not verdict_notes:
        why = "all runs are of its configuration" if len(systems.measured) == 1 else "probes are not whole runs"
        verdict_notes = (f"Nothing is compared with {name}: {why}.",)
    rows = build_rows(runs, reference=base, targets=targets, price=price)
    differences = (*config_differences(runs), *execution_differences(runs))
    return Report(
        runs=runs, unfinished=found.unfinished, certificates=found.certificates, rows=rows, sameness=compare(runs),
        differences=differences, notes=(*warnings, *notes, *found.notes), warnings=tuple(warnings), baseline=name,
        systems=replace(systems, verdicts=verdicts), verdict_notes=verdict_notes,
    )  # fmt: skip


def _notes(runs: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Return the warnings and the other notes; a note that applies to several runs appears once."""
    warnings = _shared(runs, ((text, run.name) for run in runs for text in _warnings_of(run)))
    if len({run.summary.memory.kind for run in runs}) > 1:
        warnings.append("Peak memory was measured in different ways and is not comparable: see the row Kind of memory.")
    if len({run.task for run in runs}) > 1:
        warnings.append("The runs have different tasks; their scores and losses cannot be compared.")
    texts = [(text, run.name) for run in runs for text in (*_notes_of(run), *unknown_reasons(run, runs))]
    costs = {run.name: [run.summary.recorder.get(key) for key in ("cost_ms_per_step", "cost_share")] for run in runs}
    if known := {name: cost for name, cost in costs.items() if None not in cost}:
        most_ms, most = map(max, zip(*known.values(), strict=True))
        text = f"measuring itself cost at most {most_ms:.3f} ms a step ({100 * most:.2f}%)."
        texts += [(text, name) for name in known]
    return warnings, _shared(runs, texts)


def _shared(runs: Sequence[RunRecord], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return each text once, with the names of its runs unless there is only one run."""
    notes = []
    for text, names in grouped(texts).items():
        who = "All runs" if len(names) == len(runs) else ", ".join(names)
        notes.append(f"{text[0].upper()}{text[1:]}" if len(runs) == 1 else f"{who}: {text}")
    return notes


def _warnings_of(run: RunRecord) -> Iterator[str]:
    """Yield what makes the figures of a run misleading."""
    if run.summary.num_steps and not run.summary.throughput.num_steps_measured:
        steps = format_count(run.summary.num_steps)
        yield f"no step was measured: all {steps} were warm-up, so rates and phases are n/a."
    if (sentence := not_better_than_constant(run)) is not None:
        yield sentence
    by_session = {name: run.session_values(f"run.{field}") for name, field in _MAY_CHANGE.items()}
    if changes := [f"{name} {over_sessions(values)}" for name, values in by_session.items() if len(values) > 1]:
        steps = ", ".join(format_count(session.run.step) for session in run.sessions[1:])
        yield (
            f"resumed with other settings (after step {steps}): {', '.join(changes)}. Times, rates and phases are "
            "those of all its sessions together, memory is that of the last."
        )


def _notes_of(run: RunRecord) -> Iterator[str]:
    """Yield how a run was measured and ended."""
    summary, fitted = run.summary, run.summary.fitted
    measured, steps = summary.throughput.num_steps_measured, format_count(summary.num_steps)
    if run.is_baseline:
        c, tried = NOT_AVAILABLE if fitted.c is None else fitted.c, len(fitted.candidates)
        among = f", the best {fitted.chosen_by.get('metric')} on validation of {tried} values" if tried > 1 else ""
        features = format_count(fitted.num_features)
        yield f"no model was trained: {fitted.estimator} of {features} features, with C = {c}{among}."
    elif measured:
        warm_up, profiled = run.setting("measure.warmup_steps"), summary.profile.num_steps
        first = "" if warm_up is None else f" (the first {format_count(warm_up)}, and as many after each resume)"
        profiled = profiled or summary.communication.num_steps
        too = f"; so are {format_count(profiled)} steps under the profiler" if profiled else ""
        yield f"{format_count(measured)} of {steps} steps measured; warm-up is left out{first}{too}."
    for number, text in (
        (summary.num_interruptions, "interrupted {}; steps trained again after a resume count once."),
        (summary.num_requeued, "its job was queued again {} by Slurm."),
        (summary.num_restarts, "its processes were started again {} by torchrun."),
    ):
        if number:
            yield text.format("once" if number == 1 else f"{format_count(number)} times")
    if summary.stop_reason == "early_stopping":
        yield f"stopped early, after {steps} steps, because validation did not improve."


def _run_dict(run: RunRecord, rows: Sequence[ReportRow], position: int) -> dict[str, Any]:
    cells = {row.key: row.cells[position] for row in rows}
    own = {"run_id", "task", "hardware", "versions", "code", "command"}
    of_session = {"began", "step", "world_size", "device", "batch", "loader", *own} - {"run_id", "task"}
    sessions = [
        {**session.run.model_dump(include=of_session, exclude_unset=True), "strategy": session.run.strategy.kind,
         "precision": session.setting("precision")}
        for session in run.sessions
    ]  # fmt: skip
    return {
        "run": run.name,
        "folder": str(run.folder),
        **run.run.model_dump(include=own, exclude_unset=True),
        "values": {key: cell.value for key, cell in cells.items()},
        "sources": {key: cell.source for key, cell in cells.items()},
        "phases_contain": {phase: run.get(f"run.strategy.traits.phases.{phase}") for phase in ALL_PHASES[:-1]},
        "peak_memory_bytes_by_rank": [rank.peak_memory_bytes for rank in run.summary.ranks],
        "confusion": run.summary.confusion or None,
        "slices": dict(run.summary.slices),
        "sessions": sessions if len(sessions) > 1 else [],
    }


def _spreads(runs: Sequence[RunRecord], rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Return mean and sample standard deviation (n - 1) of the figures of runs that differ only in their seed."""
    names, spreads = [run.name for run in runs], {}
    for row in rows:
        values = [cell.value for cell in row.cells if cell.runs[0] in names and cell.value is not None]
        if len(values) > 1 and (row.key in _SPREAD_KEYS or row.group.endswith(" scores")):
            ends = {"min": min(values), "max": max(values), "num_runs": len(values)}
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            spreads[row.key] = {"mean": mean, "standard_deviation": deviation, **ends}
    return {"runs": names, "spread": spreads}
