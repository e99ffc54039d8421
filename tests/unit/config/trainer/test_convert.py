"""From the settings of a Trainer to a configuration that loads; every key of TrainingArguments has a place."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.config.load import load_config
from paratune.config.sections import Config
from paratune.config.trainer.convert import check_text, convert
from paratune.config.trainer.settings import HARMLESS, KEYS, OTHERS, RENAMED, Conversion, read_settings
from paratune.errors import ConfigError

OPTIONS = {
    "task": "classification",
    "task.labels": ["a", "b"],
    "model.name": "model",
    "data.train": "train.csv",
    "data.validation": "validation.csv",
    "data.columns.text": "text",
    "data.columns.label": "label",
}


def made(tmp_path: Path, settings: dict[str, Any]) -> tuple[Conversion, Config]:
    """Return the conversion, and the configuration as it is loaded from the text."""
    conversion = convert(settings, "args.json", OPTIONS)
    path = tmp_path / "made.yaml"
    path.write_text(conversion.text("args.json"))
    check_text(path.read_text(), "args.json")
    return conversion, load_config(path).config


def test_every_key_of_the_installed_training_arguments_has_a_place():
    from transformers import TrainingArguments

    names = {entry.name for entry in dataclasses.fields(TrainingArguments)}
    groups = (KEYS.keys(), OTHERS.keys(), RENAMED.keys(), HARMLESS)
    assert names - set().union(*groups) == set()
    assert len(set().union(*groups)) == sum(map(len, groups)), "a key is in one group"


def test_the_defaults_are_those_of_the_installed_training_arguments():
    from transformers import TrainingArguments

    for entry in dataclasses.fields(TrainingArguments):
        default = entry.default_factory() if entry.default is dataclasses.MISSING else entry.default  # type: ignore[misc]
        default = getattr(default, "value", default)
        if entry.name in KEYS:
            assert (KEYS[entry.name].default or None) == (default or None), entry.name
        elif entry.name in OTHERS:
            assert default in OTHERS[entry.name].defaults, entry.name


def test_all_settings_that_a_trainer_saves_are_converted(tmp_path: Path):
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir="out/x", use_cpu=True, report_to=[], eval_strategy="epoch", disable_tqdm=False
    )

    conversion, config = made(tmp_path, json.loads(arguments.to_json_string()))

    assert (conversion.no_equal, conversion.decide, conversion.not_known) == ([], [], [])
    num_keys = len(json.loads(arguments.to_json_string())) - 2  # two older names
    assert len(conversion.used) + len(conversion.ignored) == num_keys
    assert (config.device, config.evaluate.every, config.run.name, config.run.folder) == ("cpu", "epoch", "x", "runs")


def test_the_settings_of_the_sentiment_study(tmp_path: Path):
    settings = {
        "output_dir": "results",
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 5e-5,
        "evaluation_strategy": "epoch",
        "fp16": True,
    }
    conversion, config = made(tmp_path, settings)

    assert (config.batch.per_device, config.batch.grad_accum_steps, config.evaluate.batch_size) == (16, 1, 8)
    assert (config.train.epochs, config.train.learning_rate, config.precision) == (2, 5e-5, "fp16")
    assert config.train.weight_decay == 0.0  # the Trainer's default; 0.01 here
    assert conversion.comments["train.weight_decay"] == "default of TrainingArguments (weight_decay)"
    assert conversion.comments["evaluate.every"] == "evaluation_strategy"
    assert (config.checkpoint.every, config.checkpoint.steps) == ("steps", 500)
    assert "evaluation_strategy" in conversion.used


@pytest.mark.parametrize(
    ("settings", "option", "value"),
    [
        ({"max_steps": 30, "num_train_epochs": 2}, "train.max_steps", 30),
        ({"max_steps": 30}, "checkpoint.steps", 30),  # the Trainer's default is every 500
        ({"max_steps": 30, "eval_strategy": "steps", "eval_steps": 40}, "evaluate.steps", 30),
        ({"max_steps": 30, "eval_strategy": "steps", "eval_steps": 15}, "evaluate.steps", 15),
        ({"learning_rate": "3e-5"}, "train.learning_rate", 3e-5),
        ({"warmup_steps": 10}, "train.warmup_steps", 10),
        ({"warmup_steps": 0.1}, "train.warmup_ratio", 0.1),
        ({"warmup_ratio": 0.06}, "train.warmup_ratio", 0.06),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5}, "train.warmup_steps", 5),
        ({"lr_scheduler_type": "SchedulerType.COSINE"}, "train.schedule", "cosine"),
        (
            {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
            "train.schedule_cycles",
            2,
        ),
        # The end of transformers is a rate, 1e-7 by default.
        ({"lr_scheduler_type": "polynomial", "learning_rate": 1e-5}, "train.schedule_end_ratio", 1e-7 / 1e-5),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2, "lr_end": 0}},
            "train.schedule_power",
            2.0,
        ),
        ({"max_grad_norm": 0}, "train.max_grad_norm", None),
        ({"adam_beta1": 0.8}, "train.betas", [0.8, 0.999]),
        ({"gradient_checkpointing": True}, "train.activation_checkpointing", 1),
        ({"activation_checkpointing": True, "gradient_checkpointing": False}, "train.activation_checkpointing", 1),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 2}},
            "train.activation_checkpointing",
            2,
        ),
        ({"eval_strategy": "steps", "eval_steps": 50}, "evaluate.steps", 50),
        ({"eval_strategy": "steps", "logging_steps": 40}, "evaluate.steps", 40),
        ({"save_strategy": "no"}, "checkpoint.every", "never"),
        ({"save_total_limit": 3}, "checkpoint.keep", 3),
        ({"bf16": True}, "precision", "bf16"),
        ({"tf32": True}, "precision", "tf32"),
        ({"tf32": True, "bf16": True}, "precision", "bf16"),
        ({"no_cuda": True}, "device", "cpu"),
        ({"logging_steps": 7}, "measure.log_every", 7),
        ({"ddp_find_unused_parameters": True}, "strategy.find_unused_parameters", True),
        ({"fsdp": "full_shard auto_wrap"}, "strategy.kind", "zero3"),
        ({"fsdp": ["shard_grad_op", "offload"]}, "strategy.cpu_offload", True),
        ({"fsdp": True}, "strategy.kind", "zero3"),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "strategy.stage", 3),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}, "fp16": True}, "strategy.param_dtype", "fp16"),
        ({"deepspeed": "ds.json", "bf16": True}, "strategy.param_dtype", "bf16"),
        (
            {"deepspeed": {"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}}},
            "strategy.reduce_bucket_size",
            200_000_000,
        ),
        (
            {"deepspeed": {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 9}}},
            "strategy.prefetch_bucket_size",
            9,
        ),
        ({"run_name": "my run", "output_dir": "x"}, "run.name", "my-run"),
        ({"model_name_or_path": "other"}, "model.name", "model"),  # the command line wins
        ({"max_seq_length": 128}, "data.max_length", 128),
    ],
)
def test_keys_with_an_equivalent_are_converted(settings: dict[str, Any], option: str, value: Any, tmp_path: Path):
    conversion, _ = made(tmp_path, settings)
    assert conversion.values[option] == value


@pytest.mark.parametrize(
    ("zero", "left_out"),
    [
        ({"stage": 2, "stage3_prefetch_bucket_size": 9}, "prefetch_bucket_size"),
        ({"stage": 3, "reduce_bucket_size": "auto"}, "reduce_bucket_size"),
        ({"stage": 0}, "param_dtype"),
    ],
)
def test_options_without_effect_at_the_stage_are_left_out(zero: dict[str, Any], left_out: str, tmp_path: Path):
    conversion, _ = made(tmp_path, {"deepspeed": {"zero_optimization": zero}, "bf16": True})
    assert f"strategy.{left_out}" not in conversion.values
    assert conversion.values["precision"] == "bf16"


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "lr_scheduler_type", "linear is written"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs", "linear"),
        ({"optim": "adafactor"}, "optim", "adafactor"),
        ({"lr_scheduler_type": "constant", "warmup_steps": 5}, "warmup_steps", "has no warm-up"),
        ({"eval_strategy": "steps", "eval_steps": 0.1}, "eval_steps", "a share of all steps"),
        ({"save_strategy": "best"}, "save_strategy", "evaluate.best keeps the best model"),
        (
            {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "bleu"},
            "metric_for_best_model",
            "loss is written",
        ),
        (
            {
                "eval_strategy": "epoch",
                "load_best_model_at_end": True,
                "metric_for_best_model": "eval_accuracy",
                "greater_is_better": False,
            },
            "greater_is_better",
            "the larger accuracy",
        ),
        (
            {
                "eval_strategy": "epoch",
                "load_best_model_at_end": True,
                "metric_for_best_model": "bleu",
                "greater_is_better": True,
            },
            "metric_for_best_model",
            "loss is written",
        ),
        ({"_n_gpu": 4}, "_n_gpu", "per_device_train_batch_size on each GPU"),
        ({"local_rank": 3}, "local_rank", "--nproc N"),
        ({"max_length": 64, "max_seq_length": 128}, "max_length", "max_seq_length: 128 is written"),
        ({"fsdp": "odd"}, "fsdp", "strategy: single is written"),
        ({"deepspeed": "ds.json"}, "deepspeed", "its stage is in a separate file"),
    ],
)
def test_keys_to_decide_are_listed(settings: dict[str, Any], key: str, expected: str, tmp_path: Path):
    conversion, _ = made(tmp_path, settings)
    (entry,) = conversion.decide
    assert entry.key == key
    assert expected in entry.why
    assert entry.line in conversion.text("x")
    assert key not in conversion.used  # a key is in one group


def test_keys_that_may_change_the_batch_change_the_experiment():
    assert convert({"_n_gpu": 4}, "x", OPTIONS).decide[0].changes
    for settings in ({"_n_gpu": 1, "local_rank": 0}, {"max_length": 64, "max_seq_length": 64}):
        assert not convert(settings, "x", OPTIONS).decide


def test_a_larger_error_that_is_better_in_the_trainer_is_to_be_decided(tmp_path: Path):
    # greater_is_better is true there for every metric whose name does not end in "loss", rmse too.
    settings = {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "rmse"}
    conversion = convert(settings, "x", {**OPTIONS, "task": "regression"})
    assert [entry.key for entry in conversion.decide] == ["greater_is_better"]
    assert conversion.decide[0].changes


def test_keys_without_an_equivalent_are_listed_and_marked(tmp_path: Path):
    conversion, _ = made(
        tmp_path, {"label_smoothing_factor": 0.1, "dataloader_in_order": False, "hub_strategy": "every_save"}
    )
    assert [(entry.key, entry.changes) for entry in conversion.no_equal] == [("label_smoothing_factor", True)]
    assert conversion.ignored == ["dataloader_in_order", "hub_strategy"]
    assert "[changes the experiment] label_smoothing_factor: 0.1" in conversion.text("x")


def test_workers_of_the_loader_have_an_equal(tmp_path: Path):
    _, config = made(tmp_path, {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 3})
    assert (config.data.num_workers, config.data.prefetch_factor) == (4, 3)
    _, config = made(tmp_path, {"dataloader_num_workers": 0, "dataloader_persistent_workers": False})
    assert (config.data.num_workers, config.data.prefetch_factor) == (0, None)


def test_unknown_keys_are_named_and_the_others_converted(tmp_path: Path):
    conversion, config = made(tmp_path, {"learning_rte": 1e-3, "num_labels": 2, "seed": 7})

    assert config.run.seed == 7
    assert [(entry.key, entry.value, entry.changes) for entry in conversion.not_known] == [
        ("learning_rte", 1e-3, None),
        ("num_labels", 2, None),
    ]
    assert conversion.used == ["seed"]
    assert "learning_rte: 0.001: not a key of TrainingArguments; did you mean learning_rate?" in conversion.text("x")


STOPPING = {"early_stopping_patience": 3, "early_stopping_threshold": 0.01}


def test_stopping_early_is_by_the_metric_of_the_best_model(tmp_path: Path):
    settings = {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    conversion, config = made(tmp_path, {**settings, "greater_is_better": True, **STOPPING})

    assert (config.evaluate.best, config.evaluate.patience, config.evaluate.min_delta) == ("accuracy", 3, 0.01)
    assert not conversion.decide
    assert {*STOPPING} <= {*conversion.used}


def test_stopping_early_keeps_the_best_model(tmp_path: Path):
    conversion, config = made(tmp_path, {"eval_strategy": "epoch", "metric_for_best_model": "accuracy", **STOPPING})

    assert (config.evaluate.best, config.evaluate.patience) == ("accuracy", 3)
    assert [(entry.key, entry.changes) for entry in conversion.decide] == [("load_best_model_at_end", True)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (STOPPING, "an eval_strategy other than no"),
        ({"eval_strategy": "epoch", **STOPPING}, "metric_for_best_model"),
        ({"eval_strategy": "epoch", "early_stopping_threshold": 0.01}, "early_stopping_patience"),
    ],
)
def test_impossible_early_stopping_is_to_be_decided(settings: dict[str, Any], expected: str, tmp_path: Path):
    conversion, config = made(tmp_path, settings)

    assert config.evaluate.patience is None
    assert {entry.key for entry in conversion.decide} == settings.keys() - {"eval_strategy"}
    assert all(expected in entry.why for entry in conversion.decide)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"fp16": True, "bf16": True}, "fp16 and bf16 are both true"),
        ({"fp16": "yes"}, 'fp16 is "yes" (text); allowed: true or false'),
        ({"learning_rate": "fast"}, 'learning_rate is "fast" (text); allowed: a number'),
        ({"learning_rate": float("nan")}, "learning_rate is .nan"),
        ({"learning_rate": 10**400}, "learning_rate is 1000"),
        ({"seed": 1.5}, "seed is 1.5 (a number); allowed: a whole number"),
        ({"output_dir": 3}, "output_dir is 3"),
        ({"lr_scheduler_type": 3}, "lr_scheduler_type is 3"),
        ({"eval_strategy": "often"}, "eval_strategy is often; allowed: no, steps or epoch"),
        ({"load_best_model_at_end": True}, "needs an eval_strategy other than no"),
        ({"eval_strategy": "epoch", "evaluation_strategy": "steps"}, "evaluation_strategy is an older name"),
    ],
)
def test_wrong_types_of_settings_are_errors(settings: dict[str, Any], expected: str):
    with pytest.raises(ConfigError) as caught:
        convert(settings, "args.json", OPTIONS)
    assert expected in str(caught.value)


def test_all_problems_are_in_one_error():
    with raises_code("trainer.settings", "args.json", "3"):
        convert({"learning_rate": "fast", "fp16": 1, "seed": "x"}, "args.json", OPTIONS)


def test_values_that_the_file_lacks_are_marked(tmp_path: Path):
    conversion = convert({"seed": 1}, "args.json", {})
    text = conversion.text("args.json")
    check_text(text, "args.json")
    for option in ("task.kind", "task.labels", "model.name", "data.train", "data.columns.text", "data.columns.label"):
        assert conversion.comments[option].startswith("FILL IN")


@pytest.mark.parametrize("task", ["mrpc", "stsb", "regression", "classification"])
def test_every_task_makes_a_file_that_loads(task: str):
    text = convert({"seed": 1}, "args.json", {"task": task}).text("args.json")
    check_text(text, "args.json")


def test_a_trainer_state_is_an_error():
    with raises_code("trainer.settings", "trainer_state.json"):
        convert({"log_history": [], "global_step": 3, "train_batch_size": 4}, "state.json", OPTIONS)


def test_an_unknown_task_is_an_error():
    with raises_code("trainer.settings", "--task", "regresion"):
        convert({"seed": 1}, "args.json", {"task": "regresion"})


def test_invalid_combinations_of_settings_are_errors(tmp_path: Path):
    conversion = convert({"seed": -1}, "args.json", OPTIONS)
    with raises_code("trainer.settings", "args", "1"):
        check_text(conversion.text("args.json"), "args.json")


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("x.json", b"[1]", ("trainer.settings_unreadable", "1")),
        ("x.json", b"{}", ("trainer.settings_unreadable",)),
        ("x.json", b"a: 1", ("trainer.settings_unreadable", "JSON")),
        ("x.json", b'{"a": 1, "a": 2}', ("trainer.settings_unreadable",)),
        ("x.json", b"\xff\xfe", ("config.file_unreadable", "8")),
        ("x.json", b"[" * 100_000, ("trainer.settings_unreadable", "JSON")),
        ("training_args.bin", b"PK\x03\x04", ("trainer.pickle",)),
        ("x.json", b"\x80\x02", ("trainer.pickle",)),
    ],
)
def test_files_that_are_no_settings(name: str, content: bytes, refused: tuple[str, ...], tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with raises_code(*refused):
        read_settings(tmp_path / name)


def test_hostile_text_stays_text(tmp_path: Path):
    conversion, _ = made(tmp_path, {"output_dir": "out/a\nb: 1\x1b[31m", "lr_scheduler_type": "x\nseed: 3"})
    text = conversion.text("args\nx.json")
    assert "\x1b" not in text
    assert "\nb: 1" not in text
    assert "\nseed: 3" not in text


def test_trackers_of_report_to_become_sections(tmp_path: Path):
    settings = {"report_to": ["wandb", "tensorboard", "comet_ml"], "run_name": "first", "output_dir": "out"}
    conversion, config = made(tmp_path, settings)

    assert config.trackers.wandb is not None
    assert (config.trackers.wandb.mode, config.trackers.wandb.name) == ("offline", "first")
    assert config.trackers.tensorboard is not None
    assert config.trackers.mlflow is None
    assert [(entry.key, entry.value) for entry in conversion.no_equal] == [("report_to", ["comet_ml"])]


@pytest.mark.parametrize("given", ["none", ["none"], []])
def test_no_tracker_is_written_without_one(tmp_path: Path, given: Any):
    conversion, _ = made(tmp_path, {"report_to": given, "num_train_epochs": 1})
    assert [key for key in conversion.values if key.startswith("trackers")] == []
    assert conversion.no_equal == []
