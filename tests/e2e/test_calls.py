"""Calls of the Python interface in several threads, inside of each other, and one after the other."""

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paratune
from paratune.errors import ParatuneError

pytestmark = pytest.mark.slow
SHORT = {"train.epochs": None, "train.max_steps": 4}
CALLBACK = """
import paratune
class Trains:
    def on_step(self, state):
        if state.step == 2:
            paratune.train("c.yaml", {"train.epochs": None, "train.max_steps": 4, "run.seed": 5}, run_name="inner")
            paratune.predict("runs/inner", ["the film is good"])
"""


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    monkeypatch.setenv("PARATUNE_CACHE", str(world / "cache"))
    return world


def weights(name: str) -> bytes:
    return (Path("runs") / name / "model" / "model.safetensors").read_bytes()


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of calls that run at the same time."""
    results: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_calls_in_threads_are_as_alone(here: Path):
    texts = ["the film is good", "it was really awful, and the story"]
    stdout = sys.stdout
    paratune.train("c.yaml", SHORT, run_name="alone")
    expected = paratune.predict("runs/alone", texts)
    _, _, predicted = in_threads(
        lambda: paratune.train("c.yaml", SHORT, run_name="a"),
        lambda: paratune.train("c.yaml", SHORT, run_name="b"),
        lambda: paratune.predict("runs/alone", texts),
    )
    assert [weights(name) == weights("alone") for name in ("a", "b")] == [True, True]
    assert predicted.equals(expected)
    assert sys.stdout is stdout


def test_a_training_inside_a_callback_changes_neither(here: Path):
    (here / "trains_inside.py").write_text(CALLBACK)
    paratune.train("c.yaml", SHORT, run_name="alone")
    paratune.train("c.yaml", {**SHORT, "run.seed": 5}, run_name="inner_alone")
    paratune.train("c.yaml", {**SHORT, "run.callbacks": [{"function": "trains_inside:Trains"}]}, run_name="outer")
    assert weights("outer") == weights("alone") != weights("inner")
    assert weights("inner") == weights("inner_alone")


def state() -> dict[str, Any]:
    logger = logging.getLogger("paratune")
    return {
        "streams": (sys.stdout, sys.stderr),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "warnings": warnings.filters[:],
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals() if number not in (9, 19)],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "log": [(log.handlers[:], log.level, log.propagate, log.filters[:]) for log in (logger, logger.root)],
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": torch.get_float32_matmul_precision(),
    }


CALLS: dict[str, Callable[[], Any]] = {
    "train": lambda: paratune.train("c.yaml", SHORT, run_name="another"),
    "train again": lambda: paratune.train("c.yaml", SHORT, run_name="another"),
    "train badly": lambda: paratune.train("c.yaml", {**SHORT, "train.learning_rate": 1e30}, run_name="bad"),
    "predict": lambda: paratune.predict("runs/alone", ["the film is good"]),
    "predict nothing": lambda: paratune.predict("runs/alone", []),
    "evaluate": lambda: paratune.evaluate("runs/alone", "data.csv", by="length"),
    "evaluate without a file": lambda: paratune.evaluate("runs/alone", "none.csv"),
    "plan": lambda: paratune.plan("c.yaml", SHORT),
    "plan a bad model": lambda: paratune.plan("c.yaml", {"model.name": "none"}),
    "compare": lambda: paratune.compare("runs/alone", "runs/another"),
    "report": lambda: paratune.report("runs/alone", out="report"),
    "report nothing": lambda: paratune.report("runs/none"),
    "model": lambda: paratune.Run("runs/alone").load_model(),
}
"""In this order."""


def test_calls_leave_the_process_as_it_was(here: Path):
    paratune.train("c.yaml", SHORT, run_name="alone")
    failed = []
    for name, call in CALLS.items():
        before = state()
        try:
            call()
        except ParatuneError as error:
            failed.append((name, error.code))
        after = state()
        assert {key: value for key, value in after.items() if value != before[key]} == {}, name
    assert dict(failed).keys() >= {"train again", "plan a bad model", "evaluate without a file", "report nothing"}
