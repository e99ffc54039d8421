"""A stage turns inputs into shards, by any number of processes, and can be killed and started again.

Work is cut by the order of the inputs alone, and a shard depends on nothing but its own input and the settings: the
files are the same, byte for byte, for any number of workers and after any interruption.

    WORK/<n>_<stage>/begun.json   fingerprint of the settings and the input; written first
    WORK/<n>_<stage>/...          the shards, see `paratune.corpus.shard`
    WORK/<n>_<stage>/stage.json   totals and fingerprints; written last: its presence means finished
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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.base.atomic import delete_remains
from paratune.console import Display
from paratune.corpus.shard import counts_file, part_file, write_shard, writing
from paratune.errors import CheckpointError, DataError, coded
from paratune.records import read_json, write_json

log = logging.getLogger(__name__)

BEGUN_FILE = "begun.json"
STAGE_FILE = "stage.json"
_STAGE_FOLDER = re.compile("[0-9]_(?:index|fetch|extract|clean|sentences|store)")
MAX_DEATHS = 3
"""How often processes may die without a shard being finished in between."""


@dataclass(frozen=True)
class Stage:
    """What is done to each input."""

    name: str
    folder: Path
    schema: pa.Schema
    """Of the rows that are kept."""
    work: Callable[[Any], Iterable[Any]]
    """Of one input the rows in their order, and `Lost` among them. A function of a module, for other processes."""
    settings: Any
    """All that the rows depend on beside the input, as JSON has it."""
    source: Any
    """What the input is, as JSON has it: names and sizes of files, or the `output` of the stage before."""


_SPREAD: ContextVar[Callable[[Stage, Sequence[tuple[int, Any]]], Iterator[int]] | None]
_SPREAD = ContextVar("spread", default=None)


@contextmanager
def spread_by(make: Callable[[Stage, Sequence[tuple[int, Any]]], Iterator[int]]) -> Iterator[None]:
    """Have the shards of all stages in the block made by something else than processes of this machine.

    Args:
        make: Takes a stage, and numbers and inputs of its shards; yields the number of each when it is there.
    """
    token = _SPREAD.set(make)
    try:
        yield
    finally:
        _SPREAD.reset(token)


def fingerprint(stage: Stage) -> str:
    """Return the SHA-256, in hexadecimal, of the settings and the input of a stage."""
    return hashlib.sha256(json.dumps([stage.name, stage.settings, stage.source], sort_keys=True).encode()).hexdigest()


def is_finished(stage: Stage) -> bool:
    """Return whether a stage is done with these settings and this input."""
    if not (stage.folder / STAGE_FILE).exists():
        return False
    return bool(finished_record(stage.folder)["fingerprint"] == fingerprint(stage))


def read_record(path: Path, needed: str) -> dict[str, Any]:
    """Read what says that something of a stage was begun or is done.

    Args:
        path: A JSON file.
        needed: A key that it must have.

    Raises:
        CheckpointError: It is absent, cannot be read or is damaged; what to do is said.
    """
    try:
        found = read_json(path)
    except CheckpointError as error:
        problem: str | None = str(error)
    else:
        problem = None if isinstance(found, dict) and needed in found else f"{path} is damaged: no {needed} in it"
    if problem is not None:
        # Without what says whose it is, a folder is taken for that of something else.
        deleted = path.parent if path.name == BEGUN_FILE else path
        raise CheckpointError(
            f"{problem}; delete {deleted}, and the same command makes it anew", code="corpus.damaged", folder=deleted
        )
    return dict(found)


def output_of(folder: Path) -> str:
    """Return the SHA-256, in hexadecimal, of what a finished stage kept and dropped.

    Raises:
        CheckpointError: The stage is not finished.
    """
    return str(finished_record(folder)["output"])


def finished_record(folder: Path) -> dict[str, Any]:
    """Return the totals of a finished stage.

    Raises:
        CheckpointError: It is not finished, or the record is damaged.
    """
    if not (folder / STAGE_FILE).exists():
        # A step lies in the folder of its stage; a corpus may lie in a numbered folder as well.
        numbered = [part for part in folder.parts[-2:] if _STAGE_FOLDER.fullmatch(part)]
        name = numbered[0].partition("_")[2] if numbered else folder.name
        raise CheckpointError(
            f"the stage {name} is not finished ({folder}); run paratune corpus CONFIG --only {name} first, "
            "or without --only all that is missing",
            code="corpus.not_finished",
            name=name,
            folder=folder,
        )
    return read_record(folder / STAGE_FILE, "output")


def parts(folder: Path) -> list[Path]:
    """Return the tables that a finished stage kept, in their order.

    Raises:
        CheckpointError: The stage is not finished, or a table is missing.
    """
    found = [folder / part_file(number) for number in range(finished_record(folder)["shards"])]
    for each in found:
        if not each.exists():
            raise CheckpointError(
                f"{each} is missing; delete {folder} to make it again", code="corpus.damaged", folder=folder
            )
    return found


def run_stage(
    stage: Stage,
    inputs: Sequence[Any],
    *,
    workers: int,
    display: Display,
    more: Callable[[], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Make the shards of a stage that are not there yet, one of each input, and return its totals.

    Args:
        stage: What is done.
        inputs: To each of these.
        workers: Processes.
        display: Shows how far it is.
        more: Gives further totals, once all shards are there.

    Raises:
        DataError: An input cannot be read, or kills the processes that work on it.
        CheckpointError: The folder cannot be written.
    """
    if is_finished(stage):
        log.info("%s: done before", stage.name)
        return finished_record(stage.folder)
    begin(stage)
    todo = [number for number in range(len(inputs)) if not (stage.folder / counts_file(number)).exists()]
    if 0 < len(todo) < len(inputs):
        log.info("%s: goes on, %d of %d shards are done", stage.name, len(inputs) - len(todo), len(inputs))
    with display.bar(stage.name, len(inputs)) as bar:
        for number, _ in enumerate(_finished(stage, [(each, inputs[each]) for each in todo], workers), start=1):
            bar.update(len(inputs) - len(todo) + number)
    return finish(stage, len(inputs), **(more() if more is not None else {}))


def begin(stage: Stage, *, keep: Collection[str] = ()) -> None:
    """Make the folder of a stage; what is there of other settings or another input is deleted, which is said.

    Args:
        stage: Which.
        keep: Names of folders in it that are stages of their own, and know by themselves what they rest on.
    """
    path = stage.folder / BEGUN_FILE
    if stage.folder.exists() and not path.exists() and any(stage.folder.iterdir()):
        raise CheckpointError(
            f"{stage.folder} holds other files; choose another work", code="run.folder_taken", folder=stage.folder
        )
    if path.exists():
        if read_record(path, "fingerprint")["fingerprint"] == fingerprint(stage):
            delete_remains(stage.folder, is_locked=True)
            return
        log.info("%s: the settings or the input are not what they were; made anew", stage.name)
        _empty(stage.folder, keep)
    with writing("made", folder=stage.folder):
        stage.folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"fingerprint": fingerprint(stage)})


def _empty(folder: Path, keep: Collection[str]) -> None:
    # First what says that something is done, last what says whose folder it is: who is killed between them finds shards
    # that are to be made, and never one that is said to be there and is not.
    def turn(path: Path) -> int:
        done = path.name == STAGE_FILE or path.name.startswith("counts-")
        return 0 if done else 2 if path.name == BEGUN_FILE else 1

    for path in sorted(folder.iterdir(), key=turn):
        if path.is_dir() and path.name not in keep:
            shutil.rmtree(path)
        elif not path.is_dir() and (path.name != BEGUN_FILE or not keep):
            path.unlink()


def finish(stage: Stage, num_shards: int, **more: Any) -> dict[str, Any]:
    """Sum the counts of all shards up, write them as the last file of the stage, and return them."""
    kept, reasons, hashed = 0, Counter[str](), hashlib.sha256()
    for number in range(num_shards):
        counts = read_record(stage.folder / counts_file(number), "kept")
        kept += counts["kept"]
        reasons.update(counts["dropped"])
        hashed.update(" ".join(counts["sha256"]).encode())
    totals = {
        "stage": stage.name,
        "fingerprint": fingerprint(stage),
        "settings": stage.settings,
        "input": stage.source,
        "shards": num_shards,
        "kept": kept,
        "dropped": dict(sorted(reasons.items())),
        "output": hashed.hexdigest(),
        **more,
    }
    write_json(stage.folder / STAGE_FILE, totals)
    return totals


def _finished(stage: Stage, todo: Sequence[tuple[int, Any]], workers: int) -> Iterator[int]:
    """Yield the number of each shard when it has been written."""
    spread = _SPREAD.get()
    if spread is not None and todo:
        yield from spread(stage, todo)
        return
    if workers == 1 or len(todo) < 2:
        for number, each in todo:
            make_shard(stage, number, each)
            yield number
        return
    left, num_deaths = dict(todo), 0
    while left:
        try:
            for number in _by_processes(stage, left, workers):
                del left[number]
                num_deaths = 0
                yield number
        except BrokenProcessPool:
            num_deaths += 1
            first = next(iter(left))
            if num_deaths == MAX_DEATHS:
                raise DataError(
                    f"{stage.name}: processes died {MAX_DEATHS} times without finishing a shard, the first of which is "
                    f"{first}: {left[first]}; memory may be short (fewer workers), or remove that input",
                    code="corpus.shards_failed",
                    name=stage.name,
                    num_left=len(left),
                ) from None
            log.warning(
                "%s: a process died; shards that it had not finished are made again",
                stage.name,
                extra=coded("corpus.process_died", stage=stage.name),
            )


def _by_processes(stage: Stage, left: dict[int, Any], workers: int) -> Iterator[int]:
    """Yield shards as they are finished; no more are handed out than processes can hold."""
    waiting = iter(list(left.items()))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(left)), mp_context=context, initializer=_start_worker) as pool:
        open_: dict[Future[None], int] = {}
        try:
            while True:
                while len(open_) < 2 * workers and (following := next(waiting, None)) is not None:
                    open_[pool.submit(make_shard, stage, *following)] = following[0]
                if not open_:
                    return
                for done in wait(open_, return_when=FIRST_COMPLETED).done:
                    number = open_.pop(done)
                    done.result()
                    yield number
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():  # a shard may take minutes; it is made again
                process.terminate()
            raise


def _start_worker() -> None:
    """Leave signals to the process that started this one, and end when it does, also when it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def make_shard(stage: Stage, number: int, each: Any) -> None:
    """Do to one input what a stage does, and write its shard."""
    write_shard(stage.folder, number, stage.schema, stage.work(each))
