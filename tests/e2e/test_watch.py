"""`paratune watch` shows the true state of runs that were stopped, killed or interrupted."""

from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import pytest
from harness import Cli
from hooks import SignalAt
from patience import wait_for

from paratune.errors import EXIT_NOT_FINITE, EXIT_OK
from paratune.records import events_file, read_events

pytestmark = pytest.mark.slow  # each test starts several processes

LOOP = "paratune.engine.loop:_step"
PREDICT = "paratune.strategies.single:SingleStrategy.predict"
TRAIN = ("train", "c.yaml")


def view(cli: Cli) -> dict[str, Any]:
    result = cli("watch", "runs/c", "--json")
    assert result.code == EXIT_OK, result.stderr
    run: dict[str, Any] = result.json["runs"][0]
    return run


@pytest.mark.parametrize(
    ("hook", "state", "words"),
    [
        (SignalAt(SIGKILL, LOOP, 8), "killed", "no process trains it"),
        (SignalAt(SIGKILL, PREDICT, 1), "killed", "no process trains it"),
        (SignalAt(SIGTERM, LOOP, 8), "stopped", "by SIGTERM after step 8"),
        (SignalAt(SIGKILL, "paratune.training.finish:summarise"), "killed", "no process trains it"),
    ],
)
def test_an_interrupted_run_is_shown(cli: Cli, hook: SignalAt, state: str, words: str):
    cli(*TRAIN, hook=hook)
    result = view(cli)
    assert result["state"] == state
    assert words in result["reason"]
    assert cli(*TRAIN, "--resume").code == EXIT_OK
    assert view(cli)["state"] == "finished"


def test_a_failed_run_shows_its_error(cli: Cli):
    result = cli(*TRAIN, "--set", "train.learning_rate=1e30")
    assert result.code == EXIT_NOT_FINITE, result.stderr
    values = view(cli)
    assert values["state"] == "failed"
    assert values["reason"].startswith("NotFiniteError: step ")


@pytest.mark.parametrize(
    ("function", "call", "state"),
    [(LOOP, 2, "training"), (PREDICT, 2, "evaluating"), ("paratune.checkpoint:save", 1, "saving")],
)
def test_a_running_run_shows_its_phase(world: Path, cli: Cli, function: str, call: int, state: str):
    running = cli.start(*TRAIN, hook=SignalAt(SIGSTOP, function, call))  # it is stopped there
    log = world / "runs" / "c" / events_file(0)
    words = {"training": "training", "evaluating": "evaluating", "saving": "writing a checkpoint"}[state]
    try:
        wait_for(lambda: log.exists() and words in [event.get("doing") for event in read_events(log.parent)])
        assert view(cli)["state"] == state
        assert cli("watch", "--once").stdout.count(state) == 1
    finally:
        running.send(SIGKILL)
        running.wait()
    assert view(cli)["state"] == "killed"
