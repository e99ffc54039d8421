import itertools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import HTTPConnection

import pytest
from archive import network, stand_in
from patience import PATIENCE_S
from raised import check_logged

from paratune.corpus import web
from paratune.corpus.web import Client, RateLimit, TooLarge, Unavailable, archive_client, retry_after_s

OK = (200, {}, b"yes")


@pytest.fixture
def server():
    with stand_in() as server:
        yield server


def ask(server, tmp_path, target="/x", *, max_bytes=1000, **options):
    with archive_client(f"{server.url}/x", network(tmp_path, **options)) as client:
        return client.request(target, max_bytes=max_bytes)


def test_a_request_has_the_contact_as_user_agent(server, tmp_path):
    server.answers["/x"] = [OK]
    answer = ask(server, tmp_path)
    assert (answer.status, answer.body) == (200, b"yes")
    agent = server.log[0][2]["User-Agent"]
    assert agent.startswith("paratune/")
    assert "me@uni.pt" in agent


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_errors_are_retried(server, tmp_path, status):
    server.answers["/x"] = [(status, {}, b""), (status, {}, b""), OK]
    assert ask(server, tmp_path).body == b"yes"
    assert len(server.log) == 3


def test_waits_grow(server, tmp_path):
    server.answers["/x"] = [(502, {}, b"")]
    with pytest.raises(Unavailable, match="HTTP 502 after 4 tries"):
        ask(server, tmp_path, tries=4, first_wait_s=0.1)
    moments = [moment for moment, _, _ in server.log]
    waits = [after - before for before, after in itertools.pairwise(moments)]
    # 0.1, 0.2 and 0.4 s, each no less.
    assert all(wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True))


def test_an_archived_error_is_an_answer(server, tmp_path):
    server.answers["/x"] = [(503, {"Memento-Datetime": "Sun, 26 Jan 2014 20:06:24 GMT"}, b"was down")]
    assert ask(server, tmp_path).status == 503
    assert len(server.log) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_holds_everyone_up(server, tmp_path, form, monkeypatch):
    is_read, hold = threading.Event(), RateLimit.hold
    monkeypatch.setattr(RateLimit, "hold", lambda *arguments: (hold(*arguments), is_read.set()))

    def refuse(handler):
        # A date has whole seconds: 2.5 s from now is 1.5 to 2.5 s away.
        value = "1" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(seconds=2.5), usegmt=True)
        handler.wfile.write(f"HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode())

    server.answers |= {"/x": [refuse, OK], "/y": [OK]}

    def ask_another():
        is_read.wait()
        for _ in range(2):
            ask(server, tmp_path, "/y")

    thread = threading.Thread(target=ask_another)
    thread.start()
    assert ask(server, tmp_path).body == b"yes"
    thread.join()
    first = server.log[0][0]
    assert len(server.log) == 4
    assert all(moment - first >= 0.9 for moment, _, _ in server.log[1:])


def test_a_long_wait_is_logged_once(server, tmp_path, monkeypatch, caplog):
    both_are_there = threading.Barrier(2, timeout=PATIENCE_S)

    def refuse(handler):
        both_are_there.wait()
        handler.wfile.write(b"HTTP/1.1 429 Slow\r\nRetry-After: 3000\r\nContent-Length: 0\r\n\r\n")

    def end_long_wait(seconds):
        if seconds > web.LOGGED_WAIT_S:
            raise Unavailable("the test does not wait")
        time.sleep(seconds)

    server.answers |= {"/short": [(502, {}, b""), OK], "/x": [refuse]}
    with archive_client(server.url, network(tmp_path)) as asked, ThreadPoolExecutor(2) as threads:
        asked.request("/short", max_bytes=9)
        assert caplog.records == []
        monkeypatch.setattr(asked, "_sleep", end_long_wait)
        waits = [threads.submit(asked.request, "/x", max_bytes=9) for _ in range(2)]
        for wait in waits:
            with pytest.raises(Unavailable, match="does not wait"):
                wait.result()
    assert [record.code for record in caplog.records] == ["corpus.server_retry"]
    check_logged(caplog, "corpus.server_retry", server.url, "HTTP 429")


def test_a_long_retry_after_ends_the_command(server, tmp_path):
    server.answers["/x"] = [(429, {"Retry-After": "7200"}, b"")]
    for _ in range(2):  # a command that is started again too early does not ask
        with pytest.raises(Unavailable, match=r"\b7(200|1\d\d|0\d\d) s") as result:
            ask(server, tmp_path)
        assert result.value.is_out
    assert len(server.log) == 1


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), ("7", 7.0), ("-1", None), ("soon", None), ("٣", None), ("", None)]
)
def test_retry_after_is_read(value, seconds):
    assert retry_after_s(value) == seconds


@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "86401", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_longer_retry_after_counts_as_a_day(value):
    assert retry_after_s(value) == 86_400


@pytest.mark.parametrize(
    "value", ["Fri, 31 Dec 99999999999999999999 23:59:59 GMT", f"Sun, 06 Nov 1994 08:49:37 +{'9' * 400}", "nan", "1e9"]
)
def test_an_invalid_retry_after_gives_none(value):
    assert retry_after_s(value) is None


def test_a_retry_after_of_400_digits_ends_the_command_and_names_the_file(server, tmp_path):
    server.answers["/x"] = [(429, {"Retry-After": "9" * 400}, b"")]
    with pytest.raises(Unavailable) as result:
        ask(server, tmp_path)
    assert "86400 s" in str(result.value)
    kept_rows = tmp_path / "limits" / "127.0.0.1"
    assert str(kept_rows) in str(result.value)
    assert json.loads(kept_rows.read_text())["held_s"] <= time.monotonic() + 86_400


@pytest.mark.parametrize("key", ["timeout_s", "deadline_s", "first_wait_s", "max_hold_s"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, 0.0])
def test_a_duration_that_no_socket_takes_is_refused(tmp_path, key, value):
    with pytest.raises(ValueError, match=key):
        network(tmp_path, **{key: value})


def test_a_date_that_has_passed_is_no_wait():
    assert retry_after_s("Sun, 06 Nov 1994 08:49:37 GMT") == 0.0


def half(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")


def half_of_chunks(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")


def nothing(handler):
    pass


@pytest.mark.parametrize("cut", [half, half_of_chunks, nothing])
def test_a_cut_connection_is_tried_again_and_gives_no_half_body(server, tmp_path, cut):
    server.answers["/x"] = [cut, OK]
    assert ask(server, tmp_path).body == b"yes"


def test_a_body_that_is_always_truncated_is_an_error(server, tmp_path):
    server.answers["/x"] = [half]
    with pytest.raises(Unavailable, match="10 of 100 bytes after 2 tries") as result:
        ask(server, tmp_path, tries=2)
    assert not result.value.is_out


def drip(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    drip_bytes(handler)


def drip_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    drip_bytes(handler)


def drip_bytes(handler):
    for _ in range(100):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_a_body_that_drips_has_a_deadline(server, tmp_path, slow):
    # A byte each 0.05 s is never a silence of 5 s, and the whole would take 5 s.
    server.answers["/x"] = [slow]
    with pytest.raises(Unavailable, match=r"longer than 0\.5 s"):
        ask(server, tmp_path, tries=1, deadline_s=0.5)


def test_a_request_leaves_at_most_15_seconds_after_its_slot(server, tmp_path, monkeypatch):
    connect, request, timeouts = HTTPConnection.connect, HTTPConnection.request, []

    def note_timeout(self):
        timeouts.append(self.timeout)
        connect(self)

    def note_timeout_of_socket(self, *more, **options):
        timeouts.append(self.sock.gettimeout())
        request(self, *more, **options)

    monkeypatch.setattr(HTTPConnection, "connect", note_timeout)
    monkeypatch.setattr(HTTPConnection, "request", note_timeout_of_socket)
    server.answers["/x"] = [OK]
    ask(server, tmp_path, timeout_s=40)
    ask(server, tmp_path, timeout_s=7)
    assert timeouts == [15, 40, 7, 7]
    # Each step of connecting is shorter than the timeout, and their sum is not.
    monkeypatch.setattr(web, "CONNECT_S", -1.0)
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: (setattr(self, "timeout", 7), connect(self)))
    with pytest.raises(Unavailable, match="no connection"):
        ask(server, tmp_path, tries=1)
    assert len(server.log) == 2


def test_the_deadline_does_not_end_the_encryption_of_a_socket_that_is_read(server, tmp_path, monkeypatch):
    connect, shutdowns = HTTPConnection.connect, []

    def connect_and_watch(self):
        connect(self)
        self.sock.__class__ = WatchedSocket

    class WatchedSocket(socket.socket):
        __slots__ = ()

        def shutdown(self, how):
            shutdowns.append(how)

    monkeypatch.setattr(HTTPConnection, "connect", connect_and_watch)
    server.answers["/x"] = [drip]
    with pytest.raises(Unavailable, match=r"longer than 0\.5 s"):
        ask(server, tmp_path, tries=1, deadline_s=0.5)
    assert shutdowns == []


def test_a_silent_server_is_an_error(server, tmp_path):
    server.answers["/x"] = [lambda handler: time.sleep(600)]
    with pytest.raises(Unavailable, match=r"0\.2 s"):
        ask(server, tmp_path, tries=1, timeout_s=0.2)


def test_silence_is_no_longer_than_the_deadline(server, tmp_path):
    server.answers["/x"] = [lambda handler: time.sleep(600)]
    start = time.monotonic()
    with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
        ask(server, tmp_path, tries=1, timeout_s=500, deadline_s=0.2)
    assert time.monotonic() - start < 400


def endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(10_000):
        handler.wfile.write(b"x" * 10_000)


def test_bodies_have_a_size_limit(server, tmp_path):
    server.answers |= {"/long": [(200, {}, b"x" * 1001)], "/endless": [endless]}
    server.answers["/says"] = [(200, {"Content-Length": str(500 << 20)}, b"")]
    for target, message in (("/long", "1001 bytes"), ("/endless", "more than 1000"), ("/says", "524288000 bytes")):
        with pytest.raises(TooLarge, match=message):
            ask(server, tmp_path, target)
    assert len(server.log) == 3


def test_redirects_are_not_followed(server, tmp_path):
    with stand_in() as elsewhere:
        server.answers["/x"] = [(302, {"Location": f"{elsewhere.url}/x"}, b"")]
        assert ask(server, tmp_path).headers["Location"] == f"{elsewhere.url}/x"
        assert (len(server.log), elsewhere.log) == (1, [])


def test_proxies_of_the_environment_are_not_used(server, tmp_path, monkeypatch):
    with stand_in() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        server.answers["/x"] = [OK]
        assert ask(server, tmp_path).body == b"yes"
        assert proxy.log == []


def test_an_archive_that_is_not_there_is_out(tmp_path):
    with stand_in() as server:
        url = server.url
    with (
        pytest.raises(Unavailable, match=r"no connection: .*refused after 2 tries") as result,
        archive_client(url, network(tmp_path, tries=2)) as client,
    ):
        client.request("/x", max_bytes=1)
    assert result.value.is_out


def test_a_stopped_client_waits_no_longer(server, tmp_path):
    server.answers["/x"] = [(503, {"Retry-After": "600"}, b"")]
    with archive_client(server.url, network(tmp_path)) as client:
        threading.Timer(0.2, client.__exit__).start()
        with pytest.raises(Unavailable, match=server.url):
            client.request("/x", max_bytes=1)


def test_the_limit_is_that_of_the_host_and_not_of_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shared = network(tmp_path, limit_folder=None)
    first, second = (
        archive_client("https://arquivo.pt/textsearch", shared),
        archive_client("https://Arquivo.pt.:443/cdx", shared),
    )
    assert isinstance(first, Client)
    assert first._limit.path == second._limit.path == tmp_path / "paratune/limits/arquivo.pt"
