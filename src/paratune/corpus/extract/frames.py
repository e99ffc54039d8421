"""Messages between the stage and the child process: a JSON object, followed by bytes.

Answers come from a process that has read untrusted documents: they have a limited size and are never pickled.
"""

import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct(">QQ")


class TornFrame(Exception):
    """A message is truncated, too long or invalid."""


def write_frame(file: BinaryIO, header: dict[str, Any], payload: bytes = b"") -> None:
    """Write a message: the lengths of both parts, 8 bytes each, a JSON object, and bytes."""
    encoded = json.dumps(header).encode()
    file.write(_LENGTHS.pack(len(encoded), len(payload)))
    file.write(encoded)
    file.write(payload)
    file.flush()


def read_frame(file: BinaryIO, *, max_bytes: int | None = None) -> tuple[dict[str, Any], bytes] | None:
    """Return the next message, or None at the end of the file.

    Raises:
        TornFrame: The message is truncated, has more than `max_bytes`, or is invalid.
    """
    lengths = file.read(_LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < _LENGTHS.size:
        raise TornFrame("truncated lengths")
    num_header, num_payload = _LENGTHS.unpack(lengths)
    if max_bytes is not None and num_header + num_payload > max_bytes:
        raise TornFrame(f"{num_header + num_payload} bytes, of at most {max_bytes}")
    encoded, payload = file.read(num_header), file.read(num_payload)
    if len(encoded) < num_header or len(payload) < num_payload:
        raise TornFrame("truncated")
    try:
        header = json.loads(encoded)
    except ValueError as error:
        raise TornFrame(f"not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TornFrame("not a JSON object")
    return header, payload
