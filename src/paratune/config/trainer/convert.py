"""Converts the settings of a Hugging Face Trainer to a configuration, without importing TrainingArguments.

Where the file lacks a key, the default of TrainingArguments is written, because the defaults of paratune are different.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from paratune.config.glue import GLUE
from paratune.config.metric_names import LOWER_IS_BETTER, METRICS
from paratune.config.optional_sections import PACKAGES
from paratune.config.options import kinds, section_options
from paratune.config.plain import one_line
from paratune.config.sections import Config, ScheduleName
from paratune.config.strategy_sections import STAGES
from paratune.config.trainer.conversion import FILL_IN, Conversion, UnmappedKey
from paratune.config.trainer.read import Settings
from paratune.config.trainer.table import FSDP, TABLE, ZERO, Mapped
from paratune.errors import ConfigError, did_you_mean

_DECIDE = "DECIDE"  # marks a value that replaces a setting without an equivalent
OPTIMIZERS: Final[dict[str, str]] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_torch_xla"), "adamw"),
    **dict.fromkeys(("adamw_hf", "adamw_apex_fused", "paged_adamw_32bit", "paged_adamw", "adam", "adamw"), "adamw"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    "adafactor": "adafactor",
    **{name.lower(): f"torch.optim:{name}" for name in ("SGD", "Adagrad", "RMSprop")},
}
"""Optimizers of paratune, or classes of PyTorch, for `optim`."""
SCHEDULES: Final[dict[str, str]] = {
    **{name: name for name in get_args(ScheduleName)},
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
}
_DEEPSPEED_SCHEDULES = {"warmuplr": "constant_with_warmup", "warmupdecaylr": "linear"}
_SHARDS = {"full_shard": "zero3", "shard_grad_op": "zero2", "hybrid_shard": "hsdp", "no_shard": "ddp"}
"""Strategies for those of FSDP; Accelerate also numbers them, from 1."""
_SHARD_NUMBERS = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard"}
_SCRIPT_TASKS = {"run_qa": "qa", "run_mlm": "mlm", "run_ner": "token_classification", "run_swag": "multiple_choice"}
_SCRIPT_TASKS |= dict.fromkeys(("run_glue", "run_classification"), "classification")
"""Kinds of task of the example scripts."""


def convert(settings: Settings, source: str, options: Mapping[str, Any]) -> Conversion:
    """Convert settings to a configuration.

    Args:
        options: From the command line by dotted key (`model.name`, `data.train`, `task`, ...); they override the file.

    Raises:
        ConfigError: An unknown task, values of a wrong type, or contradictory settings; the message lists all.
    """
    out = Conversion(settings.values)
    for key, value, why in settings.notes:
        out.to_decide(key, value, why, changes=False)
    kind = _write_task(out, options, settings.script)
    _write_places(out, options, kind)
    _write_run(out)
    if (steps := out.get("max_steps") or 0) > 0:
        epochs = "; num_train_epochs has no effect with it" if "num_train_epochs" in out.given else ""
        out.put("train.max_steps", steps, f"max_steps{epochs}")
    else:
        out.put("train.epochs", out.get("num_train_epochs"), out.origin("num_train_epochs"))
    _write_batch(out)
    _write_plain(out, kind)
    _write_evaluation(out, kind)
    for write in (_write_optimizer, _write_schedule, _write_checkpoints, _write_machine, _write_strategy):
        write(out)
    if problems := list(dict.fromkeys(out.problems)):
        message = f"{source}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}"
        raise ConfigError("\n  ".join([message, *problems]), code="trainer.settings", source=source)
    return out


def _task_options(kind: str) -> Mapping[str, Any]:
    return section_options(kinds(section_options(Config)["task"])[kind])


def _write_task(out: Conversion, options: Mapping[str, Any], script: str) -> str:
    """Write the task: of the command line, of the name of a GLUE task, or of an example script; return its kind."""
    named = re.sub("^mnlimm$", "mnli", str(out.get("task_name") or "").replace("-", ""))
    found = "regression" if out.get("do_regression") else _SCRIPT_TASKS.get(script.removesuffix("_no_trainer"))
    origin = "--task" if "task" in options else "task_name" if named in GLUE else f"{script}.py, or do_regression"
    task = str(options.get("task", named if named in GLUE else found or "classification"))
    if task in GLUE:
        out.put("task.glue", task, origin)
        return GLUE[task].kind
    if task not in METRICS:
        near = did_you_mean(task, [*METRICS, *GLUE])
        out.problems.append(f"--task {task} is not a task{near}; allowed: {', '.join([*METRICS, *GLUE])}")
        return "classification"
    out.put("task.kind", task, origin if "task" in options or found else f"{FILL_IN}: --task")
    if "labels" in _task_options(task):
        given = options.get("task.labels")
        names = ["O", "B-<TYPE>", "I-<TYPE>"] if task == "token_classification" else ["<first>", "<second>"]
        out.put("task.labels", given or names, "--labels" if given else f"{FILL_IN}: --labels")
    return task


def _write_places(out: Conversion, options: Mapping[str, Any], kind: str) -> None:
    """Write model, files and columns: from the command line, from the file, or as placeholders."""
    glue, hub = out.values.get("task.glue"), {}
    columns = not glue and kind not in ("qa", "token_classification")
    if name := out.get("dataset_name") or (glue and not out.get("train_file") and "nyu-mll/glue"):
        config = out.get("dataset_config_name") or (glue if name == "nyu-mll/glue" else None)
        source = f"hub:{name}/{config}" if config else f"hub:{name}"
        hub = {"data.train": f"{source}@train"}
        if out.given.get("do_eval") is True or out.get("eval_strategy") not in (None, "no"):
            hub["data.validation"] = f"{source}@validation{'_matched' * (glue == 'mnli')}"
    for option, flag, placeholder in (
        ("model.name", "--model", "<model>"),
        ("model.tokenizer", "", None),
        ("data.train", "--train", "<train file>"),
        ("data.validation", "--validation", None),
        ("data.test", "--test", None),
        ("data.columns.text", "--text", "<text column>" if columns else None),
        ("data.columns.text_pair", "--text-pair", None),
        ("data.columns.label", "--label", "<label column>" if columns and kind != "mlm" else None),
    ):
        keys = (key for key, row in TABLE.items() if isinstance(row, Mapped) and row.option == option)
        key = next((key for key in keys if out.given.get(key) is not None), None)
        if option in options:
            out.put(option, options[option], flag)
        elif key is not None:
            is_list = option == "data.columns.text" and "," in str(out.get(key))
            out.put(option, out.get(key).split(",") if is_list else out.get(key), out.origin(key))
        elif option in hub and "data.train" not in options:
            origin = out.origin("dataset_name" if out.given.get("dataset_name") else "task_name")
            out.put(option, hub[option], f"{origin}; the name of the split is the usual one")
        elif placeholder is not None:
            out.put(option, placeholder, f"{FILL_IN}: {flag}")
    length, older = out.given.get("max_length"), out.given.get("max_seq_length")
    if length is not None and older is not None and length != older:
        out.to_decide("max_length", length, f"max_seq_length: {one_line(older)} is written")
    if "data.validation" not in out.values and (share := out.get("validation_split_percentage")):
        out.put("data.split.validation", share / 100, "validation_split_percentage")
    if kind == "mlm" and out.get("line_by_line"):
        out.put("task.windows", "documents", "line_by_line")


def _write_run(out: Conversion) -> None:
    folder, name = out.get("output_dir"), out.get("run_name")
    if folder or name:
        of_folder = name in (None, folder)
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(folder).name if of_folder else name).lstrip("._-") or "run"
        out.put("run.name", slug, "output_dir, its last part" if of_folder else "run_name")
    if folder:
        out.put("run.folder", "runs", "not output_dir, which has the files of the Trainer")
    given = out.get("report_to")
    given = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    trackers = [tracker for tracker in dict.fromkeys(map(str, given)) if tracker != "none"]
    for tracker in [tracker for tracker in trackers if tracker in PACKAGES and tracker != "wandb"]:
        out.put(f"trackers.{tracker}", {}, "report_to")
    if "wandb" in trackers:
        out.put("trackers.wandb.mode", "offline", "report_to; the Trainer sends at once, as mode: online does")
        if name:
            out.put("trackers.wandb.name", name, "run_name")
    if others := [tracker for tracker in trackers if tracker not in PACKAGES]:
        why = f"the trackers here are {', '.join(PACKAGES)}; name them in the section trackers"
        out.no_equal.append(UnmappedKey("report_to", others, why, changes=False))


def _num_processes(out: Conversion) -> tuple[int | None, str]:
    """Return the number of processes, or of the GPUs of one process, that shared a step, and its origin."""
    if (processes := out.get("accelerate.num_processes")) is not None:
        return processes, out.origin("accelerate.num_processes")
    if (processes := out.get("torchrun.nproc_per_node")) is not None:
        return processes * (out.get("torchrun.nnodes") or 1), out.origin("torchrun.nproc_per_node", "torchrun.nnodes")
    total, part = out.get("deepspeed.train_batch_size"), out.given.get("per_device_train_batch_size")
    if total and part:  # DeepSpeed: train_batch_size is the product of the other two and the processes
        steps = out.get("per_device_train_batch_size") * (out.get("gradient_accumulation_steps") or 1)
        return max(1, total // steps), out.origin("deepspeed.train_batch_size")
    gpus = out.get("_n_gpu")  # with one GPU in each process, their number is unknown
    return gpus if gpus and gpus > 1 else None, out.origin("_n_gpu")


def _write_batch(out: Conversion) -> None:
    """Write the samples of a step: over all processes where their number is known, else per device."""
    size, steps = out.get("per_device_train_batch_size"), out.get("gradient_accumulation_steps")
    origin = out.origin("per_device_train_batch_size")
    if size is None or steps is None:
        return
    processes, known = _num_processes(out)
    local_rank = out.get("local_rank") or 0
    if processes is None and local_rank > 0:
        why = "several processes shared the global batch; start as many processes (--nproc N), or set batch.global"
        out.to_decide("local_rank", local_rank, why)
    is_found, total = out.get("auto_find_batch_size"), out.get("deepspeed.train_batch_size")
    if out.get("split_batches"):
        out.put("batch.global", size * steps, f"{origin}, over all processes (split_batches)")
    elif total and "per_device_train_batch_size" not in out.given:
        out.put("batch.global", total, out.origin("deepspeed.train_batch_size"))
    elif (processes or 1) > 1:
        words = f"{size} per device ({origin}) * {steps} ({out.origin('gradient_accumulation_steps')})"
        out.put("batch.global", size * steps * processes, f"{words} * {processes} processes ({known})")
        out.put("batch.micro_batch_size", size, origin)
    elif is_found:
        out.put("batch.global", size * steps, f"{origin}; on one device")
    else:
        out.put("batch.per_device", size, origin)
        out.put("batch.grad_accum_steps", steps, out.origin("gradient_accumulation_steps"))
    if is_found:
        out.put("batch.micro_batch_size", "auto", "auto_find_batch_size; the global batch stays")


def _write_plain(out: Conversion, kind: str) -> None:
    """Write the keys whose value an option takes as it is."""
    for key, row in TABLE.items():
        if not isinstance(row, Mapped) or row.option is None or row.option in out.values:
            continue
        if key not in out.given and (row.default is None or not row.option.startswith(("train.", "evaluate.", "run."))):
            continue
        section, _, name = row.option.partition(".")
        value = out.get(key)
        if key == "ddp_timeout" and value == row.default:
            continue
        if section == "task" and name not in _task_options(kind):
            if value != row.default:
                out.no_equal.append(UnmappedKey(key, value, f"{kind} has no {name}", changes=True))
        elif section == "data" and "max_rows" in name and value is not None:
            out.put(row.option, value, f"{out.origin(key)}; the first rows there, drawn rows here")
        elif value is not None and not (row.default is None and value is False):
            out.put(row.option, value, out.origin(key))


def _write_optimizer(out: Conversion) -> None:
    key = "adafactor" if out.get("adafactor") else "optim"
    if out.get("deepspeed.optimizer.type"):  # which the Trainer uses in place of its own
        key = "deepspeed.optimizer.type"
    word = "adafactor" if key == "adafactor" else out.get(key) or "adamw_torch_fused"
    kind = OPTIMIZERS.get(word, "adamw")
    if word not in OPTIMIZERS:
        out.to_decide(key, word, "there are adamw, adamw_8bit, adafactor and your own (train.optimizer.function)")
    elif ":" in kind:
        out.put("train.optimizer.function", kind, out.origin(key))
        out.put("train.optimizer.elementwise", True, f"as {kind}")
    elif kind != "adamw":
        out.put("train.optimizer", kind, out.origin(key))
    if kind == "adafactor":
        why = "here the step is also scaled by the norm of each weight (torch.optim.Adafactor); the Trainer's is not"
        out.to_decide(key, word, why)
    elif kind in ("adamw", "adamw_8bit"):
        names = ("adam_beta1", "adam_beta2")
        out.put("train.betas", [out.get(name) for name in names], out.origin(*names))
        betas = out.get("deepspeed.optimizer.params.betas")
        if isinstance(betas, list) and not {*names} & out.given.keys():
            out.put("train.betas", betas, "deepspeed.optimizer.params.betas")
        out.put("train.eps", out.get("adam_epsilon"), out.origin("adam_epsilon"))
    # In the Trainer 0 and null both mean no clipping.
    out.put("train.max_grad_norm", out.get("max_grad_norm") or None, out.origin("max_grad_norm"))
    if out.get("torch_compile"):
        out.put("train.compile", True, out.origin("torch_compile"))
    if out.get("activation_checkpointing"):
        options = out.get("activation_checkpointing_kwargs")
        every = options.get("every_n_layers", 1) if isinstance(options, dict) else 1
        out.put("train.activation_checkpointing", every, out.origin("activation_checkpointing"))


def _write_schedule(out: Conversion) -> None:
    word, key = out.get("lr_scheduler_type") or "linear", "lr_scheduler_type"
    steps, ratio, rate = out.get("warmup_steps") or 0, out.get("warmup_ratio") or 0, out.get("learning_rate")
    if of_deepspeed := out.get("deepspeed.scheduler.type"):  # which the Trainer uses in place of its own
        key, word = "deepspeed.scheduler.type", _DEEPSPEED_SCHEDULES.get(of_deepspeed, of_deepspeed)
        shape = out.get("deepspeed.scheduler.params.warmup_type")
        if word in SCHEDULES and (steps or ratio) and shape != "linear":
            why = "DeepSpeed's default, a warm-up along the logarithm of the steps; here it is linear"
            out.to_decide("deepspeed.scheduler.params.warmup_type", shape, why)
    if word in SCHEDULES:
        out.put("train.schedule", SCHEDULES[word], out.origin(key))
    else:
        why = f"there are {', '.join(SCHEDULES)}, or your own (train.schedule.function); linear is written"
        out.to_decide(key, word, why)
        out.put("train.schedule", "linear", f"{_DECIDE}: {key} is {word}")
    options = out.get("lr_scheduler_kwargs")
    options = {**options} if isinstance(options, dict) else {}
    if word == "cosine_with_restarts" and isinstance(options.get("num_cycles"), int):
        out.put("train.schedule_cycles", options.pop("num_cycles"), "lr_scheduler_kwargs: num_cycles")
    if word == "polynomial" and isinstance(options.get("power"), int | float):
        out.put("train.schedule_power", float(options.pop("power")), "lr_scheduler_kwargs: power")
    for name, is_rate in (("lr_end", True), ("min_lr", True), ("min_lr_rate", False), ("min_lr_ratio", False)):
        # Default of lr_end in transformers: a learning rate of 1e-7.
        end = options.get(name, 1e-7 if (word, name) == ("polynomial", "lr_end") else None)
        takes = {"polynomial": "lr_end", "warmup_stable_decay": "min_lr_ratio"}.get(word, "min_lr min_lr_rate")
        if rate and isinstance(end, int | float) and name in takes and word in SCHEDULES:
            out.put("train.schedule_end_ratio", end / rate if is_rate else end, f"{name}{' / learning_rate' * is_rate}")
            options.pop(name, None)
    last, decay = out.get("max_steps") or -1, options.get("num_decay_steps")
    if word == "warmup_stable_decay" and last > 0 and isinstance(decay, int) and decay > 0:
        after = last - (int(steps) if steps >= 1 else math.ceil((steps or ratio) * last))
        # The number of steps is rounded up.
        share = decay / after if math.ceil(decay / after * after) == decay else (decay - 0.5) / after
        out.put("train.decay_ratio", share, f"num_decay_steps {options.pop('num_decay_steps')} of {after} steps")
    if options:
        out.to_decide("lr_scheduler_kwargs", options, f"train.schedule: {word} has no such options")
    key = "warmup_steps" if steps else "warmup_ratio"
    if word == "constant" and (steps or ratio):
        out.to_decide(key, steps or ratio, "left out: the Trainer's constant schedule has no warm-up", changes=False)
    elif steps >= 1:
        out.put("train.warmup_steps", int(steps), out.origin(key))
    elif steps or ratio:
        out.put("train.warmup_ratio", steps or ratio, f"{out.origin(key)}, a share of the steps")


def _write_evaluation(out: Conversion, kind: str) -> None:
    word, key = out.get("eval_strategy") or "no", "logging_steps" if out.get("eval_steps") is None else "eval_steps"
    _write_when(out, "evaluate", word, "eval_strategy", key)
    has_best = out.get("load_best_model_at_end")
    if has_best:
        _write_best(out, kind)
        if word == "no":
            out.problems.append("load_best_model_at_end: true needs an eval_strategy other than no")
    _write_patience(out, kind, word)
    if (has_best or word != "no") and "data.validation" not in out.values:
        out.put("data.validation", "<validation file>", f"{FILL_IN}: --validation")


def _write_best(out: Conversion, kind: str) -> None:
    """Write the metric that selects the kept model."""
    given = out.get("metric_for_best_model")
    name, known = (given or "loss").removeprefix("eval_"), METRICS[kind]
    if name not in known:
        out.to_decide("metric_for_best_model", given, f"{kind} has {', '.join(known)}; loss is written")
        out.put("evaluate.best", "loss", f"{_DECIDE}: metric_for_best_model is {given}")
        return  # the direction in the Trainer is not that of the loss
    origin = "metric_for_best_model" if given else "load_best_model_at_end, whose metric is the loss when not given"
    out.put("evaluate.best", name, origin)
    # Without greater_is_better, larger values are better in the Trainer unless the name ends in "loss".
    greater = out.get("greater_is_better")
    is_greater = not name.endswith("loss") if greater is None else bool(greater)
    if is_greater == (name in LOWER_IS_BETTER):
        why = f"the {'smaller' if is_greater else 'larger'} {name} is better here; the Trainer kept the opposite"
        out.to_decide("greater_is_better", greater, why)


def _write_patience(out: Conversion, kind: str, word: str) -> None:
    """Write early stopping, which uses the metric of the best model; `word` is when to evaluate."""
    patience, least = out.get("early_stopping_patience"), out.get("early_stopping_threshold")
    has_best = "evaluate.best" in out.values
    if patience is None or not (has_best or (word != "no" and out.get("metric_for_best_model") is not None)):
        needed = "early_stopping_patience, metric_for_best_model and an eval_strategy other than no"
        for key, value in (("early_stopping_patience", patience), ("early_stopping_threshold", least)):
            if value:
                out.to_decide(key, value, f"left out: stopping early needs {needed}, for the Trainer too")
        return
    if not has_best:
        _write_best(out, kind)
        out.to_decide("load_best_model_at_end", False, "with patience the best model is kept here, not the last one")
    out.put("evaluate.patience", patience, "early_stopping_patience")
    if least:
        out.put("evaluate.min_delta", least, "early_stopping_threshold")


def _write_checkpoints(out: Conversion) -> None:
    word = out.get("save_strategy") or "steps"
    if word == "best":
        why = "checkpoints, for a resume, are written each epoch; evaluate.best keeps the best model"
        out.to_decide("save_strategy", word, why, changes=False)
        word = "epoch"
    _write_when(out, "checkpoint", word, "save_strategy", "save_steps")
    if (limit := out.get("save_total_limit") or 0) > 0:
        out.put("checkpoint.keep", limit, "save_total_limit")


def _write_when(out: Conversion, section: str, word: str, strategy: str, key: str) -> None:
    """Write when to evaluate or to save; `key` has the steps between two evaluations or checkpoints."""
    if word not in ("no", "steps", "epoch"):
        allowed = "no, steps or epoch" if section == "evaluate" else "no, steps, epoch or best"
        out.problems.append(f"{strategy} is {word}; allowed: {allowed}")
    if word != "steps":
        out.put(f"{section}.every", {"no": "never"}.get(word, word), out.origin(strategy))
        return
    steps = out.get(key) or 500
    if steps < 1:
        why = f"a share of all steps; {section}.every: epoch is written, or set {section}.steps as a number"
        out.to_decide(key, steps, why, changes=section == "evaluate")
        out.put(f"{section}.every", "epoch", f"{_DECIDE}: {key} is {steps}")
        return
    out.put(f"{section}.every", "steps", out.origin(strategy))
    last, origin = out.get("max_steps") or -1, out.origin(key)
    if 0 < last < steps:  # the Trainer ends before the first one
        steps, origin = last, f"{origin}: {int(steps)}, above max_steps; once, at the end"
    out.put(f"{section}.steps", int(steps), origin)


def _write_strategy(out: Conversion) -> None:
    """Write the strategy of DeepSpeed, FSDP or several processes."""
    kind_of_accelerate = out.get("accelerate.distributed_type")
    processes, known = _num_processes(out)
    if out.get("deepspeed") or f"{ZERO}stage" in out.given or kind_of_accelerate == "deepspeed":
        _write_deepspeed(out)
    elif out.get("fsdp") or kind_of_accelerate == "fsdp" or any(key.startswith(FSDP) for key in out.given):
        _write_fsdp(out)
    elif kind_of_accelerate not in (None, "no", "multi_gpu", "multi_cpu"):
        out.to_decide("accelerate.distributed_type", kind_of_accelerate, "there is none like it here")
    unused, bucket = out.get("ddp_find_unused_parameters"), out.get("ddp_bucket_cap_mb")
    if "strategy.kind" not in out.values and (processes or 1) > 1:
        nodes = out.get("accelerate.num_machines") or out.get("torchrun.nnodes") or 1
        start = f"train FILE --nproc {processes}" if nodes == 1 else f"launch FILE --nodes {nodes}"
        out.put("strategy.kind", "ddp", f"{processes} processes ({known}); paratune {start}")
    elif "strategy.kind" not in out.values and (unused or bucket):
        out.put("strategy.kind", "ddp", out.origin("ddp_find_unused_parameters", "ddp_bucket_cap_mb"))
    if out.values.get("strategy.kind") == "ddp":
        for name, value in (("find_unused_parameters", unused), ("bucket_cap_mb", bucket)):
            if value:
                out.put(f"strategy.{name}", value, f"ddp_{name}")
    elif unused or bucket:
        out.to_decide("ddp_find_unused_parameters", unused, "of ddp, and another strategy is written", changes=False)
    if "strategy.kind" not in out.values:
        unknown = "the number of devices is not in the file; on several: ddp, and --nproc or torchrun"
        out.put("strategy.kind", "single", "1 process" if processes == 1 else unknown)


def _write_fsdp(out: Conversion) -> None:
    """Write FSDP: the shards, offload, and 16-bit weights, which Trainer and Accelerate use with fp16 and bf16."""
    fsdp = out.get("fsdp")
    words = [str(word) for word in fsdp] if isinstance(fsdp, list) else str(fsdp).lower().split()
    of_accelerate = str(out.get(f"{FSDP}sharding_strategy") or "").lower()
    words.append(_SHARD_NUMBERS.get(of_accelerate, of_accelerate.replace("_zero2", "")))
    reshards = out.get(f"{FSDP}reshard_after_forward")
    is_default = fsdp is True or (not of_accelerate and not isinstance(fsdp, str | list))
    kind = next((_SHARDS[word] for word in words if word in _SHARDS), "zero3" if is_default else None)
    kind = _SHARDS.get(str(reshards).lower(), kind)
    kind = "zero2" if reshards in (False, "false") and kind == "zero3" else kind
    if kind is None:
        out.to_decide("fsdp", fsdp, f"of {', '.join(_SHARDS)}; strategy: single is written", changes=False)
        return
    names = ("fsdp", f"{FSDP}sharding_strategy", f"{FSDP}reshard_after_forward", "accelerate.distributed_type")
    origins = [f"{out.names[key]}: {one_line(out.given[key])}" for key in names if key in out.given]
    out.put("strategy.kind", kind, ", ".join(origins) or "fsdp_config")
    half = out.values["precision"]
    if kind != "ddp" and ("offload" in words or out.get(f"{FSDP}offload_params")):
        out.put("strategy.cpu_offload", True, "offload of FSDP")
    if kind != "ddp" and half in ("fp16", "bf16"):
        out.put("strategy.param_dtype", half, f"FSDP's own {half}")


def _write_deepspeed(out: Conversion) -> None:
    """Write the stage, offload, limits that are numbers, and DeepSpeed's 16-bit mode.

    With `fp16` and `bf16` Trainer and Accelerate use that mode and not autocast: accelerate 1.15,
    utils/dataclasses.py, `DeepSpeedPlugin.set_mixed_precision`.
    """
    out.put("strategy.kind", "deepspeed", out.origin("deepspeed", "accelerate.distributed_type"))
    stage, half = out.get(f"{ZERO}stage"), out.values["precision"]
    if stage in (0, 1, 2, 3):
        out.put("strategy.stage", stage, out.origin(f"{ZERO}stage"))
        for name, stages in STAGES.items():
            key = f"{ZERO}{'stage3_' * (stages == (3,))}{name}"
            if stage in stages and key in out.given and (value := out.get(key)) is not None:
                value = int(value) // 2 * 2 if name == "allgather_bucket_size" else int(value)
                out.put(f"strategy.{name}", value, out.origin(key))
    else:
        found, why = out.given.get("deepspeed"), "its stage is in a separate file or missing; give the file too"
        out.to_decide("deepspeed", found if isinstance(found, str) else None, why, changes=False)
    for name, stages, keys in (
        ("offload_optimizer", (1, 2, 3), (f"{ZERO}offload_optimizer.device", f"{ZERO}cpu_offload")),
        ("offload_parameters", (3,), (f"{ZERO}offload_param.device",)),
    ):
        is_moved = out.get(keys[0]) in ("cpu", "nvme")
        if stage in stages and (is_moved or any(map(out.get, keys[1:]))):
            out.put(f"strategy.{name}", True, out.origin(*keys))
        elif is_moved:
            out.ignored.append(out.names[keys[0]])
    if half in ("fp16", "bf16") and stage != 0:
        out.put("strategy.param_dtype", half, f"{half}, which is DeepSpeed's own mode under deepspeed")


def _write_machine(out: Conversion) -> None:
    half = [name for name in ("fp16", "bf16") if out.get(name)]
    if len(half) > 1:
        out.problems.append("fp16 and bf16 are both true; keep one")
    mixed = out.get("accelerate.mixed_precision")
    precision = half[0] if half else "tf32" if out.get("tf32") else "fp32"
    if mixed in ("fp16", "bf16") and not half:
        out.put("precision", mixed, out.origin("accelerate.mixed_precision"))
    else:
        out.put("precision", precision, out.origin("fp16" if precision == "fp32" else precision))
        if mixed not in (None, "no", "fp32", precision):
            out.to_decide("accelerate.mixed_precision", mixed, f"precision: {precision} is written")
    if out.get("use_cpu"):
        out.put("device", "cpu", out.origin("use_cpu"))
    if workers := out.get("dataloader_num_workers"):
        out.put("data.num_workers", workers, out.origin("dataloader_num_workers"))
        if factor := out.get("dataloader_prefetch_factor"):
            out.put("data.prefetch_factor", factor, "dataloader_prefetch_factor")
    every = out.get("logging_steps") or 0
    if "logging_steps" in out.given and out.get("logging_strategy") == "steps" and every >= 1:
        out.put("measure.log_every", int(every), "logging_steps; the record has every step")
