"""Parallel strategies: one module each, all behind the protocol in `protocol.py`. Importing registers nothing."""

import importlib
import sys
from pathlib import Path
from typing import Any

from paratune.errors import ConfigError, did_you_mean

STRATEGIES = {
    "single": "paratune.strategies.single:SingleStrategy",
    "ddp": "paratune.strategies.ddp:DDPStrategy",
    "zero1": "paratune.strategies.zero1:Zero1Strategy",
    "zero2": "paratune.strategies.fsdp:Zero2Strategy",
    "zero3": "paratune.strategies.fsdp:Zero3Strategy",
    "hsdp": "paratune.strategies.fsdp:HSDPStrategy",
    "pipeline": "paratune.strategies.pipeline.strategy:PipelineStrategy",
    "deepspeed": "paratune.strategies.deepspeed:DeepSpeedStrategy",
}
"""Where each kind is implemented; an outside one is named in full in the configuration."""


def strategy_class(kind: str) -> Any:
    """Return the class of a strategy by its kind, or by package.module:Class.

    Raises:
        ConfigError: There is no such kind, module or class.
    """
    target = STRATEGIES.get(kind, kind)
    if ":" not in target:
        raise ConfigError(
            f"strategy.kind: {kind} is not one of {', '.join(STRATEGIES)}, nor package.module:Class"
            f"{did_you_mean(kind, STRATEGIES)}",
            code="strategy.unknown",
            key="strategy.kind",
            value=kind,
        )
    module, _, name = target.partition(":")
    if kind not in STRATEGIES and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # as `python -m` has it, so that a module beside the configuration is found
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module raises when it is run
        raise ConfigError(
            f"strategy.kind: {kind} cannot be imported: {type(error).__name__}: {error}",
            code="strategy.outside",
            key="strategy.kind",
            value=kind,
        ) from error
