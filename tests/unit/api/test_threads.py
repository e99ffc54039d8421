"""The threads of one process in a container: by its quota, unless their number is set."""

import logging
import os
import sys

import pytest

from paratune.api import evaluate, predict, process, train
from paratune.api.process import respect_quota


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, before torch is imported."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "to be restored")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.parametrize(("quota", "expected"), [(2.5, "2"), (0.5, "1"), (7.9, "7"), (8.0, None), (None, None)])
def test_threads_follow_a_quota_below_the_cores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quota: float | None, expected: str | None
):
    caplog.set_level(logging.INFO, "paratune")
    monkeypatch.setattr(process, "core_quota", lambda: quota)
    respect_quota()
    assert os.environ.get("OMP_NUM_THREADS") == expected
    if expected:
        assert f"OMP_NUM_THREADS={expected}: the container grants {quota} of 8 cores" in caplog.text
    else:
        assert caplog.text == ""


def test_a_given_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "core_quota", lambda: 2.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    respect_quota()
    assert os.environ["OMP_NUM_THREADS"] == "6"


def test_after_the_import_of_torch_it_is_not_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "core_quota", lambda: 2.0)
    monkeypatch.setitem(sys.modules, "torch", object())
    respect_quota()
    assert "OMP_NUM_THREADS" not in os.environ


class Asked(Exception):
    """Stands for the quota having been looked at."""


def test_commands_set_threads_before_they_import_torch(monkeypatch: pytest.MonkeyPatch):
    def ask() -> None:
        raise Asked("torch" in sys.modules)

    monkeypatch.setattr(process, "respect_quota", ask)
    monkeypatch.setattr(process, "set_up_logging", lambda **_: None)
    with pytest.raises(Asked, match="False"):
        train.train_here(None, "new", began=0.0)
    with pytest.raises(Asked, match="False"):
        evaluate.evaluate("model", "data")
    with pytest.raises(Asked, match="False"):
        predict.predict("model", "data")
