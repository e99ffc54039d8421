"""From the settings of a Trainer to a configuration that loads; every key of TrainingArguments has a place."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from raised import raises_code

from paratune.config.load import check_text, load_config
from paratune.config.options import section_options
from paratune.config.sections import Config, OptimizerName, ScheduleName
from paratune.config.trainer import convert as converting
from paratune.config.trainer.conversion import Conversion
from paratune.config.trainer.convert import OPTIMIZERS, SCHEDULES
from paratune.config.trainer.read import Settings, read_settings
from paratune.config.trainer.table import MEANT, TABLE, Mapped, Reason
from paratune.errors import ConfigError

CONVERTED = Path("converted.yaml")
OPTIONS = {
    "task": "classification",
    "task.labels": ["a", "b"],
    "model.name": "model",
    "data.train": "train.csv",
    "data.validation": "validation.csv",
    "data.columns.text": "text",
    "data.columns.label": "label",
}


def convert(settings: dict[str, Any], source: str, options: dict[str, Any]) -> Conversion:
    return converting.convert(Settings(settings), source, options)


def made(tmp_path: Path, settings: dict[str, Any]) -> tuple[Conversion, Config]:
    """Return the conversion, and the configuration as it is loaded from the text."""
    conversion = convert(settings, "args.json", OPTIONS)
    path = tmp_path / "made.yaml"
    path.write_text(conversion.text("args.json"))
    check_text(path.read_text(), CONVERTED)
    return conversion, load_config(path).config


def test_every_key_of_the_installed_training_arguments_has_a_place():
    from transformers import TrainingArguments

    assert {entry.name for entry in dataclasses.fields(TrainingArguments)} - TABLE.keys() == set()
    names = {row for row in TABLE.values() if isinstance(row, str)} | set(MEANT.values())
    assert {name for name in names if not isinstance(TABLE.get(name), Mapped | Reason)} == set()


def test_the_defaults_are_those_of_the_installed_training_arguments():
    from transformers import TrainingArguments

    for entry in dataclasses.fields(TrainingArguments):
        default = entry.default_factory() if entry.default is dataclasses.MISSING else entry.default  # type: ignore[misc]
        default, row = getattr(default, "value", default), TABLE[entry.name]
        if isinstance(row, Mapped | Reason):
            assert (row.default or None) == (default or None), entry.name


def test_all_settings_that_a_trainer_saves_are_converted(tmp_path: Path):
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir="out/x", use_cpu=True, report_to=[], eval_strategy="epoch", disable_tqdm=False
    )

    conversion, config = made(tmp_path, json.loads(arguments.to_json_string()))

    assert (conversion.no_equal, conversion.decide, conversion.not_known) == ([], [], [])
    saved = json.loads(arguments.to_json_string())
    num_keys = len(saved) - 2 + len(saved["accelerator_config"]) - 1  # two older names; a section
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
        ({"optim": "adafactor"}, "optim", "the norm of each weight"),
        ({"optim": "lion_8bit"}, "optim", "train.optimizer.function"),
        ({"epochs": 2}, "epochs", "num_train_epochs"),
        (
            {"max_grad_norm": 1.0, "deepspeed.gradient_clipping": 0.5, "deepspeed.zero_optimization.stage": 1},
            "deepspeed.gradient_clipping",
            "max_grad_norm is 1.0",
        ),
        (
            {"deepspeed": {"zero_optimization": {"stage": 1}, "scheduler": {"type": "WarmupLR"}}, "warmup_steps": 5},
            "deepspeed.scheduler.params.warmup_type",
            "linear",
        ),
        ({"accelerate.distributed_type": "MEGATRON_LM"}, "accelerate.distributed_type", "none like it"),
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
    assert convert({"local_rank": 3}, "x", OPTIONS).decide[0].changes
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
        tmp_path, {"neftune_noise_alpha": 5, "dataloader_in_order": False, "hub_strategy": "every_save"}
    )
    assert [(entry.key, entry.changes) for entry in conversion.no_equal] == [("neftune_noise_alpha", True)]
    assert conversion.ignored == ["dataloader_in_order", "hub_strategy"]
    assert "[changes the experiment] neftune_noise_alpha: 5" in conversion.text("x")


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
    check_text(text, CONVERTED)
    for option in ("task.kind", "task.labels", "model.name", "data.train", "data.columns.text", "data.columns.label"):
        assert conversion.comments[option].startswith("FILL IN")


@pytest.mark.parametrize("task", ["mrpc", "stsb", "regression", "classification"])
def test_every_task_makes_a_file_that_loads(task: str):
    text = convert({"seed": 1}, "args.json", {"task": task}).text("args.json")
    check_text(text, CONVERTED)


def test_an_unknown_task_is_an_error():
    with raises_code("trainer.settings", "--task", "regresion"):
        convert({"seed": 1}, "args.json", {"task": "regresion"})


def test_invalid_combinations_of_settings_are_errors(tmp_path: Path):
    conversion = convert({"seed": -1}, "args.json", OPTIONS)
    with raises_code("config.invalid_value", "run.seed", "-1"):
        check_text(conversion.text("args.json"), CONVERTED)


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("x.json", b"[1]", ("trainer.settings", "1")),
        ("x.json", b"{}", ("trainer.settings",)),
        ("x.json", b"a: 1", ("trainer.settings", "JSON")),
        ("x.json", b'{"a": 1, "a": 2}', ("trainer.settings",)),
        ("x.json", b"\xff\xfe", ("config.file_unreadable", "8")),
        ("x.json", b"[" * 100_000, ("trainer.settings", "JSON")),
        ("training_args.bin", b"PK\x03\x04", ("trainer.settings",)),
        ("x.json", b"\x80\x02", ("trainer.settings",)),
        ("x.yaml", b"a: [", ("trainer.settings", "x.yaml")),
        ("x.json", b'{"hidden": 4, "heads": 2}', ("trainer.settings", "hidden, heads")),
        ("trainer_state.json", b'{"log_history": [], "global_step": 3}', ("trainer.settings", "trainer_state.json")),
        ("x.yaml", b"trainer: {max_epochs: 3, devices: 1}", ("trainer.settings", "PyTorch Lightning")),
        ("config.cfg", b"[nlp]\nlang = 'en'\n", ("trainer.settings", "spaCy")),
        ("x.json", b'{"manual_seed": 1, "num_train_epochs": 2}', ("trainer.settings", "simpletransformers")),
        ("x.yml", b"base_model: x\ndatasets: []", ("trainer.settings", "axolotl")),
        ("train.py", b"from fastai.text.all import *", ("trainer.settings", "fastai")),
        ("train.py", b"args = TrainingArguments()", ("trainer.settings", "to_json_string")),
        ("x.sh", b"fairseq-train data --lr 1e-3 --arch x", ("trainer.settings", "fairseq")),
        ("x.sh", b"# nothing --here\nls\n", ("trainer.settings", "x.sh")),
    ],
)
def test_files_that_are_no_settings(name: str, content: bytes, refused: tuple[str, ...], tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with raises_code(*refused):
        read_settings([str(tmp_path / name)])


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


def options_of_paratune(section: Any = Config, prefix: str = "") -> dict[str, Any]:
    """Return the options of all sections by dotted key, with those of all kinds of tasks and strategies."""
    found: dict[str, Any] = {}
    for name, option in section_options(section).items():
        found[f"{prefix}{name}"] = option
        for inner in option.sections:
            found |= options_of_paratune(inner, f"{prefix}{name}.")
    return found


OTHER_MEANING = {
    "optim_target_modules": "layers that GaLore updates; those of an adapter here",
    "group_by_length": "batches of rows of one length; parts of the data here",
    "hub_revision": "where the Trainer uploads a model; where a data set is read from here",
    "cache_dir": "downloaded models; token files here",
    "pad_to_max_length": "padding, which has no effect on the result",
    "preprocessing_num_workers": "processes that tokenize",
    "deepspeed.zero_optimization.sub_group_size": "parameters of an update; texts of a group here",
    "deepspeed.zero_optimization.offload_optimizer.nvme_path": "a disk; CPU memory here",
}
"""Keys without an equivalent that have a name like that of an option, with the difference."""


def test_no_key_without_an_equivalent_has_the_name_of_an_option():
    by_words = {frozenset(key.rpartition(".")[2].split("_")): key for key in options_of_paratune()}
    by_words = {words: key for words, key in by_words.items() if len(words) > 1}
    alike = {}
    for key in (key for key, row in TABLE.items() if row is None or isinstance(row, Reason)):
        words = {*key.replace(".", "_").split("_")} - {"samples"} | ({"rows"} if "samples" in key else set())
        alike.update((key, option) for other, option in by_words.items() if other <= words)
    assert {*get_args(OptimizerName), *get_args(ScheduleName)} & {
        key for key, row in TABLE.items() if row is None
    } == set()
    assert alike.keys() - OTHER_MEANING.keys() == set(), alike
    assert OTHER_MEANING.keys() - TABLE.keys() == set()


def test_reasons_and_rows_name_options_that_exist():
    known = options_of_paratune().keys()
    written = {row.option for row in TABLE.values() if isinstance(row, Mapped) and row.option is not None}
    assert {option for option in written if not option.startswith("model.overrides.")} - known == set()
    named = {name for row in TABLE.values() if isinstance(row, Reason) for name in re.findall(r"`([a-z_.]+)", row.why)}
    assert named - known == set()


def test_every_optimizer_and_schedule_that_exists_here_is_converted():
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    theirs = {entry.value for entry in OptimizerNames}
    assert {name: OPTIMIZERS[name] for name in theirs & {*get_args(OptimizerName)}} == {
        "adafactor": "adafactor",
        "adamw_8bit": "adamw_8bit",
    }
    assert {name for name in theirs - OPTIMIZERS.keys() if hasattr(torch.optim, name)} == set()
    assert {SCHEDULES.get(entry.value, entry.value) for entry in SchedulerType} >= {*get_args(ScheduleName)}
    assert {*SCHEDULES.values()} <= {*get_args(ScheduleName)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # 16 rows a device, 2 micro-steps, 4 processes on each of 2 nodes: 16 * 2 * 8 = 256.
        (
            {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "torchrun.nproc_per_node": "4",
             "torchrun.nnodes": "2"},
            {"batch.global": 256, "batch.micro_batch_size": 16, "strategy.kind": "ddp"},
        ),
        # Accelerate counts the processes of all machines: 8 * 1 * 8 = 64.
        (
            {"accelerate.num_processes": 8, "accelerate.num_machines": 2, "accelerate.distributed_type": "MULTI_GPU",
             "accelerate.mixed_precision": "bf16"},
            {"batch.global": 64, "batch.micro_batch_size": 8, "strategy.kind": "ddp", "precision": "bf16"},
        ),
        ({"_n_gpu": 4, "per_device_train_batch_size": 6}, {"batch.global": 24, "strategy.kind": "ddp"}),
        ({"_n_gpu": 1, "local_rank": 0}, {"batch.per_device": 8, "batch.global": None, "strategy.kind": "single"}),
        ({"accelerate.num_processes": 1}, {"batch.per_device": 8, "strategy.kind": "single"}),
        # The loader's batch is split over the processes: 32 * 3 rows, whatever their number.
        (
            {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 32,
             "gradient_accumulation_steps": 3},
            {"batch.global": 96},
        ),
        (
            {"auto_find_batch_size": True, "per_device_train_batch_size": 64},
            {"batch.global": 64, "batch.micro_batch_size": "auto"},
        ),
        # DeepSpeed's product: 4 rows * 2 micro-steps * 8 processes are 64.
        (
            {"deepspeed": {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
                           "gradient_accumulation_steps": 2}},
            {"batch.global": 64, "batch.micro_batch_size": 4},
        ),
        ({"deepspeed": {"train_batch_size": 64, "gradient_accumulation_steps": 2}}, {"batch.global": 64}),
        (
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param":
             {"device": "cpu"}, "stage3_max_live_parameters": 1e9}, "gradient_clipping": 0.5,
             "bf16": {"enabled": True}}},
            {"strategy.kind": "deepspeed", "strategy.stage": 3, "strategy.offload_optimizer": True, "precision": "bf16",
             "strategy.offload_parameters": True, "strategy.max_live_parameters": 10**9, "train.max_grad_norm": 0.5,
             "strategy.param_dtype": "bf16"},
        ),
        # "auto" is the Trainer's value.
        (
            {"deepspeed": {"fp16": {"enabled": "auto"}, "gradient_clipping": "auto", "zero_optimization": {"stage": 2}},
             "fp16": True, "max_grad_norm": 0.3},
            {"precision": "fp16", "train.max_grad_norm": 0.3, "strategy.param_dtype": "fp16"},
        ),
        (
            {"accelerate.distributed_type": "DEEPSPEED", "accelerate.deepspeed_config.zero_stage": 2,
             "accelerate.deepspeed_config.offload_optimizer_device": "none"},
            {"strategy.kind": "deepspeed", "strategy.stage": 2},
        ),
        (
            {"accelerate.distributed_type": "FSDP", "accelerate.mixed_precision": "bf16", "fsdp_config":
             {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_offload_params": True, "fsdp_activation_checkpointing":
              True}},
            {"strategy.kind": "zero2", "strategy.cpu_offload": True, "strategy.param_dtype": "bf16",
             "train.activation_checkpointing": 1},
        ),
        ({"fsdp": "", "fsdp_config": {"fsdp_sharding_strategy": 4}}, {"strategy.kind": "hsdp"}),
        (
            {"fsdp": True, "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
            {"strategy.kind": "zero2"},
        ),
        # The last 10 of 110 steps after 10 of warm-up: 10 / 100.
        (
            {"lr_scheduler_type": "warmup_stable_decay", "max_steps": 110, "warmup_steps": 10,
             "lr_scheduler_kwargs": {"num_decay_steps": 10, "min_lr_ratio": 0.1}},
            {"train.schedule": "warmup_stable_decay", "train.decay_ratio": 0.1, "train.schedule_end_ratio": 0.1},
        ),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 2e-5, "lr_scheduler_kwargs": {"min_lr": 2e-6}},
            {"train.schedule": "cosine", "train.schedule_end_ratio": 2e-6 / 2e-5},
        ),
        ({"optim": "adamw_bnb_8bit"}, {"train.optimizer": "adamw_8bit"}),
        ({"optim": "OptimizerNames.ADAFACTOR"}, {"train.optimizer": "adafactor", "train.weight_decay": 0.0}),
        ({"adafactor": True}, {"train.optimizer": "adafactor"}),
        ({"optim": "sgd"}, {"train.optimizer.function": "torch.optim:SGD", "train.betas": None}),
        ({"label_smoothing_factor": 0.1}, {"task.label_smoothing": 0.1}),
        ({"max_train_samples": 100}, {"data.max_rows.train": 100}),
        ({"max_eval_samples": 50}, {"data.max_rows.validation": 50}),
        ({"epochs": 4, "lr": 1e-4}, {"train.epochs": 4, "train.learning_rate": 1e-4}),
        ({"lr_scheduler_kwargs": '{"power": 2}', "lr_scheduler_type": "polynomial"}, {"train.schedule_power": 2.0}),
        ({"fp16": "true", "max_steps": "30"}, {"precision": "fp16", "train.max_steps": 30}),
        ({"ddp_timeout": 600}, {"run.hang_timeout_s": 600}),
        ({"hidden_dropout_prob": "0.2"}, {"model.overrides.hidden_dropout_prob": 0.2}),
        ({"mixed_precision": "fp16"}, {"precision": "fp16"}),
        ({"data_path": ["a", "b"]}, {"data.train": "train.csv"}),
    ],
)  # fmt: skip
def test_values_computed_by_hand(settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path):
    conversion, _ = made(tmp_path, settings)
    assert {key: conversion.values.get(key) for key in expected} == expected


SCRIPT = """#!/bin/bash
# python old.py --learning_rate 1 --seed 2 --max_steps 2 --fp16 --bf16 --tf32 --do_train --do_eval --a 1 --b 2 --c \\
NUM=$(expr $RANDOM + 1)
export TASK_NAME=MRPC
lr=2e-5
torchrun --nproc_per_node=4 --nnodes 2 --master_port $((NUM + 1)) \\
  run_glue.py --task_name $TASK_NAME --do_eval --no_remove_unused_columns \\
  --learning_rate $lr --per_device_train_batch_size ${4:-"16"} --weight_decay $DECAY \\
  --fp16 --lr_scheduler_kwargs '{"power": 2}' --output_dir=/tmp/$TASK_NAME/ --report_to wandb tensorboard 2>&1 | tee log
"""
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 4\nfsdp_config: {}\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"x.yaml": "training: {learning_rate: 2e-5, fp16: true}"}, {"learning_rate": 2e-5, "fp16": True}),
        ({"x.yml": "model_args: {train_file: m}\ntraining_args: {seed: 4}"}, {"train_file": "m", "seed": 4}),
        (
            {"x.sh": "deepspeed a.py --deepspeed --deepspeed_config c/ds.json --seed 1", "ds.json":
             '{"zero_optimization": {"stage": 2}, "elasticity": {"a": {"b": 1}}}'},
            {"deepspeed.zero_optimization.stage": 2, "deepspeed.elasticity": {"a": {"b": 1}}},
        ),
        ({"x.json": '{"args": "{\\"seed\\": 3}", "seed": 3}'}, {"seed": 3}),
        ({"x.json": '{"output_dir": "\\"/opt/model\\"", "epochs": "3"}'}, {"output_dir": "/opt/model", "epochs": "3"}),
        (
            {"run.sh": SCRIPT},
            {"task_name": "MRPC", "learning_rate": "2e-5", "per_device_train_batch_size": "16", "weight_decay": None,
             "fp16": True, "output_dir": "/tmp/MRPC/", "report_to": ["wandb", "tensorboard"],
             "torchrun.nproc_per_node": "4", "torchrun.nnodes": "2", "remove_unused_columns": False},
        ),
        (
            {"x.yaml": ACCELERATE + "deepspeed_config: {deepspeed_config_file: conf/ds.json}",
             "ds.json": '{\t"zero_optimization": {"stage": 3}}'},
            {"accelerate.num_processes": 4, "deepspeed.zero_optimization.stage": 3},
        ),
        (
            {"x.json": '{"deepspeed": "conf/ds.json", "seed": 1}', "ds.json": '{"zero_optimization": {"stage": 1}}'},
            {"deepspeed.zero_optimization.stage": 1, "seed": 1},
        ),
        (
            {"run.sh": "accelerate launch --config_file a.yaml --mixed_precision bf16 --fsdp_offload_params true t.py"
             " --seed 7", "a.yaml": ACCELERATE + "mixed_precision: fp16"},
            {"accelerate.mixed_precision": "bf16", "accelerate.num_processes": 4, "seed": "7",
             "fsdp_config.offload_params": "true"},
        ),
        ({"run.sh": "CUDA_VISIBLE_DEVICES=0,1,2 python a.py --seed 1"}, {"_n_gpu": 3, "seed": "1"}),
    ],
)  # fmt: skip
def test_settings_are_read_from_many_layouts(files: dict[str, str], expected: dict[str, Any], tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    values = read_settings([str(tmp_path / next(iter(files)))]).values
    assert {key: values.get(key) for key in expected} == expected


def test_what_a_script_leaves_open_is_named(tmp_path: Path):
    (tmp_path / "run.sh").write_text("for T in a b; do\npython run_ner.py --seed $SEED --output_dir out/$T\ndone")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {}}')
    settings = read_settings([str(tmp_path / "run.sh")])
    assert [note[:2] for note in settings.notes] == [("T", ["a", "b"]), ("seed", "$SEED"), ("ds.json", None)]
    assert (settings.script, settings.values) == ("run_ner", {"output_dir": "out/a"})


def test_without_a_file_nothing_is_converted():
    with raises_code("cli.required"):
        read_settings([])


def test_a_command_line_and_several_files_are_one(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(ACCELERATE)
    settings = read_settings(["python run_glue.py --task_name SST-2 --lr 1e-4", str(tmp_path / "a.yaml")])
    conversion = converting.convert(settings, "x", {})
    assert (conversion.values["task.glue"], conversion.values["batch.global"]) == ("sst2", 32)
    assert conversion.values["data.train"] == "hub:nyu-mll/glue/sst2@train"
    assert "data.columns.text" not in conversion.values
