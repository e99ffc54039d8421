"""The optimizer, with its groups of parameters and their learning rates."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Adafactor, AdamW, Optimizer

from paratune.config.own_code import call_own_code, own_code_errors, wrong_result
from paratune.config.section import OwnCode, OwnOptimizer
from paratune.config.sections import Train
from paratune.engine.adamw_8bit import AdamW8bit
from paratune.engine.schedules import schedule_factor

Group = dict[str, Any]
"""A parameter group: params, weight_decay and rate_factor."""


def _adam_like(kind: Callable[..., Optimizer], groups: list[Group], train: Train, **options: Any) -> Optimizer:
    betas = train.betas[0], train.betas[1]
    return kind(groups, lr=train.learning_rate, betas=betas, eps=train.eps, **options)


def _adamw(groups: list[Group], train: Train) -> Optimizer:
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    # A tensor as learning rate would be needed for CUDA graphs; a float keeps the fused kernel's argument on the host.
    return _adam_like(AdamW, groups, train, fused=devices <= {"cpu", "cuda"})


def _adafactor(groups: list[Group], train: Train) -> Optimizer:
    # One parameter after the other: all at once would need memory for updates of all weights.
    return Adafactor(groups, lr=train.learning_rate, foreach=False)


def _own(groups: list[Group], train: Train) -> Optimizer:
    """Return the user's own optimizer, over exactly these parameters.

    Raises:
        ConfigError: Its function raises an error, or does not return such an optimizer.
    """
    own, key = train.optimizer, "train.optimizer.function"
    assert isinstance(own, OwnOptimizer)
    for group in groups:
        group["lr"] = train.learning_rate * group["rate_factor"]
    wanted = {id(parameter) for group in groups for parameter in group["params"]}
    optimizer = call_own_code(own, key, groups)
    if not isinstance(optimizer, Optimizer):
        raise wrong_result(own.function, key, type(optimizer).__name__, "a torch.optim.Optimizer")
    given = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if set(given) != wanted or len(given) != len(wanted):
        what = f"an optimizer of {len(given)} parameters"
        raise wrong_result(
            own.function, key, what, f"one of all {len(wanted)} parameters of the groups, each of them once"
        )
    factors = {id(parameter): group["rate_factor"] for group in groups for parameter in group["params"]}
    for group in optimizer.param_groups:
        if any(factors[id(parameter)] != group.get("rate_factor", 1.0) for parameter in group["params"]):
            what = "an optimizer whose groups lack the rate_factor of train.layer_decay"
            raise wrong_result(own.function, key, what, "one of the groups that it was called with")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        what = "an optimizer whose step needs a closure"
        raise wrong_result(own.function, key, what, "one that computes no gradients itself")
    step = optimizer.step

    def guarded_step(*arguments: Any, **options: Any) -> Any:
        with own_code_errors(own.function, key, method="step"):
            result = step(*arguments, **options)
        _check_state(optimizer, own.function, key)  # in the first step, and not when the first checkpoint is saved
        return result

    optimizer.step = guarded_step  # type: ignore[method-assign]
    return optimizer


def _check_state(optimizer: Optimizer, function: str, key: str) -> None:
    """Raise a ConfigError for states that a checkpoint cannot contain: it has tensors and numbers of parameters."""
    wanted = "one whose optimizer.state has only tensors and numbers, by parameter and name: checkpoints have no others"
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for parameter, states in optimizer.state.items():
        if id(parameter) not in known:
            what = f"an optimizer with the state {parameter!r:.60}, which belongs to no parameter"
            raise wrong_result(function, key, what, wanted)
        for name, value in states.items():
            if not isinstance(value, torch.Tensor | bool | int | float):
                what = f"an optimizer whose state {name!r} is a {type(value).__name__}"
                raise wrong_result(function, key, what, wanted)


OPTIMIZERS: Final[dict[str, Callable[[list[Group], Train], Optimizer]]] = {
    "adamw": _adamw,
    "adamw_8bit": partial(_adam_like, AdamW8bit),
    "adafactor": _adafactor,
}
"""Optimizers by the value of `train.optimizer`."""


class OptimizerFactory:
    """Makes the optimizer of the parameters of a strategy, and sets the learning rate of all that it made."""

    def __init__(self, train: Train, num_steps: int, rate_factors: Mapping[str, float] | None = None) -> None:
        """Store the settings; `rate_factors` has factors of the learning rate by parameter name, others have 1."""
        self._train = train
        self._num_steps = num_steps
        self._rate_factors = rate_factors or {}
        for step in {0, num_steps - 1} if isinstance(train.schedule, OwnCode) else ():
            schedule_factor(train, step, num_steps=num_steps)  # an error of an own schedule is found before training
        self._optimizers: list[Optimizer] = []
        self._at_start: list[list[dict[str, str]]] = []
        """Settings of the groups of each optimizer when it was made, as texts: values may change in place."""

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Return the optimizer over the parameters that are trained.

        Each factor of the learning rate, in order of first use, has up to two groups. Biases and norms (one dimension)
        do not decay.
        """
        groups: dict[float, tuple[Group, Group]] = {}
        for name, parameter in named_parameters:
            if not parameter.requires_grad:
                continue
            factor = self._rate_factors.get(name, 1.0)
            if factor not in groups:
                decayed, undecayed = (
                    {"params": [], "weight_decay": decay, "rate_factor": factor}
                    for decay in (self._train.weight_decay, 0.0)
                )
                groups[factor] = decayed, undecayed
            is_matrix = parameter.ndim > 1 and not name.endswith(".bias")
            groups[factor][0 if is_matrix else 1]["params"].append(parameter)
        filled = [group for pair in groups.values() for group in pair if group["params"]]
        kind = self._train.optimizer
        make = _own if isinstance(kind, OwnOptimizer) else OPTIMIZERS[kind]
        optimizer = make(filled, self._train)
        self._optimizers.append(optimizer)
        self._at_start.append([_settings(group) for group in optimizer.param_groups])
        return optimizer

    def set_learning_rate(self, step: int) -> float:
        """Set the rate for the update after `step` updates, and return it, without factors of groups."""
        rate = self._train.learning_rate * schedule_factor(self._train, step, num_steps=self._num_steps)
        self._check_groups()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("rate_factor", 1.0)
        return rate

    def _check_groups(self) -> None:
        """Check that an own optimizer keeps no state in its groups, which a checkpoint does not contain."""
        own = self._train.optimizer
        if not isinstance(own, OwnOptimizer):
            return
        for optimizer, before in zip(self._optimizers, self._at_start, strict=True):
            for group, settings in zip(optimizer.param_groups, before, strict=False):
                changed = [key for key, value in _settings(group).items() if settings.get(key) != value]
                if changed:
                    what = f"an optimizer that changes {', '.join(changed)} of its parameter groups"
                    wanted = "one with all its state in optimizer.state: checkpoints do not contain groups"
                    raise wrong_result(own.function, "train.optimizer.function", what, wanted)

    def clear_gradients(self) -> None:
        """Delete the gradients of a pass that failed."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)


def _settings(group: Group) -> dict[str, str]:
    return {key: repr(value) for key, value in group.items() if key not in ("params", "lr")}


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed dropout as a function of only (seed, step, rank).

    A resumed run then has the same dropout masks as an undisturbed one, without a random state in the checkpoint.
    """
    # SplitMix64's mixing constants keep neighbouring steps and ranks far apart.
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % 2**63
    # torch.manual_seed checks all kinds of accelerators, which takes half a millisecond.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(value)
