"""Restarts the processes of a run with smaller micro-batches after an out-of-memory error.

A rank that runs out of memory cannot repeat the step alone, since the others wait in a collective. So it writes a note,
all ranks end, and all resume from the newest checkpoint or start again.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paratune.base.scratch import scratch_folder
from paratune.errors import EXIT_OUT_OF_MEMORY
from paratune.processes.local import launch
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE
from paratune.records import read_json

NOTE_FILE = "out_of_memory"


@dataclass(frozen=True)
class MemoryNote:
    """Notes of ranks that ran out of memory."""

    micro_batch_size: int
    """The largest micro-batch to try next."""
    holds_folder: bool
    """Whether the run folder belongs to this run, so that it can be resumed."""


def launch_with_smaller_batches(
    arguments: Sequence[str], num_processes: int, *, start: Callable[..., int] = launch
) -> int:
    """Run `paratune ARGUMENTS` in several processes, and restart it with smaller micro-batches when memory runs out.

    Each restart at least halves the micro-batch.

    Returns:
        The exit code of the last start.
    """
    limit: int | None = None
    while True:
        with scratch_folder() as scratch:
            place = scratch / NOTE_FILE
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
            f"memory ran out: restarting all {num_processes} processes with micro-batches of at most {limit}; "
            "the global batch does not change",
            file=sys.stderr,
            flush=True,
        )


def read_note(place: Path) -> MemoryNote | None:
    """Return the combined notes of all ranks; None if there are none."""
    notes = [read_json(path) for path in sorted(place.parent.glob(f"{place.name}.rank*"))]
    if not notes:
        return None
    return MemoryNote(
        min(int(note["micro_batch_size"]) for note in notes), any(bool(note["holds_folder"]) for note in notes)
    )
