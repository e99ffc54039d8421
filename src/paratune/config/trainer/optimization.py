"""The settings of a Trainer that decide the optimization: the sections train and batch."""

from paratune.config.trainer.conversion import DECIDE, Conversion
from paratune.config.trainer.settings import Settings

_ADAMW = {
    *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_npu_fused", "adamw_torch_xla"),
}
"""Optimizers that compute what AdamW here computes."""
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
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
    # 0 and null both leave gradients as they are there.
    out.put("train.max_grad_norm", settings.number("max_grad_norm") or None, settings.origin("max_grad_norm"))
    optimizer = settings.word("optim") or "adamw_torch_fused"
    if optimizer not in _ADAMW:
        out.to_decide("optim", optimizer, "the optimizers here are adamw and lamb", changes=True)
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
        epochs = "; num_train_epochs has no effect with it" if "num_train_epochs" in settings.found else ""
        out.put("train.max_steps", steps, f"max_steps{epochs}")
    else:
        out.put("train.epochs", settings.number("num_train_epochs"), settings.origin("num_train_epochs"))


def _schedule(settings: Settings, out: Conversion) -> None:
    word = settings.word("lr_scheduler_type") or "linear"
    if word in _SCHEDULES:
        out.put("train.schedule", _SCHEDULES[word], settings.origin("lr_scheduler_type"))
    else:
        why = "there are linear, cosine and constant; linear is written"
        out.to_decide("lr_scheduler_type", word, why, changes=True)
        out.put("train.schedule", "linear", f"{DECIDE}: lr_scheduler_type is {word}")
    steps, ratio = settings.number("warmup_steps") or 0, settings.number("warmup_ratio") or 0
    key = "warmup_steps" if steps else "warmup_ratio"
    if word == "constant" and (steps or ratio):
        out.to_decide(key, steps or ratio, "left out: the Trainer's constant schedule has no warm-up", changes=False)
    elif steps >= 1:
        out.put("train.warmup_steps", int(steps), key)
    elif steps or ratio:
        out.put("train.warmup_ratio", steps or ratio, f"{key}, a share of the steps")


def _activations(settings: Settings, out: Conversion) -> None:
    options = settings.value("activation_checkpointing_kwargs")
    if settings.switch("torch_compile"):
        out.put("train.compile", True, settings.origin("torch_compile"))
    if not settings.switch("activation_checkpointing"):
        return
    every = options.get("every_n_layers", 1) if isinstance(options, dict) else 1
    out.put("train.activation_checkpointing", every, settings.origin("activation_checkpointing"))
