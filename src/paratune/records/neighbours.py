"""Which runs of a matrix were trained side by side: `paratune sweep --parallel` logs when each one begins and ends.

Such runs share memory bandwidth, disks and cores, so that their times say little about one of them alone. Each run
records its neighbours in summary.json.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.errors import CheckpointError, os_error_as

NEIGHBOURS_FILE = "neighbours.jsonl"
"""In the folder of the matrix: an object on each line, with `time` (Unix seconds), `event` and the name of a `run`."""
NEIGHBOURS_VARIABLE = "PARATUNE_NEIGHBOURS"
"""Path of this file, in the environment of each run that others may join or may have joined before."""


@dataclass(frozen=True)
class Neighbours:
    names: tuple[str, ...]
    """Runs that were trained at the same time as this one, in order of their names."""
    is_constant: bool
    """Whether none of them began or ended while this run was trained, in all of its sessions."""


def log_neighbour(path: Path, event: str, run: str = "") -> None:
    """Add a line: `begin`, `resume` or `end` of a run, or `start` of a sweep, after which no run is open.

    Raises:
        CheckpointError: The file cannot be written.
    """
    failure, remedy = f"{path} cannot be written", "free some space there, or change folder:"
    with os_error_as(CheckpointError, failure, remedy, code="output.not_writable", path=path), path.open("a") as file:
        file.write(json.dumps({"time": time.time(), "event": event, "run": run}) + "\n")


def neighbours_of(path: Path, run: str) -> Neighbours | None:
    """Return the neighbours of a run, whose last session may still be open; None where the file does not tell."""
    open_now: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    at_first_begin: frozenset[str] | None = None
    is_open = changes = False
    for event, name in _events(path):
        if event == "start":  # the sweep before was killed, and its runs with it
            open_now, is_open = frozenset(), False
        elif name != run:
            open_now = open_now - {name} if event == "end" else open_now | {name}
            changes |= is_open
        else:
            if event == "begin":  # a run of this name that was trained before is deleted
                seen, at_first_begin, changes = frozenset(), None, False
            is_open = event != "end"
            if at_first_begin is None:  # a run that began before this log was alone until then
                at_first_begin = open_now if event == "begin" else frozenset()
            changes |= is_open and open_now != at_first_begin
        seen |= open_now if is_open else frozenset()
    return None if at_first_begin is None else Neighbours(tuple(sorted(seen)), not changes)


def _events(path: Path) -> Iterator[tuple[str, str]]:
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text("utf-8").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the end of a line is missing after a full disk
                entry = json.loads(line)
                yield str(entry["event"]), str(entry["run"])
