"""A matrix of runs as CSV and JSON."""

from dataclasses import asdict
from typing import Any

from paratune.records.finished import RunRecord
from paratune.reports.matrix.document import matrix_sections
from paratune.reports.matrix.outcomes import CandidateGroup, CandidateRuns, Figure, Outcome, SweepReport
from paratune.reports.matrix.tables import score_columns
from paratune.reports.measures import named
from paratune.reports.text import GENERATOR, csv_lines

SWEEP_REPORT_SCHEMA_VERSION = 1
CSV_MEASURES = named(
    *("train_s", "total_s", "mean_step_ms", "samples_per_s", "tokens_per_s", "peak_memory_largest_bytes"),
    *("peak_memory_sum_bytes", "utilisation", "mfu", "energy_j", "device_hours"),
)
"""Measures of each run in table.csv, in the units of the records."""


def matrix_csv(report: SweepReport) -> str:
    """Return a line for each run: values of the axes, state, time, speed, memory, and all scores.

    Unknown values are empty.
    """
    columns = score_columns(report.outcomes, all_metrics=True)
    labels = [axis.label for axis in report.record.axes]
    lines: list[list[Any]] = [
        ["run", "folder", *labels, "num_processes", "task", "kind", "repeat", "state", "chosen", "reason",
         *(measure.key for measure in CSV_MEASURES), *(f"{split}_{metric}" for split, metric in columns)]
    ]  # fmt: skip
    runs, chosen = _records(report), chosen_names(report)
    for outcome in report.outcomes:
        cell, run = outcome.cell, runs.get(outcome.cell.name)
        lines.append(
            [cell.name, str(outcome.folder), *(report.shown(label, cell.values[label]) for label in labels),
             cell.num_processes, cell.task, cell.kind, cell.repeat, cell.state, int(cell.name in chosen),
             outcome.reason, *(None if run is None else measure.of(run) for measure in CSV_MEASURES),
             *(outcome.score(*column) for column in columns)]
        )  # fmt: skip
    return csv_lines(lines)


def _records(report: SweepReport) -> dict[str, RunRecord | None]:
    """Return the records of the runs, by the names of their cells."""
    cell_runs = report.systems.cell_runs if report.systems is not None else ()
    return {cell_run.cell.name: cell_run.record for cell_run in cell_runs}


def chosen_names(report: SweepReport) -> set[str]:
    """Return the names of the runs of all chosen candidates."""
    candidates = [group.chosen for group in report.groups if group.chosen is not None]
    return {outcome.cell.name for candidate in candidates for outcome in candidate.outcomes}


def as_dict(report: SweepReport) -> dict[str, Any]:
    """Return the report as plain data, as in report.json; unknown values are None."""
    record, runs = report.record, _records(report)
    return {
        "generator": GENERATOR,
        "schema_version": SWEEP_REPORT_SCHEMA_VERSION,
        "sweep": record.name,
        "folder": str(report.folder),
        "matrix": record.matrix,
        "matrix_text": record.matrix_text,
        "command": list(record.command),
        "created": record.created,
        "version": record.version,
        "code": dict(record.code),
        "num_runs": len(report.outcomes),
        "num_finished": report.num_finished,
        "axes": [asdict(axis) for axis in record.axes],
        "select_per": list(record.select_per),
        "groups": [_group(report, group) for group in report.groups],
        "runs": [_run(outcome, runs.get(outcome.cell.name)) for outcome in report.outcomes],
        "verdicts": [verdict.as_dict() for verdict in report.verdicts],
        "effects": [asdict(effects) for effects in report.effects],
        "summary": [asdict(part) for section in matrix_sections(report) for part in section.boxes],
        "tables": [table.as_dict() for section in matrix_sections(report) for table in section.tables],
        "past": list(record.past),
        "files": [str(path) for path in report.files],
    }


def _group(report: SweepReport, group: CandidateGroup) -> dict[str, Any]:
    return {
        "values": dict(group.values),
        "task": group.task,
        "chosen_by": {"split": "validation", "metric": group.metric},
        "chosen": None if group.chosen is None else dict(group.chosen.values),
        "remarks": list(group.remarks),
        "tied": [dict(candidate.values) for candidate in group.tied],
        "is_best": group.is_best,
        "not_chosen_among": list(group.not_chosen_among),
        "constant": None if group.constant is None else {"predicts": group.predicts, "score": group.constant},
        "is_below_constant": group.is_below_constant,
        "candidates": [_candidate(candidate) for candidate in group.candidates],
    }


def _candidate(candidate: CandidateRuns) -> dict[str, Any]:
    columns = score_columns(candidate.outcomes, all_metrics=True)
    figures: dict[str, dict[str, Any]] = {}
    for split, metric in columns:
        figures.setdefault(split, {})[metric] = _figure(candidate.figure(split, metric))
    runs_ = [outcome.cell.name for outcome in candidate.outcomes]
    return {"values": dict(candidate.values), "runs": runs_, "scores": figures}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "mean": figure.mean,
        "standard_deviation": figure.deviation,
        "num_runs": len(figure.known),
        "num_planned": len(figure.values),
        "num_left_out": figure.num_left_out,
        "values": list(figure.values),
    }


def _run(outcome: Outcome, run: RunRecord | None) -> dict[str, Any]:
    parts = {
        "folder": str(outcome.folder),
        "reason": outcome.reason,
        "scores": dict(outcome.scores),
        "slices": dict(run.slices) if run is not None else {},
    }
    return asdict(outcome.cell) | parts
