"""Messages between a stage and the process that reads documents for it: JSON, and bytes after it.

What comes back was made in a process that hostile documents have been in: it is data of a limited size, never pickled.
"""

import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct(">QQ")


class TornFrame(Exception):
    """A message is not whole, or longer than allowed, or not one."""


def write_frame(file: BinaryIO, header: dict[str, Any], payload: bytes = b"") -> None:
    """Write a message: the lengths of its two parts, 8 bytes each, a JSON object, and bytes."""
    encoded = json.dumps(header).encode()
    file.write(_LENGTHS.pack(len(encoded), len(payload)))
    file.write(encoded)
    file.write(payload)
    file.flush()


def read_frame(file: BinaryIO, *, max_bytes: int | None = None) -> tuple[dict[str, Any], bytes] | None:
    """Return the next message, or None where there is none any more.

    Raises:
        TornFrame: It ends before its end, its parts have more than `max_bytes`, or it is not of this form.
    """
    lengths = file.read(_LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < _LENGTHS.size:
        raise TornFrame("the lengths are torn")
    num_header, num_payload = _LENGTHS.unpack(lengths)
    if max_bytes is not None and num_header + num_payload > max_bytes:
        raise TornFrame(f"{num_header + num_payload} bytes, of at most {max_bytes}")
    encoded, payload = file.read(num_header), file.read(num_payload)
    if len(encoded) < num_header or len(payload) < num_payload:
        raise TornFrame("torn")
    try:
        header = json.loads(encoded)
    except ValueError as error:
        raise TornFrame(f"no JSON: {error}") from error
    if not isinstance(header, dict):
        raise TornFrame("no JSON object")
    return header, payload
