"""Reads and writes the record of a run, a folder that all reports read.

runs/<run_id>/
  run.json                 configuration, machine and software; written first
  events.rank0000.jsonl    events of a rank, one JSON object per line
  summary.json             medians, peaks, scores; written last and by rename: it exists only in a finished run
  profile.rank0000.json.gz  trace of the profiled steps of a rank
  predictions.<split>.parquet   index, label, prediction (and score_<id> per class) of the kept model
  train_texts.parquet      a hash of each training text
  model/                   a plain Hugging Face folder
  checkpoints/             see paratune.checkpoint
"""

import hashlib
import json
import logging
import math
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

from paratune.base import run_files
from paratune.base.atomic import replace_file
from paratune.base.text import plain
from paratune.errors import CheckpointError, coded, os_error_as

_log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
RUN_FILE = run_files.RUN_FILE
SUMMARY_FILE = "summary.json"
MODEL_FOLDER = run_files.MODEL_FOLDER
CHECKPOINTS_FOLDER = "checkpoints"
TRAIN_TEXTS_FILE = "train_texts.parquet"
PHASES = ("get_batch", "forward", "backward", "optimizer")  # the measured phases in their order
MOST_STEPS = 2**53  # numbers of steps are below it: others are damage, and no float has them exactly
MAX_RANKS = 4096  # a larger world size is damage
ALL_PHASES = (*PHASES, "other")  # their sum is the wall time of a step


def events_file(rank: int) -> str:
    return f"events.rank{rank:04d}.jsonl"


def event_ranks(folder: Path) -> list[int]:
    """Return the ranks of a run, also those of a larger world size before a resume."""
    names = (path.name.removeprefix("events.rank").removesuffix(".jsonl") for path in folder.glob("events.rank*.jsonl"))
    return sorted(int(name) for name in names if name.isdigit())


def rank_file(name: str, rank: int) -> str:
    """Return the name of a JSON file of a rank, with `name` for what it has."""
    return f"{name}.rank{rank:04d}.json"


def predictions_file(split: str) -> str:
    return f"predictions.{split}.parquet"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically (see `atomic`). NaN and infinities become null.

    Raises:
        CheckpointError: It cannot be written; an existing file is unchanged.
    """
    text = json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with _writing(path), replace_file(path) as temporary:
        # UTF-8 cannot encode the bytes of some file names (in `command`): they are escaped as in JSON, \udc80.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_json(path: Path, remedy: str = "copy it again, or repeat the command that wrote it") -> Any:
    """Read a JSON file of a record; `remedy` is what to do about a damaged one, for the message.

    Raises:
        CheckpointError: It does not exist, cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {remedy}", code="run.damaged", path=path) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", code="run.damaged", path=path) from error
    except (ValueError, RecursionError) as error:
        text = f"{path} is damaged: it is not JSON ({error}); {remedy}"
        raise CheckpointError(text, code="run.damaged", path=path) from error


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object of a record.

    Raises:
        CheckpointError: It cannot be read, is no object, or has another schema version; the message has the remedy.
    """
    value = read_json(path, remedy)
    if not isinstance(value, dict):
        text = f"{plain(path)} is damaged: it contains a {type(value).__name__}, an object is needed; {remedy}"
        raise CheckpointError(text, code="run.damaged", path=path)
    if (version := value.get("schema_version")) != SCHEMA_VERSION:
        shown = plain(repr(version)[:40])
        text = f"{plain(path)} has schema_version {shown}, this paratune reads {SCHEMA_VERSION}"
        text += f"; use the version of paratune that wrote it, or {remedy}"
        raise CheckpointError(text, code="run.other_version", path=path, version=version)
    return value


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _writing(path: Path) -> AbstractContextManager[None]:
    remedy = "free some space there, make it writable, or choose another folder"
    return os_error_as(CheckpointError, f"{path} cannot be written", remedy, code="output.not_writable", path=path)


def finite(value: Any) -> Any:
    """Return `value` with NaN and infinities replaced by None at all levels, because JSON lacks them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


class EventLog:
    """Appends events to the file of a rank, one per line; `flush` writes the buffer.

    `listener` is called with each event and its values. All methods raise CheckpointError when the file cannot be
    written.
    """

    def __init__(
        self, folder: Path, rank: int, *, listener: Callable[[str, Mapping[str, Any]], None] | None = None
    ) -> None:
        self._path, self._listener = folder / events_file(rank), listener
        with _writing(self._path):
            if self._path.exists():  # without an incomplete last line of a killed process
                os.truncate(self._path, sum(map(len, _whole_lines(self._path))))
            self._file: TextIO = self._path.open("a", encoding="utf-8", errors="backslashreplace")

    def add(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **finite(values)}, ensure_ascii=False)
        with _writing(self._path):
            self._file.write(line + "\n")
        if self._listener is not None:
            self._listener(event, values)

    def flush(self) -> None:
        with _writing(self._path):
            self._file.flush()

    def close(self) -> None:
        with _writing(self._path):
            self._file.close()


def read_events(folder: Path, rank: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank in order, without an incomplete last line.

    Steps that were trained again after a resume appear once, from the last time: events that an interrupted process
    logged after the checkpoint of the resume are dropped. A repeated evaluation also appears once: it repeats where the
    checkpoint of its step was saved before it, as on a signal.

    Raises:
        CheckpointError: The file cannot be read, or a line is not an event.
    """
    path = folder / events_file(rank)
    # A first look at the file finds the lines whose step or evaluation a later line repeats, so that no reader has to
    # hold all events of a long run.
    superseded: set[int] = set()
    steps = array("q")  # of each line; 0 without one, and for those that are never repeated
    evaluations: dict[tuple[str, str], int] = {}
    last_step = 0
    for number, line in enumerate(_whole_lines(path), start=1):
        event = _event(path, number, line, is_head=True)
        kind, step = event["event"], event.get("step")
        if kind == "evaluation":
            key = (str(step), str(event.get("split")))
            superseded.update({evaluations[key]} if key in evaluations else ())
            evaluations[key] = number
        if type(step) is not int:
            step = 0
        elif kind in ("step", "resume"):
            # A repeated step follows a resume, also where the event of the resume was lost.
            if kind == "resume" or step <= last_step:
                kept = step - (kind == "step")
                superseded.update(at for at, earlier in enumerate(steps, start=1) if earlier > kept)
            last_step = step
        steps.append(0 if kind == "out_of_memory" else step)
    for number, line in enumerate(_whole_lines(path), start=1):
        if number not in superseded:
            yield _event(path, number, line)


_HEAD = re.compile(rb'\{"event": "(step|sample)", "time": [0-9.]+, "step": ([0-9]{1,15})(?:,[^\0]*)?\}\n')
"""Most lines: parsing them all twice as JSON would take twice as long."""


def num_logged_steps(folder: Path, rank: int) -> int:
    """Return the number of different steps in the log of a rank, 0 without a log; errors are those of `read_events`."""
    path = folder / events_file(rank)
    heads = (_event(path, number, line, is_head=True) for number, line in enumerate(_whole_lines(path), start=1))
    steps = (head.get("step") for head in heads if head["event"] == "step")
    return len({step for step in steps if type(step) in (int, float)})  # of a damaged log a list or an object, too


def failure_of(folder: Path) -> str | None:
    """Return the message of the error with which the last session of a run ended; None if it did not end with one."""
    try:
        with (folder / events_file(0)).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            event = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
    except (OSError, ValueError, RecursionError):
        return None
    return str(event.get("message")) if isinstance(event, dict) and event.get("event") == "failure" else None


def repair_events(folder: Path, rank: int) -> int:
    """Delete the damaged lines of a rank's log, with a warning for each; return their number.

    Raises:
        CheckpointError: The file cannot be read or written.
    """
    path = folder / events_file(rank)
    lines, good = list(_whole_lines(path)), []
    for number, line in enumerate(lines, start=1):
        try:
            _event(path, number, line)
            good.append(line)
        except CheckpointError:
            _log.warning("%s, line %d is damaged: it is deleted", path, number, extra=coded("run.line_lost"))
    if len(good) < len(lines):
        with _writing(path), replace_file(path) as temporary:
            temporary.write_bytes(b"".join(good))
    return len(lines) - len(good)


def elapsed_s(walls_ms: Iterable[Mapping[float, float]]) -> float:
    """Return the seconds of all steps: the sum over steps of the rank with the largest sum.

    The slowest rank differs from step to step: the sum of the slowest rank of each step would be longer than the time
    of any rank. Steps with other numbers of ranks, before a resume, are summed separately. `walls_ms` has for each rank
    the time of its steps by step number.
    """
    ranks = list(walls_ms)
    totals: dict[tuple[int, ...], dict[int, float]] = {}
    for step in dict.fromkeys(step for walls in ranks for step in walls):
        members = tuple(rank for rank, walls in enumerate(ranks) if step in walls)
        sums = totals.setdefault(members, dict.fromkeys(members, 0.0))
        for rank in members:
            sums[rank] += ranks[rank][step]
    return sum(max(sums.values()) for sums in totals.values()) / 1000


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines, as bytes, because an incomplete line may end inside a character."""
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", code="run.damaged", path=path) from error


def _event(path: Path, number: int, line: bytes, *, is_head: bool = False) -> dict[str, Any]:
    """Return the event of a line; with `is_head` at least its name and step."""
    if is_head and (head := _HEAD.match(line)):
        return {"event": head[1].decode(), "step": int(head[2])}
    try:
        event: dict[str, Any] = json.loads(line)
        # The keys are read here, so that JSON without them is reported too.
        step = event["step"] if event["event"] == "resume" else event.get("step")
        if isinstance(step, int | float) and abs(step) >= MOST_STEPS:
            raise ValueError("its step is no number of a step")
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        # Not its repr, which contains the whole line for bytes that are not text.
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        message = f"{path}, line {number} is damaged: it is no event ({why}); copy the file again, or delete the line"
        raise CheckpointError(message, code="run.damaged", path=path, number=number) from error
    return event


def is_finished(folder: Path) -> bool:
    return (folder / SUMMARY_FILE).is_file()
