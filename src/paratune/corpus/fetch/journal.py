"""What of a shard has been fetched already, so that nothing is asked for twice when a command is killed.

Records are added to one file as they come, in any order. One that was torn by the kill is cut off.
"""

import json
import os
import threading
from io import RawIOBase
from pathlib import Path
from typing import Any

from paratune.corpus.rows import Lost

PAYLOAD = "payload"


class Journal:
    """A file of finished captures by their position in the shard; threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open or make a file.

        Args:
            path: The file, of this version of the settings and of the index.
        """
        self._file = path.open("a+b", buffering=0)
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}
        self._end = self._scan(os.fstat(self._file.fileno()).st_size)
        self._file.truncate(self._end)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, position: int) -> bool:
        return position in self._places

    def add(self, position: int, found: dict[str, Any] | Lost) -> None:
        """Keep what became of a capture; it is there when this returns, also if the process is killed then."""
        is_lost = isinstance(found, Lost)
        row = dict(vars(found)) if isinstance(found, Lost) else dict(found)
        payload = row.pop(PAYLOAD, b"")
        head = json.dumps({"position": position, "is_lost": is_lost, "num_bytes": len(payload), "row": row})
        whole = memoryview(b"".join((head.encode(), b"\n", payload, b"\n")))
        with self._lock:
            self._places[position] = self._end
            self._end += len(whole)
            while whole:  # unbuffered files may take less than they are given
                whole = whole[self._file.write(whole) :]

    def read(self, position: int) -> dict[str, Any] | Lost:
        """Return what became of a capture."""
        with self._lock:
            self._file.seek(self._places[position])
            head = json.loads(_line(self._file))
            if head["is_lost"]:
                return Lost(**head["row"])
            return {**head["row"], PAYLOAD: _exactly(self._file, head["num_bytes"])}

    def _scan(self, size: int) -> int:
        """Find all whole records; return where they end."""
        end = 0
        self._file.seek(0)
        while end < size:
            try:
                head = json.loads(_line(self._file))
                following = self._file.tell() + head["num_bytes"] + 1
                if following > size:
                    break
                self._places[head["position"]] = end
            except (ValueError, KeyError, TypeError):
                break
            self._file.seek(following)
            end = following
        return end


def _line(file: RawIOBase) -> bytes:
    """Return the next line of an unbuffered file, and leave it at its end."""
    start, found = file.tell(), b""
    while b"\n" not in found and (chunk := file.read(4096)):
        found += chunk
    line = found.split(b"\n", 1)[0]
    if len(line) == len(found):
        raise ValueError("torn")
    file.seek(start + len(line) + 1)
    return line


def _exactly(file: RawIOBase, num_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < num_bytes and (chunk := file.read(num_bytes - len(found))):
        found += chunk
    return bytes(found)
