"""Event logs read as they grow: each look costs what was added since the last one."""

import json
import os
from pathlib import Path
from typing import Any

RECENT_BYTES = 512 * 1024
"""How much of the end of a log is read in full when it is first looked at."""
SAMPLED_STEPS = 400
"""Of the steps before that, at most how many are read: enough for a curve."""
_STEP = b'{"event": "step"'


class EventTail:
    """The events of one file, as far as they are whole: a line without its end is read when it has one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self.num_damaged = 0
        """Lines that are no events; they are passed over."""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the events since the last call, and whether they are those of a new file.

        Of a log that is long when it is first read, all events but steps are there, the steps near its end, and some
        of the others. Opened anew each time: over a network file system an open file may show what was there before.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                is_new = found.st_ino != self._inode or found.st_size < self._offset
                if is_new:
                    self._offset, self._inode, self.num_damaged = 0, found.st_ino, 0
                if found.st_size == self._offset:
                    return [], is_new
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            was_there, self._inode = self._inode is not None, None
            return [], was_there
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return self._parse(whole), is_new

    def _parse(self, data: bytes) -> list[dict[str, Any]]:
        lines = data.split(b"\n")[:-1]
        is_wanted = _thinned(lines, len(data))
        events = []
        for line, wanted in zip(lines, is_wanted, strict=True):
            if not wanted:
                continue
            try:
                event = json.loads(line)
                _ = event["event"] + ""
            except (ValueError, RecursionError, TypeError, KeyError):
                self.num_damaged += 1
                continue
            events.append(event)
        return events


def _thinned(lines: list[bytes], num_bytes: int) -> list[bool]:
    """Return which lines to read: of the steps before the last RECENT_BYTES, one in so many."""
    if num_bytes <= RECENT_BYTES:
        return [True] * len(lines)
    wanted, before, steps = [], num_bytes, 0
    every = max(1, len(lines) // SAMPLED_STEPS)
    for line in lines:
        is_old_step = before > RECENT_BYTES and line.startswith(_STEP)
        steps += is_old_step
        wanted.append(not is_old_step or steps % every == 0)
        before -= len(line) + 1
    return wanted
