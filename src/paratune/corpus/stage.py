"""Runs a stage: makes one shard of each input, in any number of processes, and resumes after an interruption.

A shard depends only on its own input and the settings, so that all files are the same, byte for byte, for any number of
workers and after any interruption.

    WORK/<n>_<stage>/begun.json   fingerprint of the settings and the input; written first
    WORK/<n>_<stage>/...          shards, see `paratune.corpus.shard`
    WORK/<n>_<stage>/stage.json   totals and fingerprints; written last: it marks the stage as finished
"""

import hashlib
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.base.atomic import delete_remains
from paratune.console import Display
from paratune.corpus.database import delete_scratch
from paratune.corpus.shard import counts_file, part_file, write_shard, writing
from paratune.errors import CheckpointError, DataError, coded
from paratune.records import read_json, write_json

log = logging.getLogger(__name__)

BEGUN_FILE = "begun.json"
STAGE_FILE = "stage.json"
_STAGE_FOLDER = re.compile("[0-9]_(?:index|fetch|extract|clean|sentences|store)")
SMALL_BYTES = 1 << 20
"""Size of the tables of a stage, whose shards take about as long as the start of two processes."""
MAX_DEATHS = 3
"""Deaths of processes without a finished shard in between, after which the stage fails."""


@dataclass(frozen=True)
class Stage:
    """A function that makes a shard of each input, with the settings that the shards depend on."""

    name: str
    folder: Path
    schema: pa.Schema
    """Schema of kept rows."""
    work: Callable[..., Iterable[Any]]
    """Returns the rows of one input in order, with `DroppedRow` for dropped ones. Must be picklable."""
    settings: Any
    """JSON value of all settings that the rows depend on."""
    source: Any
    """JSON value that identifies the input: names and sizes of files, or the `output` of the previous stage."""
    is_slow: bool = False
    """Whether a small shard may take long."""


Shards = Sequence[tuple[int, tuple[Any, ...]]]
"""Numbers of shards, each with the arguments of `Stage.work`."""

Workers = int | Callable[[Stage, Shards], Iterator[int]]
"""Number of local processes, or a function that makes shards and yields their numbers, see `Processes`."""


def fingerprint(stage: Stage) -> str:
    """Return the SHA-256 (hexadecimal) of the settings and the input of a stage."""
    return hashlib.sha256(json.dumps([stage.name, stage.settings, stage.source], sort_keys=True).encode()).hexdigest()


def is_finished(stage: Stage) -> bool:
    """Return whether a stage is finished with these settings and this input."""
    is_written = (stage.folder / STAGE_FILE).exists()
    return is_written and bool(finished_record(stage.folder)["fingerprint"] == fingerprint(stage))


def read_record(path: Path, needed: str) -> dict[str, Any]:
    """Return the JSON object in a file of a stage, which must have the key `needed`.

    Raises:
        CheckpointError: The file is missing, unreadable or damaged.
    """
    try:
        record = read_json(path)
        if isinstance(record, dict) and needed in record:
            return record
        problem = f"{path} is damaged: no {needed} in it"
    except CheckpointError as error:
        problem = str(error)
    # A folder without begun.json counts as a folder of another program.
    deleted = path.parent if path.name == BEGUN_FILE else path
    message = f"{problem}; delete {deleted} and repeat the command"
    raise CheckpointError(message, code="corpus.damaged", folder=deleted)


def stage_output(folder: Path) -> str:
    """Return the SHA-256 (hexadecimal) of the rows that a finished stage kept and dropped, see `finished_record`."""
    return str(finished_record(folder)["output"])


def finished_record(folder: Path) -> dict[str, Any]:
    """Return the totals of a finished stage.

    Raises:
        CheckpointError: The stage is not finished, or its record is damaged.
    """
    if not (folder / STAGE_FILE).exists():
        # The folder of a step is in that of its stage; a corpus may be in a numbered folder, too.
        numbered = [part for part in folder.parts[-2:] if _STAGE_FOLDER.fullmatch(part)]
        name = numbered[0].partition("_")[2] if numbered else folder.name
        message = (
            f"the stage {name} is not finished ({folder}); run paratune corpus CONFIG --only {name} first, "
            "or without --only, which runs all missing stages"
        )
        raise CheckpointError(message, code="corpus.not_finished", name=name, folder=folder)
    return read_record(folder / STAGE_FILE, "output")


def stage_tables(folder: Path) -> list[Path]:
    """Return the tables of kept rows of a finished stage, in order.

    Raises:
        CheckpointError: The stage is not finished, or a table is missing.
    """
    paths = [folder / part_file(number) for number in range(finished_record(folder)["shards"])]
    for path in paths:
        if not path.exists():
            message = f"{path} is missing; delete {folder} to make it again"
            raise CheckpointError(message, code="corpus.damaged", folder=folder)
    return paths


def run_stage(stage: Stage, inputs: Sequence[tuple[Any, ...]], *, workers: Workers, display: Display) -> dict[str, Any]:
    """Make the missing shards of a stage and return its totals.

    Args:
        inputs: Arguments of `stage.work` for each shard.

    Raises:
        DataError: An input is unreadable, or kills the processes that work on it.
        CheckpointError: The folder is not writable.
    """
    if is_finished(stage):
        log.info("%s: already finished", stage.name)
        return finished_record(stage.folder)
    begin(stage)
    todo = [number for number in range(len(inputs)) if not (stage.folder / counts_file(number)).exists()]
    if 0 < len(todo) < len(inputs):
        log.info("%s: resumes, %d of %d shards are complete", stage.name, len(inputs) - len(todo), len(inputs))
    with display.bar(stage.name, len(inputs)) as bar:
        for number, _ in enumerate(_make_shards(stage, [(index, inputs[index]) for index in todo], workers), start=1):
            bar.update(len(inputs) - len(todo) + number)
    return finish(stage, len(inputs))


RunStage = Callable[..., dict[str, Any]]
"""`run_stage` with the number of processes and the display of a command."""


def begin(stage: Stage, *, keep: Collection[str] = ()) -> None:
    """Make the folder of a stage; log and delete the results of other settings or another input.

    Args:
        keep: Names of folders in it that are separate stages.
    """
    path = stage.folder / BEGUN_FILE
    if path.exists():
        if read_record(path, "fingerprint")["fingerprint"] == fingerprint(stage):
            delete_remains(stage.folder, is_locked=True)
            delete_scratch(stage.folder, is_locked=True)
            return
        log.info("%s: settings or input have changed; starting again", stage.name)
        # Records of complete shards are deleted first and begun.json last: a process that is killed in between never
        # leaves a record of a shard that is missing.
        paths = list(stage.folder.iterdir())
        records = [old for old in paths if old.name == STAGE_FILE or old.name.startswith("counts-")]
        others = [old for old in paths if old not in (*records, path)]
        for old in (*records, *others, *([] if keep else [path])):
            if old.is_dir() and old.name not in keep:
                shutil.rmtree(old)
            elif not old.is_dir():
                old.unlink()
    write_begun(stage.folder, {"fingerprint": fingerprint(stage)})


def write_begun(folder: Path, record: dict[str, Any]) -> None:
    """Make the folder of a stage, and write begun.json.

    Raises:
        CheckpointError: The folder has files that no stage has written, or is not writable.
    """
    path = folder / BEGUN_FILE
    if not path.exists() and folder.exists() and any(folder.iterdir()):
        message = f"{folder} contains other files; choose another work"
        raise CheckpointError(message, code="output.foreign", folder=folder)
    with writing("made", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def finish(stage: Stage, num_shards: int, **more: Any) -> dict[str, Any]:
    """Sum the counts of all shards, write them as the last file of the stage, and return them."""
    num_kept, reasons, hashed = 0, Counter[str](), hashlib.sha256()
    for number in range(num_shards):
        counts = read_record(stage.folder / counts_file(number), "kept")
        num_kept += counts["kept"]
        reasons.update(counts["dropped"])
        hashed.update(" ".join(counts["sha256"]).encode())
    totals = {
        "stage": stage.name,
        "fingerprint": fingerprint(stage),
        "settings": stage.settings,
        "input": stage.source,
        "shards": num_shards,
        "kept": num_kept,
        "dropped": dict(sorted(reasons.items())),
        "output": hashed.hexdigest(),
        **more,
    }
    write_json(stage.folder / STAGE_FILE, totals)
    return totals


def _make_shards(stage: Stage, todo: Shards, workers: Workers) -> Iterator[int]:
    if isinstance(workers, int):
        with Processes(workers) as processes:
            yield from _make_shards(stage, todo, processes)
        return
    left, num_deaths = dict(todo), 0
    while left:
        try:
            for number in workers(stage, list(left.items())):
                del left[number]
                num_deaths = 0
                yield number
        except BrokenProcessPool as death:
            num_deaths += 1
            first = next(iter(left))
            if num_deaths == MAX_DEATHS:
                message = (
                    f"{stage.name}: processes died {MAX_DEATHS} times without finishing a shard ({death}); the next "
                    f"one is {first}: {left[first]}; use fewer workers if memory is short, or remove that input"
                )
                raise DataError(message, code="corpus.shards_failed", name=stage.name, num_left=len(left)) from None
            extra = coded("corpus.process_died", stage=stage.name)
            log.warning("%s: unfinished shards are made again: %s", stage.name, death, extra=extra)


class Processes(AbstractContextManager["Processes"]):
    """Worker processes of this machine, which start when they are first needed, and work on all stages of a command."""

    def __init__(self, num: int, *, small_bytes: int = 0) -> None:
        """Start no process yet.

        Args:
            num: Maximum number of processes; with 1, this process makes all shards.
            small_bytes: Size of the tables of a stage below which this process makes their shards, unless others run.
        """
        self._num, self._small_bytes = num, small_bytes
        self._pool: ProcessPoolExecutor | None = None
        self._died_in: str | None = None

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __call__(self, stage: Stage, todo: Shards) -> Iterator[int]:
        """Make shards and yield the number of each complete one.

        Raises:
            BrokenProcessPool: A process died.
        """
        tables = [value for _, arguments in todo for value in arguments if isinstance(value, Path)]
        is_small = self._pool is None and len(tables) == len(todo) and not stage.is_slow
        is_small = is_small and sum(path.stat().st_size for path in tables if path.exists()) < self._small_bytes
        # A shard that has killed a process would kill this one.
        if self._num == 1 or ((len(todo) < 2 or is_small) and stage.name != self._died_in):
            for number, arguments in todo:
                make_shard(stage, number, *arguments)
                yield number
            return
        # Not fork: a forked process would inherit locks that threads of Arrow have locked.
        context = multiprocessing.get_context("spawn")
        pool = self._pool = self._pool or ProcessPoolExecutor(self._num, context, initializer=_start_worker)
        try:
            numbers = {pool.submit(make_shard, stage, number, *arguments): number for number, arguments in todo}
            for done in as_completed(numbers):
                done.result()
                yield numbers[done]
        except BaseException:
            self._pool, self._died_in = None, stage.name
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():  # not waited for: a shard may take minutes
                process.terminate()
            raise


def _start_worker() -> None:
    """Leave signals to the parent process, and exit when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(lambda: os._exit(1))


def end_with_parent(end: Callable[[], object]) -> None:
    """Call `end`, from a thread, when the parent of this process ends, also when it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        end()

    threading.Thread(target=wait, daemon=True).start()


def make_shard(stage: Stage, number: int, *arguments: Any) -> None:
    """Write the shard of one input, the arguments of `stage.work`."""
    write_shard(stage.folder, number, stage.schema, stage.work(*arguments))
