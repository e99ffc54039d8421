"""The table of the settings of a Trainer: for each key our option, its own conversion, or the reason why there is none.

It has the keys of TrainingArguments of transformers 5 and of older versions, of the example scripts, of launchers, of
Accelerate (`accelerate.NAME`) and of DeepSpeed (`deepspeed.NAME`).
"""

from typing import Any, Final, Literal, NamedTuple

from paratune.config.strategy_sections import STAGES

Kind = Literal["number", "whole", "switch", "word", "text", "any"]
"""What values are allowed; a word is one of several, and is read in any case."""


class Mapped(NamedTuple):
    """A key with an equivalent in paratune."""

    kind: Kind
    default: Any = None  # of TrainingArguments, written where the file lacks the key: that of paratune may differ
    option: str | None = None  # takes the value as it is; None where a function of `convert` writes it


class Reason(NamedTuple):
    """A key without an equivalent in paratune, with which the experiment may be different."""

    why: str  # the reason, and what paratune does instead
    default: Any = None  # changes nothing, as null, false and empty values


def _names(prefix: str, text: str) -> dict[str, str]:
    """Return other names with the key that they mean, from a text such as "key=other,another key2=other2"."""
    pairs = (pair.split("=") for pair in text.split())
    return {f"{prefix}{name}": key for key, names in pairs for name in names.split(",")}


def _given(kind: Kind, text: str) -> dict[str, Mapped]:
    """Return rows without a default, from a text such as "key=option key"."""
    pairs = (pair.partition("=") for pair in text.split())
    return {key: Mapped(kind, None, option or None) for key, _, option in pairs}


def _without_effect(prefix: str, text: str) -> dict[str, None]:
    return dict.fromkeys(f"{prefix}{key}" for key in text.split())


ZERO: Final = "deepspeed.zero_optimization."
FSDP: Final = "fsdp_config."
_LIMITS = {f"{ZERO}{'stage3_' * (stages == (3,))}{name}" for name, stages in STAGES.items()} - {f"{ZERO}bucket_cap_mb"}
TABLE: Final[dict[str, Mapped | Reason | str | None]] = {
    # TrainingArguments with their defaults.
    "report_to": Mapped("any", "none"), "logging_strategy": Mapped("word", "steps"),
    "seed": Mapped("whole", 42, "run.seed"), "ddp_timeout": Mapped("whole", 1800, "run.hang_timeout_s"),
    "logging_steps": Mapped("number", 500), "save_strategy": Mapped("word", "steps"),
    "per_device_train_batch_size": Mapped("whole", 8), "gradient_accumulation_steps": Mapped("whole", 1),
    "local_rank": Mapped("whole", -1), "num_train_epochs": Mapped("number", 3.0), "max_steps": Mapped("whole", -1),
    "learning_rate": Mapped("number", 5e-5, "train.learning_rate"), "lr_scheduler_type": Mapped("word", "linear"),
    "warmup_steps": Mapped("number", 0), "optim": Mapped("word", "adamw_torch_fused"),
    "weight_decay": Mapped("number", 0.0, "train.weight_decay"), "adam_beta1": Mapped("number", 0.9),
    "adam_beta2": Mapped("number", 0.999), "adam_epsilon": Mapped("number", 1e-8),
    "max_grad_norm": Mapped("number", 1.0), "label_smoothing_factor": Mapped("number", 0.0, "task.label_smoothing"),
    "eval_strategy": Mapped("word", "no"), "per_device_eval_batch_size": Mapped("whole", 8, "evaluate.batch_size"),
    "save_steps": Mapped("number", 500), "dataloader_num_workers": Mapped("whole", 0),
    "early_stopping_threshold": Mapped("number", 0.0),  # of the Trainer's EarlyStoppingCallback
    "deepspeed.scheduler.params.warmup_type": Mapped("word", "log"),
    # Others, with an option where it takes the value as it is: of TrainingArguments, Accelerate, DeepSpeed, scripts.
    **_given("text", "output_dir run_name metric_for_best_model dataset_name dataset_config_name "
             "model_name_or_path=model.name model_revision=model.revision tokenizer_name=model.tokenizer "
             "train_file=data.train validation_file=data.validation test_file=data.test "
             "text_column_name=data.columns.text label_column_name=data.columns.label"),
    **_given("word", "task_name accelerate.mixed_precision accelerate.distributed_type deepspeed.scheduler.type "
             f"deepspeed.optimizer.type {ZERO}offload_optimizer.device {ZERO}offload_param.device"),
    **_given("switch", "split_batches auto_find_batch_size adafactor torch_compile load_best_model_at_end bf16 fp16 "
             f"use_cpu activation_checkpointing tf32 ddp_find_unused_parameters do_regression line_by_line "
             f"{FSDP}offload_params {ZERO}cpu_offload trust_remote_code=model.trust_remote_code "
             "version_2_with_negative=task.unanswerable"),
    **_given("whole", "_n_gpu accelerate.num_processes accelerate.num_machines torchrun.nproc_per_node "
             f"torchrun.nnodes deepspeed.train_batch_size {ZERO}stage save_total_limit early_stopping_patience "
             "dataloader_prefetch_factor max_seq_length=data.max_length max_length=data.max_length "
             "max_train_samples=data.max_rows.train max_eval_samples=data.max_rows.validation "
             "max_predict_samples=data.max_rows.test doc_stride=task.stride n_best_size=task.num_best "
             "max_answer_length=task.max_answer_tokens"),
    **_given("number", "warmup_ratio eval_steps ddp_bucket_cap_mb validation_split_percentage "
             "hidden_dropout_prob=model.overrides.hidden_dropout_prob "
             "classifier_dropout=model.overrides.classifier_dropout "
             "attention_probs_dropout_prob=model.overrides.attention_probs_dropout_prob "
             f"mlm_probability=task.mask_probability null_score_diff_threshold=task.null_threshold "
             f"{' '.join(sorted(_LIMITS))}"),
    **_given("any", "lr_scheduler_kwargs activation_checkpointing_kwargs greater_is_better fsdp deepspeed "
             f"{FSDP}sharding_strategy {FSDP}reshard_after_forward deepspeed.optimizer.params.betas"),
    # Without an equivalent.
    "optim_args": Reason("the optimizers here have betas, eps and weight_decay"),
    "optim_target_modules": Reason("the optimizer updates all weights"),
    "average_tokens_across_devices": Reason("the loss is the mean over all ranks' samples or tokens", True),
    "neftune_noise_alpha": Reason("no noise is added to embeddings"),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), Reason("an evaluation computes as training does")),
    "eval_delay": Reason("evaluation begins with the first epoch or step that is due", 0),
    "past_index": Reason("no state is passed from batch to batch", -1),
    "ignore_data_skip": Reason("a resumed run continues with the sample after the last trained one"),
    "data_seed": Reason("the order of the samples follows from the one seed of the run"),
    "dataloader_drop_last": Reason("no sample of an epoch is left out"),
    "train_sampling_strategy": Reason("every epoch is a shuffle of all samples", "random"),
    "group_by_length": Reason("every epoch is a shuffle of all samples"),
    "resume_from_checkpoint": Reason("the moments of the optimizer are pickles, which are never read; set `model.name` "
                                     "to the checkpoint and `train.continue_trainer: true`"),
    "accelerate.parallelism_config": Reason("tensor and context parallelism do not exist here"),
    "accelerate.fp8_config": Reason("the smallest type of numbers in training has 16 bits"),
    "accelerate.megatron_lm_config": Reason("Megatron-LM's tensor parallelism does not exist here"),
    **dict.fromkeys((f"{ZERO}offload_optimizer.nvme_path", f"{ZERO}offload_param.nvme_path"),
                    Reason("states are offloaded to CPU memory, not to a disk")),
    "deepspeed.scheduler.params.warmup_min_lr": Reason("the warm-up begins at 0", 0),
    f"{ZERO}zero_quantized_weights": Reason("weights are sent with all their bits"),
    f"{ZERO}zero_quantized_gradients": Reason("gradients are sent with all their bits"),
    "deepspeed.fp16.loss_scale": Reason("the scale of fp16 is found during training", 0),
    # Other names: of older versions, of Accelerate and of DeepSpeed.
    **_names("", "eval_strategy=evaluation_strategy use_cpu=no_cuda,accelerate.use_cpu max_steps=max_train_steps "
             "per_device_train_batch_size=per_gpu_train_batch_size warmup_steps=num_warmup_steps "
             "per_device_eval_batch_size=per_gpu_eval_batch_size max_eval_samples=max_val_samples "
             f"activation_checkpointing=gradient_checkpointing,{FSDP}activation_checkpointing "
             "activation_checkpointing_kwargs=gradient_checkpointing_kwargs text_column_name=text_column_names "
             "accelerate.mixed_precision=mixed_precision max_seq_length=max_source_length "
             "split_batches=accelerator_config.split_batches "
             "gradient_accumulation_steps=accelerate.gradient_accumulation_steps"),
    **_names("accelerate.deepspeed_config.", f"{ZERO}stage=zero_stage max_grad_norm=gradient_clipping "
             "gradient_accumulation_steps=gradient_accumulation_steps "
             f"{ZERO}offload_optimizer.device=offload_optimizer_device {ZERO}offload_param.device=offload_param_device "
             f"{ZERO}offload_optimizer.nvme_path=offload_optimizer_nvme_path "
             f"{ZERO}offload_param.nvme_path=offload_param_nvme_path"),
    **_names("deepspeed.", "per_device_train_batch_size=train_micro_batch_size_per_gpu max_grad_norm=gradient_clipping "
             "gradient_accumulation_steps=gradient_accumulation_steps fp16=fp16.enabled,amp.enabled "
             "bf16=bf16.enabled,bfloat16.enabled learning_rate=optimizer.params.lr,scheduler.params.warmup_max_lr "
             "adam_epsilon=optimizer.params.eps weight_decay=optimizer.params.weight_decay "
             "warmup_steps=scheduler.params.warmup_num_steps"),
    # Keys without an equivalent that do not change what is learned, whatever their value: of logs, uploads and speed.
    **_without_effect("",
        "torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval torch_empty_cache_steps use_liger_kernel "
        "liger_kernel_config use_ipex use_cache use_mps_device logging_first_step logging_dir logging_nan_inf_filter "
        "log_on_each_node log_level log_level_replica include_num_input_tokens_seen include_tokens_per_second "
        "disable_tqdm project trackio_space_id trackio_bucket_id trackio_static_space_id prediction_loss_only "
        "eval_on_start eval_do_concat_batches eval_use_gather_object batch_eval_metrics eval_accumulation_steps "
        "include_for_metrics include_inputs_for_metrics save_only_model save_on_each_node save_safetensors "
        "enable_jit_checkpoint overwrite_output_dir push_to_hub push_to_hub_model_id push_to_hub_organization "
        "push_to_hub_token hub_private_repo hub_model_id hub_always_push hub_revision hub_token hub_strategy "
        "restore_callback_states_from_checkpoint full_determinism dispatch_batches parallelism_config "
        "dataloader_pin_memory dataloader_persistent_workers dataloader_multiprocessing_context dataloader_in_order "
        "remove_unused_columns label_names length_column_name ddp_broadcast_buffers ddp_static_graph ddp_backend "
        "ray_scope fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap sharded_ddp mp_parameters tpu_num_cores "
        "tpu_metrics_debug debug skip_memory_metrics fp16_opt_level fp16_backend half_precision_backend do_train "
        "do_eval do_predict config_name cache_dir use_fast_tokenizer token use_auth_token overwrite_cache "
        "pad_to_max_length preprocessing_num_workers ignore_mismatched_sizes return_entity_level_metrics model_type "
        "do_lower_case data_dir metric_name with_tracking accelerator_config fsdp_config deepspeed_config"),
    **_without_effect("deepspeed.",
        "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer dump_state zero_force_ds_cpu_optimizer "
        "memory_breakdown scheduler.params.total_num_steps fp16.auto_cast fp16.loss_scale_window "
        "fp16.initial_scale_power fp16.hysteresis fp16.min_loss_scale fp16.consecutive_hysteresis prescale_gradients "
        "communication_data_type gradient_predivide_factor optimizer.params.torch_adam optimizer.params.adam_w_mode "
        "scheduler.params.last_batch_iteration"),
    **_without_effect(ZERO,
        "overlap_comm contiguous_gradients allgather_partitions reduce_scatter round_robin_gradients "
        "ignore_unused_parameters sub_group_size stage3_gather_16bit_weights_on_model_save "
        "stage3_gather_fp16_weights_on_model_save load_from_fp32_weights elastic_checkpoint memory_efficient_linear "
        "zero_hpz_partition_size"),
}  # fmt: skip
"""By key: the option or its conversion, a reason, another name of the same key, or None for a key without effect."""
WITHOUT_EFFECT_BELOW: Final = (
    # Addresses, files and speed; what decides about samples, weights and strategy is in the table.
    *("accelerate.", "torchrun.", FSDP, "accelerator_config."),
    *("deepspeed.activation_checkpointing.", "deepspeed.flops_profiler.", "deepspeed.tensorboard.", "deepspeed.wandb."),
    *("deepspeed.comms_logger.", "deepspeed.aio.", "deepspeed.checkpoint.", "deepspeed.csv_monitor."),
    *(f"{ZERO}offload_optimizer.", f"{ZERO}offload_param."),
)
"""Beginnings of keys without effect."""

MEANT: Final = _names("", (
    "num_train_epochs=epochs,num_epochs,n_epochs,max_epochs learning_rate=lr max_steps=steps "
    "per_device_train_batch_size=batch_size,train_batch_size,bs per_device_eval_batch_size=eval_batch_size "
    "model_name_or_path=model_name,model,model_path,pretrained_model,base_model,model_checkpoint "
    "tokenizer_name=tokenizer train_file=data_path,train_path,train_data dataset_name=dataset "
    "validation_file=val_file,eval_file,valid_path,val_path max_seq_length=max_len,seq_length,max_seq_len "
    "warmup_steps=warmup warmup_ratio=warmup_proportion lr_scheduler_type=scheduler,lr_scheduler optim=optimizer "
    "gradient_accumulation_steps=accumulation_steps,grad_accum_steps,accumulate_grad_batches "
    "seed=random_seed,random_state early_stopping_patience=patience label_smoothing_factor=label_smoothing "
    "max_grad_norm=grad_clip,clip_grad_norm,gradient_clip_val text_column_name=text_column "
    "label_column_name=label_column output_dir=save_dir,out_dir dataloader_num_workers=num_workers"
))  # fmt: skip
"""Names in settings written by hand, with the key that they mean."""


def has_no_effect(key: str) -> bool:
    """Return whether a key changes nothing that is learned, whatever its value."""
    return (key in TABLE and TABLE[key] is None) or (key not in TABLE and key.startswith(WITHOUT_EFFECT_BELOW))
