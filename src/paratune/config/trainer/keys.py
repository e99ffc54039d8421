"""What the keys of Hugging Face's TrainingArguments are here: those of transformers 5, and older ones in saved files.

Three tables hold every key: those that have an equal (`MAPPED`; `convert` turns them), those that have none and why
(`OTHERS`), and older names (`RENAMED`).
"""

from dataclasses import dataclass
from typing import Any

MAPPED: dict[str, Any] = {
    "output_dir": None,
    "run_name": None,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
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
"""Keys with an equal here, each with what TrainingArguments holds when it is not given.

The last two are of the Trainer's EarlyStoppingCallback; scripts keep them in the same file.
"""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older names, in files that an older version saved, and what they are now."""


@dataclass(frozen=True)
class Other:
    """A key that has no equal."""

    why: str
    """Why there is none, and what is done instead."""
    defaults: tuple[Any, ...]
    """Values that ask for nothing."""
    changes: bool = False
    """Whether any other value makes it another experiment."""
    decides: bool = False
    """Whether any other value puts in question what is written for another key."""


_OFF: tuple[Any, ...] = (None, False, "", [], {})
_HUB = "nothing is uploaded; model/ is a plain Hugging Face folder: hf upload"
_TRACKER = (
    "trackers have sections of their own (docs/howto/trackers.md), all off; the record of the run holds every step"
)
_LOG = "every rank writes a log file, rank 0 also prints"
_LOADER = "workers live as long as training does, batches come in order, and for a GPU from page-locked memory"
_DDP = "a setting of the process group, left at what PyTorch does"
_PROCESS = "belongs to the process that wrote it"
_SPEED = "changes speed, not what is trained"
_COMMAND = "a command here: paratune train, evaluate, predict"
_COLUMNS = "columns are named in data.columns"
_SCORED = "every sample is scored once, over all ranks"
_MEMORY = "memory is measured in every run"
_PRIVATE = "files of a run lie in its folder, on each node that the folder is on"
_AMP = "chosen by an older version; precision decides here"

OTHERS: dict[str, Other] = {
    "lr_scheduler_kwargs": Other("the schedules have no further parameters; cosine and linear end at 0", _OFF, True),
    "optim_args": Other("AdamW's parameters are betas, eps and weight_decay", _OFF, True),
    "optim_target_modules": Other("the optimizer updates all weights", _OFF, True),
    "average_tokens_across_devices": Other("the loss is the mean over all ranks' samples or tokens", (True,), True),
    "label_smoothing_factor": Other("the loss is that of the labels as they are", (0, 0.0), True),
    "neftune_noise_alpha": Other("no noise is added to embeddings", _OFF, True),
    "bf16_full_eval": Other("an evaluation computes as training does (precision)", _OFF),
    "fp16_full_eval": Other("an evaluation computes as training does (precision)", _OFF),
    "auto_find_batch_size": Other(
        "when memory runs out the micro-batch is halved and the global batch kept; see batch.micro_batch_size: auto",
        _OFF,
    ),
    "torch_compile_backend": Other(_SPEED, _OFF),
    "torch_compile_mode": Other(_SPEED, _OFF),
    "torchdynamo": Other(_SPEED, _OFF),
    "jit_mode_eval": Other(_SPEED, _OFF),
    "use_liger_kernel": Other(_SPEED, _OFF),
    "liger_kernel_config": Other(_SPEED, _OFF),
    "torch_empty_cache_steps": Other(_SPEED, _OFF),
    "use_cache": Other("of generation; no key-value cache is kept in training", _OFF),
    "use_ipex": Other(_SPEED, _OFF),
    "use_mps_device": Other("device: auto, cpu or cuda", _OFF),
    "logging_first_step": Other("every step is logged", _OFF),
    "logging_dir": Other("the log is in the run folder", _OFF),
    "logging_nan_inf_filter": Other("a loss that is not finite ends the run with its step", (True,)),
    "log_on_each_node": Other(_LOG, (True,)),
    "log_level": Other(_LOG, ("passive",)),
    "log_level_replica": Other(_LOG, ("warning",)),
    "include_num_input_tokens_seen": Other("tokens are counted, real and padded apart", ("no", False)),
    "include_tokens_per_second": Other("tokens per second are measured in every run", _OFF),
    "disable_tqdm": Other("bars stand on terminals only", _OFF),
    "report_to": Other(_TRACKER, (*_OFF, "none", ["none"], "all", ["all"])),
    "project": Other(_TRACKER, ("huggingface",)),
    "trackio_space_id": Other(_TRACKER, (*_OFF, "trackio")),
    "trackio_bucket_id": Other(_TRACKER, _OFF),
    "trackio_static_space_id": Other(_TRACKER, _OFF),
    "eval_delay": Other("evaluation begins with the first epoch or step that is due", (0, 0.0), True),
    "prediction_loss_only": Other("all metrics of the task are computed", _OFF),
    "eval_on_start": Other("paratune evaluate scores a model before training", _OFF),
    "eval_do_concat_batches": Other(_SCORED, (True,)),
    "eval_use_gather_object": Other(_SCORED, _OFF),
    "eval_accumulation_steps": Other("what an evaluation keeps of a sample is a few numbers, on the host", _OFF),
    "include_for_metrics": Other("metrics are those of the task", _OFF),
    "include_inputs_for_metrics": Other("metrics are those of the task", _OFF),
    "batch_eval_metrics": Other(_SCORED, _OFF),
    "past_index": Other("no state is carried from batch to batch", (-1,), True),
    "save_only_model": Other("a checkpoint holds all that is needed to resume; model/ is the model alone", _OFF),
    "save_on_each_node": Other(_PRIVATE, _OFF),
    "save_safetensors": Other("always safetensors", (True,)),
    "enable_jit_checkpoint": Other("a signal saves a checkpoint in every run", _OFF),
    "overwrite_output_dir": Other("--overwrite deletes a run", _OFF),
    "push_to_hub": Other(_HUB, _OFF),
    "hub_token": Other(_HUB, (*_OFF, "<HUB_TOKEN>")),
    "hub_private_repo": Other(_HUB, _OFF),
    "hub_model_id": Other(_HUB, _OFF),
    "hub_strategy": Other(_HUB, ("every_save",)),
    "hub_always_push": Other(_HUB, _OFF),
    "hub_revision": Other(_HUB, _OFF),
    "push_to_hub_model_id": Other(_HUB, _OFF),
    "push_to_hub_organization": Other(_HUB, _OFF),
    "push_to_hub_token": Other(_HUB, (*_OFF, "<PUSH_TO_HUB_TOKEN>")),
    "ignore_data_skip": Other("a resumed run continues with the sample after the last trained one", _OFF, True),
    "restore_callback_states_from_checkpoint": Other("there are no callbacks; patience is kept in checkpoints", _OFF),
    "full_determinism": Other("order and masks follow from the seed; sums of a GPU: train.deterministic", _OFF),
    "data_seed": Other("run.seed is that of weights, order and dropout; see data.split.seed for the cut", _OFF, True),
    "accelerator_config": Other(
        "batches are made by the rules of batch:",
        (
            *_OFF,
            {
                "split_batches": False,
                "dispatch_batches": None,
                "even_batches": True,
                "use_seedable_sampler": True,
                "non_blocking": False,
                "gradient_accumulation_kwargs": None,
            },
            {
                "split_batches": False,
                "dispatch_batches": None,
                "even_batches": True,
                "use_seedable_sampler": True,
                "gradient_accumulation_kwargs": None,
            },
        ),
        True,
    ),
    "split_batches": Other("batch.per_device and batch.global set the batch size", _OFF, True),
    "dispatch_batches": Other("each rank makes its own batches", _OFF),
    "parallelism_config": Other("see strategy: in docs/explanation/strategies.md", _OFF),
    "dataloader_drop_last": Other("no sample of an epoch is left out", _OFF, True),
    "dataloader_pin_memory": Other(_LOADER, (True, False)),
    "dataloader_persistent_workers": Other(_LOADER, (True, False)),
    "dataloader_multiprocessing_context": Other(_LOADER, _OFF),
    "dataloader_in_order": Other(_LOADER, (True,)),
    "remove_unused_columns": Other(_COLUMNS, (True,)),
    "label_names": Other(_COLUMNS, (*_OFF, ["labels"])),
    "train_sampling_strategy": Other("every epoch is a shuffle of all samples", ("random",), True),
    "group_by_length": Other("every epoch is a shuffle of all samples", _OFF, True),
    "length_column_name": Other(_COLUMNS, ("length",)),
    "ddp_broadcast_buffers": Other(_DDP, _OFF),
    "ddp_static_graph": Other(_DDP, _OFF),
    "ddp_backend": Other(_DDP, (*_OFF, "nccl", "gloo")),
    "ddp_timeout": Other(_DDP, (1800,)),
    "ray_scope": Other("for searches: paratune sweep", ("last",)),
    "fsdp_min_num_params": Other("blocks of the model are what is sharded", (0,)),
    "fsdp_transformer_layer_cls_to_wrap": Other("blocks of the model are found, not named", _OFF),
    "sharded_ddp": Other("strategy: zero1, zero2 or zero3", _OFF),
    "mp_parameters": Other("of SageMaker", _OFF),
    "tpu_num_cores": Other("TPUs are not supported", _OFF),
    "tpu_metrics_debug": Other("TPUs are not supported", _OFF),
    "debug": Other("paratune doctor; the record of every rank", _OFF),
    "skip_memory_metrics": Other(_MEMORY, (True,)),
    "adafactor": Other("the optimizers are adamw and lamb", _OFF, True),
    "fp16_opt_level": Other(_AMP, ("O1",)),
    "fp16_backend": Other(_AMP, ("auto",)),
    "half_precision_backend": Other(_AMP, ("auto",)),
    "do_train": Other(_COMMAND, (True, *_OFF)),
    "do_eval": Other(_COMMAND, (True, *_OFF)),
    "do_predict": Other(_COMMAND, (True, *_OFF)),
    "resume_from_checkpoint": Other("paratune train --resume", _OFF),
    "local_rank": Other(
        "of one of several processes, and the global batch was that of all of them; start as many (--nproc N), or set "
        "batch.global",
        (-1, 0),
        True,
        True,
    ),
    "_n_gpu": Other(
        "the global batch had per_device_train_batch_size on each GPU; start as many processes (--nproc N), or "
        "say batch.global",
        (-1, 0, 1),
        True,
        True,
    ),
}
"""Keys without an equal."""

STATE = {
    "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "global_step", "is_hyper_param_search",
    "is_local_process_zero", "is_world_process_zero", "log_history", "max_steps", "num_input_tokens_seen",
    "stateful_callbacks", "total_flos", "trial_name", "trial_params", "train_batch_size",
}  # fmt: skip
"""Keys of a trainer_state.json that tell how a run went; the others of it are settings."""

PLACES = {
    "model_name_or_path": "model.name",
    "tokenizer_name": "model.tokenizer",
    "train_file": "data.train",
    "validation_file": "data.validation",
    "test_file": "data.test",
    "max_seq_length": "data.max_length",
    "max_length": "data.max_length",
}
"""Keys that files of the Trainer's example scripts hold beside TrainingArguments."""
