"""Whether the hub answers, said within seconds; all hubs here are on loopback."""

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from paratune import hub


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "is_offline", lambda: False)
    hub.why_not.cache_clear()
    yield
    hub.why_not.cache_clear()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _endpoint(monkeypatch: pytest.MonkeyPatch, port: int) -> str:
    name = f"http://127.0.0.1:{port}"
    monkeypatch.setattr(constants, "ENDPOINT", name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return name


def test_any_answer_will_do(monkeypatch: pytest.MonkeyPatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        _endpoint(monkeypatch, server.server_port)
        assert hub.why_not() is None  # 501: it knows no HEAD
    assert hub.why_not() is None, "it was asked again"


def test_a_hub_that_is_not_there_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, silent: socket.socket):
    port = silent.getsockname()[1]
    silent.close()
    name = _endpoint(monkeypatch, port)
    reason = hub.why_not()
    assert reason is not None
    assert reason.startswith(f"{name} cannot be reached (")
    assert "refused" in reason


def test_a_hub_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, silent: socket.socket):
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    name = _endpoint(monkeypatch, silent.getsockname()[1])
    assert (hub.why_not() or "").startswith(f"{name} cannot be reached (")


def test_nor_is_a_name_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.05)
    is_over = threading.Event()
    monkeypatch.setattr(hub, "_ask", lambda *_: is_over.wait())
    name = _endpoint(monkeypatch, 9)
    assert hub.why_not() == f"{name} cannot be reached (no answer within 0.05 s)"
    is_over.set()


def test_with_hf_hub_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "is_offline", lambda: True)
    monkeypatch.setattr(hub, "_ask", lambda *_: pytest.fail("it was asked"))
    assert hub.why_not() == "HF_HUB_OFFLINE is set"
