"""Parses lines of capture indexes: CDX with 9 to 11 fields, CDXJ, and responses of CDX servers.

Servers send JSON lines (pywb), an array of arrays, one per line (OpenWayback, the Internet Archive), or text of 7
fields (those two, without the parameter for JSON).
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from paratune.corpus.rows import CaptureOrDropped, CaptureRow, DroppedRow

MAX_LINE_BYTES = 1 << 20
"""Maximum length of a line; a longer one is skipped and counted."""
LETTERS = {"b": "timestamp", "a": "url", "m": "mime", "s": "status", "k": "digest", "S": "length", "V": "offset"} | {
    "g": "filename"
}
"""Meaning of the letters of a CDX header line (https://archive.org/web/researcher/cdx_legend.php)."""
BY_NUM_FIELDS = {7: "N b a m s k S", 9: "N b a m s k r V g", 10: "N b a m s k r M V g", 11: "N b a m s k r M S V g"}
"""Fields of a file without a header line, by their number."""
ALIASES = {
    "url": ("url", "original", "originalURL"),
    "timestamp": ("timestamp", "tstamp"),
    "mime": ("mime", "mimetype", "mimeType"),
    "status": ("status", "statuscode", "statusCode"),
}
"""Names of fields in the JSON of pywb, OpenWayback, and the searches of Arquivo.pt."""

MD5 = re.compile("[0-9a-f]{32}")
"""A hexadecimal digest, in lower case; it has as many characters as SHA-1 in base32."""


def read_lines(file: BinaryIO, source: str) -> Iterator[CaptureOrDropped]:
    """Yield the row of each line of an index, or a dropped row for an invalid line; `source` names the index."""
    header: list[str] | None = None
    columns: list[str] | None = None
    for number, raw in enumerate(_raw_lines(file), start=1):
        if raw is None:
            yield _unreadable(source, number, f"longer than {MAX_LINE_BYTES} bytes")
            continue
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError:  # old indexes contain URLs in the charset of their pages
            line = raw.decode("latin-1")
        if line.lstrip().startswith("CDX "):
            header = line.split()[1:]
            continue
        if not line.strip() or line.startswith("!"):  # metadata of a CDXJ file
            continue
        try:
            if not line.startswith("["):
                yield capture_row(_fields(line, header), source)
            elif columns is None:
                columns = _array(line)
            else:
                values = _array(line)
                if len(values) != len(columns):
                    raise ValueError(f"{len(values)} fields, where the first line names {len(columns)}")
                yield capture_row(dict(zip(map(str, columns), values, strict=True)), source)
        except ValueError as error:
            yield _unreadable(source, number, f"{error}: {line[:200]}")


def _unreadable(source: str, number: int, why: str) -> DroppedRow:
    return DroppedRow(url=source, reason="unreadable line", detail=f"line {number}: {why}")


def _raw_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines without line ends; None for a line that is too long."""
    while line := file.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n") or len(line) < MAX_LINE_BYTES:
            yield line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def _fields(line: str, header: list[str] | None) -> Mapping[str, Any]:
    """Return the fields of a line by name, for `capture_row`.

    Raises:
        ValueError: The line has another format.
    """
    if line.startswith("{"):
        return dict(_json(line, dict))
    words = line.split(" ")
    if len(words) > 2 and words[2].startswith("{"):
        return {"timestamp": words[1], **_json(line.split(" ", 2)[2], dict)}
    letters = header or BY_NUM_FIELDS.get(len(words), "").split()
    if not letters:
        raise ValueError(
            f"{len(words)} fields, where CDX has 7, 9, 10 or 11, CDXJ 2 before {{...}}, and JSON an object"
        )
    if len(words) != len(letters):
        raise ValueError(f"{len(words)} fields, where the header line names {len(letters)}")
    return {LETTERS[letter]: word for letter, word in zip(letters, words, strict=True) if letter in LETTERS}


def _json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    if not isinstance(value, kind):
        raise ValueError(f"not a JSON {'object' if kind is dict else 'array'}")
    return value


def _array(line: str) -> list[Any]:
    """Return one line of an array of arrays; the outer brackets are on the first and last line."""
    text = line.strip().rstrip(",")
    text = text[1:] if text.startswith("[[") else text
    return list(_json(text[:-1] if text.endswith("]]") else text, list))


def capture_row(fields: Mapping[str, Any], source: str) -> CaptureRow:
    """Return the row of some fields; `source` is the name of the index.

    Raises:
        ValueError: url or timestamp is missing, or a number is invalid.
    """

    def text(name: str) -> str | None:
        value = next((fields[key] for key in ALIASES.get(name, (name,)) if key in fields), None)
        return None if value is None or str(value) in ("", "-") else str(value)

    url, timestamp = text("url"), text("timestamp")
    if url is None:
        raise ValueError("no url")
    if timestamp is None or not re.fullmatch(r"[0-9]{14}", timestamp):
        raise ValueError(f"the timestamp is {timestamp}, not 14 digits")
    return CaptureRow(
        url=url,
        timestamp=timestamp,
        digest=base32_digest(text("digest")),
        mime=text("mime"),
        status=_number("status", text("status"), 999),
        offset=_number("offset", text("offset")),
        # Older collections of Arquivo.pt have 0 for an unknown length.
        length=_number("length", text("length")) or None,
        filename=text("filename"),
        source=source,
    )


def essence(mime: str) -> str:
    """Return a MIME type in lower case, without its parameters."""
    return re.split(r"[;,\s]", mime.strip().lower(), maxsplit=1)[0]


def base32_digest(digest: str | None) -> str | None:
    """Return a SHA-1 in base32, as in CDX, from base32 or hexadecimal digits; return other digests unchanged.

    A hexadecimal MD5 is not changed, although 1 of 10,000 has only characters of base32 (0.75^32).
    """
    if digest is None:
        return None
    digest = digest.removeprefix("sha1:")
    if MD5.fullmatch(digest):
        return digest
    if re.fullmatch(r"[0-9a-fA-F]{40}", digest):
        return base64.b32encode(bytes.fromhex(digest)).decode()
    return digest.upper() if re.fullmatch(r"[A-Za-z2-7]{32}", digest) else digest


def _number(name: str, text: str | None, most: int = 2**63 - 1) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > most:
        raise ValueError(f"the {name} is {text[:40]}, not a whole number up to {most}")
    return int(text)
