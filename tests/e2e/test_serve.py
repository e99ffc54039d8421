"""`paratune serve` as a process: two clients, SIGTERM, exit code, access log."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from browser import CHROMIUM, Browser, browser
from explained import save_tiny
from patience import PATIENCE_S

from paratune.errors import EXIT_STOPPED


@contextmanager
def serving(folder: Path, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Yield a server of a tiny model and its address."""
    command = [sys.executable, "-m", "paratune", "serve", str(folder), "--port", "0", "--device", "cpu"]
    with (tmp_path / "stderr").open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield server, _address(server, tmp_path / "stderr")
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make chromium` as root")
def test_the_page_shows_the_prediction_of_texts(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "classification", is_pair=True).folder
    text = "the film 😀 was <img src=x onerror=alert(1)> good"
    with serving(folder, tmp_path) as (_, address), browser(tmp_path) as page:
        page.call("Page.navigate", url=f"{address}/")
        _wait(page, "document.getElementById('column-1') !== null && !byId('form').hidden")
        page.js(f"byId('column-0').value = {json.dumps(text)}; byId('column-1').value = 'bad'")
        page.js(
            "byId('column-0').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true}))"
        )
        _wait(page, "byId('prediction').querySelector('.answer') !== null || !byId('error').hidden")
        assert page.js("byId('error').textContent") == ""
        assert page.js("byId('prediction').querySelector('.answer').textContent") .split()[0] in (
            "low", "middle", "high",
        )  # fmt: skip
        assert re.fullmatch(r"\w+ [<>]? ?\d+%", page.js("byId('prediction').querySelector('.answer').textContent"))
        assert page.js("document.querySelector('.marked')") is None  # on demand
        page.js("document.querySelector('.why').click()")
        _wait(page, "document.querySelector('.marked') !== null || !byId('error').hidden")
        assert text.split()[-1] in page.js("document.querySelector('.marked').textContent")
        assert page.js("document.images.length") == 0
        assert [line for line in page.complaints() if not line.startswith(f"request: {address}/")] == []


def _wait(page: Browser, expression: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not page.js(expression):
        assert time.monotonic() < deadline, page.complaints()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_server_answers_two_clients_and_stops_after_sigterm(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "classification").folder
    with serving(folder, tmp_path) as (server, address):
        with ThreadPoolExecutor(2) as clients:
            answers = list(clients.map(lambda text: _ask(address, text), ["the film was good", "bad"] * 5))
        scores = [answer["predictions"][0]["score_low"] for answer in answers]
        assert scores == pytest.approx(scores[:2] * 5, abs=1e-6)
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == EXIT_STOPPED
    assert "SIGTERM" in (tmp_path / "stderr").read_text()
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [("/predict", 200)] * 10
    assert "film" not in output


@pytest.mark.slow
def test_a_server_outlives_the_reader_of_its_access_log(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "classification").folder
    with serving(folder, tmp_path) as (server, address):
        assert server.stdout is not None
        server.stdout.close()
        answers = [_ask(address, "good") for _ in range(3)]
        assert [len(answer["predictions"]) for answer in answers] == [1, 1, 1]
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == EXIT_STOPPED
    assert "BrokenPipeError" not in (tmp_path / "stderr").read_text()


def _address(server: "subprocess.Popen[str]", errors: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        if match := re.search(r"http://127\.0\.0\.1:\d+", errors.read_text()):
            return match[0]
        time.sleep(0.1)
    raise AssertionError(errors.read_text())


def _ask(address: str, text: str) -> dict[str, list[dict[str, object]]]:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/predict", json.dumps({"text": text}).encode(), headers), timeout=60) as response:
        answer: dict[str, list[dict[str, object]]] = json.load(response)
        return answer
