"""The table of keys of Hugging Face's TrainingArguments, of transformers 5 and of older versions in saved files.

`KEYS` has the keys with an equivalent in paratune, `OTHERS` those without, with the reason, `RENAMED` older names.
"""

from typing import Any, Literal, NamedTuple


class Key(NamedTuple):
    """A key with an equivalent in paratune."""

    default: Any
    """Default of TrainingArguments, which is written where the file lacks the key: that of paratune may differ."""
    kind: Literal["number", "whole", "switch", "word", "text", "any"]
    """What values are allowed; a word is one of several, and is read in any case."""
    option: str | None = None
    """Option that takes the value as it is; None where a function of `convert` writes it."""


KEYS = {
    "output_dir": Key(None, "text"),
    "run_name": Key(None, "text"),
    "report_to": Key("none", "any"),
    "per_device_train_batch_size": Key(8, "whole", "batch.per_device"),
    "gradient_accumulation_steps": Key(1, "whole", "batch.grad_accum_steps"),
    "num_train_epochs": Key(3.0, "number"),
    "max_steps": Key(-1, "whole"),
    "learning_rate": Key(5e-5, "number", "train.learning_rate"),
    "lr_scheduler_type": Key("linear", "word"),
    "lr_scheduler_kwargs": Key(None, "any"),
    "warmup_steps": Key(0, "number"),
    "warmup_ratio": Key(None, "number"),
    "optim": Key("adamw_torch_fused", "word"),
    "weight_decay": Key(0.0, "number", "train.weight_decay"),
    "adam_beta1": Key(0.9, "number"),
    "adam_beta2": Key(0.999, "number"),
    "adam_epsilon": Key(1e-8, "number", "train.eps"),
    "max_grad_norm": Key(1.0, "number"),
    "bf16": Key(False, "switch"),
    "fp16": Key(False, "switch"),
    "tf32": Key(None, "switch"),
    "activation_checkpointing": Key(False, "switch"),
    "activation_checkpointing_kwargs": Key(None, "any"),
    "torch_compile": Key(False, "switch"),
    "logging_strategy": Key("steps", "word"),
    "logging_steps": Key(500, "number"),
    "eval_strategy": Key("no", "word"),
    "eval_steps": Key(None, "number"),
    "per_device_eval_batch_size": Key(8, "whole", "evaluate.batch_size"),
    "save_strategy": Key("steps", "word"),
    "save_steps": Key(500, "number"),
    "save_total_limit": Key(None, "whole"),
    "load_best_model_at_end": Key(False, "switch"),
    "metric_for_best_model": Key(None, "text"),
    "greater_is_better": Key(None, "any"),
    "seed": Key(42, "whole", "run.seed"),
    "use_cpu": Key(False, "switch"),
    "dataloader_num_workers": Key(0, "whole"),
    "dataloader_prefetch_factor": Key(None, "whole"),
    "ddp_find_unused_parameters": Key(None, "switch"),
    "ddp_bucket_cap_mb": Key(None, "number"),
    "fsdp": Key(None, "any"),
    "fsdp_config": Key(None, "any"),
    "deepspeed": Key(None, "any"),
    # Arguments of the Trainer's EarlyStoppingCallback, which scripts keep in the same file:
    "early_stopping_patience": Key(None, "whole"),
    "early_stopping_threshold": Key(0.0, "number"),
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
    """A key without an equivalent in paratune."""

    why: str
    """The reason, and what paratune does instead."""
    defaults: tuple[Any, ...] = (None, False, "", [], {})
    """Values that change nothing."""
    changes: bool = False
    """Whether any other value changes the experiment."""
    decides: bool = False
    """Whether with any other value the written value of another key may be wrong."""


_OFF: tuple[Any, ...] = UnsupportedKey("").defaults
_HUB = "nothing is uploaded; model/ is a plain Hugging Face folder: hf upload"
_TRACKER = "trackers have their own sections, off by default (docs/howto/trackers.md); the record has every step"
_LOG = "every rank writes a log file, rank 0 also prints"
_LOADER = "workers run until training ends, batches keep their order, and memory is page-locked for a GPU"
_DDP = "a setting of the process group; PyTorch's default is used"
_SPEED = "changes speed, not the training"
_COLUMNS = "columns are named in data.columns"
_SCORED = "every sample is scored once, over all ranks"
_START = "start as many processes (--nproc N), or set batch.global"
_AMP = "an option of an older version; use precision"

_ACCELERATOR: dict[str, bool | None] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
}
_ACCELERATOR["gradient_accumulation_kwargs"] = None
_ACCELERATORS = (_ACCELERATOR, {**_ACCELERATOR, "non_blocking": False})
_UNSUPPORTED: tuple[tuple[Any, ...], ...] = (
    # Keys with spaces between, and the fields of `UnsupportedKey`.
    ("optim_args", "AdamW's parameters are betas, eps and weight_decay", _OFF, True),
    ("optim_target_modules", "the optimizer updates all weights", _OFF, True),
    ("average_tokens_across_devices", "the loss is the mean over all ranks' samples or tokens", (True,), True),
    ("label_smoothing_factor", "the loss uses the labels without smoothing", (0, 0.0), True),
    ("neftune_noise_alpha", "no noise is added to embeddings", _OFF, True),
    ("bf16_full_eval fp16_full_eval", "an evaluation computes as training does (precision)"),
    ("auto_find_batch_size", "where memory runs out, the micro-batch is halved; see batch.micro_batch_size: auto"),
    ("torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval torch_empty_cache_steps", _SPEED),
    ("use_liger_kernel liger_kernel_config use_ipex", _SPEED),
    ("use_cache", "of generation; no key-value cache is kept in training"),
    ("use_mps_device", "device: auto, cpu or cuda"),
    ("logging_first_step", "every step is logged"),
    ("logging_dir", "the log is in the run folder"),
    ("logging_nan_inf_filter", "a loss that is not finite ends the run with its step", (True,)),
    ("log_on_each_node", _LOG, (True,)),
    ("log_level", _LOG, ("passive",)),
    ("log_level_replica", _LOG, ("warning",)),
    ("include_num_input_tokens_seen", "tokens are counted, real and padded apart", ("no", False)),
    ("include_tokens_per_second", "tokens per second are measured in every run"),
    ("disable_tqdm", "progress bars are shown on terminals only"),
    ("project", _TRACKER, ("huggingface",)),
    ("trackio_space_id", _TRACKER, (*_OFF, "trackio")),
    ("trackio_bucket_id trackio_static_space_id", _TRACKER),
    ("eval_delay", "evaluation begins with the first epoch or step that is due", (0, 0.0), True),
    ("prediction_loss_only", "all metrics of the task are computed"),
    ("eval_on_start", "paratune evaluate scores a model before training"),
    ("eval_do_concat_batches", _SCORED, (True,)),
    ("eval_use_gather_object batch_eval_metrics", _SCORED),
    ("eval_accumulation_steps", "an evaluation keeps a few numbers for each sample, on the host"),
    ("include_for_metrics include_inputs_for_metrics", "metrics are those of the task"),
    ("past_index", "no state is passed from batch to batch", (-1,), True),
    ("save_only_model", "a checkpoint has all that a resume needs; model/ has only the model"),
    ("save_on_each_node", "the files of a run are in its folder, on a file system that all nodes share"),
    ("save_safetensors", "always safetensors", (True,)),
    ("enable_jit_checkpoint", "a signal saves a checkpoint in every run"),
    ("overwrite_output_dir", "--overwrite deletes a run"),
    ("push_to_hub push_to_hub_model_id push_to_hub_organization", _HUB),
    ("hub_private_repo hub_model_id hub_always_push hub_revision", _HUB),
    ("hub_token", _HUB, (*_OFF, "<HUB_TOKEN>")),
    ("hub_strategy", _HUB, ("every_save",)),
    ("push_to_hub_token", _HUB, (*_OFF, "<PUSH_TO_HUB_TOKEN>")),
    ("ignore_data_skip", "a resumed run continues with the sample after the last trained one", _OFF, True),
    ("restore_callback_states_from_checkpoint", "there are no callbacks; patience is kept in checkpoints"),
    ("full_determinism", "order and masks follow from the seed; sums of a GPU: train.deterministic"),
    ("data_seed", "run.seed is the seed of weights, order and dropout; data.split.seed that of the split", _OFF, True),
    ("accelerator_config", "the section batch sets the batch size", (*_OFF, *_ACCELERATORS), True),
    ("split_batches", "batch.per_device and batch.global set the batch size", _OFF, True),
    ("dispatch_batches", "each rank makes its own batches"),
    ("parallelism_config", "see strategy: in docs/explanation/strategies.md"),
    ("dataloader_drop_last", "no sample of an epoch is left out", _OFF, True),
    ("dataloader_pin_memory dataloader_persistent_workers", _LOADER, (True, False)),
    ("dataloader_multiprocessing_context", _LOADER),
    ("dataloader_in_order", _LOADER, (True,)),
    ("remove_unused_columns", _COLUMNS, (True,)),
    ("label_names", _COLUMNS, (*_OFF, ["labels"])),
    ("train_sampling_strategy", "every epoch is a shuffle of all samples", ("random",), True),
    ("group_by_length", "every epoch is a shuffle of all samples", _OFF, True),
    ("length_column_name", _COLUMNS, ("length",)),
    ("ddp_broadcast_buffers ddp_static_graph", _DDP),
    ("ddp_backend", _DDP, (*_OFF, "nccl", "gloo")),
    ("ddp_timeout", _DDP, (1800,)),
    ("ray_scope", "for searches: paratune sweep", ("last",)),
    ("fsdp_min_num_params", "the blocks of the model are sharded", (0,)),
    ("fsdp_transformer_layer_cls_to_wrap", "blocks of the model are found, not named"),
    ("sharded_ddp", "strategy: zero1, zero2 or zero3"),
    ("mp_parameters", "of SageMaker"),
    ("tpu_num_cores tpu_metrics_debug", "TPUs are not supported"),
    ("debug", "paratune doctor; the record of every rank"),
    ("skip_memory_metrics", "memory is measured in every run", (True,)),
    ("adafactor", "train.optimizer: adafactor, under single and ddp", _OFF, True),
    ("fp16_opt_level", _AMP, ("O1",)),
    ("fp16_backend half_precision_backend", _AMP, ("auto",)),
    ("do_train do_eval do_predict", "a command here: paratune train, evaluate, predict", (True, *_OFF)),
    ("resume_from_checkpoint", "paratune train --resume"),
    ("local_rank", f"several processes shared the global batch; {_START}", (-1, 0), True, True),
    ("_n_gpu", f"the global batch had per_device_train_batch_size on each GPU; {_START}", (-1, 0, 1), True, True),
)
OTHERS = {key: UnsupportedKey(*fields) for keys, *fields in _UNSUPPORTED for key in keys.split()}
"""Keys without an equivalent in paratune."""

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
