"""Reads the records of finished runs; damaged records raise an error, unfinished runs are listed.

All problems of all folders are reported at once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError, Fault
from paratune.records import certificate
from paratune.records.slices import are_slices

if TYPE_CHECKING:  # NumPy, which this module does not need
    from paratune.verdicts import ComparedRun


@dataclass(frozen=True)
class Curve:
    """Losses over a run; the three tuples have the same length."""

    steps: tuple[int, ...]
    epochs: tuple[float | None, ...]
    losses: tuple[float | None, ...]


_NO_CURVE = Curve((), (), ())
MAX_DRAWN_BYTES = 40_000_000
"""Largest size of the events of a figure; there is no figure of more."""


@lru_cache(maxsize=4096)
def _parts(source: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(source.split(".")) if isinstance(source, str) else source


@dataclass(frozen=True)
class RunRecord:
    """The record of a finished run."""

    name: str
    """Name in the report: the run id, with parent folders where two runs have the same id."""
    folder: Path
    run: Mapping[str, Any]
    """run.json."""
    summary: Mapping[str, Any]
    """summary.json."""
    train: Curve
    validation: Curve
    validation_scores: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    """Scores of the evaluations on validation, by step."""

    def get(self, source: str | tuple[str, ...]) -> Any:
        """Return a value of the record, such as "summary.time.train_s"; None when its path is absent.

        `source` is a path with dots, or its parts where a key may contain a dot.
        """
        file, *keys = _parts(source)
        value: Any = self.run if file == "run" else {"summary": self.summary}[file]
        for key in keys:
            # JSON objects are dicts; checking for dict first halves the time.
            value = value.get(key) if type(value) is dict or isinstance(value, Mapping) else None
        return value

    def number(self, source: str | tuple[str, ...]) -> float | None:
        """Return a number of the record, None when unknown.

        Raises:
            CheckpointError: The record contains something else there.
        """
        value = self.get(source)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)):
            return value
        file, *keys = _parts(source)
        raise self._damaged(file, keys, value, "a number or null is")

    def _damaged(self, file: str, keys: Sequence[str], value: Any, needed: str) -> CheckpointError:
        return CheckpointError(
            f"{plain(self.folder)}/{file}.json is damaged: {plain('.'.join(keys))} is {plain(repr(value)[:80])}, "
            f"{needed} needed; train the run again, or leave it out of the report",
            code="run.damaged",
            folder=self.folder,
            file=file,
            keys=keys,
            value=value,
        )

    def objects(self, source: str) -> list[Mapping[str, Any]]:
        """Return the JSON objects in a list of the record; empty when the record has no list there."""
        return objects_in(self.get(source))

    @property
    def slices(self) -> Mapping[str, Mapping[str, list[dict[str, Any]]]]:
        """The scores by set, column and slice (see `paratune.records.slices`); empty when there are none.

        Raises:
            CheckpointError: The record contains something else.
        """
        slices = self.get("summary.slices")
        if slices is None or are_slices(slices):
            return slices or {}
        raise self._damaged("summary", ["slices"], slices, "scores by set, column and slice are")

    @property
    def sessions(self) -> "tuple[RunRecord, ...]":
        """The run in each of its sessions whose steps are in the record, in order; itself if there is one."""
        sessions = objects_in(self.run.get("sessions"))
        begins = [step for step in (session.get("step") for session in sessions) if type(step) is int]
        if len(begins) < len(sessions):
            return (self,)
        # A later session repeated steps that an interrupted session did not save.
        saved = [
            session
            for number, session in enumerate(sessions)
            if begins[number] < min(begins[number + 1 :], default=math.inf)
        ]
        return tuple(replace(self, run={**self.run, **session}) for session in saved) if len(saved) > 1 else (self,)

    def session_values(self, source: str) -> list[Any]:
        """Return the different values of a run.json field over the sessions; one value if it never changed."""
        values = [session.get(source) for session in self.sessions]
        return [value for number, value in enumerate(values) if number == 0 or value != values[number - 1]]

    @property
    def task(self) -> str:
        return str(self.get("run.task.kind"))

    @property
    def is_probe(self) -> bool:
        """Whether the run is a probe: a few timed steps without evaluation."""
        return self.get("run.config.measure.probe") is True

    @property
    def is_baseline(self) -> bool:
        """Whether the run fitted a baseline instead of training a model."""
        return self.get("run.config.baseline") is not None

    @property
    def labels(self) -> list[str]:
        labels = self.get("run.task.labels")
        return [str(label) for label in labels] if isinstance(labels, list) else []


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
    summary = read_whole(folder, records.SUMMARY_FILE)
    return with_curves(RunRecord(name, folder, run, summary, _NO_CURVE, _NO_CURVE))


def read_record(folder: Path, name: str) -> RunRecord:
    """Read the record of a finished run without its events, under a name in the report; its curves are empty.

    Raises:
        CheckpointError: It is damaged, or of another schema version.
    """
    run, summary = (read_whole(folder, file) for file in (records.RUN_FILE, records.SUMMARY_FILE))
    return RunRecord(name, folder, run, summary, _NO_CURVE, _NO_CURVE)


def with_curves(run: RunRecord) -> RunRecord:
    """Return a run with its loss curves.

    Raises:
        CheckpointError: They are damaged.
    """
    train, validation, scores = _read_curves(run.folder)
    return replace(run, train=train, validation=validation, validation_scores=scores)


def read_whole(folder: Path, file: str) -> Mapping[str, Any]:
    """Read run.json or summary.json of a record.

    Raises:
        CheckpointError: It is absent, damaged, or of another schema version.
    """
    path = folder / file
    if not path.is_file():
        raise CheckpointError(_not_a_run_text(folder, file), code="run.not_a_run")
    value = records.read_json(path)
    if not isinstance(value, dict):
        text = f"{plain(path)} is damaged: it contains a {type(value).__name__}, an object is needed"
        raise CheckpointError(text, code="run.damaged", path=path)
    version = value.get("schema_version")
    if version != records.SCHEMA_VERSION:
        raise CheckpointError(
            f"{plain(path)} has schema_version {plain(repr(version)[:40])}, this paratune reads "
            f"{records.SCHEMA_VERSION}; report it with the version of paratune that made it",
            code="run.other_version",
            path=path,
            version=version,
        )
    return value


def _not_a_run_text(folder: Path, file: str) -> str:
    """Return an error message for a folder without a record, with the runs that it contains."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        return f"{plain(folder)} {what}; give the folder of a run, such as runs/<name>"
    inside = sorted(path.parent.name for path in folder.glob(f"*/{file}"))
    if not inside:
        return f"{plain(folder)} is not a run: it has no {file}"
    names = ", ".join(plain(name) for name in inside[:3]) + (", ..." if len(inside) > 3 else "")
    return f"{plain(folder)} is not a run but contains {len(inside)} ({names}); give them: {plain(folder)}/*"


def _progress_text(folder: Path, run: Mapping[str, Any]) -> str:
    """Return the progress of an unfinished run, from its events."""
    last, stop = 0, None
    for event in _events(folder):
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


def _events(folder: Path) -> list[dict[str, Any]]:
    try:
        return list(records.read_events(folder))
    except TypeError as error:  # steps that cannot be compared, as in "step": "ten"
        raise CheckpointError(f"{folder / records.events_file(0)} is damaged: {error}", code="run.damaged") from error


def _read_curves(folder: Path) -> tuple[Curve, Curve, dict[int, dict[str, float | None]]]:
    """Return the training losses of all steps, the validation losses of all evaluations, and their scores by step."""
    by_step: dict[int, dict[str, float | None]] = {}
    points: dict[str, list[tuple[int, float | None, float | None]]] = {"train": [], "validation": []}
    for event in _events(folder):
        step, epoch = number_in(event.get("step")), number_in(event.get("epoch"))
        if step is None:
            continue
        if event["event"] == "step":
            points["train"].append((int(step), epoch, number_in(event.get("loss"))))
        elif event["event"] == "evaluation" and event.get("split") == "validation":
            scores = event.get("scores")
            known = {name: number_in(value) for name, value in scores.items()} if isinstance(scores, dict) else {}
            by_step[int(step)] = known
            points["validation"].append((int(step), epoch, known.get("loss")))
    train, validation = (Curve(*zip(*rows, strict=True)) if rows else Curve((), (), ()) for rows in points.values())
    return train, validation, by_step


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list; empty for anything else."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def events_bytes(runs: Iterable[RunRecord]) -> int:
    """Return the size of the events of rank 0 of all runs."""
    paths = (run.folder / records.events_file(0) for run in runs)
    return sum(path.stat().st_size for path in paths if path.is_file())


def number_in(value: Any) -> float | None:
    """Return a number of an event; None for anything else."""
    if type(value) is float:  # as most are
        return value if math.isfinite(value) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def rank_memory(run: RunRecord) -> list[float | None]:
    """Return the peak memory of each rank in bytes, in rank order; empty when it was not recorded."""
    ranks = run.get("summary.ranks")
    if not isinstance(ranks, list):
        return []
    values = [rank.get("peak_memory_bytes") if isinstance(rank, dict) else None for rank in ranks]
    return [value if isinstance(value, int | float) and not isinstance(value, bool) else None for value in values]


def _copies(runs: Sequence[RunRecord]) -> list[str]:
    """Return notes on runs with equal records in different folders, which are copies."""
    notes = []
    for position, run in enumerate(runs):
        earlier = (other for other in runs[:position] if run.run == other.run and run.summary == other.summary)
        if (other := next(earlier, None)) is not None:
            notes.append(f"{run.folder} has the same record as {other.folder}: one run, shown twice.")
    return notes


def steps_taken(run: "ComparedRun") -> float | None:
    """Return the steps that a run took, without those that the Trainer took before it; None if it is not finished."""
    steps, sessions = number_in(run.get("summary.num_steps")), run.get("run.sessions")
    first = sessions[0] if isinstance(sessions, list) and sessions else None
    before = number_in(first.get("step")) if isinstance(first, Mapping) else None
    return None if steps is None else steps - (before or 0)


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
