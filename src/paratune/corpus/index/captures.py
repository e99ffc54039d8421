"""Reads captures: lines of indexes, and records of WARC and ARC files.

An index is CDX with 9 to 11 fields, CDXJ, or the response of a CDX server: JSON lines (pywb), an array of arrays, one
per line (OpenWayback, the Internet Archive), or text of 7 fields (those two, without the parameter for JSON).
"""

import base64
import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from paratune.corpus.shard import CaptureOrDropped, CaptureRow, DroppedRow
from paratune.errors import DataError, os_error_as, require

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
    unreadable = partial(DroppedRow, source, "unreadable line")
    for number, raw in enumerate(_raw_lines(file), start=1):
        if raw is None:
            yield unreadable(f"line {number}: longer than {MAX_LINE_BYTES} bytes")
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
            yield unreadable(f"line {number}: {error}: {line[:200]}")


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
        allowed = "CDX has 7, 9, 10 or 11, CDXJ 2 before {...}, and JSON an object"
        raise ValueError(f"{len(words)} fields, where {allowed}")
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


WITH_PAYLOAD = ("response", "resource")
"""Types of records that contain a document."""
CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 20
"""Maximum unpacked bytes of the headers of a record: a small file may contain gigabytes of headers."""


def read_records(path: Path) -> Iterator[CaptureOrDropped]:
    """Yield the captures of a file, and dropped records; in a truncated file, those before the end.

    Raises:
        DataError: The file is unreadable, or not compressed record by record, so that no offset finds a later record.
        MissingDependency: warcio is not installed.
    """
    broken = damage_exceptions()
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        records = open_archive(file)
        num_records = end = 0
        try:
            for record in records:
                yield from _read_record(record, records, path.name)
                records.read_to_end(record)
                records.reader.readline.left = HEAD_BYTES
                end = records.get_record_offset() + records.get_record_length()
                num_records += 1
            # warcio raises no error for a file that is truncated in the headers of a record.
            if path.stat().st_size == 0:
                raise EOFError("the file is empty")
            file.seek(end)
            if file.read(CHUNK_BYTES).strip(b"\r\n\0 "):
                raise EOFError(f"the bytes after {end} are not a record")
        except broken as error:
            if "non-chunked gzip" in str(error):
                message = f"{path} is compressed as a whole, not record by record: only {num_records} can be read; run "
                new = path.with_name(f"new-{path.name}")
                message += f"warcio recompress {path} {new}, and use the new file instead"
                raise DataError(message, code="corpus.archive_unreadable", path=path) from error
            detail = f"after {num_records} whole records: {type(error).__name__}: {error}"
            yield DroppedRow(url=path.name, reason="damaged WARC", detail=" ".join(detail.split()))


def open_archive(file: BinaryIO) -> Any:
    """Return warcio's iterator over the records of a file, without its log messages.

    It raises a ValueError for headers of more than `reader.readline.left` bytes: HEAD_BYTES at first.

    Raises:
        MissingDependency: warcio is not installed.
    """
    archive = require("warcio.archiveiterator", extra="corpus")
    # It logs URLs with spaces: untrusted text, and no file name.
    logging.getLogger("warcio").setLevel(logging.ERROR)
    records = archive.ArchiveIterator(file, arc2warc=True)
    # Only headers are read by line; payloads are read as bytes.
    records.reader.readline = _HeaderLines(records.reader.readline)
    return records


class _HeaderLines:
    """Reads lines and raises when there are too many bytes."""

    def __init__(self, readline: Callable[[int], bytes]) -> None:
        self._readline = readline
        self.left = HEAD_BYTES

    def __call__(self, length: int | None = None) -> bytes:
        line = self._readline(min(length or HEAD_BYTES, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise ValueError(f"headers of more than {HEAD_BYTES} bytes")
        return line


def damage_exceptions() -> tuple[type[Exception], ...]:
    """Return the exceptions that warcio raises for damaged files."""
    exceptions = require("warcio.exceptions", extra="corpus")
    return exceptions.ArchiveLoadFailed, EOFError, zlib.error, ValueError, AttributeError, IndexError, KeyError


def _read_record(record: Any, records: Any, name: str) -> Iterator[CaptureOrDropped]:
    headers = record.rec_headers
    if record.rec_type is None or headers.get_header("Content-Length") is None:
        raise EOFError("the headers of the next record are truncated")
    if record.rec_type not in (*WITH_PAYLOAD, "revisit"):
        return  # requests and metadata are not captures
    url = headers.get_header("WARC-Target-URI")
    if not url:
        yield DroppedRow(url=name, reason="no url", detail=f"record at byte {records.get_record_offset()}")
        return
    if record.rec_type == "revisit":
        yield DroppedRow(url=url, reason="revisit", detail="the document is in another record")
        return
    timestamp = re.sub("[^0-9]", "", headers.get_header("WARC-Date") or "")[:14]
    if len(timestamp) != 14:
        yield DroppedRow(url=url, reason="no date", detail=f"WARC-Date is {headers.get_header('WARC-Date')}")
        return
    http = record.http_headers if record.rec_type == "response" else None
    digest = base32_digest(headers.get_header("WARC-Payload-Digest"))
    if not digest:
        sha1 = hashlib.sha1(usedforsecurity=False)
        while chunk := record.raw_stream.read(CHUNK_BYTES):
            sha1.update(chunk)
        digest = base64.b32encode(sha1.digest()).decode()
    records.read_to_end(record)
    if getattr(record.raw_stream, "limit", 0) > 0:
        detail = f"{record.raw_stream.limit} of {record.length} bytes missing"
        yield DroppedRow(url=url, reason="torn record", detail=detail)
        return
    yield CaptureRow(
        url=url.strip(),
        timestamp=timestamp,
        digest=digest,
        mime=(http or headers).get_header("Content-Type"),
        status=http_status(http, record.rec_type),
        offset=records.get_record_offset(),
        length=records.get_record_length(),
        filename=name,
        source=name,
    )


def http_status(http: Any, rec_type: str) -> int | None:
    """Return the HTTP status; 200 for a resource, a document without HTTP headers."""
    if rec_type == "resource":
        return 200
    code = http.get_statuscode() if http is not None else None
    return int(code) if code is not None and code.isdigit() and len(code) == 3 else None
