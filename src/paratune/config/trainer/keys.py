"""Keys of Hugging Face's TrainingArguments, of transformers 5 and of older versions in saved files.

`MAPPED` has the keys with an equivalent in paratune, `OTHERS` those without, with the reason, `RENAMED` older names.
"""

from dataclasses import dataclass
from typing import Any

MAPPED: dict[str, Any] = {
    "output_dir": None,
    "run_name": None,
    "report_to": "none",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": None,
    "warmup_steps": 0,
    "warmup_ratio": None,
    "optim": "adamw_torch_fused",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "bf16": False,
    "fp16": False,
    "tf32": None,
    "activation_checkpointing": False,
    "activation_checkpointing_kwargs": None,
    "torch_compile": False,
    "logging_strategy": "steps",
    "logging_steps": 500,
    "eval_strategy": "no",
    "eval_steps": None,
    "per_device_eval_batch_size": 8,
    "save_strategy": "steps",
    "save_steps": 500,
    "save_total_limit": None,
    "load_best_model_at_end": False,
    "metric_for_best_model": None,
    "greater_is_better": None,
    "seed": 42,
    "use_cpu": False,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "ddp_find_unused_parameters": None,
    "ddp_bucket_cap_mb": None,
    "fsdp": None,
    "fsdp_config": None,
    "deepspeed": None,
    "early_stopping_patience": None,
    "early_stopping_threshold": 0.0,
}
"""Keys with an equivalent in paratune, with the defaults of TrainingArguments.

The last two are arguments of the Trainer's EarlyStoppingCallback; scripts keep them in the same file.
"""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older names in files of older versions, with the present name."""


@dataclass(frozen=True)
class UnsupportedKey:
    """A key without an equivalent in paratune."""

    why: str
    """The reason, and what paratune does instead."""
    defaults: tuple[Any, ...]
    """Values that change nothing."""
    changes: bool = False
    """Whether any other value changes the experiment."""
    decides: bool = False
    """Whether with any other value the written value of another key may be wrong."""


_OFF: tuple[Any, ...] = (None, False, "", [], {})
_HUB = "nothing is uploaded; model/ is a plain Hugging Face folder: hf upload"
_TRACKER = (
    "trackers have their own sections (docs/howto/trackers.md), off by default; the record of the run has every step"
)
_LOG = "every rank writes a log file, rank 0 also prints"
_LOADER = "workers run until training ends, batches keep their order, and memory is page-locked for a GPU"
_DDP = "a setting of the process group; PyTorch's default is used"
_SPEED = "changes speed, not the training"
_COMMAND = "a command here: paratune train, evaluate, predict"
_COLUMNS = "columns are named in data.columns"
_SCORED = "every sample is scored once, over all ranks"
_MEMORY = "memory is measured in every run"
_PRIVATE = "the files of a run are in its folder, on a file system that all nodes share"
_AMP = "an option of an older version; use precision"

_ACCELERATOR = {"split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True}
_ACCELERATOR["gradient_accumulation_kwargs"] = None
_UNSUPPORTED: tuple[tuple[Any, ...], ...] = (
    # Keys with spaces between, and the fields of `UnsupportedKey`.
    ("optim_args", "AdamW's parameters are betas, eps and weight_decay", _OFF, True),
    ("optim_target_modules", "the optimizer updates all weights", _OFF, True),
    ("average_tokens_across_devices", "the loss is the mean over all ranks' samples or tokens", (True,), True),
    ("label_smoothing_factor", "the loss uses the labels without smoothing", (0, 0.0), True),
    ("neftune_noise_alpha", "no noise is added to embeddings", _OFF, True),
    ("bf16_full_eval fp16_full_eval", "an evaluation computes as training does (precision)", _OFF),
    (
        "auto_find_batch_size",
        "when memory runs out the micro-batch is halved and the global batch kept; see batch.micro_batch_size: auto",
        _OFF,
    ),
    (
        (
            "torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval use_liger_kernel "
            "liger_kernel_config torch_empty_cache_steps use_ipex"
        ),
        _SPEED,
        _OFF,
    ),
    ("use_cache", "of generation; no key-value cache is kept in training", _OFF),
    ("use_mps_device", "device: auto, cpu or cuda", _OFF),
    ("logging_first_step", "every step is logged", _OFF),
    ("logging_dir", "the log is in the run folder", _OFF),
    ("logging_nan_inf_filter", "a loss that is not finite ends the run with its step", (True,)),
    ("log_on_each_node", _LOG, (True,)),
    ("log_level", _LOG, ("passive",)),
    ("log_level_replica", _LOG, ("warning",)),
    ("include_num_input_tokens_seen", "tokens are counted, real and padded apart", ("no", False)),
    ("include_tokens_per_second", "tokens per second are measured in every run", _OFF),
    ("disable_tqdm", "progress bars are shown on terminals only", _OFF),
    ("project", _TRACKER, ("huggingface",)),
    ("trackio_space_id", _TRACKER, (*_OFF, "trackio")),
    ("trackio_bucket_id trackio_static_space_id", _TRACKER, _OFF),
    ("eval_delay", "evaluation begins with the first epoch or step that is due", (0, 0.0), True),
    ("prediction_loss_only", "all metrics of the task are computed", _OFF),
    ("eval_on_start", "paratune evaluate scores a model before training", _OFF),
    ("eval_do_concat_batches", _SCORED, (True,)),
    ("eval_use_gather_object batch_eval_metrics", _SCORED, _OFF),
    ("eval_accumulation_steps", "an evaluation keeps a few numbers for each sample, on the host", _OFF),
    ("include_for_metrics include_inputs_for_metrics", "metrics are those of the task", _OFF),
    ("past_index", "no state is passed from batch to batch", (-1,), True),
    ("save_only_model", "a checkpoint has all that a resume needs; model/ has only the model", _OFF),
    ("save_on_each_node", _PRIVATE, _OFF),
    ("save_safetensors", "always safetensors", (True,)),
    ("enable_jit_checkpoint", "a signal saves a checkpoint in every run", _OFF),
    ("overwrite_output_dir", "--overwrite deletes a run", _OFF),
    (
        (
            "push_to_hub hub_private_repo hub_model_id hub_always_push hub_revision push_to_hub_model_id "
            "push_to_hub_organization"
        ),
        _HUB,
        _OFF,
    ),
    ("hub_token", _HUB, (*_OFF, "<HUB_TOKEN>")),
    ("hub_strategy", _HUB, ("every_save",)),
    ("push_to_hub_token", _HUB, (*_OFF, "<PUSH_TO_HUB_TOKEN>")),
    ("ignore_data_skip", "a resumed run continues with the sample after the last trained one", _OFF, True),
    ("restore_callback_states_from_checkpoint", "there are no callbacks; patience is kept in checkpoints", _OFF),
    ("full_determinism", "order and masks follow from the seed; sums of a GPU: train.deterministic", _OFF),
    ("data_seed", "run.seed is the seed of weights, order and dropout; data.split.seed that of the split", _OFF, True),
    (
        "accelerator_config",
        "the section batch sets the batch size",
        (*_OFF, _ACCELERATOR, {**_ACCELERATOR, "non_blocking": False}),
        True,
    ),
    ("split_batches", "batch.per_device and batch.global set the batch size", _OFF, True),
    ("dispatch_batches", "each rank makes its own batches", _OFF),
    ("parallelism_config", "see strategy: in docs/explanation/strategies.md", _OFF),
    ("dataloader_drop_last", "no sample of an epoch is left out", _OFF, True),
    ("dataloader_pin_memory dataloader_persistent_workers", _LOADER, (True, False)),
    ("dataloader_multiprocessing_context", _LOADER, _OFF),
    ("dataloader_in_order", _LOADER, (True,)),
    ("remove_unused_columns", _COLUMNS, (True,)),
    ("label_names", _COLUMNS, (*_OFF, ["labels"])),
    ("train_sampling_strategy", "every epoch is a shuffle of all samples", ("random",), True),
    ("group_by_length", "every epoch is a shuffle of all samples", _OFF, True),
    ("length_column_name", _COLUMNS, ("length",)),
    ("ddp_broadcast_buffers ddp_static_graph", _DDP, _OFF),
    ("ddp_backend", _DDP, (*_OFF, "nccl", "gloo")),
    ("ddp_timeout", _DDP, (1800,)),
    ("ray_scope", "for searches: paratune sweep", ("last",)),
    ("fsdp_min_num_params", "the blocks of the model are sharded", (0,)),
    ("fsdp_transformer_layer_cls_to_wrap", "blocks of the model are found, not named", _OFF),
    ("sharded_ddp", "strategy: zero1, zero2 or zero3", _OFF),
    ("mp_parameters", "of SageMaker", _OFF),
    ("tpu_num_cores tpu_metrics_debug", "TPUs are not supported", _OFF),
    ("debug", "paratune doctor; the record of every rank", _OFF),
    ("skip_memory_metrics", _MEMORY, (True,)),
    ("adafactor", "train.optimizer: adafactor, under single and ddp", _OFF, True),
    ("fp16_opt_level", _AMP, ("O1",)),
    ("fp16_backend half_precision_backend", _AMP, ("auto",)),
    ("do_train do_eval do_predict", _COMMAND, (True, *_OFF)),
    ("resume_from_checkpoint", "paratune train --resume", _OFF),
    (
        "local_rank",
        "one of several processes wrote the file, and they shared the global batch; start as many (--nproc N), or set "
        "batch.global",
        (-1, 0),
        True,
        True,
    ),
    (
        "_n_gpu",
        "the global batch had per_device_train_batch_size on each GPU; start as many processes (--nproc N), or "
        "set batch.global",
        (-1, 0, 1),
        True,
        True,
    ),
)
OTHERS = {key: UnsupportedKey(*fields) for keys, *fields in _UNSUPPORTED for key in keys.split()}
"""Keys without an equivalent in paratune."""

STATE = {
    "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "global_step", "is_hyper_param_search",
    "is_local_process_zero", "is_world_process_zero", "log_history", "max_steps", "num_input_tokens_seen",
    "stateful_callbacks", "total_flos", "trial_name", "trial_params", "train_batch_size",
}  # fmt: skip
"""Keys of a trainer_state.json with results of a run; its other keys are settings."""

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
