"""Reads the records of finished runs; damaged records raise an error, unfinished runs are listed.

All problems of all folders are reported at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError, Fault
from paratune.records import certificate
from paratune.records.finished import (
    RunRecord,
    read_record,
    read_whole,
    steps_taken,
    with_curves,
)

MAX_DRAWN_BYTES = 40_000_000
"""Largest size of the events of a figure; there is no figure of more."""


@dataclass(frozen=True)
class Unfinished:
    """A run that is not finished."""

    name: str
    folder: Path
    reason: str
    """Progress and end of the run, from its events."""


@dataclass(frozen=True)
class FoundRuns:
    """Runs and certificates in a list of folders."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]
    certificates: tuple[Path, ...] = ()
    """Folders with a certificate and no run."""


def read_runs(folders: Sequence[Path]) -> FoundRuns:
    """Read the records of finished runs in the given order, each once.

    Raises:
        CheckpointError: No folder is given; one is not a run, is damaged or of another schema version; or none is
            finished.
    """
    if not folders:
        raise CheckpointError(
            "no run is given; name one or more run folders, such as runs/first runs/second", code="report.no_run"
        )
    records_found: list[RunRecord | Unfinished] = []
    notes: list[str] = []
    problems: list[Fault] = []
    certificates: list[Path] = []
    seen: dict[Path, Path] = {}
    for folder in folders:
        real = folder.resolve()
        if real in seen:
            notes.append(f"{folder} is the same folder as {seen[real]}: it is shown once.")
            continue
        seen[real] = folder
        if (folder / certificate.FILE).is_file() and not (folder / records.RUN_FILE).exists():
            certificates.append(folder)
            continue
        try:
            records_found.append(_read_run(folder))
        except CheckpointError as error:
            problems += error.faults
    runs = [record for record in records_found if isinstance(record, RunRecord)]
    unfinished = [record for record in records_found if isinstance(record, Unfinished)]
    if problems:
        heading = f"{len(problems)} of {len(folders)} folders cannot be reported:"
        raise CheckpointError(heading, code=problems[0].code, faults=problems)
    if not runs and not unfinished:
        listed = ", ".join(plain(folder) for folder in certificates)
        text = f"{listed}: a certificate and not a run; give the runs of the certificate, too"
        raise CheckpointError(text, code="report.no_run")
    if not runs:
        listed = "\n".join(f"  {plain(run.folder)}: {plain(run.reason)}" for run in unfinished)
        text = f"no run is finished, so there is nothing to report:\n{listed}"
        raise CheckpointError(text, code="report.no_run")
    notes.extend(_copies(runs))
    notes.extend(_short_logs(runs))
    return FoundRuns(_with_unique_names(runs), tuple(unfinished), tuple(notes), tuple(certificates))


def _read_run(folder: Path) -> RunRecord | Unfinished:
    run = read_whole(folder, records.RUN_FILE)
    name = run.get("run_id")
    if not isinstance(name, str) or not name:
        text = f"{plain(folder)}/run.json is damaged: run_id is {plain(repr(name)[:80])}, a name is needed"
        raise CheckpointError(text, code="run.damaged", folder=folder, name=name)
    if not records.is_finished(folder):
        return Unfinished(name, folder, _progress_text(folder, run))
    return with_curves(read_record(folder, name))


def _progress_text(folder: Path, run: Mapping[str, Any]) -> str:
    """Return the progress of an unfinished run, from its events."""
    last, stop = 0, None
    for event in records.read_events(folder):
        if event["event"] == "step":
            last, stop = event.get("step", last), None
        elif event["event"] == "stop":
            stop = event
    plan = run.get("plan")
    planned = plan.get("num_steps") if isinstance(plan, dict) else None
    reached = f"step {last} of {planned}" if planned else f"step {last}"
    if stop is not None:
        what_resume_does = "evaluates and writes the model" if last == planned else "continues"
        return f"stopped by {stop.get('signal')} at {reached}; --resume {what_resume_does}"
    return f"not finished: it still runs or was cut off; last logged {reached}"


def events_bytes(runs: Iterable[RunRecord]) -> int:
    """Return the size of the events of rank 0 of all runs."""
    paths = (run.folder / records.events_file(0) for run in runs)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _copies(runs: Sequence[RunRecord]) -> list[str]:
    """Return notes on runs with equal records in different folders, which are copies."""
    notes = []
    for position, run in enumerate(runs):
        earlier = (other for other in runs[:position] if run.run == other.run and run.summary == other.summary)
        if (other := next(earlier, None)) is not None:
            notes.append(f"{run.folder} has the same record as {other.folder}: one run, shown twice.")
    return notes


def _short_logs(runs: Sequence[RunRecord]) -> list[str]:
    """Return notes on finished runs whose event log lacks steps."""
    notes = []
    for run in runs:
        known, num_steps = len(set(run.train.steps)), steps_taken(run)
        if num_steps is not None and known < num_steps:
            notes.append(
                f"{run.folder}/{records.events_file(0)} has {known:,} of {num_steps:,.0f} steps: curves of the loss "
                "and times to a target show these alone; summary.json covers all steps."
            )
    return notes


def _with_unique_names(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the runs with unique names: equal run ids get parent folders."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return tuple(runs)
    twice = {name for name in names if names.count(name) > 1}
    parts = {run.folder: run.folder.resolve().parts for run in runs if run.name in twice}
    depth = 2
    while len({path[-depth:] for path in parts.values()}) < len(parts):
        depth += 1
    return tuple(
        replace(run, name="/".join(parts[run.folder][-depth:])) if run.folder in parts else run for run in runs
    )
