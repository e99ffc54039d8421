"""Whether the hub can be reached, within seconds; all hubs here are on loopback."""

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
    hub.unreachable_reason.cache_clear()
    yield
    hub.unreachable_reason.cache_clear()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Accepts connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _endpoint(monkeypatch: pytest.MonkeyPatch, port: int) -> str:
    name = f"http://127.0.0.1:{port}"
    monkeypatch.setattr(constants, "ENDPOINT", name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return name


def test_any_answer_of_the_hub_counts(monkeypatch: pytest.MonkeyPatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        _endpoint(monkeypatch, server.server_port)
        assert hub.unreachable_reason() is None  # 501: it does not support HEAD
    assert hub.unreachable_reason() is None, "it was asked again"


def test_an_unreachable_hub_has_a_reason(monkeypatch: pytest.MonkeyPatch, silent: socket.socket):
    port = silent.getsockname()[1]
    silent.close()
    name = _endpoint(monkeypatch, port)
    reason = hub.unreachable_reason()
    assert reason is not None
    assert reason.startswith(f"{name} cannot be reached (")
    assert "refused" in reason


def test_a_silent_hub_is_unreachable_after_the_timeout(monkeypatch: pytest.MonkeyPatch, silent: socket.socket):
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    name = _endpoint(monkeypatch, silent.getsockname()[1])
    assert (hub.unreachable_reason() or "").startswith(f"{name} cannot be reached (")


def test_a_silent_name_server_is_unreachable_after_the_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.05)
    is_over = threading.Event()
    monkeypatch.setattr(hub, "_ask", lambda *_: is_over.wait())
    name = _endpoint(monkeypatch, 9)
    assert hub.unreachable_reason() == f"{name} cannot be reached (no answer within 0.05 s)"
    is_over.set()


def test_with_hf_hub_offline_the_hub_is_not_contacted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "is_offline", lambda: True)
    monkeypatch.setattr(hub, "_ask", lambda *_: pytest.fail("it was asked"))
    assert hub.unreachable_reason() == "HF_HUB_OFFLINE is set"
