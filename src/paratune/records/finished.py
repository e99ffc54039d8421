"""`RunRecord`: the record of a finished run, which everything that compares runs reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

from paratune import records
from paratune.base.text import listing, plain
from paratune.errors import CheckpointError
from paratune.records.efficiency import NoiseKind
from paratune.records.typed import REQUIRED, Noise, RecordedData, RecordPart, RunFile, Summary, checked

Record = TypeVar("Record", RunFile, Summary)
_REMEDY = "copy it again, train the run again with --overwrite, or leave it out"


@dataclass(frozen=True)
class RunRecord:
    name: str  # name in the report: the run id, with parent folders where two runs have the same id
    folder: Path
    run: RunFile
    summary: Summary = field(default_factory=Summary)

    def get(self, source: str) -> Any:
        """Return a value of the record, such as "summary.time.train_s"; None when its path is absent."""
        value = _value_at({"run": self.run, "summary": self.summary}, source)
        return value.model_dump(exclude_unset=True) if isinstance(value, RecordPart) else value

    def noise(self, kind: NoiseKind) -> Noise:
        scale = self.summary.noise_scale
        return scale if kind == "plain" else scale.preconditioned

    def setting(self, key: str) -> Any:
        """Return an option of the configuration by its dotted key; None where it is not recorded."""
        return self.get(f"run.config.{key}")

    def data(self, split: str) -> RecordedData:
        """Return the facts of a split, which are empty where it is not recorded."""
        return self.run.data.get(split) or RecordedData()

    def score(self, split: str, metric: str) -> float | None:
        return (self.summary.scores.get(split) or {}).get(metric)

    @property
    def sessions(self) -> "tuple[RunRecord, ...]":
        """The run in each of its sessions whose steps are in the record, in order; itself if there is one."""
        sessions = self.run.sessions
        begins = [step for step in (session.get("step") for session in sessions) if type(step) is int]
        if len(begins) < len(sessions):
            return (self,)
        # A later session repeated steps that an interrupted session did not save.
        is_saved = [step < min(begins[number:], default=math.inf) for number, step in enumerate(begins, start=1)]
        saved = list(compress(sessions, is_saved))
        if len(saved) < 2:
            return (self,)
        return tuple(replace(self, run=in_session(self.folder, self.run, session)) for session in saved)

    def session_values(self, source: str) -> list[Any]:
        """Return the different values of a run.json field over the sessions; one value if it never changed."""
        values = [session.get(source) for session in self.sessions]
        return [value for number, value in enumerate(values) if number == 0 or value != values[number - 1]]

    @property
    def is_foreign(self) -> bool:
        """Whether it is a folder of Hugging Face's Trainer without a record, whose settings are unknown."""
        return self.run.kind == "trainer_folder"

    @property
    def task(self) -> str:
        return str(self.run.task.kind)

    @property
    def is_probe(self) -> bool:
        """Whether the run is a probe: a few timed steps without evaluation."""
        return self.setting("measure.probe") is True

    @property
    def is_fitted(self) -> bool:
        """Whether it is a fitted baseline: features and a linear model in place of a trained one."""
        return self.run.config.get("baseline") is not None

    @property
    def labels(self) -> list[str]:
        return [str(label) for label in self.run.task.labels or ()]


def _value_at(value: Any, path: str) -> Any:
    """Return what a part of a record has at a path with dots; None where there is nothing."""
    for key in path.split("."):
        if isinstance(value, RecordPart):
            value = getattr(value, key) if key in value.model_fields_set else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def read_record(folder: Path, name: str) -> RunRecord:
    """Read the record of a finished run without its events, under a name in the report.

    Raises:
        CheckpointError: It is damaged, or of another schema version.
    """
    return RunRecord(name, folder, read_typed(folder, RunFile), read_typed(folder, Summary))


def read_typed(folder: Path, kind: type[Record]) -> Record:
    """Read run.json (RunFile) or summary.json (Summary) of a record.

    Raises:
        CheckpointError: It is absent, damaged, or of another schema version.
    """
    path = folder / f"{kind.NAME}.json"
    if not path.is_file():
        if not folder.is_dir():
            found = "is a file" if folder.exists() else "does not exist"
            what = f"{found}; give the folder of a run, such as runs/<name>"
        # Of a matrix without its sweep.json the runs are in the folder runs.
        elif inside := [at.parent for level in ("*", "runs/*") for at in sorted(folder.glob(f"{level}/{path.name}"))]:
            names = listing((plain(place.relative_to(folder)) for place in inside), 3)
            what = f"is not a run but contains {len(inside)} ({names}); give them, as in {plain(inside[0])}"
        else:
            what = f"is not a run: it has no {path.name}"
        raise CheckpointError(f"{plain(folder)} {what}", code="run.not_found")
    record = records.read_object(path, _REMEDY)
    value: Record = checked(kind, record, path, _REMEDY)
    needed = REQUIRED[kind.NAME] + REQUIRED.get(f"{kind.NAME} of {record.get('kind')}", ())
    if lost := [key for key in needed if _value_at(value, key) in (None, "")]:
        text = f"{plain(path)} is damaged: {lost[0]} is missing, which every run has; {_REMEDY}"
        raise CheckpointError(text, code="run.damaged", path=path, key=lost[0])
    return value


def in_session(folder: Path, run: RunFile, session: Mapping[str, Any] | None = None) -> RunFile:
    """Return run.json with the values of a session; None is the last one."""
    if session is None:
        session = run.sessions[-1] if run.sessions else {}
    record = {**run.model_dump(exclude_unset=True), **session}
    merged: RunFile = checked(RunFile, record, folder / records.RUN_FILE, _REMEDY)
    return merged


def gpus_of(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the GPUs of a node of `hardware` in run.json; those that are no objects are left out."""
    gpus = node.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []


def number_in(value: Any) -> float | None:
    """Return a finite number of a record; None for anything else: a file that others write may hold anything."""
    if type(value) is float:  # as most are
        return value if math.isfinite(value) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number and math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


def steps_taken(run: RunRecord) -> float | None:
    """Return the steps that a run took, without those that the Trainer took before it; None if it is not finished."""
    steps, sessions = run.summary.num_steps, run.run.sessions
    before = number_in(sessions[0].get("step")) if sessions else None
    return None if steps is None else steps - (before or 0)
