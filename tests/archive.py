"""Archives on loopback: a real one (pywb), and a stand-in that returns errors a real one returns rarely."""

import base64
import gzip
import hashlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from patience import PATIENCE_S, wait_for

from paratune.corpus.settings import Network


def network(folder, **options):
    """Return settings without waiting times, for archives on loopback."""
    fast = {"requests_per_minute": 60_000, "first_wait_s": 0.01, "timeout_s": 60.0, "deadline_s": 300.0}
    return Network(**({"contact": "me@uni.pt", "limit_folder": str(folder / "limits")} | fast | options))


class StandIn(ThreadingHTTPServer):
    """Returns the answers of a table: `answers` maps a path without query, or a pattern of targets, to its answers.

    The answers of a path are a list. Each request removes the first one, until one is left. An answer is
    (status, headers, body) or a function of the handler.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {}
        self.log = []
        """Time, target and headers of each request."""
        self.mutex = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Print nothing when a client disconnects."""

    def next_answer(self, target):
        with self.mutex:
            for pattern, answers in self.answers.items():
                if pattern == urlsplit(target).path or re.fullmatch(pattern, target):
                    return answers.pop(0) if len(answers) > 1 else answers[0]
        return 404, {}, b"nothing here"

    def targets(self):
        return [target for _, target, _ in self.log]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        with self.server.mutex:
            self.server.log.append((time.monotonic(), self.path, dict(self.headers)))
        answer = self.server.next_answer(self.path)
        if callable(answer):
            answer(self)
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response_only(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def stand_in():
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page(text):
    return f"<html><head><title>{text}</title></head><body><p>{text}</p></body></html>".encode()


def write_warc(path, records):
    """Write a WARC file of records (url, timestamp, status line, headers, body); return their offsets and lengths.

    Written here (ISO 28500), because warcio's writer leaves temporary files open.
    """
    positions = []
    with path.open("wb") as file:
        for url, timestamp, status, headers, body in records:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            block = f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
            record = {
                "WARC-Type": "response",
                "WARC-Record-ID": f"<urn:uuid:00000000-0000-0000-0000-{len(positions):012d}>",
                "WARC-Target-URI": url,
                "WARC-Date": re.sub(r"(....)(..)(..)(..)(..)(..)", r"\1-\2-\3T\4:\5:\6Z", timestamp),
                "WARC-Payload-Digest": f"sha1:{sha1(body)}",
                "Content-Type": "application/http; msgtype=response",
                "Content-Length": str(len(block)),
            }
            head = "WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in record.items())
            whole = head.encode() + b"\r\n" + block + b"\r\n\r\n"
            whole = gzip.compress(whole, mtime=0) if path.suffix == ".gz" else whole
            positions.append((file.tell(), len(whole)))
            file.write(whole)
    return positions


def sha1(body):
    """Return the digest of a body as an index lists it."""
    return base64.b32encode(hashlib.sha1(body, usedforsecurity=False).digest()).decode()


def free_port():
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        return connection.getsockname()[1]


@contextmanager
def pywb(folder, warcs):
    """Run pywb with a collection `wayback` and the paths of Arquivo.pt; yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = Path(sys.executable).parent
    manage = [str(tools / "wb-manager")]
    subprocess.run([*manage, "init", "wayback"], cwd=folder, check=True, capture_output=True)
    subprocess.run([*manage, "add", "wayback", *map(str, warcs)], cwd=folder, check=True, capture_output=True)
    for _ in range(5):  # another process may open the port first
        port = free_port()
        command = [str(tools / "wayback"), "-b", "127.0.0.1", "-p", str(port)]
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        wait_for(lambda process=process, port=port: process.poll() is not None or _answers(port))
        if process.poll() is None:
            break
    else:
        raise AssertionError(f"pywb does not start: {(folder / 'log.txt').read_text()}")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answers(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def has_pywb():
    return shutil.which("wayback", path=str(Path(sys.executable).parent)) is not None
