"""Records the fetched captures of a shard, so that an interrupted command requests nothing twice.

Records are appended to one file in any order. A truncated record at the end is removed.
"""

import json
import os
import threading
from contextlib import AbstractContextManager
from io import RawIOBase
from pathlib import Path
from typing import Any

from paratune.corpus.rows import DroppedRow

PAYLOAD = "payload"


class Journal(AbstractContextManager["Journal"]):
    """A file of fetched captures by position in the shard; threads may share it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, which belongs to one version of settings and index."""
        self._file = path.open("a+b", buffering=0)
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}
        self._end = self._scan(os.fstat(self._file.fileno()).st_size)
        self._file.truncate(self._end)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, position: int) -> bool:
        return position in self._places

    def add(self, position: int, result: dict[str, Any] | DroppedRow) -> None:
        """Append the result of a capture; it is on disk when this returns, even if the process is killed then."""
        is_lost = isinstance(result, DroppedRow)
        row = dict(vars(result)) if isinstance(result, DroppedRow) else dict(result)
        payload = row.pop(PAYLOAD, b"")
        head = json.dumps({"position": position, "is_lost": is_lost, "num_bytes": len(payload), "row": row})
        whole = memoryview(b"".join((head.encode(), b"\n", payload, b"\n")))
        with self._lock:
            self._places[position] = self._end
            self._end += len(whole)
            while whole:  # unbuffered files may write only a part
                whole = whole[self._file.write(whole) :]

    def read(self, position: int) -> dict[str, Any] | DroppedRow:
        """Return the result of a capture."""
        with self._lock:
            self._file.seek(self._places[position])
            head = json.loads(_line(self._file))
            if head["is_lost"]:
                return DroppedRow(**head["row"])
            return {**head["row"], PAYLOAD: _exactly(self._file, head["num_bytes"])}

    def _scan(self, size: int) -> int:
        """Find all complete records; return the end of the last one."""
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
    """Return the next line of an unbuffered file, and move to its end."""
    start, chunks = file.tell(), b""
    while b"\n" not in chunks and (chunk := file.read(4096)):
        chunks += chunk
    line = chunks.split(b"\n", 1)[0]
    if len(line) == len(chunks):
        raise ValueError("truncated")
    file.seek(start + len(line) + 1)
    return line


def _exactly(file: RawIOBase, num_bytes: int) -> bytes:
    content = bytearray()
    while len(content) < num_bytes and (chunk := file.read(num_bytes - len(content))):
        content += chunk
    return bytes(content)
