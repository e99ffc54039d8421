"""Settings of a Trainer: the table of keys of TrainingArguments, and what becomes of the keys of a file.

The table has the keys of transformers 5 and those of older versions in saved files. `KEYS` has the keys with an
equivalent in paratune, `OTHERS` and `HARMLESS` those without, `RENAMED` older names.
"""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from paratune.base.text import plain
from paratune.base.unique_keys import unique_keys
from paratune.config.layers import read_text
from paratune.config.plain import one_line, yaml_lines
from paratune.config.validate import describe_value
from paratune.errors import ConfigError


class Mapped(NamedTuple):
    """A key with an equivalent in paratune."""

    default: Any
    """Default of TrainingArguments, which is written where the file lacks the key: that of paratune may differ."""
    kind: Literal["number", "whole", "switch", "word", "text", "any"]
    """What values are allowed; a word is one of several, and is read in any case."""
    option: str | None = None
    """Option that takes the value as it is; None where a function of `convert` writes it."""


KEYS = {
    "output_dir": Mapped(None, "text"),
    "run_name": Mapped(None, "text"),
    "report_to": Mapped("none", "any"),
    "per_device_train_batch_size": Mapped(8, "whole", "batch.per_device"),
    "gradient_accumulation_steps": Mapped(1, "whole", "batch.grad_accum_steps"),
    "num_train_epochs": Mapped(3.0, "number"),
    "max_steps": Mapped(-1, "whole"),
    "learning_rate": Mapped(5e-5, "number", "train.learning_rate"),
    "lr_scheduler_type": Mapped("linear", "word"),
    "lr_scheduler_kwargs": Mapped(None, "any"),
    "warmup_steps": Mapped(0, "number"),
    "warmup_ratio": Mapped(None, "number"),
    "optim": Mapped("adamw_torch_fused", "word"),
    "weight_decay": Mapped(0.0, "number", "train.weight_decay"),
    "adam_beta1": Mapped(0.9, "number"),
    "adam_beta2": Mapped(0.999, "number"),
    "adam_epsilon": Mapped(1e-8, "number", "train.eps"),
    "max_grad_norm": Mapped(1.0, "number"),
    "bf16": Mapped(False, "switch"),
    "fp16": Mapped(False, "switch"),
    "tf32": Mapped(None, "switch"),
    "activation_checkpointing": Mapped(False, "switch"),
    "activation_checkpointing_kwargs": Mapped(None, "any"),
    "torch_compile": Mapped(False, "switch"),
    "logging_strategy": Mapped("steps", "word"),
    "logging_steps": Mapped(500, "number"),
    "eval_strategy": Mapped("no", "word"),
    "eval_steps": Mapped(None, "number"),
    "per_device_eval_batch_size": Mapped(8, "whole", "evaluate.batch_size"),
    "save_strategy": Mapped("steps", "word"),
    "save_steps": Mapped(500, "number"),
    "save_total_limit": Mapped(None, "whole"),
    "load_best_model_at_end": Mapped(False, "switch"),
    "metric_for_best_model": Mapped(None, "text"),
    "greater_is_better": Mapped(None, "any"),
    "seed": Mapped(42, "whole", "run.seed"),
    "use_cpu": Mapped(False, "switch"),
    "dataloader_num_workers": Mapped(0, "whole"),
    "dataloader_prefetch_factor": Mapped(None, "whole"),
    "ddp_find_unused_parameters": Mapped(None, "switch"),
    "ddp_bucket_cap_mb": Mapped(None, "number"),
    "fsdp": Mapped(None, "any"),
    "fsdp_config": Mapped(None, "any"),
    "deepspeed": Mapped(None, "any"),
    # Arguments of the Trainer's EarlyStoppingCallback, which scripts keep in the same file:
    "early_stopping_patience": Mapped(None, "whole"),
    "early_stopping_threshold": Mapped(0.0, "number"),
}
"""Keys with an equivalent in paratune."""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older names in files of older versions, with the present name."""


class UnsupportedKey(NamedTuple):
    """A key without an equivalent in paratune, with which the experiment may be different."""

    why: str
    """The reason, and what paratune does instead."""
    defaults: tuple[Any, ...] = (None, False, "", [], {})
    """Values that change nothing."""
    decides: bool = False
    """Whether with any other value the written value of another key may be wrong."""


_OFF: tuple[Any, ...] = UnsupportedKey("").defaults
_START = "start as many processes (--nproc N), or set batch.global"
_ACCELERATOR: dict[str, bool | None] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
}
_ACCELERATOR["gradient_accumulation_kwargs"] = None
_ACCELERATORS = (_ACCELERATOR, {**_ACCELERATOR, "non_blocking": False})
OTHERS = {
    "optim_args": UnsupportedKey("AdamW's parameters are betas, eps and weight_decay"),
    "optim_target_modules": UnsupportedKey("the optimizer updates all weights"),
    "adafactor": UnsupportedKey("train.optimizer: adafactor, under single and ddp"),
    "average_tokens_across_devices": UnsupportedKey("the loss is the mean over all ranks' samples or tokens", (True,)),
    "label_smoothing_factor": UnsupportedKey("the loss uses the labels without smoothing", (0, 0.0)),
    "neftune_noise_alpha": UnsupportedKey("no noise is added to embeddings"),
    "bf16_full_eval": UnsupportedKey("an evaluation computes as training does (precision)"),
    "fp16_full_eval": UnsupportedKey("an evaluation computes as training does (precision)"),
    "auto_find_batch_size": UnsupportedKey("batch.micro_batch_size: auto, which keeps the global batch"),
    "eval_delay": UnsupportedKey("evaluation begins with the first epoch or step that is due", (0, 0.0)),
    "past_index": UnsupportedKey("no state is passed from batch to batch", (-1,)),
    "ignore_data_skip": UnsupportedKey("a resumed run continues with the sample after the last trained one"),
    "data_seed": UnsupportedKey("run.seed is the seed of weights, order and dropout"),
    "accelerator_config": UnsupportedKey("the section batch sets the batch size", (*_OFF, *_ACCELERATORS)),
    "split_batches": UnsupportedKey("batch.per_device and batch.global set the batch size"),
    "dataloader_drop_last": UnsupportedKey("no sample of an epoch is left out"),
    "train_sampling_strategy": UnsupportedKey("every epoch is a shuffle of all samples", ("random",)),
    "group_by_length": UnsupportedKey("every epoch is a shuffle of all samples"),
    "local_rank": UnsupportedKey(f"several processes shared the global batch; {_START}", (-1, 0), decides=True),
    "_n_gpu": UnsupportedKey(
        f"the global batch had per_device_train_batch_size on each GPU; {_START}", (-1, 0, 1), decides=True
    ),
}
"""Keys without an equivalent in paratune, with which the experiment may be different."""

HARMLESS = frozenset(
    {
        *("torch_compile_backend", "torch_compile_mode", "torchdynamo", "jit_mode_eval", "torch_empty_cache_steps"),
        *("use_liger_kernel", "liger_kernel_config", "use_ipex", "use_cache", "use_mps_device", "logging_first_step"),
        *("logging_dir", "logging_nan_inf_filter", "log_on_each_node", "log_level", "log_level_replica"),
        *("include_num_input_tokens_seen", "include_tokens_per_second", "disable_tqdm", "project", "trackio_space_id"),
        *("trackio_bucket_id", "trackio_static_space_id", "prediction_loss_only", "eval_on_start"),
        *("eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics", "eval_accumulation_steps"),
        *("include_for_metrics", "include_inputs_for_metrics", "save_only_model", "save_on_each_node"),
        *("save_safetensors", "enable_jit_checkpoint", "overwrite_output_dir", "push_to_hub", "push_to_hub_model_id"),
        *("push_to_hub_organization", "push_to_hub_token", "hub_private_repo", "hub_model_id", "hub_always_push"),
        *("hub_revision", "hub_token", "hub_strategy", "restore_callback_states_from_checkpoint", "full_determinism"),
        *("dispatch_batches", "parallelism_config", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_multiprocessing_context", "dataloader_in_order", "remove_unused_columns", "label_names"),
        *("length_column_name", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend", "ddp_timeout"),
        *("ray_scope", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "sharded_ddp", "mp_parameters"),
        *("tpu_num_cores", "tpu_metrics_debug", "debug", "skip_memory_metrics", "fp16_opt_level", "fp16_backend"),
        *("half_precision_backend", "do_train", "do_eval", "do_predict", "resume_from_checkpoint"),
    }
)
"""Keys without an equivalent that do not change what is learned, whatever their value: of logs, uploads and speed."""

PLACES = {
    "model_name_or_path": "model.name",
    "tokenizer_name": "model.tokenizer",
    "train_file": "data.train",
    "validation_file": "data.validation",
    "test_file": "data.test",
    "max_seq_length": "data.max_length",
    "max_length": "data.max_length",
}
"""Keys in files of the Trainer's example scripts that are not TrainingArguments."""

_SECTIONS = (
    *("run", "task", "data", "model", "train", "batch", "evaluate", "checkpoint", "strategy", "precision", "device"),
    *("measure", "trackers"),
)
FILL_IN = "FILL IN"
"""Marks a value that settings of the Trainer do not contain."""
_ALLOWED = {
    "number": "a number",
    "whole": "a whole number",
    "switch": "true or false",
    "word": "text",
    "text": "text",
}


def read_settings(path: Path) -> dict[str, Any]:
    """Read the JSON file of settings.

    Raises:
        ConfigError: It is missing, a pickle, not JSON, not a mapping, or has duplicate keys.
    """
    if path.is_file():
        with path.open("rb") as file:
            is_pickle = file.read(4).startswith((b"PK\x03\x04", b"\x80")) or path.suffix in (".bin", ".pt", ".pkl")
        if is_pickle:
            raise ConfigError(
                f"{path} is a pickle: reading it would run the code in it. Let the script that wrote it write JSON "
                f"instead: open('training_args.json', 'w').write(trainer.args.to_json_string())",
                code="trainer.pickle",
                path=path,
            )
    text = read_text(path)
    try:
        settings = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", code="trainer.settings_unreadable", path=path) from error
    if not isinstance(settings, dict) or not settings:
        message = f"{path} has {describe_value(settings)}; the settings of a Trainer are a mapping with keys"
        raise ConfigError(message, code="trainer.settings_unreadable", path=path)
    return settings


@dataclass(frozen=True)
class UnmappedKey:
    """A key without an equivalent in paratune."""

    key: str
    value: Any
    why: str
    changes: bool | None
    """Whether the experiment is different without it; None where that is unknown."""

    @property
    def line(self) -> str:
        """The key, its value and the reason."""
        shown = one_line(self.value)
        short = shown if len(shown) <= 60 else f"{shown[:56]} ..."
        return plain(f"{'[changes the experiment] ' if self.changes else ''}{self.key}: {short}: {self.why}")


class Conversion:
    """The keys of a file, the configuration that they become, and a list of the keys that are not in it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        """Options by dotted key."""
        self.comments: dict[str, str] = {}
        """Origin of each option, by dotted key."""
        self.decide: list[UnmappedKey] = []
        """Keys for which the user must decide: the written value may be wrong."""
        self.no_equal: list[UnmappedKey] = []
        """Keys without an equivalent."""
        self.not_known: list[UnmappedKey] = []
        """Keys that TrainingArguments never had."""
        self.ignored: list[str] = []
        """Keys without an equivalent that have their default."""
        self.used: list[str] = []
        """Keys of the file that became options."""
        self.problems: list[str] = []
        """Wrong values, which end the conversion."""
        self.given: dict[str, Any] = {}
        """Values of the file by their present names."""
        self.names: dict[str, str] = {}
        """Name in the file, which may be an older one, by present name."""
        for key, value in settings.items():
            name = RENAMED.get(key, key)
            if name in self.given and value in (None, False):
                continue
            if name in self.given and self.given[name] not in (None, False, value):
                self.problems.append(f"{key} is an older name of {name}, and both are given; keep one")
            self.given[name] = value
            self.names[name] = key

    def get(self, key: str) -> Any:
        """Return the value of a key of `KEYS`, or the default of TrainingArguments; wrong values are a problem.

        A number, a whole number or a text may be None, where it is null or wrong; a switch is true or false.
        """
        default, kind, _ = KEYS[key]
        value = self.given.get(key, default)
        if kind == "switch":
            if value is None or isinstance(value, bool):
                return bool(value)
        elif kind == "any" or value is None:
            return value
        elif kind in ("number", "whole"):
            if isinstance(value, str):  # some programs write 5e-5 as text; TrainingArguments accepts it too
                with suppress(ValueError):
                    value = float(value)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and abs(value) <= sys.float_info.max:  # not NaN, and no int of 400 digits
                if kind == "number":
                    return value
                if value == int(value):
                    return int(value)
        elif isinstance(value, str):
            # Older versions wrote the name of the enumeration: SchedulerType.LINEAR.
            return re.sub(r"^[A-Za-z]+\.(?=[A-Z_]+$)", "", value).lower() if kind == "word" else value or None
        self.problems.append(f"{key} is {describe_value(value)}; allowed: {_ALLOWED[kind]}")
        return False if kind == "switch" else None

    def origin(self, *keys: str) -> str:
        """Return the origin of a value: the keys of the file, or the default of TrainingArguments."""
        names = [self.names[key] for key in keys if key in self.given]
        return ", ".join(names) or f"default of TrainingArguments ({keys[0]})"

    def put(self, option: str, value: Any, comment: str) -> None:
        """Write an option with its origin."""
        self.values[option], self.comments[option] = value, comment

    def to_decide(self, key: str, value: Any, why: str, *, changes: bool) -> None:
        """Add a key for which the written value may be wrong."""
        self.decide.append(UnmappedKey(key, value, why, changes))

    def groups(self) -> list[tuple[str, list[str]]]:
        """Return the keys that the user must check, in groups that are not empty: a title, and a line for each key."""
        groups = (
            ("to decide (the written value may be wrong)", self.decide),
            ("not known (left out; the Trainer has no such key)", self.not_known),
            ("without an equivalent in paratune", self.no_equal),
        )
        return [(title, [entry.line for entry in entries]) for title, entries in groups if entries]

    def text(self, source: str) -> str:
        """Return the file: comments with the keys that have no equivalent, and all values with their origins."""
        nested: dict[str, Any] = {}
        for dotted in sorted(self.values, key=lambda option: _SECTIONS.index(option.split(".")[0])):
            *path, last = dotted.split(".")
            section = nested
            for name in path:
                section = section.setdefault(name, {})
            section[last] = self.values[dotted]
        lines = [
            f"# Converted from {plain(source)}, settings of a Hugging Face Trainer; comments have the origin of values."
        ]
        for title, keys in self.groups():
            lines += [f"# {title[0].upper()}{title[1:]}:", *(f"#   {line}" for line in keys)]
        return "\n".join([*lines, *yaml_lines(nested, lambda key: plain(self.comments[key]))]) + "\n"
