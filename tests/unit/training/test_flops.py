"""Model FLOPs per second and MFU from a run's record and the lengths of its samples."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paratune import records
from paratune.models.flops import ModelWork
from paratune.training.flops import flops_record

A100 = "NVIDIA A100-SXM4-40GB"
LENGTHS = np.array([1, 2, 3, 4, 5, 6])


class Work:
    """A count that is done."""

    def __init__(self, work: ModelWork | None, reason: str | None = None) -> None:
        self._found = work, reason

    def work(self) -> tuple[ModelWork | None, str | None]:
        return self._found


def batches(hidden: Any = None) -> Any:
    """Two samples a step, three steps an epoch, in their order."""
    store = SimpleNamespace(lengths=LENGTHS, sequence_lengths_at=lambda indices: LENGTHS[indices])
    collator = SimpleNamespace(store=store, loss_denominator=lambda indices, epoch: hidden(indices, epoch))

    def indices(step: int) -> Any:
        return np.arange(2 * (step % 3), 2 * (step % 3) + 2)

    return SimpleNamespace(collator=collator, steps_per_epoch=3, indices=indices)


def write(folder: Path, num_steps: int, *sessions: dict[str, Any]) -> None:
    log = records.EventLog(folder, 0)
    for step in range(1, num_steps + 1):
        log.add("step", step=step, warmup=step == 1)
    log.close()
    whole = {"world_size": 2, "config": {"precision": "bf16"}, "device": "cuda", "hardware": [{"gpus": []}]}
    records.write_json(folder / records.RUN_FILE, {"sessions": [{**whole, **session} for session in sessions or ({},)]})


def found(folder: Path, work: Any, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "tokens_per_s": 1000.0,
        "precision": "bf16",
        "devices": [A100, A100],
        "is_masked_lm": False,
        **changes,
    }
    return flops_record(work, folder, arguments.pop("batches", batches()), **arguments)


def test_mfu_is_work_over_the_peak_of_all_devices(tmp_path):
    write(tmp_path, 3)
    result = found(tmp_path, Work(ModelWork(1000, 10_000_000, {None: 2_000_000}, 0)))
    # Steps 2 and 3: samples of 3, 4, 5 and 6 tokens; 18 tokens, 9 + 16 + 25 + 36 = 86 pairs.
    flops = 4 * 1000 + 18 * 10_000_000 + 86 * 2_000_000
    assert result["model_flops_per_token"] == pytest.approx(flops / 18)
    assert result["model_flops_per_s"] == pytest.approx(1000 * flops / 18)
    # 312 TFLOP/s in bf16, dense (NVIDIA A100 datasheet).
    assert result["peak_flops_per_s"] == 2 * 312e12
    assert result["mfu"] == pytest.approx(1000 * flops / 18 / 624e12)
    assert (result["peak_source"], result["reason"]) == ("NVIDIA A100 datasheet, June 2021", None)


def test_masked_tokens_are_counted_in_their_epoch(tmp_path):
    write(tmp_path, 6)
    calls = []

    def hidden(indices: Any, epoch: int) -> float:
        calls.append((indices.tolist(), epoch))
        return 2.0

    result = found(tmp_path, Work(ModelWork(0, 100, {None: 0}, 5)), batches=batches(hidden), is_masked_lm=True)
    assert calls == [([2, 3], 0), ([4, 5], 0), ([0, 1], 1), ([2, 3], 1), ([4, 5], 1)]
    # 5 steps of 2 hidden tokens, 7 + 11 + 3 + 7 + 11 = 39 tokens.
    assert result["model_flops_per_token"] == pytest.approx(100 + 5 * 10 / 39)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"devices": ["AMD EPYC", A100]}, "AMD EPYC is not listed"),
        ({"devices": ["Tesla T4"]}, "no peak of Tesla T4 in bf16 is listed"),
    ],
)
def test_without_a_peak_there_is_no_mfu(tmp_path, changes, reason):
    write(tmp_path, 3)
    result = found(tmp_path, Work(ModelWork(0, 100, {None: 1}, 0)), **changes)
    assert result["model_flops_per_s"] > 0
    assert (result["peak_flops_per_s"], result["mfu"]) == (None, None)
    assert reason in result["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"world_size": 4}, "world size"),
        ({"config": {"precision": "fp32"}}, "precision"),
        ({"hardware": [{"gpus": [{"name": "NVIDIA L4"}]}]}, "devices"),
    ],
)
def test_sessions_with_other_peaks_have_no_mfu(tmp_path, change, reason):
    write(tmp_path, 3, {}, change)
    result = found(tmp_path, Work(ModelWork(0, 100, {None: 1}, 0)))
    assert result["mfu"] is None
    assert reason in result["reason"]


def test_a_model_that_cannot_be_counted_has_a_reason(tmp_path):
    write(tmp_path, 1)
    assert found(tmp_path, Work(None, "no such thing"))["reason"] == "no such thing"
    result = found(tmp_path, Work(ModelWork(0, 100, {None: 1}, 0)), tokens_per_s=None)
    assert (result["model_flops_per_token"], result["reason"]) == (None, "no step was measured")
