"""Finished runs read from their folders: what is damaged is refused by name, what is not finished is listed.

All problems of all folders are reported at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError, Fault
from paratune.records import certificate
from paratune.records.slices import are_slices


@dataclass(frozen=True)
class Curve:
    """The course of a loss over a run; the three have the same length."""

    steps: tuple[int, ...]
    epochs: tuple[float | None, ...]
    losses: tuple[float | None, ...]


_NO_CURVE = Curve((), (), ())


@lru_cache(maxsize=4096)
def _parts(source: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(source.split(".")) if isinstance(source, str) else source


@dataclass(frozen=True)
class RunRecord:
    """A finished run as its folder tells it."""

    name: str
    """What the report calls it: the run id, with the folder above where two runs share one."""
    folder: Path
    run: Mapping[str, Any]
    """run.json."""
    summary: Mapping[str, Any]
    """summary.json."""
    train: Curve
    validation: Curve

    def get(self, source: str | tuple[str, ...]) -> Any:
        """Return a value of the record, such as "summary.time.train_s"; None where it or a part of its path is absent.

        Args:
            source: Path with dots, or its parts where a key may hold a dot itself.
        """
        file, *keys = _parts(source)
        value: Any = self.run if file == "run" else {"summary": self.summary}[file]
        for key in keys:
            # What JSON gives is a dict; to ask for that first takes half the time.
            value = value.get(key) if type(value) is dict or isinstance(value, Mapping) else None
        return value

    def number(self, source: str | tuple[str, ...]) -> float | None:
        """Return a number of the record, None where it is unknown.

        Raises:
            CheckpointError: The record holds something else there.
        """
        value = self.get(source)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)):
            return value
        file, *keys = _parts(source)
        raise CheckpointError(
            f"{plain(self.folder)}/{file}.json is damaged: {plain('.'.join(keys))} is {plain(repr(value)[:80])}, "
            "a number or null is needed; train the run again, or leave it out of the report",
            code="run.damaged",
            folder=self.folder,
            file=file,
            keys=keys,
            value=value,
        )

    @property
    def slices(self) -> Mapping[str, Mapping[str, list[dict[str, Any]]]]:
        """The scores by set, column and slice, as `paratune.records.slices` describes them; empty where it has none.

        Raises:
            CheckpointError: The record holds something else.
        """
        found = self.get("summary.slices")
        if found is None or are_slices(found):
            return found or {}
        raise CheckpointError(
            f"{plain(self.folder)}/summary.json is damaged: slices is {plain(repr(found)[:80])}, scores by set, column "
            "and slice are needed; train the run again, or leave it out of the report",
            code="run.damaged",
            folder=self.folder,
            file="summary",
            keys=["slices"],
            value=found,
        )

    @property
    def sessions(self) -> "tuple[RunRecord, ...]":
        """The run as it was in each of its sessions whose steps are in the record, in order; itself if there is one."""
        found = self.run.get("sessions")
        sessions = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        begins = [step for step in (one.get("step") for one in sessions) if type(step) is int]
        if len(begins) < len(sessions):
            return (self,)
        # What was killed before it saved a step was trained again by a later session.
        kept = [
            one for number, one in enumerate(sessions) if begins[number] < min(begins[number + 1 :], default=math.inf)
        ]
        return tuple(replace(self, run={**self.run, **one}) for one in kept) if len(kept) > 1 else (self,)

    def course(self, source: str) -> list[Any]:
        """Return a value of run.json as it changed from session to session; a single one when it never did."""
        values = [one.get(source) for one in self.sessions]
        return [value for number, value in enumerate(values) if number == 0 or value != values[number - 1]]

    @property
    def task(self) -> str:
        return str(self.get("run.task.kind"))

    @property
    def is_probe(self) -> bool:
        """Whether it took a few steps to be timed, and was never evaluated."""
        return self.get("run.config.measure.probe") is True

    @property
    def is_baseline(self) -> bool:
        """Whether it fitted a baseline in place of a model, in no steps."""
        return self.get("run.config.baseline") is not None

    @property
    def labels(self) -> list[str]:
        labels = self.get("run.task.labels")
        return [str(label) for label in labels] if isinstance(labels, list) else []


@dataclass(frozen=True)
class Unfinished:
    """A run that cannot be compared yet."""

    name: str
    folder: Path
    reason: str
    """How far it came and why it ended, as far as its events tell."""


@dataclass(frozen=True)
class FoundRuns:
    """What a list of folders turned out to hold."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]
    certificates: tuple[Path, ...] = ()
    """Folders that hold a certificate and no run."""


def read_runs(folders: Sequence[Path]) -> FoundRuns:
    """Read the records of finished runs, in the order given, each once.

    Raises:
        CheckpointError: No folder is given; one is not a run, is damaged or of another schema version; or none is
            finished.
    """
    if not folders:
        raise CheckpointError(
            "no run is given; name one or more run folders, such as runs/first runs/second", code="report.no_run"
        )
    runs: list[RunRecord] = []
    unfinished: list[Unfinished] = []
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
            record = _read_run(folder)
        except CheckpointError as error:
            problems += error.faults
            continue
        if isinstance(record, RunRecord):
            runs.append(record)
        else:
            unfinished.append(record)
    if problems:
        heading = f"{len(problems)} of {len(folders)} folders cannot be reported:"
        raise CheckpointError(heading, code=problems[0].code, faults=problems)
    if not runs and not unfinished:
        listed = ", ".join(plain(folder) for folder in certificates)
        raise CheckpointError(
            f"{listed}: a certificate and not a run; give the runs that it is of as well", code="report.no_run"
        )
    if not runs:
        listed = "\n".join(f"  {plain(run.folder)}: {plain(run.reason)}" for run in unfinished)
        raise CheckpointError(
            f"none of the runs is finished, so there is nothing to report:\n{listed}", code="report.no_run"
        )
    notes.extend(_copies(runs))
    notes.extend(_short_logs(runs))
    return FoundRuns(_with_own_names(runs), tuple(unfinished), tuple(notes), tuple(certificates))


def _read_run(folder: Path) -> RunRecord | Unfinished:
    run = read_whole(folder, records.RUN_FILE)
    name = run.get("run_id")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{plain(folder)}/run.json is damaged: run_id is {plain(repr(name)[:80])}, a name is needed",
            code="run.damaged",
            folder=folder,
            name=name,
        )
    if not records.is_finished(folder):
        return Unfinished(name, folder, _how_far(folder, run))
    summary = read_whole(folder, records.SUMMARY_FILE)
    return with_curves(RunRecord(name, folder, run, summary, _NO_CURVE, _NO_CURVE))


def read_record(folder: Path, name: str) -> RunRecord:
    """Read the record of a finished run without its events: its curves are empty.

    Args:
        folder: Of the run.
        name: How the report calls it.

    Raises:
        CheckpointError: It is damaged, or of another schema version.
    """
    run, summary = (read_whole(folder, file) for file in (records.RUN_FILE, records.SUMMARY_FILE))
    return RunRecord(name, folder, run, summary, _NO_CURVE, _NO_CURVE)


def with_curves(run: RunRecord) -> RunRecord:
    """Return a run with the curves of its events.

    Raises:
        CheckpointError: They are damaged.
    """
    train, validation = _read_curves(run.folder)
    return replace(run, train=train, validation=validation)


def read_whole(folder: Path, file: str) -> Mapping[str, Any]:
    """Read run.json or summary.json of a record.

    Raises:
        CheckpointError: It is absent, damaged, or of another schema version.
    """
    path = folder / file
    if not path.is_file():
        raise CheckpointError(_no_run(folder, file), code="run.not_a_run")
    value = records.read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{plain(path)} is damaged: it holds a {type(value).__name__}, an object is needed",
            code="run.damaged",
            path=path,
        )
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


def _no_run(folder: Path, file: str) -> str:
    """Say what a folder without a record is instead, and where runs are."""
    if not folder.exists():
        return f"{plain(folder)} does not exist; give the folder of a run, such as runs/<name>"
    if not folder.is_dir():
        return f"{plain(folder)} is a file; give the folder of a run, such as runs/<name>"
    inside = sorted(path.parent.name for path in folder.glob(f"*/{file}"))
    if not inside:
        return f"{plain(folder)} is not a run: it has no {file}"
    some = ", ".join(plain(name) for name in inside[:3]) + (", ..." if len(inside) > 3 else "")
    return f"{plain(folder)} is not a run but holds {len(inside)} ({some}); give them: {plain(folder)}/*"


def _how_far(folder: Path, run: Mapping[str, Any]) -> str:
    """Tell from the events how an unfinished run went."""
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
        rest = "evaluates and writes the model" if last == planned else "continues"
        return f"stopped by {stop.get('signal')} at {reached}; --resume {rest}"
    return f"not finished: it still runs or was cut off; last logged {reached}"


def _events(folder: Path) -> list[dict[str, Any]]:
    try:
        return list(records.read_events(folder))
    except TypeError as error:  # steps that cannot be compared, as in "step": "ten"
        raise CheckpointError(f"{folder / records.events_file(0)} is damaged: {error}", code="run.damaged") from error


def _read_curves(folder: Path) -> tuple[Curve, Curve]:
    """Return the training losses of all steps and the validation losses of all evaluations."""
    points: dict[str, list[tuple[int, float | None, float | None]]] = {"train": [], "validation": []}
    for event in _events(folder):
        step, epoch = number_in(event.get("step")), number_in(event.get("epoch"))
        if step is None:
            continue
        if event["event"] == "step":
            points["train"].append((int(step), epoch, number_in(event.get("loss"))))
        elif event["event"] == "evaluation" and event.get("split") == "validation":
            scores = event.get("scores")
            loss = number_in(scores.get("loss")) if isinstance(scores, dict) else None
            points["validation"].append((int(step), epoch, loss))
    train, validation = (Curve(*zip(*rows, strict=True)) if rows else Curve((), (), ()) for rows in points.values())
    return train, validation


def number_in(value: Any) -> float | None:
    """Return a number of an event; None of anything else."""
    if type(value) is float:  # as most are
        return value if math.isfinite(value) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _copies(runs: Sequence[RunRecord]) -> list[str]:
    """Name runs in different folders whose records are the same to the letter: one is a copy of the other."""
    notes = []
    for position, run in enumerate(runs):
        for other in runs[:position]:
            if run.run == other.run and run.summary == other.summary:
                notes.append(f"{run.folder} holds the same record as {other.folder}: one run, shown twice.")
                break
    return notes


def _short_logs(runs: Sequence[RunRecord]) -> list[str]:
    """Name finished runs whose event log has lost steps: it was cut, or not copied with the rest."""
    notes = []
    for run in runs:
        known, num_steps = len(set(run.train.steps)), number_in(run.get("summary.num_steps"))
        if num_steps is not None and known < num_steps:
            notes.append(
                f"{run.folder}/{records.events_file(0)} has {known:,} of {num_steps:,.0f} steps: curves of the loss "
                "and times to a target show these alone; summary.json covers all steps."
            )
    return notes


def _with_own_names(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Tell runs of the same id apart by as many folders above as it takes."""
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
