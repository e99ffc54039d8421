"""A matrix of runs as Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from paratune.base.units import counted
from paratune.report.export import json_text
from paratune.report.model import GENERATOR
from paratune.report.read import RunRecord
from paratune.report.sweep.content import sections_of
from paratune.report.sweep.outcomes import CandidateGroup, CandidateRuns, Figure, Outcome, SweepReport
from paratune.report.sweep.tables import score_columns
from paratune.report.systems import measures
from paratune.report.table_files import markdown_table
from paratune.report.text import csv_text, markdown

SWEEP_REPORT_SCHEMA_VERSION = 1
CSV_MEASURES = (
    measures.TRAIN_S, measures.TOTAL_S, measures.STEP_MS, measures.SAMPLES_PER_S, measures.TOKENS_PER_S,
    measures.PEAK_BYTES, measures.SUM_BYTES, measures.UTILISATION, measures.MFU, measures.ENERGY_J,
    measures.DEVICE_HOURS,
)  # fmt: skip
"""What report.csv has of each run beside its scores; the unit is that of the record."""


def to_markdown(report: SweepReport) -> str:
    """Return the tables as Markdown (GitHub's flavour)."""
    record = report.record
    parts = [f"<!-- {GENERATOR} -->", f"# {markdown(title(report))}", markdown(subject(report)), markdown(made(report))]
    for section in sections_of(report):
        parts += [f"## {markdown(section.heading)}"] * bool(section.tables)
        for table in section.tables:
            parts += [f"### {markdown(table.title)}"] * (table.title != section.heading)
            parts.append(markdown_table(table).rstrip("\n"))
    parts.append(f"From the records in `{markdown(record.name)}`: sweep.json, run.json and summary.json of each run.")
    return "\n\n".join(parts) + "\n"


def title(report: SweepReport) -> str:
    """Return the title of the report."""
    return f"{report.record.name}: {counted(len(report.outcomes), 'run')}"


def subject(report: SweepReport) -> str:
    """Return in a line what varies and how far it came."""
    axes = ", ".join(f"{axis.label} ({', '.join(axis.values.values())})" for axis in report.record.axes)
    past = len(report.record.past)
    old = f" Left out: {past} of earlier versions of the matrix." if past else ""
    skipped = f", {report.num_skipped} cannot run here" if report.num_skipped else ""
    probes = " All are probes: a few steps to be timed, without scores." if report.are_probes else ""
    finished = f"{report.num_finished} of {counted(len(report.outcomes), 'run')} finished{skipped}."
    return f"{finished} What varies: {axes}.{probes}{old}"


def made(report: SweepReport) -> str:
    """Return in a line when and of which file the matrix was run."""
    record = report.record
    version = f", paratune {record.version}" if record.version else ""
    return f"Started {record.created} from {record.matrix}{version}; the section Reproduce has commands and settings."


def to_csv(report: SweepReport) -> str:
    """Return one line a run: its values, how far it came, its time, speed and memory, all of its scores.

    Unknown values are empty.
    """
    columns = score_columns(report.outcomes, all_metrics=True)
    labels = [axis.label for axis in report.record.axes]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["run", "folder", *(csv_text(label) for label in labels), "num_processes", "task", "kind", "repeat", "state"]
        + ["chosen", "reason"]
        + [measure.key for measure in CSV_MEASURES]
        + [csv_text(f"{split}_{metric}") for split, metric in columns]
    )
    runs = _records(report)
    chosen = chosen_names(report)
    for outcome in report.outcomes:
        cell = outcome.cell
        writer.writerow(
            [
                *(csv_text(text) for text in (cell.name, str(outcome.folder))),
                *(csv_text(report.shown(label, cell.values[label])) for label in labels),
                cell.num_processes,
                csv_text(cell.task),
                cell.kind,
                cell.repeat,
                cell.state,
                int(cell.name in chosen),
                csv_text(outcome.reason or ""),
                *_measures(runs.get(cell.name)),
                *("" if (score := outcome.score(*column)) is None else score for column in columns),
            ]
        )
    return file.getvalue()


def _records(report: SweepReport) -> dict[str, RunRecord | None]:
    """Return the records of the runs, by the names of their cells."""
    return {each.cell.name: each.record for each in report.systems.cell_runs} if report.systems is not None else {}


def _measures(run: RunRecord | None) -> Iterator[float | str]:
    for measure in CSV_MEASURES:
        value = None if run is None else measure.read(run)
        yield "" if value is None else value


def chosen_names(report: SweepReport) -> set[str]:
    """Return the names of the runs of all chosen candidates."""
    found = [group.chosen for group in report.groups if group.chosen is not None]
    return {outcome.cell.name for candidate in found for outcome in candidate.outcomes}


def to_json(report: SweepReport) -> str:
    """Return the report as JSON text, ASCII only so that no reader's encoding can spoil it."""
    return json_text(as_dict(report))


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
        "tables": [table.as_dict() for section in sections_of(report) for table in section.tables],
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
