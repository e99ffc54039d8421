"""Converts settings of a Trainer for evaluation, checkpoints, strategy, precision and logs."""

from typing import Any

from paratune.config.metric_names import LOWER_IS_BETTER, METRICS
from paratune.config.plain import one_line
from paratune.config.strategy_sections import STAGES
from paratune.config.trainer.conversion import DECIDE, FILL_IN, Conversion
from paratune.config.trainer.settings import Settings

_SHARDS = {"full_shard": "zero3", "shard_grad_op": "zero2", "hybrid_shard": "hsdp", "no_shard": "ddp"}
"""Strategies for those of FSDP."""
_STAGES = (0, 1, 2, 3)


def write(settings: Settings, kind: str, out: Conversion) -> None:
    """Write all of these sections; `kind` is that of the task."""
    _evaluate(settings, kind, out)
    _checkpoint(settings, out)
    _strategy(settings, out)
    _machine(settings, out)


def _evaluate(settings: Settings, kind: str, out: Conversion) -> None:
    word = settings.word("eval_strategy") or "no"
    if word not in ("no", "steps", "epoch"):
        settings.problems.append(f"eval_strategy is {word}; allowed: no, steps or epoch")
        word = "no"
    key = "eval_steps" if settings.value("eval_steps") is not None else "logging_steps"
    _when("evaluate", word, "eval_strategy", key, settings, out)
    size = "per_device_eval_batch_size"
    out.put("evaluate.batch_size", settings.whole(size), settings.origin(size))
    has_best = settings.switch("load_best_model_at_end")
    if has_best and word == "no":
        settings.problems.append("load_best_model_at_end: true needs an eval_strategy other than no")
    elif has_best:
        _best(settings, kind, out)
    _patience(settings, kind, word, out)
    if (has_best or word != "no") and "data.validation" not in out.values:
        out.put("data.validation", "<validation file>", f"{FILL_IN}: --validation")


def _best(settings: Settings, kind: str, out: Conversion) -> None:
    """Write the metric that selects the kept model."""
    given = settings.text("metric_for_best_model")
    name, known = (given or "loss").removeprefix("eval_"), METRICS[kind]
    if name in known:
        origin = "metric_for_best_model" if given else "load_best_model_at_end, whose metric is the loss when not given"
        out.put("evaluate.best", name, origin)
    else:
        why = f"{kind} has {', '.join(known)}; loss is written"
        out.to_decide("metric_for_best_model", given, why, changes=True)
        out.put("evaluate.best", "loss", f"{DECIDE}: metric_for_best_model is {given}")
        return  # the direction in the Trainer is not that of the loss
    # Without greater_is_better, larger values are better in the Trainer unless the name ends in "loss".
    greater = settings.value("greater_is_better")
    greater = not name.endswith("loss") if greater is None else bool(greater)
    if greater == (name in LOWER_IS_BETTER):
        better = "smaller" if greater else "larger"
        why = f"the {better} {name} is better here; the Trainer kept the model with the opposite"
        out.to_decide("greater_is_better", settings.value("greater_is_better"), why, changes=True)


def _patience(settings: Settings, kind: str, word: str, out: Conversion) -> None:
    """Write early stopping, which uses the metric of the best model; `word` is when to evaluate."""
    patience, least = settings.whole("early_stopping_patience"), settings.number("early_stopping_threshold")
    if patience is None:
        if least:
            why = "left out: evaluate.min_delta needs evaluate.patience, and the file has no early_stopping_patience"
            out.to_decide("early_stopping_threshold", least, why, changes=True)
        return
    if "evaluate.best" not in out.values:
        if word == "no" or settings.text("metric_for_best_model") is None:
            missing = "an eval_strategy other than no" if word == "no" else "metric_for_best_model"
            why = f"left out: stopping early needs {missing}, for the Trainer too"
            for key, value in (("early_stopping_patience", patience), ("early_stopping_threshold", least)):
                if value:
                    out.to_decide(key, value, why, changes=True)
            return
        _best(settings, kind, out)
        why = "with patience the best model is kept here (evaluate.best); the Trainer kept the last one"
        out.to_decide("load_best_model_at_end", False, why, changes=True)
    out.put("evaluate.patience", patience, "early_stopping_patience")
    if least:
        out.put("evaluate.min_delta", least, "early_stopping_threshold")


def _checkpoint(settings: Settings, out: Conversion) -> None:
    word = settings.word("save_strategy") or "steps"
    if word == "best":
        why = "checkpoints are for a resume, and are written each epoch; evaluate.best keeps the best model"
        out.to_decide("save_strategy", word, why, changes=False)
        word = "epoch"
    if word not in ("no", "steps", "epoch"):
        settings.problems.append(f"save_strategy is {word}; allowed: no, steps, epoch or best")
        return
    _when("checkpoint", word, "save_strategy", "save_steps", settings, out)
    limit = settings.whole("save_total_limit")
    if limit is not None and limit > 0:
        out.put("checkpoint.keep", limit, "save_total_limit")


def _when(section: str, word: str, strategy: str, key: str, settings: Settings, out: Conversion) -> None:
    """Write when to evaluate or to save; `key` has the steps between two evaluations or checkpoints."""
    if word != "steps":
        out.put(f"{section}.every", {"no": "never"}.get(word, word), settings.origin(strategy))
        return
    steps = settings.number(key) or 500
    if steps < 1:
        why = f"a share of all steps; {section}.every: epoch is written, or set {section}.steps as a number"
        out.to_decide(key, steps, why, changes=section == "evaluate")
        out.put(f"{section}.every", "epoch", f"{DECIDE}: {key} is {steps}")
        return
    out.put(f"{section}.every", "steps", settings.origin(strategy))
    last = settings.whole("max_steps") or -1
    if 0 < last < steps:  # the Trainer ends before the first one
        out.put(f"{section}.steps", last, f"{settings.origin(key)}: {int(steps)}, above max_steps; once, at the end")
        return
    out.put(f"{section}.steps", int(steps), settings.origin(key))


def _strategy(settings: Settings, out: Conversion) -> None:
    if settings.value("deepspeed"):
        _deepspeed(settings.value("deepspeed"), next(iter(_half(settings)), None), out)
    elif settings.value("fsdp"):
        _fsdp(settings.value("fsdp"), settings.value("fsdp_config"), out)
    unused, bucket = settings.switch("ddp_find_unused_parameters"), settings.number("ddp_bucket_cap_mb")
    if "strategy.kind" not in out.values and (unused or bucket):
        out.put("strategy.kind", "ddp", settings.origin("ddp_find_unused_parameters", "ddp_bucket_cap_mb"))
    if out.values.get("strategy.kind") == "ddp":
        for option, key, value in (
            ("find_unused_parameters", "ddp_find_unused_parameters", unused),
            ("bucket_cap_mb", "ddp_bucket_cap_mb", bucket),
        ):
            if value:
                out.put(f"strategy.{option}", value, key)
    elif unused or bucket:
        why = f"of ddp, and {out.values['strategy.kind']} is written"
        out.to_decide("ddp_find_unused_parameters", unused, why, changes=False)
    if "strategy.kind" not in out.values:
        origin = "the file does not contain the number of devices; on several: ddp, and --nproc or torchrun"
        out.put("strategy.kind", "single", origin)


def _fsdp(fsdp: Any, options: Any, out: Conversion) -> None:
    words = [str(word) for word in fsdp] if isinstance(fsdp, list) else str(fsdp).lower().split()
    kind = "zero3" if fsdp is True else next((_SHARDS[word] for word in words if word in _SHARDS), None)
    if kind is None:
        out.to_decide("fsdp", fsdp, f"of {', '.join(_SHARDS)}; strategy: single is written", changes=False)
        return
    out.put("strategy.kind", kind, f"fsdp: {one_line(fsdp)}")
    if "offload" in words and kind != "ddp":
        out.put("strategy.cpu_offload", True, f"fsdp: {one_line(fsdp)}")
    if options:
        why = "blocks are found and sharded without it; see docs/explanation/strategies.md"
        out.to_decide("fsdp_config", options, why, changes=False)


def _half(settings: Settings) -> list[str]:
    """Return the 16-bit precisions that are on."""
    return [name for name in ("fp16", "bf16") if settings.switch(name)]


def _deepspeed(deepspeed: Any, half: str | None, out: Conversion) -> None:
    """Write the stage, limits that are numbers, and DeepSpeed's 16-bit mode.

    With `fp16` and `bf16` Trainer and Accelerate use that mode and not autocast: accelerate 1.15,
    utils/dataclasses.py, `DeepSpeedPlugin.set_mixed_precision`.
    """
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


def _machine(settings: Settings, out: Conversion) -> None:
    half = _half(settings)
    if len(half) > 1:
        settings.problems.append("fp16 and bf16 are both true; keep one")
    tf32 = settings.switch("tf32")
    precision = half[0] if half else "tf32" if tf32 else "fp32"
    out.put("precision", precision, settings.origin(precision if precision != "fp32" else "fp16"))
    if settings.switch("use_cpu"):
        out.put("device", "cpu", "use_cpu")
    if workers := settings.whole("dataloader_num_workers"):
        out.put("data.num_workers", workers, "dataloader_num_workers")
        if factor := settings.whole("dataloader_prefetch_factor"):
            out.put("data.prefetch_factor", factor, "dataloader_prefetch_factor")
    every = settings.number("logging_steps")
    if "logging_steps" in settings.values and settings.word("logging_strategy") == "steps" and every and every >= 1:
        out.put("measure.log_every", int(every), "logging_steps; the record has every step")
