"""The trackers of a session together: which there are, what they are told, how they end with the run."""

import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from patience import wait_for

from paratune.config.optional_sections import PACKAGES, Trackers
from paratune.errors import NotFiniteError, Stopped
from paratune.trackers import session as module
from paratune.trackers.adapters import TrackedRun
from paratune.trackers.session import TRACKERS, TrackerSession

STEP = {
    "step": 3,
    "epoch": 0.5,
    "loss": 0.25,
    "grad_norm": float("inf"),
    "learning_rate": 1e-4,
    "num_samples": 8,
    "num_tokens": 100,
    "phases_ms": {"get_batch": 10.0, "forward": 40.0, "backward": 100.0, "optimizer": 30.0, "other": 20.0},
    "wall_ms": 200.0,
    "memory_bytes": 1024,
    "warmup": True,
}
SUMMARY = {
    "num_steps": 10,
    "kept_step": 6,
    "scores": {"validation": {"accuracy": 0.9, "f1": None}},
    "time": {"total_s": 61.0},
    "throughput": {"tokens_per_s": 500.0, "padding_share": None},
    "phases": {"forward": {"share": 0.3, "total_s": 1.0}},
    "memory": {"kind": "rss", "largest_bytes": 2048},
}


class Told:
    made: ClassVar[list["Told"]] = []

    def __init__(self, options: Any) -> None:
        self.options, self.calls = options, []
        Told.made.append(self)

    def start(self, about: TrackedRun) -> None:
        self.calls.append(("start", about))

    def log(self, step: int, at: float, values: Any) -> None:
        self.calls.append(("log", step, values))

    def log_summary(self, values: Any) -> None:
        self.calls.append(("result", values))

    def finish(self, status: str) -> None:
        self.calls.append(("finish", status))


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    Told.made = []
    monkeypatch.setattr(module, "TRACKERS", dict.fromkeys(TRACKERS, Told))


def session(*names: str) -> TrackerSession:
    return TrackerSession(Trackers.model_validate({name: {} for name in names}), TrackedRun("r", Path("r"), 0, {}))


def test_each_tracker_receives_metrics_and_status():
    with session("tensorboard", "wandb") as trackers:
        trackers.log_event("step", STEP)
        trackers.log_event("begin", {"doing": "evaluating"})
        scores = {"accuracy": 0.5, "loss": None}
        trackers.log_event("evaluation", {"step": 3, "split": "validation", "scores": scores, "time_s": 2.0})
        trackers.log_event("checkpoint", {"step": 3, "time_s": 1.0, "num_bytes": 10, "reason": "scheduled"})
        trackers.log_summary(SUMMARY)
    assert [type(received.options).__name__ for received in Told.made] == ["TensorBoard", "WandB"]
    for calls in Told.made:
        assert [call[0] for call in calls.calls] == ["start", "log", "log", "log", "result", "finish"]
        _, step, evaluation, checkpoint, result, finish = calls.calls
        # 100 tokens and 8 samples in 0.2 s; the infinite norm is no number that all trackers take.
        assert step[1:] == (
            3,
            {
                "train/loss": 0.25,
                "train/learning_rate": 1e-4,
                "train/epoch": 0.5,
                "phases_ms/get_batch": 10.0,
                "phases_ms/forward": 40.0,
                "phases_ms/backward": 100.0,
                "phases_ms/optimizer": 30.0,
                "phases_ms/other": 20.0,
                "phases_ms/step": 200.0,
                "rank0/tokens_per_s": 500.0,
                "rank0/samples_per_s": 40.0,
                "rank0/memory_bytes": 1024.0,
            },
        )
        assert evaluation[1:] == (3, {"validation/accuracy": 0.5, "validation/time_s": 2.0})
        assert checkpoint[1:] == (3, {"checkpoint/time_s": 1.0, "checkpoint/num_bytes": 10.0})
        assert result[1] == {
            "final/num_steps": 10.0,
            "final/kept_step": 6.0,
            "final/validation/accuracy": 0.9,
            "final/total_s": 61.0,
            "final/tokens_per_s": 500.0,
            "final/phase_share/forward": 0.3,
            "final/memory_largest_bytes": 2048.0,
        }
        assert finish == ("finish", "finished")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Stopped("by SIGTERM", code="stopped.signal"), "stopped"),
        (NotFiniteError("nan", code="train.not_finite"), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_how_the_run_ends_is_how_it_ends_there(error: BaseException, status: str):
    with pytest.raises(type(error)), session("mlflow"):
        raise error
    assert Told.made[0].calls[-1] == ("finish", status)


def test_no_tracker_receives_anything_if_none_is_configured():
    for none in (TrackerSession(None, TrackedRun("r", Path("r"), 0, {})), session()):
        with none as trackers:
            trackers.log_event("step", STEP)
            trackers.log_summary({})
    assert Told.made == []


def test_one_that_hangs_does_not_keep_another_from_its_end(monkeypatch: pytest.MonkeyPatch):
    blocked = threading.Event()
    monkeypatch.setattr(Told, "finish", lambda self, status: blocked.wait())
    monkeypatch.setattr(module, "FINISH_S", 0.3)
    begin = time.monotonic()
    with session("tensorboard", "wandb") as trackers:
        trackers.log_event("step", STEP)
        wait_for(lambda: [len(received.calls) for received in Told.made] == [2, 2])
    assert time.monotonic() - begin >= 0.29
    assert [len(calls.calls) for calls in Told.made] == [2, 2]
    blocked.set()


def test_the_table_names_a_class_for_each():
    assert TRACKERS.keys() == PACKAGES.keys() == Trackers.model_fields.keys()
