"""Which micro-batch a resumed run takes, and steps that are had again in smaller ones."""

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
from paratune.hangs.pulse import Pulse
from paratune.train.memory import Activity, StepBatches, explained, limit_from_environment, recorded_size

HERE = {"world_size": 2, "device": "cpu", "batch.micro_batch_size": "auto"}
ELSEWHERE = HERE | {"world_size": 4}


def session(size: int, *changes: int, setup: dict[str, Any] = HERE) -> dict[str, Any]:
    batch = {"micro_batch_size": size, "changes": [{"micro_batch_size": each} for each in changes], "setup": setup}
    return {"began": f"with {size}", "batch": batch}


def ran_out(size: int, smaller: int | None, setup: dict[str, Any] = HERE) -> dict[str, Any]:
    return {"micro_batch_size": size, "next_micro_batch_size": smaller, "setup": setup}


@pytest.mark.parametrize(
    ("sessions", "happenings", "expected"),
    [
        ([], {}, None),
        ([session(32)], {}, (32, "as in the session of with 32")),
        ([session(32, 16, 8)], {}, (8, "as in the session of with 32")),
        # Under another setup another size may fit; a record from before there were setups says nothing.
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
def test_the_size_that_a_run_came_to(tmp_path: Path, sessions: Any, happenings: Any, expected: Any):
    records.write_json(tmp_path / records.RUN_FILE, {"sessions": sessions})
    for rank, each in happenings.items():
        records.write_json(tmp_path / records.out_of_memory_file(rank), {"happenings": each})
    assert recorded_size(tmp_path, HERE) == expected


def test_a_run_that_never_began_came_to_nothing(tmp_path: Path):
    assert recorded_size(tmp_path, HERE) is None


def test_a_step_is_had_again_in_smaller_pieces_and_the_next_ones_follow():
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
    batches.again(halves)
    assert rows(next(batches)) == [first[:2], first[2:]]
    assert rows(next(batches)) == rows(make(halves).step(2))


def test_what_is_begun_stands_in_the_event_log_once():
    noted: list[tuple[str, str]] = []
    recorder: Any = SimpleNamespace(add=lambda event, doing: noted.append((event, doing)))
    activity = Activity(Pulse(), recorder)
    activity.begins("placing the model")
    for doing in ("training", "training", "evaluating", "training"):
        activity.begins(doing)
    assert noted == [("begin", "training"), ("begin", "evaluating"), ("begin", "training")]
    assert activity.doing == "training"


def test_running_out_of_memory_is_explained_by_the_guard_of_that_part():
    class Guard:
        def __init__(self, name: str) -> None:
            self.name = name

        def post_mortem(self, error: BaseException) -> OutOfMemory:
            return OutOfMemory(f"{self.name}: {error}", code="memory.out")

    current: Any = Guard("before")

    def fail(error: Exception) -> None:
        nonlocal current
        with explained(lambda: current):
            current = Guard("training")
            raise error

    with pytest.raises(OutOfMemory, match="training: no room"):
        fail(MemoryError("no room"))
    with pytest.raises(ValueError, match="another"):
        fail(ValueError("another"))


def test_the_launchers_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PARATUNE_MICRO_BATCH_LIMIT", raising=False)
    assert limit_from_environment() is None
    monkeypatch.setenv("PARATUNE_MICRO_BATCH_LIMIT", "4")
    assert limit_from_environment() == 4
