"""The micro-batch of a resumed run, and steps that are repeated with smaller micro-batches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_data import tiny_collator

from paratune import records
from paratune.config.batch_size import ResolvedBatch
from paratune.data.loader import TrainBatches
from paratune.data.workers import Workers
from paratune.errors import OutOfMemory
from paratune.processes.progress import RankProgress
from paratune.training.memory import Activity, StepBatches, limit_from_environment, recorded_size, reports_out_of_memory

HERE = {"world_size": 2, "device": "cpu", "batch.micro_batch_size": "auto"}
ELSEWHERE = HERE | {"world_size": 4}


def session(size: int, *changes: int, setup: dict[str, Any] = HERE) -> dict[str, Any]:
    batch = {
        "micro_batch_size": size,
        "changes": [{"micro_batch_size": smaller} for smaller in changes],
        "setup": setup,
    }
    return {"began": f"with {size}", "batch": batch}


def ran_out(size: int, smaller: int | None, setup: dict[str, Any] = HERE) -> dict[str, Any]:
    return {"micro_batch_size": size, "next_micro_batch_size": smaller, "setup": setup}


@pytest.mark.parametrize(
    ("sessions", "happenings", "expected"),
    [
        ([], {}, None),
        ([session(32)], {}, (32, "as in the session of with 32")),
        ([session(32, 16, 8)], {}, (8, "as in the session of with 32")),
        # Under another setup another size may fit; a record of an older version has no setup.
        ([session(32, setup=ELSEWHERE)], {}, None),
        ([{"began": "then", "batch": {"micro_batch_size": 4}}], {}, None),
        ([session(32), session(64, setup=ELSEWHERE)], {}, (32, "as in the session of with 32")),
        # Processes that ended when memory ran out: the smallest that any of them names.
        ([session(32)], {0: [ran_out(32, 16)]}, (16, "memory ran out with 32 in this run")),
        ([session(32)], {0: [ran_out(32, 16)], 1: [ran_out(16, 8)]}, (8, "memory ran out with 16 in this run")),
        ([session(32)], {1: [ran_out(32, 16, ELSEWHERE)]}, (32, "as in the session of with 32")),
        ([session(1)], {0: [ran_out(1, None)]}, (1, "as in the session of with 1")),
    ],
)
def test_the_recorded_size_of_a_run_is_the_smallest(tmp_path: Path, sessions: Any, happenings: Any, expected: Any):
    records.write_json(tmp_path / records.RUN_FILE, {"sessions": sessions})
    for rank, events in happenings.items():
        records.write_json(tmp_path / records.rank_file("out_of_memory", rank), {"happenings": events})
    assert recorded_size(tmp_path, HERE) == expected


def test_a_run_that_never_started_has_no_recorded_size(tmp_path: Path):
    assert recorded_size(tmp_path, HERE) is None


def test_a_step_is_repeated_with_smaller_micro_batches():
    def make(sizes: ResolvedBatch) -> TrainBatches:
        return TrainBatches(
            tiny_collator(20),
            seed=3,
            global_batch_size=sizes.global_batch_size,
            micro_batch_size=sizes.micro_batch_size,
            num_micro_steps=sizes.grad_accum_steps,
            data_rank=0,
            data_world_size=1,
        )

    def rows(step: Any) -> list[list[int]]:
        return [batch.index.tolist() for batch in step]

    whole, halves = ResolvedBatch(4, 4, 1), ResolvedBatch(4, 2, 2)
    begun: list[tuple[str, int]] = []
    batches = StepBatches(make, whole, range(1, 10), lambda doing, step: begun.append((doing, step)), Workers())
    (first,) = rows(next(batches))
    assert [first] == rows(make(whole).step(1))
    assert begun == [("training", 2)]
    batches.repeat_step(halves)
    assert rows(next(batches)) == [first[:2], first[2:]]
    assert rows(next(batches)) == rows(make(halves).step(2))


def test_an_activity_is_logged_once():
    noted: list[tuple[str, str]] = []
    recorder: Any = SimpleNamespace(add=lambda event, doing: noted.append((event, doing)))
    activity = Activity(RankProgress(), recorder)
    activity.set("placing the model")
    for doing in ("training", "training", "evaluating", "training"):
        activity.set(doing)
    assert noted == [("begin", "training"), ("begin", "evaluating"), ("begin", "training")]
    assert activity.doing == "training"


def test_the_innermost_guard_reports_out_of_memory():
    class Guard:
        def __init__(self, name: str) -> None:
            self.name = name

        def post_mortem(self, error: BaseException) -> OutOfMemory:
            return OutOfMemory(f"{self.name}: {error}", code="memory.out")

    def fail(error: Exception) -> None:
        placing: Any = Guard("placing")
        training: Any = Guard("training")
        with reports_out_of_memory(placing), reports_out_of_memory(training):
            raise error

    with pytest.raises(OutOfMemory, match="training: no memory"):
        fail(MemoryError("no memory"))
    with pytest.raises(ValueError, match="another"):
        fail(ValueError("another"))


def test_the_limit_of_the_launcher_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PARATUNE_MICRO_BATCH_LIMIT", raising=False)
    assert limit_from_environment() is None
    monkeypatch.setenv("PARATUNE_MICRO_BATCH_LIMIT", "4")
    assert limit_from_environment() == 4
