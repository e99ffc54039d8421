"""Figures of a summary from the events of two ranks; rates and phases are held in metrics/test_throughput."""

import time
from pathlib import Path
from typing import Any

import pytest

from paratune.config.traits import TRAITS
from paratune.engine.loop import Progress
from paratune.engine.summary import summarise
from paratune.records import EventLog


def write(folder: Path, rank: int, num_steps: int, first: int = 1) -> None:
    log = EventLog(folder, rank)
    for step in range(first, num_steps + 1):
        log.add(
            "step",
            step=step,
            loss=float(10 - step),
            num_samples=4,
            num_tokens=30,
            num_padded_tokens=40,
            phases_ms={"get_batch": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0, "other": 1.0 + rank},
            wall_ms=8.0 + rank,
            warmup=step == 1,
        )
    log.add("evaluation", step=num_steps, epoch=num_steps / 2, split="validation", scores={"f1": 0.5}, is_best=True)
    log.close()


def summary(folder: Path, progress: Progress, peaks: list[int | None], **options: Any) -> dict[str, Any]:
    return summarise(
        folder,
        progress,
        kept_step=4,
        world_size=2,
        num_steps=6,
        steps_per_epoch=2,
        peaks=peaks,
        device="cpu",
        cost_ms=0.1,
        global_batch_size=8,
        traits=TRAITS["ddp"],
        **options,
    )


def test_the_figures_of_a_whole_run(tmp_path: Path):
    for rank in range(2):
        write(tmp_path, rank, 6)
    progress = Progress(step=6, best={"step": 4, "metric": "f1", "value": 0.5}, num_interruptions=1)
    progress.seconds = {"startup": 1.0, "tokenize": 2.0, "evaluate": 3.0, "checkpoint": 0.5, "total": 60.0}
    progress.began = time.perf_counter() - 900.0
    result = summary(tmp_path, progress, [100, 300])
    assert (result["num_steps"], result["num_epochs"], result["num_interruptions"]) == (6, 3.0, 1)
    assert result["time"] == {
        "startup_s": 1.0,
        "tokenize_s": 2.0,
        "total_s": pytest.approx(960.0, abs=60.0),
        "train_s": pytest.approx(0.054),
        "evaluate_s": 3.0,
        "checkpoint_s": 0.5,
    }
    assert result["memory"] == {"kind": "rss", "largest_bytes": 300, "sum_bytes": 400}
    assert result["loss"] == {"first": 9.0, "last": 4.0, "mean_last_epoch": 4.5}
    assert (result["best"]["step"], result["kept_step"]) == (4, 4)
    assert result["evaluations"] == [
        {"step": 6, "epoch": 3.0, "split": "validation", "scores": {"f1": 0.5}, "is_best": True}
    ]
    assert result["num_skipped_steps"] == 0
    assert [rank["phases_total_s"]["other"] for rank in result["ranks"]] == pytest.approx([0.006, 0.012])
    # 5 steps without warm-up: 2 x 5 x 4 samples over 5 x 9 ms of the slower rank.
    assert result["throughput"]["samples_per_s"] == pytest.approx(40 / 0.045)


def test_ranks_of_a_larger_world_before_a_resume_count(tmp_path: Path):
    # Steps 1 to 3 on three ranks (8, 9, 10 ms), 4 to 6 on two (8, 9 ms); step 1 is warm-up.
    for rank in range(3):
        write(tmp_path, rank, 3)
    for rank in range(2):
        write(tmp_path, rank, 6, first=4)
    result = summary(tmp_path, Progress(step=6), [1, 1])
    assert result["throughput"]["samples_per_s"] == pytest.approx((2 * 12 + 3 * 8) / (2 * 0.010 + 3 * 0.009))
    assert result["time"]["train_s"] == pytest.approx(0.057)
    assert sum(phase["total_s"] for phase in result["phases"].values()) == pytest.approx(2 * 0.009 + 3 * 0.0085)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]


def test_early_stopping_is_recorded(tmp_path: Path):
    for rank in range(2):
        write(tmp_path, rank, 4)
    assert summary(tmp_path, Progress(step=4), [1, 1])["stop_reason"] == "early_stopping"
    assert summary(tmp_path, Progress(step=6), [1, 1])["stop_reason"] == "completed"


def test_unknown_values_are_none(tmp_path: Path):
    for rank in range(2):
        EventLog(tmp_path, rank).close()
    result = summary(tmp_path, Progress(), [None, None])
    assert result["memory"] == {"kind": "rss", "largest_bytes": None, "sum_bytes": None}
    assert result["loss"] == {"first": None, "last": None, "mean_last_epoch": None}
    assert summary(tmp_path, Progress(), [None, 7])["memory"]["sum_bytes"] == 7


def test_skipped_steps_are_counted_and_unknown_losses_are_not_in_the_mean(tmp_path: Path):
    for rank in range(2):
        write(tmp_path, rank, 2)
        log = EventLog(tmp_path, rank)
        times = {"phases_ms": dict.fromkeys(("get_batch", "forward", "backward", "optimizer", "other"), 1.0)}
        sizes = {"num_samples": 4, "num_tokens": 30, "num_padded_tokens": 40, "wall_ms": 5.0, "warmup": False}
        for step, loss, skipped in ((3, None, True), (4, 5.0, True), (5, 3.0, False), (6, None, True)):
            log.add("step", step=step, loss=loss, skipped=skipped, **times, **sizes)
        log.close()
    result = summary(tmp_path, Progress(step=6), [1, 1])
    assert result["num_skipped_steps"] == 3
    assert result["loss"] == {"first": 9.0, "last": None, "mean_last_epoch": 3.0}


def test_stragglers_are_those_of_the_last_session(tmp_path: Path):
    for rank in range(3):
        write(tmp_path, rank, 3)
    for rank in range(2):
        log = EventLog(tmp_path, rank)
        log.add("resume", step=3)
        log.close()
        write(tmp_path, rank, 6, first=4)
    stragglers = summary(tmp_path, Progress(step=6), [1, 1])["stragglers"]
    # Both take 1 + 2 + 1 ms by themselves: nobody is slower.
    assert (stragglers["slowdown"], stragglers["wait_share"], stragglers["reason"]) == (1.0, 0.0, None)
    assert stragglers["phases"] == ["get_batch", "forward", "optimizer"]


def test_samples_of_lost_steps_are_left_out(tmp_path: Path):
    write(tmp_path, 0, 4)
    write(tmp_path, 1, 4)
    log = EventLog(tmp_path, 0)
    log.add("sampler", kind="cpu", name="CPU", interval_s=1.0, energy_source=None, is_energy_here=True, reason=None)
    for step, share in ((2, 0.25), (4, 1.0)):
        log.add("sample", step=step, warmup=False, seconds=1.0, utilisation=share)
    log.add("resume", step=3)
    log.add("sample", step=4, warmup=False, seconds=1.0, utilisation=0.75)
    log.close()
    write(tmp_path, 0, 6, first=4)
    write(tmp_path, 1, 6, first=5)
    utilisation = summary(tmp_path, Progress(step=6), [1, 1])["utilisation"]
    assert (utilisation["num_samples"], utilisation["mean"]) == (2, 0.5)
