"""`paratune serve` as a process: two clients, SIGTERM, exit code, access log."""

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from explained import save_tiny
from patience import PATIENCE_S

from paratune.errors import EXIT_STOPPED


@pytest.mark.slow
def test_a_server_answers_two_clients_and_stops_after_sigterm(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", "classification").folder
    command = [sys.executable, "-m", "paratune", "serve", str(folder), "--port", "0", "--device", "cpu"]
    with (tmp_path / "stderr").open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        address = _address(server, tmp_path / "stderr")
        with ThreadPoolExecutor(2) as clients:
            answers = list(clients.map(lambda text: _ask(address, text), ["the film was good", "bad"] * 5))
        scores = [answer["predictions"][0]["score_low"] for answer in answers]
        assert scores == pytest.approx(scores[:2] * 5, abs=1e-6)
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=PATIENCE_S)
    finally:
        server.kill()
        server.wait()
    assert server.returncode == EXIT_STOPPED
    assert "SIGTERM" in (tmp_path / "stderr").read_text()
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [("/predict", 200)] * 10
    assert "film" not in output


def _address(server: "subprocess.Popen[str]", errors: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", errors.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(errors.read_text())


def _ask(address: str, text: str) -> dict[str, list[dict[str, object]]]:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/predict", json.dumps({"text": text}).encode(), headers), timeout=60) as response:
        answer: dict[str, list[dict[str, object]]] = json.load(response)
        return answer
