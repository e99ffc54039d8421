"""Start the processes of a run again, with smaller micro-batches, when memory ran out in one of them.

A rank that ran out cannot take the step again by itself: the others wait for it in a collective. So all have ended; the
one that ran out has left a note, and all go on from the newest checkpoint or the start.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paratune.errors import EXIT_OUT_OF_MEMORY
from paratune.launch.local import launch
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE
from paratune.records import read_json

NOTE = "out_of_memory"


@dataclass(frozen=True)
class Note:
    """What ranks left behind that ran out of memory."""

    micro_batch_size: int
    """The largest to try next."""
    holds_folder: bool
    """Whether the run folder is this run's by now, so that it can be gone on with."""


def launch_until_it_fits(arguments: Sequence[str], num_processes: int, *, start: Callable[..., int] = launch) -> int:
    """Run `paratune ARGUMENTS` in several processes; after an out-of-memory error again, with what it says to try.

    Each time the micro-batch is at most half of what it was, so it ends after log2 of it at the latest.

    Args:
        arguments: Command line after the program's name.
        num_processes: At least 1.
        start: Starts the processes and returns their exit code; tests have their own.

    Returns:
        The exit code of the last time.
    """
    limit: int | None = None
    while True:
        with tempfile.TemporaryDirectory(prefix="paratune-") as scratch:
            place = Path(scratch) / NOTE
            environment = {OUT_OF_MEMORY_VARIABLE: str(place)}
            if limit is not None:
                environment[MICRO_BATCH_LIMIT_VARIABLE] = str(limit)
            code = start(arguments, num_processes, environment=environment)
            note = read_note(place)
        if code != EXIT_OUT_OF_MEMORY or note is None or (limit is not None and note.micro_batch_size >= limit):
            return code
        limit = note.micro_batch_size
        if note.holds_folder:
            arguments = [*(word for word in arguments if word not in ("--overwrite", "--resume")), "--resume"]
        print(  # noqa: T201
            f"memory ran out: starting all {num_processes} processes again with micro-batches of at most {limit}; "
            "the global batch stays as it is",
            file=sys.stderr,
            flush=True,
        )


def read_note(place: Path) -> Note | None:
    """Return what the ranks' notes say together; None when there is none."""
    notes = [read_json(path) for path in sorted(place.parent.glob(f"{place.name}.rank*"))]
    if not notes:
        return None
    return Note(min(int(note["micro_batch_size"]) for note in notes), any(bool(note["holds_folder"]) for note in notes))
