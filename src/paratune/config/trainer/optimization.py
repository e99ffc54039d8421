"""Converts settings of a Trainer to the sections train and batch."""

from paratune.config.trainer.conversion import DECIDE, Conversion
from paratune.config.trainer.settings import Settings

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
_WRITTEN = (
    ("train.learning_rate", "learning_rate"),
    ("train.weight_decay", "weight_decay"),
    ("train.eps", "adam_epsilon"),
)


def write(settings: Settings, out: Conversion) -> None:
    """Write both sections."""
    _length(settings, out)
    for option, key in _WRITTEN:
        out.put(option, settings.number(key), settings.origin(key))
    betas = [settings.number("adam_beta1"), settings.number("adam_beta2")]
    out.put("train.betas", betas, settings.origin("adam_beta1", "adam_beta2"))
    # In the Trainer 0 and null both mean no clipping.
    out.put("train.max_grad_norm", settings.number("max_grad_norm") or None, settings.origin("max_grad_norm"))
    optimizer = settings.word("optim") or "adamw_torch_fused"
    if optimizer not in _ADAMW:
        reason = "the optimizers here are adamw, adamw_8bit, adafactor and your own (train.optimizer.function)"
        out.to_decide("optim", optimizer, reason, changes=True)
    _schedule(settings, out)
    _activations(settings, out)
    for option, key in (
        ("batch.per_device", "per_device_train_batch_size"),
        ("batch.grad_accum_steps", "gradient_accumulation_steps"),
    ):
        out.put(option, settings.whole(key), settings.origin(key))


def _length(settings: Settings, out: Conversion) -> None:
    steps = settings.whole("max_steps")
    if steps is not None and steps > 0:
        epochs = "; num_train_epochs has no effect with it" if "num_train_epochs" in settings.values else ""
        out.put("train.max_steps", steps, f"max_steps{epochs}")
    else:
        out.put("train.epochs", settings.number("num_train_epochs"), settings.origin("num_train_epochs"))


def _schedule(settings: Settings, out: Conversion) -> None:
    word = settings.word("lr_scheduler_type") or "linear"
    if word in _SCHEDULES:
        out.put("train.schedule", _SCHEDULES[word], settings.origin("lr_scheduler_type"))
    else:
        why = f"there are {', '.join(_SCHEDULES)}; linear is written"
        out.to_decide("lr_scheduler_type", word, why, changes=True)
        out.put("train.schedule", "linear", f"{DECIDE}: lr_scheduler_type is {word}")
    _schedule_options(word, settings, out)
    steps, ratio = settings.number("warmup_steps") or 0, settings.number("warmup_ratio") or 0
    key = "warmup_steps" if steps else "warmup_ratio"
    if word == "constant" and (steps or ratio):
        out.to_decide(key, steps or ratio, "left out: the Trainer's constant schedule has no warm-up", changes=False)
    elif steps >= 1:
        out.put("train.warmup_steps", int(steps), key)
    elif steps or ratio:
        out.put("train.warmup_ratio", steps or ratio, f"{key}, a share of the steps")


def _schedule_options(word: str, settings: Settings, out: Conversion) -> None:
    """Write the options of the schedule that `lr_scheduler_kwargs` has, and polynomial's default end."""
    given = settings.value("lr_scheduler_kwargs")
    options = dict(given) if isinstance(given, dict) else {}
    if word == "cosine_with_restarts" and isinstance(options.get("num_cycles"), int):
        out.put("train.schedule_cycles", options.pop("num_cycles"), "lr_scheduler_kwargs: num_cycles")
    if word == "polynomial":
        end, rate = options.pop("lr_end", _POLYNOMIAL_END), settings.number("learning_rate")
        if rate and isinstance(end, int | float):
            out.put("train.schedule_end_ratio", end / rate, "lr_end / learning_rate")
        if isinstance(options.get("power"), int | float):
            out.put("train.schedule_power", float(options.pop("power")), "lr_scheduler_kwargs: power")
    if options:
        out.to_decide("lr_scheduler_kwargs", options, f"train.schedule: {word} has no such options", changes=True)


def _activations(settings: Settings, out: Conversion) -> None:
    options = settings.value("activation_checkpointing_kwargs")
    if settings.switch("torch_compile"):
        out.put("train.compile", True, settings.origin("torch_compile"))
    if not settings.switch("activation_checkpointing"):
        return
    every = options.get("every_n_layers", 1) if isinstance(options, dict) else 1
    out.put("train.activation_checkpointing", every, settings.origin("activation_checkpointing"))
