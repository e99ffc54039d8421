"""Reads event logs while they grow: each call reads only new lines."""

import json
import os
from pathlib import Path
from typing import Any

RECENT_BYTES = 512 * 1024
"""Bytes at the end of a log that the first call reads completely."""
SAMPLED_STEPS = 400
"""Maximum number of earlier steps that are read, for a curve."""
_STEP = b'{"event": "step"'


class EventTail:
    """Reads the events of one file; an incomplete last line is read when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self.num_damaged = 0
        """Number of skipped lines that are not events."""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the events since the last call, and whether the file is a new one.

        The first call on a long log returns all events except steps, the steps near the end, and some other steps. The
        file is opened in each call: on a network file system an open file may have old content.

        Raises:
            OSError: The file exists and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                is_new = status.st_ino != self._inode or status.st_size < self._offset
                if is_new:
                    self._offset, self._inode, self.num_damaged = 0, status.st_ino, 0
                if status.st_size == self._offset:
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
    """Return which lines to read: only some of the steps before the last RECENT_BYTES."""
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
