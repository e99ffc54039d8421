"""Between steps: which evaluation was the best, what is kept of it, and checkpoints."""

import itertools
import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exact import RowModel, row_batch
from looping import Bench, single, tiny_run_config
from raised import raises_code

from paratune import checkpoint
from paratune.config.sections import Config
from paratune.console import Display
from paratune.engine.keeper import RunKeeper, best_folder
from paratune.engine.loop import Progress
from paratune.engine.stop import StopRequest

CPU = torch.device("cpu")


class Kept(Bench):
    """A loop whose evaluations give the scores that the test wants, one after another."""

    def with_scores(self, values: Iterable[float | None], settings: Config, name: str = "accuracy") -> "Kept":
        self.strategy = single()
        self.settings, self.name, self.values = settings, name, iter(values)
        self.begun: list[str] = []
        return self

    def build(self, progress: Progress) -> Any:
        built = super().build(progress)
        keeper = RunKeeper(
            config=self.settings,
            strategy=self.strategy,
            model=self.model,
            device=CPU,
            checkpoints=self.folder / "checkpoints",
            split_batches=lambda split: (2, iter([row_batch(range(4), 7), row_batch(range(4, 7), 7)])),
            score=lambda split, evaluation: {self.name: next(self.values), "loss": evaluation.loss},
            recorder=self.recorder,
            stop=self.stop,
            display=Display(speaks=False),
            num_steps=self.num_steps,
            steps_per_epoch=self.steps_per_epoch,
            set_activity=self.begun.append,
        )
        self.keeper = keeper
        return type(built)(**{**vars(built), "keeper": keeper})


@pytest.fixture
def bench(tmp_path: Path) -> Kept:
    return Kept(tmp_path, num_steps=5, evaluation_due=lambda step: step > 0)


def evaluations(bench: Bench) -> list[dict[str, Any]]:
    return [event for event in bench.logged() if event["event"] == "evaluation"]


@pytest.mark.parametrize(
    ("metric", "values", "best_steps"),
    [
        ("accuracy", [0.5, 0.4, 0.6, 0.6, 0.5], [1, 3]),
        ("rmse", [0.5, 0.6, 0.4, 0.4, 0.5], [1, 3]),
        ("accuracy", [None, 0.1, math.nan, 0.2, 0.1], [2, 4]),
    ],
)
def test_the_best_evaluation_is_the_first_with_the_best_value_of_the_metric(
    bench: Kept, metric: str, values: list[float | None], best_steps: list[int]
):
    settings = tiny_run_config("accuracy")
    settings = settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update={"best": metric})})
    progress = Progress()
    bench.with_scores(values, settings, metric).run(progress)
    assert [event["step"] for event in evaluations(bench) if event["is_best"]] == best_steps
    assert progress.best == {"step": best_steps[-1], "metric": metric, "value": values[best_steps[-1] - 1]}
    # Only the best snapshot stays, because no checkpoint refers to another.
    assert [path.name for path in (bench.folder / "checkpoints").iterdir()] == [f"best_{best_steps[-1]:06d}"]


def test_scorers_are_imported_before_an_evaluation_and_count_as_start(bench: Kept, monkeypatch: pytest.MonkeyPatch):
    def importing(task_kind: str) -> None:
        bench.begun.append(f"importing for {task_kind}")
        time.sleep(0.05)

    monkeypatch.setattr("paratune.engine.keeper.import_scorers", importing)
    bench.num_steps = 1
    progress = Progress()
    bench.with_scores([0.5], tiny_run_config()).run(progress)
    assert bench.begun[:2] == ["importing for classification", "evaluating"]
    assert progress.seconds["startup"] >= 0.05


def test_evaluation_time_is_the_sum_over_evaluations(bench: Kept):
    progress = Progress()
    bench.with_scores([0.5, 0.4, 0.3, 0.2, 0.1], tiny_run_config(None)).run(progress)
    # `time_s` of an event is rounded to 0.1 ms: five are off by at most 0.25 ms together.
    total = sum(event["time_s"] for event in evaluations(bench))
    assert progress.seconds["evaluate"] == pytest.approx(total, abs=2.6e-4)


def test_a_rank_out_of_memory_in_a_collective_is_reported(bench: Kept):
    bench.checkpoint_due = lambda step: step == 2
    bench.num_steps = 2
    bench.with_scores([0.5, 0.4], tiny_run_config("accuracy")).run(Progress())
    # The first evaluation is the best, and kept; the second is not, and its step is one for a checkpoint.
    # Each tensor that is written is said anew, as a sign of life.
    assert [doing for doing, _ in groupby(bench.begun)] == ["evaluating", "writing a checkpoint"] * 2


def test_min_delta_resets_the_patience_but_does_not_choose_the_best(bench: Kept):
    progress = Progress()
    bench.with_scores([0.5, 0.55, 0.62, 0.63, 0.9], tiny_run_config(min_delta=0.06, patience=2)).run(progress)
    # Gains over the best so far: 0.05 is none, 0.07 is one, 0.01 is none, 0.27 is one. The best is the highest of all.
    assert not progress.is_stopped_early
    assert progress.best is not None
    assert (progress.best["step"], progress.num_without_gain) == (5, 0)
    bench = Kept(bench.folder / "b", num_steps=5, evaluation_due=lambda step: step > 0)
    bench.folder.mkdir()
    bench.with_scores([0.5, 0.55, 0.56, 0.9], tiny_run_config(min_delta=0.1, patience=2)).run(progress := Progress())
    assert (progress.step, progress.best["step"]) == (3, 3)


def test_patience_counts_evaluations_without_gain(bench: Kept):
    progress = Progress()
    bench.with_scores([0.5, 0.4, 0.6, 0.6, 0.5, 0.9], tiny_run_config(patience=2)).run(progress)
    assert progress.is_stopped_early
    assert (progress.step, progress.num_without_gain) == (5, 2)
    bench = Kept(bench.folder / "b", num_steps=5, evaluation_due=lambda step: step > 0)
    bench.folder.mkdir()
    bench.with_scores([0.5, 0.4, 0.4, 0.9], tiny_run_config(patience=1)).run(progress := Progress())
    assert (progress.step, progress.is_stopped_early) == (2, True)


def test_without_a_metric_no_model_is_kept_and_no_run_stops_early(bench: Kept):
    progress = Progress()
    bench.with_scores([0.5, 0.4, 0.3, 0.2, 0.1], tiny_run_config(None)).run(progress)
    assert (progress.best, progress.is_stopped_early, progress.step) == (None, False, 5)
    assert not (bench.folder / "checkpoints").exists()


def test_an_evaluation_is_logged_with_its_scores_and_loss(bench: Kept):
    bench.with_scores([0.5] * 5, tiny_run_config()).run()
    first = evaluations(bench)[0]
    assert (first["step"], first["split"], first["num_samples"], first["is_best"]) == (1, "validation", 7, True)
    assert first["epoch"] == pytest.approx(1 / 3)
    assert first["scores"]["accuracy"] == 0.5
    assert first["scores"]["loss"] > 0
    assert first["time_s"] >= 0


def test_each_evaluation_is_a_line_of_the_log(bench: Kept, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="paratune.engine.keeper"):
        bench.with_scores([0.5, 0.75, 0.4, 0.3, 0.2], tiny_run_config()).run()
    lines = [record.getMessage() for record in caplog.records if "accuracy" in record.getMessage()]
    assert [f"step {step}/5" in line for step, line in enumerate(lines, start=1)] == [True] * 5
    assert ["not kept" not in line for line in lines] == [True, True, False, False, False]
    assert ["accuracy 0.75 at step 2" in line for line in lines] == [False, False, True, True, True]


def test_the_best_weights_are_loaded_at_the_end(bench: Kept):
    kept: dict[int, torch.Tensor] = {}

    def values() -> Iterable[float]:
        for value in (0.5, 0.9, 0.4, 0.3, 0.2):
            kept[len(kept) + 1] = bench.model.head.weight.detach().clone()
            yield value

    progress = Progress()
    bench.with_scores(values(), tiny_run_config()).run(progress)
    assert not torch.equal(bench.model.head.weight, kept[2])
    assert bench.keeper.load_best(progress) == 2
    assert torch.equal(bench.model.head.weight, kept[2])


def test_nothing_is_loaded_if_the_last_step_is_best_or_no_metric_is_set(bench: Kept):
    progress = Progress()
    bench.with_scores([0.1, 0.2, 0.3, 0.4, 0.5], tiny_run_config()).run(progress)
    assert bench.keeper.load_best(progress) == 5
    assert bench.keeper.evaluation_at(5) is not None
    assert bench.keeper.evaluation_at(4) is None
    progress.best = None
    assert bench.keeper.load_best(progress) == 5


def damage_best(bench: Kept, step: int, *, is_missing: bool) -> None:
    folder = best_folder(bench.folder / "checkpoints", step)
    path = folder / "tensors.00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    if is_missing:
        shutil.rmtree(folder)


@pytest.mark.parametrize("is_missing", [False, True])
def test_without_a_snapshot_of_the_best_step_the_last_model_is_kept_with_a_warning(bench: Kept, is_missing: bool):
    progress = Progress()
    bench.with_scores([0.5, 0.9, 0.4, 0.3, 0.2], tiny_run_config()).run(progress)
    damage_best(bench, 2, is_missing=is_missing)
    before = bench.model.head.weight.detach().clone()
    events: dict[str, dict[str, Any]] = {}
    bench.keeper.recorder = SimpleNamespace(add=lambda name, **values: events.update({name: values}))
    assert bench.keeper.load_best(progress) == 5
    assert torch.equal(bench.model.head.weight, before)
    assert progress.best is None
    event = events["best_lost"]
    assert event["best"] == {"step": 2, "metric": "accuracy", "value": 0.9}
    assert len(event["reasons"]) == 3
    assert "best_000002" in event["reasons"][0]


def test_the_checkpoint_of_the_best_step_replaces_a_missing_snapshot(bench: Kept):
    progress = Progress()
    bench.checkpoint_due = lambda step: step == 2
    weights: dict[int, torch.Tensor] = {}

    def values() -> Iterable[float]:
        for value in (0.5, 0.9, 0.4, 0.3, 0.2):
            weights[len(weights) + 1] = bench.model.head.weight.detach().clone()
            yield value

    bench.with_scores(values(), tiny_run_config()).run(progress)
    damage_best(bench, 2, is_missing=True)
    assert bench.keeper.load_best(progress) == 2
    assert torch.equal(bench.model.head.weight, weights[2])
    assert progress.best == {"step": 2, "metric": "accuracy", "value": 0.9}


def test_a_snapshot_that_a_checkpoint_refers_to_stays(bench: Kept):
    # The checkpoint of step 3 knows the best of step 1; a run that goes on from there needs it.
    bench.checkpoint_due = lambda step: step == 3
    bench.with_scores([0.5, 0.4, 0.4, 0.6, 0.7], tiny_run_config()).run()
    names = sorted(path.name for path in (bench.folder / "checkpoints").iterdir())
    assert names == ["best_000001", "best_000005", "step_000003"]


def test_checkpoints_are_logged_and_old_ones_are_deleted(bench: Kept):
    bench.checkpoint_due = lambda step: step > 0
    progress = Progress()
    bench.with_scores([0.5] * 5, tiny_run_config(None, keep=2)).run(progress)
    folder = bench.folder / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step_000004", "step_000005"]
    events = [event for event in bench.logged() if event["event"] == "checkpoint"]
    assert [(event["step"], event["reason"]) for event in events] == [(step, "scheduled") for step in range(1, 6)]
    size = sum(path.stat().st_size for path in (folder / "step_000005").iterdir())
    assert events[-1]["num_bytes"] == size
    assert progress.seconds["checkpoint"] > 0
    assert progress.seconds["evaluate"] > 0
    saved = Progress(**checkpoint.read_progress(folder / "step_000005"))
    assert (saved.step, saved.saved_step, saved.evaluated_step) == (5, 5, 5)


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_is_not_counted(
    bench: Kept, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    bench.checkpoint_due = lambda step: step == 2
    progress = Progress()
    with raises_code("output.not_writable", "step_000002"):
        bench.with_scores([0.5] * 5, tiny_run_config(None)).run(progress)
    assert progress.saved_step == 0
    assert list((bench.folder / "checkpoints").iterdir()) == []


def sharded_config(sharded: bool | str) -> Config:
    settings = tiny_run_config()
    return settings.model_copy(
        update={"checkpoint": settings.checkpoint.model_copy(update={"sharded": sharded, "keep": 9})}
    )


def names_of_tensors(folder: Path) -> set[str]:
    return {path.name.split(".")[1] for path in folder.glob("tensors.*")}


@pytest.mark.parametrize(
    ("sharded", "can", "missing_bytes", "is_sharded"),
    [
        ("auto", True, 0, True),
        ("auto", True, 1, False),
        ("auto", False, 0, False),
        (True, True, 10**12, True),
        (False, True, 0, False),
    ],
)
def test_large_checkpoints_are_sharded_if_the_strategy_can(
    bench: Kept,
    monkeypatch: pytest.MonkeyPatch,
    sharded: bool | str,
    can: bool,
    missing_bytes: int,
    is_sharded: bool,
):
    bench.checkpoint_due = lambda step: step in (1, 5)
    bench.with_scores([0.5, 0.6, 0.4, 0.3, 0.2], sharded_config(sharded))
    bench.strategy.traits = replace(bench.strategy.traits, writes_shards=can)
    bench.build(Progress())
    bench.events.close()
    weights = {*bench.model.parameters(), *bench.model.buffers()}
    trained = sum(parameter.nbytes for parameter in bench.model.parameters())
    persistent = bench.model.state_dict(keep_vars=True).values()
    # Weights and persistent buffers, two moments, and a step count of 4 bytes for each parameter.
    num_bytes = sum(tensor.nbytes for tensor in weights if any(tensor is other for other in persistent))
    num_bytes += 2 * trained + 4 * len(list(bench.model.parameters()))
    monkeypatch.setattr(checkpoint, "SHARDED_FROM_BYTES", num_bytes + missing_bytes)
    progress = Progress()
    bench.run(progress)
    folder = bench.folder / "checkpoints"
    for step in (1, 5):
        assert names_of_tensors(folder / f"step_{step:06d}") == ({"rank0000"} if is_sharded else {"00000"})
        checkpoint.verify(folder / f"step_{step:06d}")
    # The weights alone have fewer bytes than the threshold of `auto`.
    assert names_of_tensors(best_folder(folder, 2)) == ({"rank0000"} if sharded is True else {"00000"})
    assert bench.keeper.load_best(progress) == 2
    best = checkpoint.CheckpointReader(best_folder(folder, 2))
    assert torch.equal(best.read("model/head.weight"), bench.model.head.weight)
    events = [event for event in bench.logged() if event["event"] == "checkpoint"]
    assert events[0]["num_bytes"] == sum(path.stat().st_size for path in (folder / "step_000001").iterdir())


def test_auto_begins_at_20_gb():
    assert checkpoint.SHARDED_FROM_BYTES == 20_000_000_000
    assert tiny_run_config().checkpoint.sharded == "auto"


def test_all_ranks_fail_if_the_writer_fails(bench: Kept, monkeypatch: pytest.MonkeyPatch):
    bench.with_scores([0.5], tiny_run_config(None)).build(Progress())
    bench.events.close()
    bench.strategy.layout = replace(bench.strategy.layout, rank=1)
    monkeypatch.setattr(bench.strategy, "reduce", lambda value, op: torch.ones_like(value), raising=False)
    with raises_code("output.not_writable", "rank 0", "step_000000"):
        bench.keeper.save(Progress(), "scheduled")


def test_a_signal_during_an_evaluation_saves_the_step_before_it(bench: Kept):
    stop = bench.stop
    asked = itertools.count()

    class InTheSecondBatch(StopRequest):
        def came(self) -> bool:
            # Asked once after each step, and before each of two batches: the third time is within an evaluation.
            if next(asked) == 2:
                self.signal = "SIGTERM"
            return self.signal is not None

    bench.stop = InTheSecondBatch()
    assert not stop.came()
    progress = Progress()
    with raises_code("stopped.signal", "SIGTERM", "step 1"):
        bench.with_scores([0.5] * 5, tiny_run_config()).run(progress)
    (folder,) = checkpoint.list_checkpoints(bench.folder / "checkpoints")
    saved = Progress(**checkpoint.read_progress(folder))
    assert (saved.step, saved.evaluated_step, saved.best) == (1, 0, None)
    assert evaluations(bench) == []


def test_a_model_of_any_class_is_saved(tmp_path: Path):
    bench = Kept(tmp_path, num_steps=2, model=RowModel(tied=True), checkpoint_due=lambda step: step == 2)
    bench.with_scores([], tiny_run_config(None)).run()
    reader = checkpoint.CheckpointReader(tmp_path / "checkpoints" / "step_000002")
    assert torch.equal(reader.read("model/hidden.weight"), bench.model.hidden.weight)
    assert torch.equal(reader.read("model/seen"), bench.model.seen)


def test_a_best_snapshot_that_is_temporarily_unreadable_is_an_error(bench: Kept, monkeypatch: pytest.MonkeyPatch):
    progress = Progress()
    bench.with_scores([0.5, 0.9, 0.4, 0.3, 0.2], tiny_run_config()).run(progress)

    def refuse(path: Path) -> str:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("paratune.checkpoint.file_sha256", refuse)
        with raises_code("checkpoint.unreadable", "Stale file handle"):
            bench.keeper.load_best(progress)
    assert progress.best is not None
    assert bench.keeper.load_best(progress) == 2


@pytest.mark.parametrize(
    "progress",
    ['{"best": {"step": "x"}}', '{"best": {"step": [1]}}', '{"best": {}}', '{"best": 3}', "[]", '{"best'],
    ids=str,
)
def test_damaged_progress_of_an_older_checkpoint_is_ignored(tmp_path: Path, progress: str):
    checkpoints = tmp_path / "checkpoints"
    for name in ("step_000001", "best_000001", "best_000002", "best_mine"):
        (checkpoints / name).mkdir(parents=True)
    (checkpoints / "step_000001" / "progress.json").write_text(progress)
    keeper = object.__new__(RunKeeper)
    keeper.checkpoints = checkpoints
    keeper._drop_old_best(Progress(best={"step": 2}))
    assert sorted(path.name for path in checkpoints.glob("best_*")) == ["best_000002"]
