"""Apache Tika, where a server of it is named: it reads the kinds of documents that no library here does."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from paratune.corpus.extract.found import Refused
from paratune.errors import DataError

WAITS_S = (1.0, 4.0, 16.0)
"""Seconds before it is asked again: a server that dies of a document is started anew by its guardian."""
UNREADABLE = (400, 415, 422)
"""Answers that are about the document."""


class Tika:
    """A server of Apache Tika."""

    def __init__(self, endpoint: str, *, time_s: float, max_bytes: int) -> None:
        """Connect to nothing yet.

        Args:
            endpoint: http://HOST:PORT, with or without a path before `rmeta`.
            time_s: Seconds of the clock that each step of an answer may take.
            max_bytes: Most that an answer may have.
        """
        self._endpoint, self._time_s, self._max_bytes = endpoint, time_s, max_bytes
        parts = urlsplit(endpoint)
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")

    def read(self, payload: bytes, mime: str) -> tuple[str, str | None] | Refused:
        """Return text and title of a document, or why there is none.

        Raises:
            DataError: The server does not answer, whatever it is asked.
        """
        said: object = ""
        for wait_s in (*WAITS_S, None):
            try:
                status, body = self._send("PUT", "/rmeta/text", payload, mime)
            except (OSError, http.client.HTTPException) as error:
                said = error
            else:
                if status == 200:
                    return _read(body) if body is not None else Refused("long", f"more than {self._max_bytes} bytes")
                if status in UNREADABLE:
                    return Refused("unreadable", f"Tika answers {status}")
                said = f"it answers {status}"
            if wait_s is not None:
                time.sleep(wait_s)
        if self._is_alive():  # and so it is of this document that it fails
            return Refused("unreadable", f"Tika: {said}")
        raise DataError(
            f"extract.tika: {self._endpoint} does not answer ({said}); start it, or leave extract.tika out",
            code="corpus.server",
            key="extract.tika",
            endpoint=self._endpoint,
        )

    def _send(self, method: str, path: str, payload: bytes | None, mime: str) -> tuple[int, bytes | None]:
        """Return status and body, None for one that is too long; redirects are not followed."""
        connection = self._kind(self._host, timeout=self._time_s)
        try:
            headers = {"Accept": "application/json", "Content-Type": mime, "maxEmbeddedResources": "0"}
            connection.request(method, self._path + path, payload, headers if payload is not None else {})
            answer = connection.getresponse()
            body = answer.read(self._max_bytes + 1)
            return answer.status, body if len(body) <= self._max_bytes else None
        finally:
            connection.close()

    def _is_alive(self) -> bool:
        try:
            return self._send("GET", "/version", None, "")[0] == 200
        except (OSError, http.client.HTTPException):
            return False


def _read(body: bytes) -> tuple[str, str | None] | Refused:
    """Read what Tika answers: a list of a document and all that is embedded in it, of which the first one counts."""
    try:
        first: Any = json.loads(body)[0]
        text, title = first.get("X-TIKA:content") or "", first.get("dc:title")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        return Refused("unreadable", f"Tika's answer: {type(error).__name__}: {error}")
    return str(text), title if isinstance(title, str) else None
