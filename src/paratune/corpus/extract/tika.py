"""A client of Apache Tika, for documents that no library reads."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from paratune.corpus.extract.results import NoText
from paratune.errors import DataError

WAITS_S = (1.0, 4.0, 16.0)
"""Seconds before each further attempt: Tika restarts a server that died from a document."""
UNREADABLE = (400, 415, 422)
"""Status codes for an unreadable document."""


class Tika:
    """A client of an Apache Tika server."""

    def __init__(self, endpoint: str, *, time_s: float, max_bytes: int) -> None:
        """Store the parameters; `read` connects.

        Args:
            endpoint: http://HOST:PORT, with or without a path before `rmeta`.
            time_s: Timeout of each network operation, in seconds.
        """
        self._endpoint, self._time_s, self._max_bytes = endpoint, time_s, max_bytes
        parts = urlsplit(endpoint)
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")

    def read(self, payload: bytes, mime: str) -> tuple[str, str | None] | NoText:
        """Return text and title of a document, or the reason why there is no text.

        Raises:
            DataError: The server does not respond.
        """
        problem: object = ""
        for wait_s in (*WAITS_S, None):
            try:
                status, body = self._send("PUT", "/rmeta/text", payload, mime)
            except (OSError, http.client.HTTPException) as error:
                problem = error
            else:
                if status == 200:
                    return _read(body) if body is not None else NoText("long", f"more than {self._max_bytes} bytes")
                if status in UNREADABLE:
                    return NoText("unreadable", f"Tika sends status {status}")
                problem = f"status {status}"
            if wait_s is not None:
                time.sleep(wait_s)
        if self._is_alive():  # so the document is the cause
            return NoText("unreadable", f"Tika: {problem}")
        message = f"extract.tika: {self._endpoint} does not respond ({problem}); start it, or remove extract.tika"
        raise DataError(message, code="corpus.server", key="extract.tika", endpoint=self._endpoint)

    def _send(self, method: str, path: str, payload: bytes | None, mime: str) -> tuple[int, bytes | None]:
        """Return status and body, None for a body that is too long; redirects are not followed."""
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


def _read(body: bytes) -> tuple[str, str | None] | NoText:
    """Return text and title from a response, a list of the document and its embedded files."""
    try:
        first: Any = json.loads(body)[0]
        text, title = first.get("X-TIKA:content") or "", first.get("dc:title")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        return NoText("unreadable", f"response of Tika: {type(error).__name__}: {error}")
    return str(text), title if isinstance(title, str) else None
