"""A run that was interrupted and goes on is bit for bit the one that was not: weights, optimizer states, losses."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from looping import CPU, Bench, single, tiny_run_config
from tiny import tiny_model
from tiny_data import tiny_collator
from torch import Tensor

from paratune import checkpoint
from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.console import Display
from paratune.data.loader import TrainBatches, eval_batches
from paratune.engine import loop
from paratune.engine.keeper import RunKeeper
from paratune.engine.loop import Progress
from paratune.errors import Stopped
from paratune.metrics.classification import classification_scores
from paratune.models.task_model import TaskModel, freeze_encoder
from paratune.precision import POLICIES

NUM_STEPS = 12
NUM_SAMPLES = 26
"""With 4 a step: 7 steps an epoch, the last one of 2 samples."""


@dataclass
class Outcome:
    """Where a run ended."""

    losses: list[float]
    states: dict[str, Tensor]
    progress: Progress


class Whole(Bench):
    """A loop with the real keeper and a tiny BERT with dropout."""

    def build(self, progress: Progress) -> Any:
        built = super().build(progress)
        validation = tiny_collator(9, seed=1)
        keeper = RunKeeper(
            config=tiny_run_config("loss"),
            strategy=self.strategy,
            model=self.model,
            device=CPU,
            checkpoints=self.folder / "checkpoints",
            split_batches=lambda split: (3, eval_batches(validation, batch_size=3)),
            score=lambda split, evaluation: {
                **classification_scores(evaluation.outputs, validation.labels),
                "loss": evaluation.loss,
            },
            recorder=self.recorder,
            stop=self.stop,
            display=Display(speaks=False),
            num_steps=self.num_steps,
            steps_per_epoch=7,
        )
        return type(built)(**{**vars(built), "keeper": keeper})


def go(
    folder: Path,
    *,
    accumulation: int = 1,
    stop_at: int | None = None,
    resume: bool = False,
    precision: str = "fp32",
    frozen: bool = False,
) -> Outcome:
    """Make everything anew, as a new process would, and train: from the newest checkpoint, until a signal comes."""
    torch.manual_seed(stop_at or 0)  # what was drawn before must not matter
    model = TaskModel(tiny_model(dropout=0.2).eval(), "classification")  # as transformers loads it
    model.to(POLICIES[precision].param_dtype)
    if frozen:
        freeze_encoder(model)
    bench = Whole(
        folder,
        num_steps=NUM_STEPS,
        model=model,
        strategy=single(precision),
        train=Train(learning_rate=1e-3, warmup_steps=3),
        steps_per_epoch=7,
        seed=7,
        evaluation_due=lambda step: step in (4, 8, 12),
    )
    bench.prepare()
    progress = Progress()
    if resume:
        newest = checkpoint.find_newest(folder / "checkpoints")
        assert newest is not None
        reader = checkpoint.CheckpointReader(newest)
        bench.strategy.state().load(reader.read, reader.keys())
        progress = Progress(**reader.progress)
    bench.batches = interrupted(bench, accumulation, range(progress.step, NUM_STEPS), stop_at)
    with pytest.raises(Stopped) if stop_at else nullcontext():
        bench.run(progress)
    states = {key: value.clone() for key, value in bench.strategy.state().tensors()}
    return Outcome([step["loss"] for step in bench.steps()], states, progress)


def interrupted(bench: Bench, accumulation: int, steps: range, stop_at: int | None) -> Iterator[list[Batch]]:
    batches = TrainBatches(
        tiny_collator(NUM_SAMPLES),
        seed=7,
        global_batch_size=4,
        micro_batch_size=4 // accumulation,
        num_micro_steps=accumulation,
        data_rank=0,
        data_world_size=1,
    )
    for step in steps:
        if step + 1 == stop_at:
            bench.stop.signal = "SIGTERM"
        yield batches.step(step)


def assert_identical(first: Outcome, second: Outcome) -> None:
    assert list(first.states) == list(second.states)
    for key, value in first.states.items():
        assert torch.equal(second.states[key], value), key
    assert second.losses[-len(first.losses) :] == first.losses[-len(second.losses) :]
    assert second.progress.best == first.progress.best
    assert second.progress.step == first.progress.step


@pytest.mark.parametrize(
    ("stop_at", "options"),
    [
        (5, {}),  # in the middle of an epoch, after an evaluation
        (4, {}),  # where an evaluation is due: the resumed run makes up for it
        (7, {}),  # after the short step at the end of an epoch
        (5, {"accumulation": 2}),
        (9, {"accumulation": 4}),  # with filler in the second epoch
        (5, {"precision": "fp64"}),
        (5, {"precision": "bf16"}),
        (5, {"frozen": True}),
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_undisturbed_run_bit_for_bit(tmp_path: Path, stop_at: int, options: dict[str, Any]):
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    straight.mkdir()
    parts.mkdir()
    whole = go(straight, **options)
    first = go(parts, stop_at=stop_at, **options)
    assert first.losses == whole.losses[:stop_at]
    second = go(parts, resume=True, **options)
    assert second.losses == whole.losses
    assert_identical(whole, second)
    assert any(key.startswith("optimizer/") for key in whole.states)


def test_a_run_that_is_stopped_many_times_equals_an_undisturbed_run(tmp_path: Path):
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    straight.mkdir()
    parts.mkdir()
    whole = go(straight, accumulation=2)
    for place, stop_at in enumerate((2, 3, 8, 11)):
        go(parts, accumulation=2, stop_at=stop_at, resume=place > 0)
    assert_identical(whole, go(parts, accumulation=2, resume=True))


def test_dropout_was_on_and_depends_on_the_step(tmp_path: Path):
    # Else the tests above would hold without a seed in each step.
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = go(tmp_path / "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "seed_step", lambda *_: None)
        assert go(tmp_path / "b").losses[0] != whole.losses[0]


def test_a_checkpoint_without_optimizer_states_gives_other_losses(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = go(tmp_path / "a")
    go(tmp_path / "b", stop_at=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            checkpoint.CheckpointReader,
            "keys",
            lambda self, prefix="": [key for key in self._places if "model/" in key],
        )
        assert go(tmp_path / "b", resume=True).losses[6:] != whole.losses[6:]
