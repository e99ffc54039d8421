import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from corpus_documents import dropped, kept
from corpus_files import HEART, fetched, fetched_row
from raised import raises_code

from paratune.console import Display
from paratune.corpus.extract import tika as tika_module
from paratune.corpus.extract.results import NoText
from paratune.corpus.extract.run import run_extract
from paratune.corpus.extract.tika import Tika
from paratune.corpus.settings import Corpus, Extract

SLIDES = "application/vnd.ms-powerpoint"
# As Tika 3 answers PUT /rmeta/text; https://cwiki.apache.org/confluence/display/TIKA/TikaServer, "Recursive Metadata".
ANSWER = [
    {"Content-Type": SLIDES, "dc:title": "Aula  1", "X-TIKA:content": f"\n\n{HEART}\r\n\tPonto\x0b\n"},
    {"x": "y"},
]


class Server(ThreadingHTTPServer):
    """A substitute for Tika: sends the next of its answers, status and body, and records the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = [], []
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Content-Type"], body))
        self.answer(*self.server.answers.pop(0))

    def do_GET(self):
        self.server.asked.append((self.path, None, None))
        self.answer(200, b"Apache Tika 3.2.0")

    def answer(self, status, body):
        if status is None:  # it dies of the document
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(tika_module, "WAITS_S", (0.0, 0.0))
    with Server() as result:
        thread = threading.Thread(target=result.serve_forever)
        thread.start()
        yield result
        result.shutdown()
        thread.join()


def client(server, **more):
    return Tika(server.endpoint, **{"time_s": 10, "max_bytes": 10_000} | more)


def good(answer=ANSWER):
    return 200, json.dumps(answer).encode()


def test_only_unsupported_documents_go_to_tika(server, tmp_path):
    payload = b"\x00\x01\x02\x03" * 9
    rows = [
        fetched_row(1, f"<p>{HEART}</p>".encode()),
        fetched_row(2, payload, content_type=SLIDES),
        fetched_row(3, b"", content_type=SLIDES),
        fetched_row(4, payload, content_type=SLIDES),
    ]
    fetched(tmp_path, rows)
    server.answers = [good(), good([{"X-TIKA:content": "  \n"}])]
    corpus = Corpus(work=str(tmp_path), extract=Extract(tika=server.endpoint))
    run_extract(corpus, 1, Display(speaks=False))
    (result,) = kept(tmp_path / "3_extract")
    assert [row["extractor"] for row in result] == ["trafilatura", "tika"]
    assert (result[1]["text"], result[1]["title"], result[1]["mime"]) == (f"{HEART}\nPonto", "Aula 1", SLIDES)
    assert [(row["url"][-1], row["reason"]) for row in dropped(tmp_path / "3_extract")] == [
        ("3", "empty"),
        ("4", "empty"),
    ]
    assert server.asked == [("/rmeta/text", SLIDES, payload)] * 2


def test_a_server_below_a_path_is_asked_there(server):
    server.answers = [good()]
    text, title = Tika(f"{server.endpoint}/tika/", time_s=10, max_bytes=10_000).read(b"x", SLIDES)
    assert (text, title) == (ANSWER[0]["X-TIKA:content"], "Aula  1")
    assert server.asked[0][0] == "/tika/rmeta/text"


@pytest.mark.parametrize(
    ("answers", "reason", "detail"),
    [
        ([(422, b"")], "unreadable", "422"),
        ([(415, b"")], "unreadable", "415"),
        ([(200, b"no JSON")], "unreadable", "JSONDecodeError"),
        ([(200, b"[]")], "unreadable", "IndexError"),
        ([(200, b"[1]")], "unreadable", "AttributeError"),
        ([(200, b"x" * 10_001)], "long", "more than 10000 bytes"),
        ([(500, b""), (None, b""), (503, b"")], "unreadable", "503"),
        ([(302, b""), (302, b""), (302, b"")], "unreadable", "302"),
    ],
)
def test_a_document_that_tika_does_not_read_is_dropped(server, answers, reason, detail):
    server.answers = list(answers)
    result = client(server).read(b"x", SLIDES)
    assert isinstance(result, NoText)
    assert result.reason == reason
    assert detail in result.detail


def test_a_restarted_server_is_retried(server):
    server.answers = [(None, b""), (503, b""), good()]
    assert client(server).read(b"x", SLIDES)[1] == "Aula  1"


def test_a_server_that_is_not_there_ends_the_stage(monkeypatch):
    monkeypatch.setattr(tika_module, "WAITS_S", (0.0,))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with raises_code("corpus.server", address, "extract.tika"):
            Tika(address, time_s=2, max_bytes=100).read(b"x", SLIDES)
