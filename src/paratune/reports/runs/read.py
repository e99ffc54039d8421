"""Reads the records of finished runs; damaged records raise an error, unfinished runs are listed.

All problems of all folders are reported at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError, Fault
from paratune.records import certificate
from paratune.records.finished import RunRecord, read_record, read_typed, steps_taken, with_curves
from paratune.records.typed import RunFile
from paratune.reports.runs.certificates import Certificate, find_certificates

MAX_DRAWN_BYTES = 40_000_000  # largest size of the events of a figure; there is no figure of more


@dataclass(frozen=True)
class Unfinished:
    """A run that is not finished."""

    name: str
    folder: Path
    reason: str  # progress and end of the run, from its events


@dataclass(frozen=True)
class FoundRuns:
    """Runs in a list of folders, and their certificates."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]
    certificates: tuple[Certificate, ...] = ()


def read_runs(folders: Sequence[Path]) -> FoundRuns:
    """Read the records of finished runs in the given order, each once.

    Raises:
        CheckpointError: No folder is given; one is not a run, is damaged or of another schema version; or none is
            finished.
    """
    if not folders:
        text = "no run is given; name one or more run folders, such as runs/first runs/second"
        raise CheckpointError(text, code="report.no_run")
    found: list[RunRecord | Unfinished] = []
    notes: list[str] = []
    problems: list[Fault] = []
    given: list[Path] = []
    seen: dict[Path, Path] = {}
    for folder in folders:
        real = folder.resolve()
        if real in seen:
            notes.append(f"{folder} is the same folder as {seen[real]}: it is shown once.")
            continue
        seen[real] = folder
        if (folder / certificate.FILE).is_file() and not (folder / records.RUN_FILE).exists():
            given.append(folder)
            continue
        try:
            found.append(_read_run(folder))
        except CheckpointError as error:
            problems += error.faults
    if problems:
        heading = f"{len(problems)} of {len(folders)} folders cannot be reported:"
        raise CheckpointError(heading, code=problems[0].code, faults=problems)
    unfinished = tuple(record for record in found if isinstance(record, Unfinished))
    runs = _with_unique_names([record for record in found if isinstance(record, RunRecord)])
    if not runs:
        text = f"{', '.join(map(plain, given))}: a certificate and not a run; give the runs of the certificate, too"
        if unfinished:
            listed = "\n".join(f"  {plain(run.folder)}: {plain(run.reason)}" for run in unfinished)
            text = f"no run is finished, so there is nothing to report:\n{listed}"
        raise CheckpointError(text, code="report.no_run")
    certificates, of_others = find_certificates(runs, given)
    return FoundRuns(runs, unfinished, (*notes, *_doubts(runs), *of_others), certificates)


def _read_run(folder: Path) -> RunRecord | Unfinished:
    record = read_record(folder, "") if records.is_finished(folder) else None
    run = read_typed(folder, RunFile) if record is None else record.run
    if not run.run_id:
        text = f"{plain(folder)}/run.json is damaged: run_id is {run.run_id!r}, a name is needed"
        raise CheckpointError(text, code="run.damaged", folder=folder, name=run.run_id)
    if record is None:
        is_form = run.kind == "form"
        reason = "not measured; repeat paratune compress" if is_form else _progress_text(folder, run.plan.num_steps)
        return Unfinished(run.run_id, folder, reason)
    return with_curves(replace(record, name=run.run_id))


def _progress_text(folder: Path, planned: float | None) -> str:
    """Return the progress of an unfinished run, from its events."""
    last, stop = 0, None
    for event in records.read_events(folder):
        if event["event"] == "step":
            last, stop = event.get("step", last), None
        elif event["event"] == "stop":
            stop = event
    reached = f"step {last} of {planned}" if planned else f"step {last}"
    if stop is None:
        return f"not finished: it still runs or was cut off; last logged {reached}"
    what_resume_does = "evaluates and writes the model" if last == planned else "continues"
    return f"stopped by {stop.get('signal')} at {reached}; --resume {what_resume_does}"


def events_bytes(runs: Iterable[RunRecord]) -> int:
    """Return the size of the events of rank 0 of all runs."""
    paths = (run.folder / records.events_file(0) for run in runs)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _doubts(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield notes on copies, which have the same record in another folder, and on event logs that lack steps."""
    for position, run in enumerate(runs):
        earlier = (other for other in runs[:position] if run.run == other.run and run.summary == other.summary)
        if (other := next(earlier, None)) is not None:
            yield f"{run.folder} has the same record as {other.folder}: one run, shown twice."
    for run in runs:
        known, num_steps = len(set(run.train.steps)), steps_taken(run)
        if num_steps is not None and known < num_steps:
            yield (
                f"{run.folder}/{records.events_file(0)} has {known:,} of {num_steps:,.0f} steps: curves of the loss "
                "and times to a target show these alone; summary.json covers all steps."
            )


def _with_unique_names(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the runs with unique names: equal run ids get parent folders."""
    names = [run.name for run in runs]
    parts = {run.folder: run.folder.resolve().parts for run in runs if names.count(run.name) > 1}
    depth = next(depth for depth in count(2) if len({path[-depth:] for path in parts.values()}) == len(parts))
    return tuple(
        replace(run, name="/".join(parts[run.folder][-depth:])) if run.folder in parts else run for run in runs
    )
