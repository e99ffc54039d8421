"""Readers of web archives, compared with the written captures and, for damaged files, with their digests."""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from archive import sha1, write_warc
from hypothesis import strategies as st

from paratune.corpus.fetch.sources import fetched_row, from_file
from paratune.corpus.index.captures import read_lines, read_records
from paratune.corpus.settings import Fetch
from paratune.corpus.shard import CaptureRow, DroppedRow
from paratune.errors import DataError

from .fuzz import Difference, Reader, differ

_MAX_BYTES = 1 << 20
_DIGITS = st.integers(0, 10**9).map(lambda number: f"200{number % 10}0102{number % 10**6:06d}")
Capture = tuple[str, str, bytes]
"""Path below http://a.pt/, timestamp and body."""
_CAPTURES = st.lists(
    st.tuples(st.text(st.sampled_from("abc/é%20"), max_size=5), _DIGITS, st.binary(max_size=40)), min_size=1, max_size=4
)


@st.composite
def warcs(draw: Callable[..., Any]) -> tuple[bool, list[Capture]]:
    """Draw whether a file is compressed, and its captures."""
    return draw(st.booleans()), draw(_CAPTURES)


def _written(document: tuple[bool, list[Capture]], place: Path) -> tuple[Path, list[CaptureRow]]:
    """Write a file and return the rows of its index."""
    is_packed, captures = document
    path = place / ("a.warc.gz" if is_packed else "a.warc")
    head = [("Content-Type", "text/html")]
    spans = write_warc(path, [(f"http://a.pt/{name}", moment, "200 OK", head, body) for name, moment, body in captures])
    # The two empty lines after a record (ISO 28500, section 4) belong to it if it is compressed separately.
    end = 0 if is_packed else len(b"\r\n\r\n")
    rows = [
        CaptureRow(f"http://a.pt/{name}", moment, sha1(body), "text/html", 200, at, size - end, path.name, path.name)
        for (name, moment, body), (at, size) in zip(captures, spans, strict=True)
    ]
    return path, rows


def warc_bytes(document: tuple[bool, list[Capture]]) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        return _written(document, Path(place))[0].read_bytes()


def whole_warc(document: tuple[bool, list[Capture]], raw: bytes, place: Path) -> None:
    path, rows = _written(document, place)
    differ("rows", rows, list(read_records(path)))
    for row, (_, _, body) in zip(rows, document[1], strict=True):
        payload = _fetched(row, path)
        if isinstance(payload, DroppedRow):
            raise Difference(f"lost: {payload}")
        differ("payload", body, payload["payload"])


def damaged_warc(document: tuple[bool, list[Capture]], raw: bytes, place: Path) -> None:
    """Content before the damage is unchanged; a payload without the digest of the index is not accepted."""
    path, rows = _written(document, place)
    whole = path.read_bytes()
    path.write_bytes(raw)
    same = next(
        (i for i, (old, new) in enumerate(zip(whole, raw, strict=False)) if old != new), min(len(whole), len(raw))
    )
    try:
        actual_rows = list(read_records(path))
    except DataError:
        actual_rows = []
    # The end of a record is only known from the first bytes of the next one.
    before = [row for row in rows if (row.offset or 0) + (row.length or 0) + 16 < same]
    differ("rows before the damage", before, [row for row in actual_rows if row in before][: len(before)])
    for row, (_, _, body) in zip(rows, document[1], strict=True):
        taken = _fetched(row, path)
        if not isinstance(taken, DroppedRow):
            differ("payload", body, taken["payload"])


def _fetched(row: CaptureRow, path: Path) -> Any:
    received = from_file(asdict(row), path, _MAX_BYTES)
    return (
        received
        if isinstance(received, DroppedRow)
        else fetched_row(asdict(row), received, Fetch(max_payload_mib=_MAX_BYTES / 2**20), (200,))
    )


_URL = st.text(
    st.characters(min_codepoint=33, max_codepoint=1000, exclude_categories=("Cc", "Zs", "Zl", "Zp")), max_size=6
)
_DIGEST = st.binary(max_size=8).map(sha1)


@st.composite
def captures(draw: Callable[..., Any]) -> tuple[str, list[CaptureRow]]:
    """Draw the dialect of an index and its rows."""
    row = st.builds(
        CaptureRow,
        url=_URL.map(lambda text: f"http://a.pt/{text}"),
        timestamp=_DIGITS,
        digest=_DIGEST,
        mime=st.sampled_from(["text/html", "application/pdf", None]),
        status=st.sampled_from([200, 404, None]),
        offset=st.integers(0, 2**63 - 1),
        length=st.integers(1, 2**63 - 1),
        filename=st.just("a.warc.gz"),
        source=st.just("x.cdx"),
    )
    return draw(st.sampled_from(["cdx", "cdxj", "json"])), draw(st.lists(row, min_size=1, max_size=4))


def cdx_bytes(document: tuple[str, list[CaptureRow]]) -> bytes:
    dialect, rows = document
    lines = [" CDX N b a m s k r M S V g"] if dialect == "cdx" and len(rows) % 2 else []
    for row in rows:
        words = {name: "-" if value is None else str(value) for name, value in asdict(row).items() if name != "source"}
        if dialect == "cdx":
            names = ("timestamp", "url", "mime", "status", "digest")
            words_of = [words[name] for name in names]
            lines.append(" ".join(["pt,a)/", *words_of, "-", "-", words["length"], words["offset"], words["filename"]]))
        elif dialect == "cdxj":
            lines.append(f"pt,a)/ {words.pop('timestamp')} {json.dumps(words)}")
        else:
            lines.append(json.dumps(words))
    return "".join(f"{line}\n" for line in lines).encode()


def whole_cdx(document: tuple[str, list[CaptureRow]], raw: bytes, place: Path) -> None:
    differ("rows", document[1], list(read_lines(BytesIO(raw), "x.cdx")))


def damaged_cdx(document: tuple[str, list[CaptureRow]], raw: bytes, place: Path) -> None:
    """Unchanged lines give the same rows, and each other line a row with a timestamp, or a reason."""
    whole = dict(zip(_lines(cdx_bytes(document)), document[1], strict=True))
    rows = list(read_lines(BytesIO(raw), "x.cdx"))
    for row in rows:
        if isinstance(row, CaptureRow) and not (re.fullmatch("[0-9]{14}", row.timestamp) and row.url):
            raise Difference(f"a row without url or timestamp: {row}")
    if b" CDX" in raw.lstrip()[:5] or b"CDX " in raw or b"[" in raw:
        return  # a header line changes the meaning of the lines below it
    kept = [row for line, row in whole.items() if line in _lines(raw)]
    differ("rows of lines that are not damaged", [], [row for row in kept if row not in rows])


def _lines(raw: bytes) -> list[bytes]:
    return [line for line in raw.split(b"\n") if line.strip() and not line.startswith(b" CDX")]


READERS = (
    Reader("warc", warcs(), warc_bytes, whole_warc, damaged_warc),
    Reader("cdx", captures(), cdx_bytes, whole_cdx, damaged_cdx),
)
