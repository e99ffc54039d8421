"""The record of a Trainer run: phases, counts, evaluations, and what is refused."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from raised import raises_code
from tiny import tiny_model
from transformers import Trainer, TrainerCallback, TrainingArguments

from paratune.config.load import load_config
from paratune.engine.stop import StopRequest
from paratune.errors import CheckpointError, ConfigError
from paratune.hf import PhaseCallback
from paratune.hf import callback as callback_module
from paratune.records import ALL_PHASES, RUN_FILE, SUMMARY_FILE, read_events
from paratune.records.run_folder import is_in_use
from paratune.reports import make
from paratune.reports.comparison import make_comparison
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import ALLOW
from paratune.training.run import train
from paratune.watch.run import RunWatch

LENGTHS = (3, 5, 7, 4, 6, 9)
"""Tokens of the rows; without shuffling, batches of two are padded to 5, 7 and 9."""
DELAY_S = 0.05
ROUNDING_MS = 0.0005
"""Phases and wall time are rounded to 4 digits: five phases differ from their sum by at most 6 x 0.00005 ms."""


@pytest.fixture(autouse=True)
def backward_is_restored() -> Iterator[None]:
    before = torch.Tensor.backward
    yield
    torch.Tensor.backward = before


def rows() -> list[dict[str, Any]]:
    return [{"input_ids": [5] * length, "labels": number % 2} for number, length in enumerate(LENGTHS)]


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    padding = [longest - len(sample["input_ids"]) for sample in samples]
    return {
        "input_ids": torch.tensor([s["input_ids"] + [0] * n for s, n in zip(samples, padding, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - n) + [0] * n for n in padding]),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


def trainer(
    tmp_path: Path,
    *,
    callback: PhaseCallback | None = None,
    collator: Callable[[Any], Any] = collate,
    trainer_class: type[Trainer] = Trainer,
    model: torch.nn.Module | None = None,
    others: tuple[TrainerCallback, ...] = (),
    **arguments: Any,
) -> Trainer:
    values = {
        "output_dir": str(tmp_path / "trainer"),
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1,
        "dataloader_pin_memory": False,
        **arguments,
    }
    return trainer_class(
        model=tiny_model(dropout=0.0) if model is None else model,
        args=TrainingArguments(**values),
        train_dataset=rows(),
        eval_dataset=rows()[:4],
        data_collator=collator,
        compute_metrics=lambda output: {"accuracy": float((output[0].argmax(-1) == output[1]).mean())},
        callbacks=[PhaseCallback(tmp_path / "run", warmup_steps=1) if callback is None else callback, *others],
    )


def steps(tmp_path: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(tmp_path / "run") if event["event"] == "step"]


def summary(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())


def mean_ms(tmp_path: Path) -> dict[str, float]:
    events = steps(tmp_path)[1:]
    return {phase: sum(event["phases_ms"][phase] for event in events) / len(events) for phase in ALL_PHASES}


def least_ms(tmp_path: Path) -> dict[str, float]:
    return {phase: min(event["phases_ms"][phase] for event in steps(tmp_path)[1:]) for phase in ALL_PHASES}


def test_phases_sum_to_the_wall_time_of_each_step(tmp_path: Path):
    trainer(tmp_path).train()
    events = steps(tmp_path)
    assert [event["step"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event["warmup"] for event in events] == [True, False, False, False, False, False]
    for event in events:
        assert set(event["phases_ms"]) == set(ALL_PHASES)
        assert sum(event["phases_ms"].values()) == pytest.approx(event["wall_ms"], abs=ROUNDING_MS)
        assert all(event["phases_ms"][phase] > 0 for phase in ALL_PHASES)


def test_steps_fill_the_time_of_the_training(tmp_path: Path):
    # The Trainer has its own clock, which also has the start and the end of the training.
    result = trainer(tmp_path, others=(Slow("on_step_begin"),)).train()
    wall_s = sum(event["wall_ms"] for event in steps(tmp_path)) / 1000
    assert 6 * DELAY_S < wall_s <= result.metrics["train_runtime"]


def test_tokens_and_samples_are_those_of_the_batches(tmp_path: Path):
    trainer(tmp_path).train()
    events = steps(tmp_path)
    assert [event["num_samples"] for event in events] == [2] * 6
    assert [event["num_tokens"] for event in events] == [3 + 5, 7 + 4, 6 + 9] * 2
    assert [event["num_padded_tokens"] for event in events] == [2 * 5, 2 * 7, 2 * 9] * 2
    rates = summary(tmp_path)["throughput"]
    wall_s = sum(event["wall_ms"] for event in events[1:]) / 1000
    assert rates["tokens_per_s"] == pytest.approx((2 * 34 - 8) / wall_s)
    assert rates["padding_share"] == pytest.approx(1 - (2 * 34 - 8) / (2 * 42 - 10))


def test_gradient_accumulation_makes_one_step_of_several_batches(tmp_path: Path):
    trainer(tmp_path, gradient_accumulation_steps=2).train()
    events = steps(tmp_path)
    # Three batches an epoch: two in the first step, the rest in the second.
    assert [event["num_tokens"] for event in events] == [8 + 11, 15] * 2
    assert [event["num_samples"] for event in events] == [4, 2] * 2
    assert [event["epoch"] for event in events] == pytest.approx([2 / 3, 1, 5 / 3, 2], abs=1e-6)
    record = json.loads((tmp_path / "run" / RUN_FILE).read_text())
    assert record["batch"]["global_batch_size"] == 4
    assert record["plan"] == {
        "num_steps": 4,
        "steps_per_epoch": 2,
        "num_epochs": 2.0,
        "batches_per_epoch": 3,
        "num_batches": 8,
    }


def test_tokens_are_unknown_without_a_mask(tmp_path: Path):
    trainer(
        tmp_path, collator=lambda samples: {k: v for k, v in collate(samples).items() if k != "attention_mask"}
    ).train()
    assert [event["num_tokens"] for event in steps(tmp_path)] == [None] * 6
    rates = summary(tmp_path)["throughput"]
    assert rates["tokens_per_s"] is None
    assert rates["padding_share"] is None
    assert rates["padded_tokens_per_s"] > 0


def test_a_delay_in_the_collator_is_in_get_batch(tmp_path: Path):
    def slow(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        time.sleep(DELAY_S)
        return collate(samples)

    trainer(tmp_path, collator=slow).train()
    assert_delayed(tmp_path, "get_batch", share=0.6)  # the loader is a batch ahead, and reads none with the last one


def test_a_delay_in_the_model_is_in_forward(tmp_path: Path):
    model = tiny_model()
    model.bert.register_forward_hook(lambda *_: time.sleep(DELAY_S))
    trainer(tmp_path, model=model).train()
    assert_delayed(tmp_path, "forward")


def test_a_delay_in_a_loss_of_the_trainer_is_in_forward(tmp_path: Path):
    class SlowLoss(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            time.sleep(DELAY_S)
            return loss

    trainer(tmp_path, trainer_class=SlowLoss).train()
    assert_delayed(tmp_path, "forward")


def test_a_delay_in_a_hook_of_a_gradient_is_in_backward(tmp_path: Path):
    model = tiny_model()
    model.classifier.weight.register_hook(lambda _: time.sleep(DELAY_S))
    trainer(tmp_path, model=model).train()
    assert_delayed(tmp_path, "backward")


class Slow(TrainerCallback):
    """Sleeps in one event of the Trainer."""

    def __init__(self, event: str) -> None:
        setattr(self, event, lambda *args, **kwargs: time.sleep(DELAY_S))


def test_a_delay_before_the_update_is_in_optimizer(tmp_path: Path):
    trainer(tmp_path, others=(Slow("on_pre_optimizer_step"),)).train()
    assert_delayed(tmp_path, "optimizer")


def test_a_delay_after_a_step_is_in_other(tmp_path: Path):
    trainer(tmp_path, others=(Slow("on_log"),)).train()
    assert_delayed(tmp_path, "other", share=0.7)  # the last step of an epoch is logged in it, the next is not delayed


def assert_delayed(tmp_path: Path, phase: str, *, share: float = 1.0) -> None:
    """Check that one phase has the delay of each step, and no other phase has: on a busy machine, not in each step."""
    assert mean_ms(tmp_path)[phase] >= share * 1000 * DELAY_S
    least = least_ms(tmp_path)
    assert all(value < 500 * DELAY_S for name, value in least.items() if name != phase), least


def test_losses_norms_and_rates_are_those_that_the_trainer_logs(tmp_path: Path):
    instance = trainer(tmp_path)
    instance.train()
    logs = [entry for entry in instance.state.log_history if "grad_norm" in entry]
    events = steps(tmp_path)
    for key in ("loss", "grad_norm", "learning_rate"):
        assert [event[key] for event in events] == pytest.approx([entry[key] for entry in logs], rel=1e-3), key


def test_a_norm_that_the_trainer_does_not_log_is_unknown(tmp_path: Path):
    trainer(tmp_path, logging_steps=3).train()
    assert [event["grad_norm"] is None for event in steps(tmp_path)] == [True, True, False, True, True, False]


def test_the_training_is_the_same_with_and_without_the_callback(tmp_path: Path):
    measured, plain = trainer(tmp_path), trainer(tmp_path)
    plain.pop_callback(PhaseCallback)
    for instance in (measured, plain):
        instance.train()
    for left, right in zip(measured.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_evaluations_have_their_scores_and_no_step_has_their_time(tmp_path: Path):
    model = tiny_model()
    model.register_forward_hook(lambda module, *_: None if module.training else time.sleep(DELAY_S))
    instance = trainer(
        tmp_path,
        model=model,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    instance.train()
    found = [event for event in read_events(tmp_path / "run") if event["event"] == "evaluation"]
    logged = [entry for entry in instance.state.log_history if "eval_loss" in entry]
    assert [(event["step"], event["split"], event["num_samples"]) for event in found] == [
        (3, "validation", 4),
        (6, "validation", 4),
    ]
    for event, entry in zip(found, logged, strict=True):
        assert event["scores"] == {"loss": entry["eval_loss"], "accuracy": entry["eval_accuracy"]}
    assert all(value < 500 * DELAY_S for value in least_ms(tmp_path).values())
    best = summary(tmp_path)["best"]
    assert best["value"] == instance.state.best_metric
    assert best["step"] == instance.state.best_global_step
    kept = found[[event["step"] for event in found].index(best["step"])]
    assert summary(tmp_path)["scores"] == {"validation": kept["scores"]}
    assert summary(tmp_path)["kept_step"] == best["step"]
    assert [evaluation["step"] for evaluation in summary(tmp_path)["evaluations"]] == [3, 6]
    assert [event["step"] for event in read_events(tmp_path / "run") if event["event"] == "checkpoint"] == [3, 6]


class EndsFirstEpoch(TrainerCallback):
    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        self.num_substeps = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.num_substeps += 1
        control.should_epoch_stop = self.num_substeps == 1


def test_batches_of_a_step_without_an_update_are_not_those_of_the_next_step(tmp_path: Path):
    options = {"gradient_accumulation_steps": 3, "num_train_epochs": 2}
    trainer(tmp_path, others=(EndsFirstEpoch(),), **options).train()
    (step,) = (event for event in read_events(tmp_path / "run") if event["event"] == "step")
    assert (step["num_samples"], step["num_tokens"]) == (len(LENGTHS), sum(LENGTHS))


def test_an_evaluation_after_the_training_joins_the_scores(tmp_path: Path):
    instance = trainer(tmp_path)
    instance.train()
    assert summary(tmp_path)["scores"] == {}
    metrics = instance.evaluate()
    instance.predict(rows()[:2])
    scores = summary(tmp_path)["scores"]
    assert scores["validation"] == {"loss": metrics["eval_loss"], "accuracy": metrics["eval_accuracy"]}
    assert set(scores["test"]) == {"loss", "accuracy"}


def test_report_and_watch_read_the_folder(tmp_path: Path):
    trainer(tmp_path, eval_strategy="epoch").train()
    (values,) = make([tmp_path / "run"], out=None).as_dict()["runs"]
    figures = summary(tmp_path)
    assert values["values"]["tokens_per_s"] == figures["throughput"]["tokens_per_s"]
    assert values["values"]["validation_accuracy"] == figures["scores"]["validation"]["accuracy"]
    view = RunWatch(tmp_path / "run").look()
    assert (view.state, view.step, view.strategy) == ("finished", 6, "trainer-single")


def test_a_training_that_fails_leaves_no_summary(tmp_path: Path):
    class Failure(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4:
                raise MemoryError

    with pytest.raises(MemoryError):
        trainer(tmp_path, others=(Failure(),)).train()
    assert not (tmp_path / "run" / SUMMARY_FILE).exists()
    assert steps(tmp_path) == []  # ten of them are written at once
    with pytest.raises(CheckpointError) as refused:
        PhaseCallback(tmp_path / "run")
    assert refused.value.code == "run.exists"


def test_backward_is_restored_after_a_training_that_failed(tmp_path: Path):
    before = torch.Tensor.backward
    instance = trainer(tmp_path, others=(FailsFirst(),))
    with pytest.raises(MemoryError):
        instance.train()
    del instance
    gc.collect()
    weight = torch.ones(1, requires_grad=True)
    (2 * weight).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == 2
    assert torch.Tensor.backward is before


class FailsFirst(TrainerCallback):
    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        raise MemoryError


@pytest.mark.parametrize(("rank", "code"), [(0, "output.foreign"), (1, "launch.rank_0_failed")])
def test_every_rank_learns_that_rank_0_cannot_take_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, code: str
):
    reduced = []

    def reduce(value: torch.Tensor, _op: str) -> torch.Tensor:
        reduced.append(float(value))
        return torch.ones(1)

    monkeypatch.setattr(callback_module, "reduce_over_ranks", reduce)
    monkeypatch.setattr(TrainingArguments, "process_index", rank)
    instance = trainer(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("x")
    with raises_code(code):
        instance.train()
    assert reduced == [1.0 - rank]


def test_a_training_that_starts_again_writes_its_record_from_the_start(tmp_path: Path):
    class FailOnce(TrainerCallback):
        failed = False

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4 and not self.failed:
                self.failed = True
                raise KeyboardInterrupt

    instance = trainer(tmp_path, others=(FailOnce(),))
    with pytest.raises(KeyboardInterrupt):
        instance.train()
    assert is_in_use(tmp_path / "run")
    instance.train()
    assert [event["step"] for event in steps(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert summary(tmp_path)["num_steps"] == 6
    assert not is_in_use(tmp_path / "run")


def test_backward_loader_and_model_are_restored(tmp_path: Path):
    before = torch.Tensor.backward
    instance = trainer(tmp_path)
    instance.train()
    assert torch.Tensor.backward is before
    loader: Any = type(instance.callback_handler.train_dataloader)
    assert not loader.__iter__.__module__.startswith("paratune")
    modules = list(instance.model.modules())
    assert not any("paratune" in type(module).__module__ or "forward" in vars(module) for module in modules)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_an_existing_run_is_refused_unless_it_is_overwritten(tmp_path: Path):
    trainer(tmp_path).train()
    with pytest.raises(CheckpointError) as refused:
        PhaseCallback(tmp_path / "run")
    assert refused.value.code == "run.exists"
    trainer(tmp_path, callback=PhaseCallback(tmp_path / "run", overwrite=True), num_train_epochs=1).train()
    assert summary(tmp_path)["num_steps"] == 3


def test_a_folder_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(CheckpointError) as refused:
            PhaseCallback(tmp_path / "run", overwrite=overwrite)
        assert refused.value.code == "output.foreign"


def test_arguments_out_of_range_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError) as refused:
        PhaseCallback(tmp_path / "run", warmup_steps=-1)
    assert (refused.value.code, refused.value.facts["key"]) == ("hf.argument", "warmup_steps")


def test_a_training_from_a_checkpoint_is_refused(tmp_path: Path):
    trainer(tmp_path, save_strategy="epoch").train()
    with pytest.raises(ConfigError) as refused:
        trainer(tmp_path, callback=PhaseCallback(tmp_path / "second")).train(
            resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-3")
        )
    assert (refused.value.code, refused.value.facts["step"]) == ("hf.unsupported", 3)
    assert not (tmp_path / "second").exists()


def test_two_trainer_runs_differ_in_their_arguments(tmp_path: Path):
    names = ("first", "second")
    for name, rate in zip(names, (1e-3, 2e-3), strict=True):
        trainer(tmp_path, callback=PhaseCallback(tmp_path / name), learning_rate=rate).train()
    report = make([tmp_path / name for name in names], out=None).as_dict()
    assert report["same_experiment"]["verdict"] == "different"
    assert report["same_experiment"]["differ"] == {
        "train_settings": {"first": {"learning_rate": 1e-3}, "second": {"learning_rate": 2e-3}}
    }


def test_equal_trainer_runs_are_not_called_the_same_experiment(tmp_path: Path):
    for name in ("first", "second"):
        trainer(tmp_path, callback=PhaseCallback(tmp_path / name)).train()
    found = make([tmp_path / "first", tmp_path / "second"], out=None).as_dict()["same_experiment"]
    assert found["verdict"] == "unknown"
    assert len(found["not_recorded"]) == 4  # tokens, and the data sets


@pytest.fixture
def paratune_run(tmp_path: Path) -> Path:
    """A run of paratune on texts with the lengths of `rows`: [CLS], words, [SEP]."""
    for name, lengths in (("train", LENGTHS), ("validation", LENGTHS[:4])):
        texts = [" ".join([f"{name}"[:1], *["good"] * (length - 3)]) for length in lengths]
        lines = [f"{text},{number % 2}" for number, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    tiny_model(tmp_path / "model", dropout=0.0)
    path = tmp_path / "paratune.yaml"
    path.write_text(
        f"run: {{name: paratune, folder: {tmp_path}, seed: 42}}\n"
        "task: {kind: classification, labels: ['0', '1']}\n"
        "data:\n"
        f"  train: {tmp_path}/train.csv\n"
        f"  validation: {tmp_path}/validation.csv\n"
        f"  cache_dir: {tmp_path}/cache\n"
        "  columns: {text: text, label: label}\n"
        f"model: {{name: {tmp_path}/model}}\n"
        "device: cpu\n"
        "batch: {global: 2}\n"
        "train: {epochs: 2}\n"
        "measure: {warmup_steps: 1, plan: false}\n"
    )
    train(load_config(path), stop=StopRequest())
    return tmp_path / "paratune"


def test_compare_reads_a_trainer_run_beside_one_of_paratune(tmp_path: Path, paratune_run: Path):
    trainer(tmp_path).train()
    words = [str(tmp_path / "run"), str(paratune_run)]
    assert make_comparison(words, allowed=frozenset()).is_refused
    allowed = make_comparison(words, allowed=frozenset(ALLOW))
    assert not allowed.is_refused
    runs = read_runs([tmp_path / "run", paratune_run]).runs
    assert [run.run.kind for run in runs] == ["trainer", "full"]
    tokens = [sum(e["num_tokens"] for e in read_events(run.folder) if e["event"] == "step") for run in runs]
    assert tokens == [2 * 34, 2 * 34]
