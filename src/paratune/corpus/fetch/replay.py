"""A capture by raw replay: `<endpoint>/<timestamp>id_/<url>`, as pywb, OpenWayback and Arquivo.pt have it.

Replay gives the capture that is nearest in time when it has not the one that was asked for, and the redirects of pages
as they were, into the live web. What the archive says of the capture (RFC 7089) tells: one that has no Memento-Datetime
is an answer of the archive and not of the page.
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
from paratune.corpus.rows import Lost
from paratune.corpus.web.client import MEMENTO, ArchiveResponse, Client, TooLarge, Unavailable

REDIRECT = "redirect"
MAX_HOPS = 3
"""Redirects from one address of the replay to another."""
ORIGINAL = "x-archive-orig-"
"""Before the names of headers of the page, where they would mean something else beside those of the archive."""


def from_replay(
    row: Mapping[str, Any], client: Client, endpoint: str, max_bytes: int, *, nearest: bool
) -> Received | Lost:
    """Return the capture that an archive replays.

    Args:
        row: Of the index.
        client: Of the archive.
        endpoint: Address of its replay.
        max_bytes: Of the largest body.
        nearest: Whether a capture of another time is taken.

    Raises:
        Unavailable: The archive does not answer, or not with a capture.
    """
    path = urlsplit(endpoint).path.rstrip("/")
    target = f"{path}/{row['timestamp']}id_/{quoted(row['url'])}"
    try:
        for _ in range(MAX_HOPS):
            # Packed as it is kept, for its digest; an archive that cannot do so unpacks it.
            answer = client.ask(target, max_bytes=max_bytes, headers={"Accept-Encoding": "gzip"})
            if not 300 <= answer.status < 400 or MEMENTO in answer.headers:
                return _received(row, answer, target, nearest=nearest)
            location = answer.headers.get("Location", "")
            following = _inside(urljoin(client.origin + target, location), client.origin, path)
            if following is None:
                return Lost(row["url"], REDIRECT, f"HTTP {answer.status} to {location}")
            target = following
    except TooLarge as error:
        return Lost(row["url"], "too large", str(error))
    return Lost(row["url"], REDIRECT, f"{MAX_HOPS} times within the archive")


def quoted(url: str) -> str:
    """Return a URL as part of a path: letters that a request cannot hold are percent-encoded, the rest stays."""
    return quote(url, safe="%/:?=&;@+$,!*'()~[]|")


def _inside(address: str, origin: str, path: str) -> str | None:
    """Return the target of an address of the same replay; None for others."""
    start = f"{origin}{path}/"
    return quoted(address[len(origin) :]) if address.startswith(start) else None


def _received(row: Mapping[str, Any], answer: ArchiveResponse, target: str, *, nearest: bool) -> Received | Lost:
    moment = moment_of(answer.headers, target)
    if moment is None:
        if answer.status == 404:
            return Lost(row["url"], MISSING, "the archive has no capture of it")
        what = f"HTTP {answer.status} without {MEMENTO}, an answer of the archive and not of a page"
        raise Unavailable(what, is_out=False)
    if moment != row["timestamp"] and not nearest:
        return Lost(row["url"], "another capture", f"{moment} instead of {row['timestamp']}")
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


def moment_of(headers: HTTPMessage, target: str) -> str | None:
    """Return the time of a capture, in 14 digits, or None when the answer is not one."""
    value = headers.get(MEMENTO)
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        # Where it can be read from the address: that which the answer names, or that which was asked for in the end.
        found = re.search(r"/([0-9]{14})[a-z]{0,2}_?/", headers.get("Content-Location", target))
        return found.group(1) if found else None
    return f"{(moment if moment.tzinfo is None else moment.astimezone(UTC)):%Y%m%d%H%M%S}"


def page_headers(headers: HTTPMessage) -> dict[str, str]:
    """Return the headers of the page itself, by names in small letters.

    Content-Type and Content-Encoding belong to what was sent; Link and Transfer-Encoding, without the archive's mark,
    to the archive.
    """
    original: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower().removeprefix(ORIGINAL)
        found = plain if key == name.lower() else original
        found[key] = f"{found[key]}, {value}" if key in found else value
    for key in ("link", "transfer-encoding"):
        plain.pop(key, None)
    original.pop("content-encoding", None)
    return original | {"x-robots-tag": original.get("x-robots-tag", "")} | plain
