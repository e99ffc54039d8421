"""A hub on loopback that sends the weights of one model slowly, and can stop in the middle."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME = "some-owner/some-model"
COMMIT = "0" * 40
CHUNK_BYTES = 16 * 1024
WEIGHTS = "model.safetensors"


class SlowHub(ThreadingHTTPServer):
    """Serves the files of a folder as those of `NAME`."""

    daemon_threads = True

    def __init__(self, folder: Path, *, bytes_per_s: float, stops_at: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.bytes_per_s, self.stops_at = folder, bytes_per_s, stops_at
        self.closed = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a client disconnects."""


class _Handler(BaseHTTPRequestHandler):
    server: SlowHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.folder / self.path.rpartition("/")[2].partition("?")[0]
        is_file = f"/{NAME}/resolve/" in self.path and path.is_file()
        body = path.read_bytes() if is_file else b"{}"
        self.send_response_only(200 if is_file or self.path == "/" else 404)
        if is_file:
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        for start in range(0, len(body), CHUNK_BYTES):
            if path.name == WEIGHTS:
                if self.server.stops_at is not None and start >= self.server.stops_at:
                    self.server.closed.wait()
                time.sleep(CHUNK_BYTES / self.server.bytes_per_s)
            self.wfile.write(body[start : start + CHUNK_BYTES])
            self.wfile.flush()


@contextmanager
def slow_hub(folder: Path, *, bytes_per_s: float, stops_at: int | None = None) -> Iterator[SlowHub]:
    """Serve a folder until the block ends.

    Args:
        folder: Folder of a model.
        bytes_per_s: Speed of the weights; other files are sent at once.
        stops_at: Bytes of the weights after which the hub sends nothing more.
    """
    hub = SlowHub(folder, bytes_per_s=bytes_per_s, stops_at=stops_at)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closed.set()
        hub.shutdown()
        hub.server_close()
