"""Parallel strategies: one module each, all behind the protocol in `protocol.py`. Importing registers nothing."""

import importlib
from typing import Any

from paratune.config.own_code import import_callable
from paratune.errors import ConfigError, did_you_mean

STRATEGIES = {
    "single": "paratune.strategies.single:SingleStrategy",
    "ddp": "paratune.strategies.ddp:DDPStrategy",
    "zero1": "paratune.strategies.ddp:ZERO1",
    "zero2": "paratune.strategies.fsdp:ZERO2",
    "zero3": "paratune.strategies.fsdp:ZERO3",
    "hsdp": "paratune.strategies.fsdp:HSDP",
    "pipeline": "paratune.strategies.pipeline.strategy:PipelineStrategy",
    "deepspeed": "paratune.strategies.deepspeed:DeepSpeedStrategy",
}
"""Where each kind is implemented. A kind from another package is written in full in the configuration."""


def strategy_class(kind: str) -> Any:
    """Return the class of a strategy (or `fsdp.FSDPKind`, `ddp.ZERO1`) by its kind, or by package.module:Class.

    Raises:
        ConfigError: There is no such kind, module or class.
    """
    target = STRATEGIES.get(kind, kind)
    if ":" not in target:
        message = (
            f"strategy.kind: {kind} is not one of {', '.join(STRATEGIES)}, nor package.module:Class"
            f"{did_you_mean(kind, STRATEGIES)}"
        )
        raise ConfigError(message, code="strategy.unknown", key="strategy.kind", value=kind)
    if kind not in STRATEGIES:
        return import_callable(kind, "strategy.kind")
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
