"""The record of a run: a folder that everything else reads. Names of its files, and reading and writing them whole.

    runs/<run_id>/
      run.json                 what was asked for and on what it ran; written first
      events.rank0000.jsonl    what happened, one JSON object a line, one file a rank
      summary.json             medians, peaks, scores; written last and by rename: its presence means finished
      profile.rank0000.json.gz  trace of the steps under the profiler, one file a rank
      predictions.<split>.parquet   index, label, prediction (and score_<id> per class) of the kept model
      train_texts.parquet      a hash of each text of the training
      model/                   a plain Hugging Face folder
      checkpoints/             see paratune.checkpoint

Floor 1: no torch.
"""

import errno
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from paratune.base.atomic import replace_file
from paratune.errors import CheckpointError, coded

_log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
RUN_FILE = "run.json"
RUN_COPY = ".run.json.copy"
"""The same as run.json, read where that is damaged: without it a run could not be resumed."""
SUMMARY_FILE = "summary.json"
MODEL_FOLDER = "model"
CHECKPOINTS_FOLDER = "checkpoints"
TRAIN_TEXTS_FILE = "train_texts.parquet"
PHASES = ("get_batch", "forward", "backward", "optimizer")
"""The measured phases in their order; `other` is what is left of the step's wall time."""
ALL_PHASES = (*PHASES, "other")
"""They sum to the wall time."""


def events_file(rank: int) -> str:
    return f"events.rank{rank:04d}.jsonl"


def event_ranks(folder: Path) -> list[int]:
    """Return the ranks there have been in a run, also those of a larger world before a resume."""
    names = (path.name.removeprefix("events.rank").removesuffix(".jsonl") for path in folder.glob("events.rank*.jsonl"))
    return sorted(int(name) for name in names if name.isdigit())


def out_of_memory_file(rank: int | str) -> str:
    """Return the file of a rank's post-mortems; "*" stands for any rank."""
    return f"out_of_memory.rank{rank if isinstance(rank, str) else f'{rank:04d}'}.json"


def profile_file(rank: int) -> str:
    """Return the file of a rank's trace, in Chrome's format."""
    return f"profile.rank{rank:04d}.json.gz"


def predictions_file(split: str) -> str:
    return f"predictions.{split}.parquet"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all (see `atomic`). NaN and infinities become null.

    Raises:
        CheckpointError: It cannot be written; a file of that name is as it was.
    """
    try:
        # UTF-8 cannot hold the bytes of some file names (in `command`): they are escaped as in JSON, \udc80.
        with (
            replace_file(path) as temporary,
            temporary.open("w", encoding="utf-8", errors="backslashreplace") as file,
        ):
            json.dump(finite(value), file, indent=1, ensure_ascii=False, allow_nan=False)
            file.write("\n")
    except OSError as error:
        raise _not_written(path, error) from error


def read_json(path: Path) -> Any:
    """Read a JSON file of a record.

    Raises:
        CheckpointError: It is absent, cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist", code="run.file_not_found", path=path) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", code="run.unreadable", path=path) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", code="run.damaged", path=path) from error


def write_run(folder: Path, record: Any) -> None:
    """Write run.json and its copy.

    Raises:
        CheckpointError: One cannot be written.
    """
    write_json(folder / RUN_COPY, record)
    write_json(folder / RUN_FILE, record)


def read_run(folder: Path) -> Any:
    """Return run.json, or its copy where it is damaged; that is logged.

    Raises:
        CheckpointError: Neither can be read.
    """
    try:
        return read_json(folder / RUN_FILE)
    except CheckpointError as error:
        if not ((folder / RUN_FILE).exists() and (folder / RUN_COPY).exists()):
            raise
        record = read_json(folder / RUN_COPY)
        _log.warning("%s; its copy is used", error, extra=coded("run.copy_used", folder=folder))
        return record


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _not_written(path: Path, error: OSError) -> CheckpointError:
    remedy = "free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
    return CheckpointError(
        f"{path} cannot be written: {error.strerror}; {remedy}, or choose another folder",
        code="run.not_writable",
        path=path,
    )


def finite(value: Any) -> Any:
    """Return `value` with floats that JSON cannot say (NaN, infinities) replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


class EventLog:
    """Appends events to a rank's file; what was buffered is written by `flush`, one line an event.

    Each method raises CheckpointError when the file cannot be written.
    """

    def __init__(
        self, folder: Path, rank: int, *, listener: Callable[[str, Mapping[str, Any]], None] | None = None
    ) -> None:
        """Open the log of a rank; `listener` hears each event, with its values, when it has been added."""
        self._path = folder / events_file(rank)
        self._listener = listener
        try:
            _drop_torn_line(self._path)
            self._file: TextIO = self._path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise _not_written(self._path, error) from error

    def add(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **finite(values)}, ensure_ascii=False)
        self._do(lambda: self._file.write(line + "\n"))
        if self._listener is not None:
            self._listener(event, values)

    def flush(self) -> None:
        self._do(self._file.flush)

    def close(self) -> None:
        self._do(self._file.close)

    def _do(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            raise _not_written(self._path, error) from error


def _drop_torn_line(path: Path) -> None:
    """Cut a last line that a killed process left without its end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size > 0:
            file.seek(size - 1)
            if file.read(1) == b"\n":
                break
            size -= 1
        file.truncate(size)


def read_events(folder: Path, rank: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank in order; a torn last line is left out.

    Steps that were trained again after a resume appear once, as they went the last time: what an interrupted process
    logged after the checkpoint that the next one started from is dropped. So does a repeated evaluation: it is due
    again where the checkpoint of its step was saved before it, as on a signal.

    Raises:
        CheckpointError: The file cannot be read, or a line is not an event.
    """
    path = folder / events_file(rank)
    kept: list[dict[str, Any]] = []
    last_step = 0
    for number, line in enumerate(_whole_lines(path), start=1):
        event = _event(path, number, line)
        # A step that comes again was taken after a resume, also where the event that says so was lost.
        is_step = event["event"] == "step" and isinstance(event.get("step"), int)
        is_again = is_step and event["step"] <= last_step
        if event["event"] == "resume" or is_again:
            last_step = event["step"] - is_again
            kept = [old for old in kept if old.get("step", 0) <= last_step or old["event"] == "out_of_memory"]
        if is_step:
            last_step = event["step"]
        if event["event"] == "evaluation":
            kept = [old for old in kept if not _is_same_evaluation(old, event)]
        kept.append(event)
    yield from kept


def _is_same_evaluation(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(first.get(key) == second.get(key) for key in ("event", "step", "split"))


def repair_events(folder: Path, rank: int) -> int:
    """Delete the damaged lines of a rank's log, which are named in the log of the run; return their number.

    Raises:
        CheckpointError: The file cannot be read or written.
    """
    path = folder / events_file(rank)
    good, num_damaged = [], 0
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            _event(path, number, line)
        except CheckpointError as error:
            num_damaged += 1
            _log.warning("%s; the line is lost", error, extra=coded("run.line_lost"))
        else:
            good.append(line)
    if num_damaged:
        try:
            with replace_file(path) as temporary:
                temporary.write_bytes(b"".join(good))
        except OSError as error:
            raise _not_written(path, error) from error
    return num_damaged


def elapsed_s(walls_ms: Iterable[Mapping[float, float]]) -> float:
    """Return the seconds that steps took which ranks took together: those of the rank that took longest over all.

    Where steps end differs between ranks from one step to the next, and evens out: the sum of each step's slowest rank
    would be longer than any rank took. Steps that other ranks took, before a resume on more or fewer, are added.

    Args:
        walls_ms: For each rank there has been the wall time of each step that it took, by the step's number.
    """
    ranks = list(walls_ms)
    taken: dict[float, set[int]] = {}
    for rank, walls in enumerate(ranks):
        for step in walls:
            taken.setdefault(step, set()).add(rank)
    totals: dict[frozenset[int], dict[int, float]] = {}
    for step, who in taken.items():
        sums = totals.setdefault(frozenset(who), dict.fromkeys(who, 0.0))
        for rank in who:
            sums[rank] += ranks[rank][step]
    return sum(max(sums.values()) for sums in totals.values()) / 1000


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that have an end; as bytes, because a torn one may stop within a character."""
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", code="run.unreadable", path=path) from error


def _event(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
        # Looked up here, so that JSON that is no event is named as well.
        _ = event["event"], event["step"] if event["event"] == "resume" else None
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        # Not its repr: of bytes that are no text it holds the whole line.
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{path}, line {number} is damaged: it is not an event ({why})",
            code="run.damaged",
            path=path,
            number=number,
        ) from error
    return event


def is_finished(folder: Path) -> bool:
    return (folder / SUMMARY_FILE).is_file()
