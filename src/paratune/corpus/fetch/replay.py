"""Requests a capture by raw replay, `<endpoint>/<timestamp>id_/<url>`, as in pywb, OpenWayback and Arquivo.pt.

Replay sends the nearest capture in time if it does not have the requested one, and redirects of pages unchanged, to the
live web. A response without Memento-Datetime (RFC 7089) is from the archive and not from the page.
"""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from paratune.corpus.fetch.payload import Received, sha1
from paratune.corpus.fetch.records import MISSING
from paratune.corpus.rows import DroppedRow
from paratune.corpus.web.client import MEMENTO, ArchiveResponse, Client, TooLarge, Unavailable

REDIRECT = "redirect"
MAX_HOPS = 3
"""Maximum number of redirects within the replay."""
ORIGINAL = "x-archive-orig-"
"""Prefix of headers of the page that would conflict with headers of the archive."""


def from_replay(
    row: Mapping[str, Any], client: Client, endpoint: str, max_bytes: int, *, nearest: bool
) -> Received | DroppedRow:
    """Return the capture that an archive replays.

    Args:
        nearest: Whether a capture of another time is accepted.

    Raises:
        Unavailable: The archive does not respond, or not with a capture.
    """
    path = urlsplit(endpoint).path.rstrip("/")
    target = f"{path}/{row['timestamp']}id_/{quote_url(row['url'])}"
    try:
        for _ in range(MAX_HOPS):
            # Compressed as stored, for its digest; an archive that does not support this decompresses it.
            answer = client.request(target, max_bytes=max_bytes, headers={"Accept-Encoding": "gzip"})
            if not 300 <= answer.status < 400 or MEMENTO in answer.headers:
                return _received(row, answer, target, nearest=nearest)
            location = answer.headers.get("Location", "")
            address = urljoin(client.origin + target, location)
            if not address.startswith(f"{client.origin}{path}/"):  # outside of the same replay
                return DroppedRow(row["url"], REDIRECT, f"HTTP {answer.status} to {location}")
            target = quote_url(address[len(client.origin) :])
    except TooLarge as error:
        return DroppedRow(row["url"], "too large", str(error))
    return DroppedRow(row["url"], REDIRECT, f"{MAX_HOPS} times within the archive")


def quote_url(url: str) -> str:
    """Return a URL as part of a path: only characters that a request cannot contain are percent-encoded."""
    return quote(url, safe="%/:?=&;@+$,!*'()~[]|")


def _received(row: Mapping[str, Any], answer: ArchiveResponse, target: str, *, nearest: bool) -> Received | DroppedRow:
    moment = capture_time(answer.headers, target)
    if moment is None:
        if answer.status == 404:
            return DroppedRow(row["url"], MISSING, "the archive has no capture of it")
        message = f"HTTP {answer.status} without {MEMENTO}, a response of the archive and not of a page"
        raise Unavailable(message, is_out=False)
    if moment != row["timestamp"] and not nearest:
        return DroppedRow(row["url"], "another capture", f"{moment} instead of {row['timestamp']}")
    headers = page_headers(answer.headers)
    return Received(
        timestamp=moment,
        status=answer.status,
        headers=headers,
        body=answer.body,
        digests=frozenset({sha1(answer.body)}),
        is_unframed="chunked" in headers.get("transfer-encoding", "").lower(),
        how="replay",
    )


def capture_time(headers: HTTPMessage, target: str) -> str | None:
    """Return the time of a capture, in 14 digits, or None if the response is not a capture."""
    value = headers.get(MEMENTO)
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        # Read it from the URL in Content-Location, or from the last requested one.
        match = re.search(r"/([0-9]{14})[a-z]{0,2}_?/", headers.get("Content-Location", target))
        return match.group(1) if match else None
    return f"{(moment if moment.tzinfo is None else moment.astimezone(UTC)):%Y%m%d%H%M%S}"


def page_headers(headers: HTTPMessage) -> dict[str, str]:
    """Return the headers of the page, with names in lower case.

    Content-Type and Content-Encoding describe the response; Link and Transfer-Encoding without prefix, the archive's.
    """
    original: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower().removeprefix(ORIGINAL)
        target = plain if key == name.lower() else original
        target[key] = f"{target[key]}, {value}" if key in target else value
    for key in ("link", "transfer-encoding"):
        plain.pop(key, None)
    original.pop("content-encoding", None)
    return original | {"x-robots-tag": original.get("x-robots-tag", "")} | plain
