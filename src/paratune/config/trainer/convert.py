"""Converts the settings of a Hugging Face Trainer to a configuration, without importing TrainingArguments.

Where the file lacks a key, the default of TrainingArguments is written, because the defaults of paratune are different.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import Layer, expand_shorthands
from paratune.config.load import check_layer
from paratune.config.metric_names import LOWER_IS_BETTER, METRICS
from paratune.config.optional_sections import PACKAGES
from paratune.config.options import kinds, section_options
from paratune.config.plain import one_line
from paratune.config.sections import Config
from paratune.config.strategy_sections import STAGES
from paratune.config.trainer.settings import FILL_IN, HARMLESS, KEYS, OTHERS, PLACES, RENAMED, Conversion, UnmappedKey
from paratune.config.yaml_tree import read_tree
from paratune.errors import ConfigError, did_you_mean

_DECIDE = "DECIDE"
"""Marks a value that replaces a setting without an equivalent."""
_ADAMW = {
    *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_npu_fused", "adamw_torch_xla")
}
"""Optimizers that compute the same as AdamW in paratune."""
_SCHEDULES = {
    **{name: name for name in ("linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "constant")},
    "constant_with_warmup": "constant",
}
_POLYNOMIAL_END = 1e-7
"""Default of lr_end in transformers, a learning rate."""
_SHARDS = {"full_shard": "zero3", "shard_grad_op": "zero2", "hybrid_shard": "hsdp", "no_shard": "ddp"}
"""Strategies for those of FSDP."""
_STAGES = (0, 1, 2, 3)


def convert(settings: Mapping[str, Any], source: str, options: Mapping[str, Any]) -> Conversion:
    """Convert settings to a configuration.

    Args:
        options: From the command line by dotted key (`model.name`, `data.train`, `task`, ...); they override the file.

    Raises:
        ConfigError: An unknown task, values of a wrong type, or contradictory settings; the message lists all.
    """
    if "log_history" in settings and "global_step" in settings:
        message = (
            f"{source} is a trainer_state.json, which lacks the learning rate, the schedule, the seed and most other "
            "settings; name the training_args.json of the same run"
        )
        raise ConfigError(message, code="trainer.settings", source=source)
    out = Conversion(settings)
    _leave_out(out)
    kind = _write_task(out, options)
    _write_places(out, options, kind)
    _write_run(out)
    steps = out.get("max_steps")
    if steps is not None and steps > 0:
        epochs = "; num_train_epochs has no effect with it" if "num_train_epochs" in out.given else ""
        out.put("train.max_steps", steps, f"max_steps{epochs}")
    else:
        out.put("train.epochs", out.get("num_train_epochs"), out.origin("num_train_epochs"))
    for key, entry in KEYS.items():
        if entry.option is not None:
            out.put(entry.option, out.get(key), out.origin(key))
    _write_optimizer(out)
    _write_schedule(out)
    _write_evaluation(out, kind)
    _write_checkpoints(out)
    _write_strategy(out)
    _write_machine(out)
    decided = {entry.key for entry in out.decide}
    out.used = [out.names[key] for key in out.given if key in {*KEYS, *PLACES} - decided]
    if problems := list(dict.fromkeys(out.problems)):
        listed = "\n".join(f"  {entry}" for entry in problems)
        message = f"{source}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}\n{listed}"
        raise ConfigError(message, code="trainer.settings", source=source)
    return out


def check_text(text: str, source: str) -> None:
    """Check that the converted file loads.

    Raises:
        ConfigError: It does not: the settings and the options of the command line cannot be combined.
    """
    tree = read_tree(text, source)
    assert isinstance(tree.value, dict), tree.problems
    _, problems = check_layer(expand_shorthands(Layer(tree.value, tree.places)), Path("converted.yaml"))
    if problems:
        listed = "\n".join(f"  {problem.message}" for problem in problems)
        message = f"{source} and the given options are not a valid configuration:\n{listed}"
        raise ConfigError(message, code="trainer.settings", source=source)


def _leave_out(out: Conversion) -> None:
    """Add the keys without an equivalent, and those that the Trainer does not have, to the result."""
    for key, value in out.given.items():
        if key in KEYS or key in PLACES:
            continue
        if key in HARMLESS:
            out.ignored.append(key)
        elif (other := OTHERS.get(key)) is None:
            near = did_you_mean(key, [*KEYS, *OTHERS, *HARMLESS, *RENAMED, *PLACES])
            out.not_known.append(UnmappedKey(key, value, f"not a key of TrainingArguments{near}", changes=None))
        elif any(
            value == default and isinstance(value, bool) == isinstance(default, bool) for default in other.defaults
        ):
            out.ignored.append(key)
        else:
            keys = out.decide if other.decides else out.no_equal
            keys.append(UnmappedKey(key, value, other.why, changes=True))


def _write_task(out: Conversion, options: Mapping[str, Any]) -> str:
    """Write the task; return its kind."""
    task = str(options.get("task", "classification"))
    if task in GLUE:
        out.put("task.glue", task, "--task")
        return GLUE[task].kind
    if task not in METRICS:
        known = [*METRICS, *GLUE]
        near = did_you_mean(task, known)
        out.problems.append(f"--task {task} is not a task{near}; allowed: {', '.join(known)}")
        return "classification"
    out.put("task.kind", task, "--task" if "task" in options else f"{FILL_IN}: --task")
    if "labels" in section_options(kinds(section_options(Config)["task"])[task]):
        given = options.get("task.labels")
        out.put("task.labels", given or ["<first>", "<second>"], "--labels" if given else f"{FILL_IN}: --labels")
    return task


def _write_places(out: Conversion, options: Mapping[str, Any], kind: str) -> None:
    """Write model, files and columns: from the command line, from the file, or as placeholders."""
    columns = "task.glue" not in out.values and kind != "qa"
    for option, flag, placeholder in (
        ("model.name", "--model", "<model>"),
        ("model.tokenizer", "", None),
        ("data.train", "--train", "<train file>"),
        ("data.validation", "--validation", None),
        ("data.test", "--test", None),
        ("data.columns.text", "--text", "<text column>" if columns else None),
        ("data.columns.text_pair", "--text-pair", None),
        ("data.columns.label", "--label", "<label column>" if columns and kind != "mlm" else None),
        ("data.max_length", "", None),
    ):
        key = next((key for key, place in PLACES.items() if place == option and out.given.get(key) is not None), None)
        if option in options:
            out.put(option, options[option], flag)
        elif key is not None:
            out.put(option, out.given[key], key)
        elif placeholder is not None:
            out.put(option, placeholder, f"{FILL_IN}: {flag}")
    length, older = out.given.get("max_length"), out.given.get("max_seq_length")
    if length is not None and older is not None and length != older:
        out.to_decide("max_length", length, f"max_seq_length: {one_line(older)} is written", changes=True)


def _write_run(out: Conversion) -> None:
    folder, name = out.get("output_dir"), out.get("run_name")
    if folder or name:
        of_folder = not name or name == folder
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(folder).name if of_folder else name).lstrip("._-") or "run"
        out.put("run.name", slug, "output_dir, its last part" if of_folder else "run_name")
    if folder:
        out.put("run.folder", "runs", "not output_dir, which has the files of the Trainer")
    given = out.get("report_to")
    trackers = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    trackers = [tracker for tracker in dict.fromkeys(map(str, trackers)) if tracker != "none"]
    for tracker in trackers:
        if tracker == "wandb":
            out.put("trackers.wandb.mode", "offline", "report_to; the Trainer sends at once, as mode: online does")
            if name:
                out.put("trackers.wandb.name", name, "run_name")
        elif tracker in PACKAGES:
            out.put(f"trackers.{tracker}", {}, "report_to")
    if others := [tracker for tracker in trackers if tracker not in PACKAGES]:
        why = f"the trackers here are {', '.join(PACKAGES)}; name them in the section trackers"
        out.no_equal.append(UnmappedKey("report_to", others, why, changes=False))


def _write_optimizer(out: Conversion) -> None:
    betas = [out.get("adam_beta1"), out.get("adam_beta2")]
    out.put("train.betas", betas, out.origin("adam_beta1", "adam_beta2"))
    # In the Trainer 0 and null both mean no clipping.
    out.put("train.max_grad_norm", out.get("max_grad_norm") or None, out.origin("max_grad_norm"))
    optimizer = out.get("optim") or "adamw_torch_fused"
    if optimizer not in _ADAMW:
        reason = "the optimizers here are adamw, adamw_8bit, adafactor and your own (train.optimizer.function)"
        out.to_decide("optim", optimizer, reason, changes=True)
    if out.get("torch_compile"):
        out.put("train.compile", True, out.origin("torch_compile"))
    if out.get("activation_checkpointing"):
        options = out.get("activation_checkpointing_kwargs")
        every = options.get("every_n_layers", 1) if isinstance(options, dict) else 1
        out.put("train.activation_checkpointing", every, out.origin("activation_checkpointing"))


def _write_schedule(out: Conversion) -> None:
    word = out.get("lr_scheduler_type") or "linear"
    if word in _SCHEDULES:
        out.put("train.schedule", _SCHEDULES[word], out.origin("lr_scheduler_type"))
    else:
        why = f"there are {', '.join(_SCHEDULES)}; linear is written"
        out.to_decide("lr_scheduler_type", word, why, changes=True)
        out.put("train.schedule", "linear", f"{_DECIDE}: lr_scheduler_type is {word}")
    given = out.get("lr_scheduler_kwargs")
    options = dict(given) if isinstance(given, dict) else {}
    if word == "cosine_with_restarts" and isinstance(options.get("num_cycles"), int):
        out.put("train.schedule_cycles", options.pop("num_cycles"), "lr_scheduler_kwargs: num_cycles")
    if word == "polynomial":
        end, rate = options.pop("lr_end", _POLYNOMIAL_END), out.get("learning_rate")
        if rate and isinstance(end, int | float):
            out.put("train.schedule_end_ratio", end / rate, "lr_end / learning_rate")
        if isinstance(options.get("power"), int | float):
            out.put("train.schedule_power", float(options.pop("power")), "lr_scheduler_kwargs: power")
    if options:
        out.to_decide("lr_scheduler_kwargs", options, f"train.schedule: {word} has no such options", changes=True)
    steps, ratio = out.get("warmup_steps") or 0, out.get("warmup_ratio") or 0
    key = "warmup_steps" if steps else "warmup_ratio"
    if word == "constant" and (steps or ratio):
        out.to_decide(key, steps or ratio, "left out: the Trainer's constant schedule has no warm-up", changes=False)
    elif steps >= 1:
        out.put("train.warmup_steps", int(steps), key)
    elif steps or ratio:
        out.put("train.warmup_ratio", steps or ratio, f"{key}, a share of the steps")


def _write_evaluation(out: Conversion, kind: str) -> None:
    word = out.get("eval_strategy") or "no"
    if word not in ("no", "steps", "epoch"):
        out.problems.append(f"eval_strategy is {word}; allowed: no, steps or epoch")
        word = "no"
    _write_when(
        out, "evaluate", word, "eval_strategy", "logging_steps" if out.get("eval_steps") is None else "eval_steps"
    )
    has_best = out.get("load_best_model_at_end")
    if has_best and word == "no":
        out.problems.append("load_best_model_at_end: true needs an eval_strategy other than no")
    elif has_best:
        _write_best(out, kind)
    _write_patience(out, kind, word)
    if (has_best or word != "no") and "data.validation" not in out.values:
        out.put("data.validation", "<validation file>", f"{FILL_IN}: --validation")


def _write_best(out: Conversion, kind: str) -> None:
    """Write the metric that selects the kept model."""
    given = out.get("metric_for_best_model")
    name, known = (given or "loss").removeprefix("eval_"), METRICS[kind]
    if name not in known:
        why = f"{kind} has {', '.join(known)}; loss is written"
        out.to_decide("metric_for_best_model", given, why, changes=True)
        out.put("evaluate.best", "loss", f"{_DECIDE}: metric_for_best_model is {given}")
        return  # the direction in the Trainer is not that of the loss
    origin = "metric_for_best_model" if given else "load_best_model_at_end, whose metric is the loss when not given"
    out.put("evaluate.best", name, origin)
    # Without greater_is_better, larger values are better in the Trainer unless the name ends in "loss".
    greater = out.get("greater_is_better")
    greater = not name.endswith("loss") if greater is None else bool(greater)
    if greater == (name in LOWER_IS_BETTER):
        better = "smaller" if greater else "larger"
        why = f"the {better} {name} is better here; the Trainer kept the model with the opposite"
        out.to_decide("greater_is_better", out.get("greater_is_better"), why, changes=True)


def _write_patience(out: Conversion, kind: str, word: str) -> None:
    """Write early stopping, which uses the metric of the best model; `word` is when to evaluate."""
    patience, least = out.get("early_stopping_patience"), out.get("early_stopping_threshold")
    has_best = "evaluate.best" in out.values
    if patience is None or not (has_best or (word != "no" and out.get("metric_for_best_model") is not None)):
        needed = "early_stopping_patience, metric_for_best_model and an eval_strategy other than no"
        for key, value in (("early_stopping_patience", patience), ("early_stopping_threshold", least)):
            if value:
                out.to_decide(key, value, f"left out: stopping early needs {needed}, for the Trainer too", changes=True)
        return
    if not has_best:
        _write_best(out, kind)
        why = "with patience the best model is kept here (evaluate.best); the Trainer kept the last one"
        out.to_decide("load_best_model_at_end", False, why, changes=True)
    out.put("evaluate.patience", patience, "early_stopping_patience")
    if least:
        out.put("evaluate.min_delta", least, "early_stopping_threshold")


def _write_checkpoints(out: Conversion) -> None:
    word = out.get("save_strategy") or "steps"
    if word == "best":
        why = "checkpoints are for a resume, and are written each epoch; evaluate.best keeps the best model"
        out.to_decide("save_strategy", word, why, changes=False)
        word = "epoch"
    if word not in ("no", "steps", "epoch"):
        out.problems.append(f"save_strategy is {word}; allowed: no, steps, epoch or best")
        return
    _write_when(out, "checkpoint", word, "save_strategy", "save_steps")
    limit = out.get("save_total_limit")
    if limit is not None and limit > 0:
        out.put("checkpoint.keep", limit, "save_total_limit")


def _write_when(out: Conversion, section: str, word: str, strategy: str, key: str) -> None:
    """Write when to evaluate or to save; `key` has the steps between two evaluations or checkpoints."""
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
    if out.get("deepspeed"):
        _write_deepspeed(out)
    elif fsdp := out.get("fsdp"):
        words = [str(word) for word in fsdp] if isinstance(fsdp, list) else str(fsdp).lower().split()
        kind = "zero3" if fsdp is True else next((_SHARDS[word] for word in words if word in _SHARDS), None)
        if kind is None:
            out.to_decide("fsdp", fsdp, f"of {', '.join(_SHARDS)}; strategy: single is written", changes=False)
        else:
            out.put("strategy.kind", kind, f"fsdp: {one_line(fsdp)}")
            if "offload" in words and kind != "ddp":
                out.put("strategy.cpu_offload", True, f"fsdp: {one_line(fsdp)}")
            if options := out.get("fsdp_config"):
                why = "blocks are found and sharded without it; see docs/explanation/strategies.md"
                out.to_decide("fsdp_config", options, why, changes=False)
    unused, bucket = out.get("ddp_find_unused_parameters"), out.get("ddp_bucket_cap_mb")
    if "strategy.kind" not in out.values and (unused or bucket):
        out.put("strategy.kind", "ddp", out.origin("ddp_find_unused_parameters", "ddp_bucket_cap_mb"))
    if out.values.get("strategy.kind") == "ddp":
        if unused:
            out.put("strategy.find_unused_parameters", unused, "ddp_find_unused_parameters")
        if bucket:
            out.put("strategy.bucket_cap_mb", bucket, "ddp_bucket_cap_mb")
    elif unused or bucket:
        why = f"of ddp, and {out.values['strategy.kind']} is written"
        out.to_decide("ddp_find_unused_parameters", unused, why, changes=False)
    if "strategy.kind" not in out.values:
        origin = "the file does not contain the number of devices; on several: ddp, and --nproc or torchrun"
        out.put("strategy.kind", "single", origin)


def _half(out: Conversion) -> list[str]:
    """Return the 16-bit precisions that are on."""
    return [name for name in ("fp16", "bf16") if out.get(name)]


def _write_deepspeed(out: Conversion) -> None:
    """Write the stage, limits that are numbers, and DeepSpeed's 16-bit mode.

    With `fp16` and `bf16` Trainer and Accelerate use that mode and not autocast: accelerate 1.15,
    utils/dataclasses.py, `DeepSpeedPlugin.set_mixed_precision`.
    """
    deepspeed, half = out.get("deepspeed"), next(iter(_half(out)), None)
    zero = deepspeed.get("zero_optimization") if isinstance(deepspeed, dict) else None
    stage = zero.get("stage") if isinstance(zero, dict) else None
    out.put("strategy.kind", "deepspeed", "deepspeed")
    if isinstance(zero, dict) and type(stage) is int and stage in _STAGES:
        out.put("strategy.stage", stage, "deepspeed: zero_optimization.stage")
        for name, stages in STAGES.items():
            key = f"stage3_{name}" if stages == (3,) else name
            value = zero.get(key)
            if stage in stages and isinstance(value, int | float) and not isinstance(value, bool):
                out.put(f"strategy.{name}", int(value), f"deepspeed: zero_optimization.{key}")
    if half and stage != 0:
        out.put("strategy.param_dtype", half, f"{half}, which is DeepSpeed's own mode under deepspeed")
    missing = "its other options are" if stage in _STAGES else "its stage is in a separate file or missing, and is"
    why = f"{missing} not converted; see strategy in docs/explanation/strategies.md"
    out.to_decide("deepspeed", deepspeed if isinstance(deepspeed, str) else "{...}", why, changes=False)


def _write_machine(out: Conversion) -> None:
    half = _half(out)
    if len(half) > 1:
        out.problems.append("fp16 and bf16 are both true; keep one")
    precision = half[0] if half else "tf32" if out.get("tf32") else "fp32"
    out.put("precision", precision, out.origin(precision if precision != "fp32" else "fp16"))
    if out.get("use_cpu"):
        out.put("device", "cpu", "use_cpu")
    if workers := out.get("dataloader_num_workers"):
        out.put("data.num_workers", workers, "dataloader_num_workers")
        if factor := out.get("dataloader_prefetch_factor"):
            out.put("data.prefetch_factor", factor, "dataloader_prefetch_factor")
    every = out.get("logging_steps")
    if "logging_steps" in out.given and out.get("logging_strategy") == "steps" and every and every >= 1:
        out.put("measure.log_every", int(every), "logging_steps; the record has every step")
