"""A matrix of runs as CSV and JSON."""

from dataclasses import asdict
from typing import Any

from paratune.reports.matrix.document import matrix_sections
from paratune.reports.matrix.outcomes import Candidate, CandidateGroup, SweepReport
from paratune.reports.matrix.tables import score_columns
from paratune.reports.measures import named
from paratune.reports.systems.configurations import CellRun
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
    columns = score_columns(report.cell_runs)
    labels = [axis.label for axis in report.record.axes]
    lines: list[list[Any]] = [
        ["run", "folder", *labels, "num_processes", "task", "kind", "repeat", "state", "chosen", "reason",
         *(measure.key for measure in CSV_MEASURES), *(f"{split}_{metric}" for split, metric in columns)]
    ]  # fmt: skip
    chosen = chosen_names(report)
    for item in report.cell_runs:
        cell, run = item.cell, item.record
        lines.append(
            [cell.name, str(item.folder), *(report.shown(label, cell.values[label]) for label in labels),
             cell.num_processes, cell.task, cell.kind, cell.repeat, cell.state, int(cell.name in chosen),
             item.reason, *(None if run is None else measure.of(run) for measure in CSV_MEASURES),
             *(item.score(*column) for column in columns)]
        )  # fmt: skip
    return csv_lines(lines)


def chosen_names(report: SweepReport) -> set[str]:
    """Return the names of the runs of all chosen candidates."""
    candidates = [group.chosen for group in report.groups if group.chosen is not None]
    return {cell_run.cell.name for candidate in candidates for cell_run in candidate.cell_runs}


def as_dict(report: SweepReport) -> dict[str, Any]:
    """Return the report as plain data, as in report.json; unknown values are None."""
    record = report.record
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
        "num_runs": len(report.cell_runs),
        "num_finished": report.num_finished,
        "axes": [asdict(axis) for axis in record.axes],
        "select_per": list(record.select_per),
        "groups": [_group(report, group) for group in report.groups],
        "runs": [_run(cell_run) for cell_run in report.cell_runs],
        "verdicts": [verdict.as_dict() for verdict in report.verdicts],
        "effects": [
            {**vars(some), "effects": [effect.as_dict() for effect in some.effects]} for some in report.effects
        ],
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


def _candidate(candidate: Candidate) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    for split, metric in score_columns(candidate.cell_runs):
        found = candidate.amount(split, metric)
        figures.setdefault(split, {})[metric] = {
            "mean": found.center,
            "standard_deviation": found.deviation,
            "num_runs": len(found.values),
            "num_planned": found.num_runs - candidate.num_left_out,
            "num_left_out": candidate.num_left_out,
            "values": [found.values.get(seed) for seed in candidate.by_seed],
        }
    names = [cell_run.cell.name for cell_run in candidate.cell_runs]
    return {"values": dict(candidate.values), "runs": names, "scores": figures}


def _run(item: CellRun) -> dict[str, Any]:
    slices = {} if item.record is None else dict(item.record.summary.slices)
    parts = {"folder": str(item.folder), "reason": item.reason, "scores": dict(item.scores), "slices": slices}
    return asdict(item.cell) | parts
