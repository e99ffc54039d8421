"""Makes DeepSpeed compute in float64, for certificates: replaces its functions that use float32.

DeepSpeed has no option for float64: it would round master weights, reductions and norms. Nothing here is used in other
precisions. A version of DeepSpeed without one of the replaced functions is an error.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paratune.errors import ConfigError


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """If `dtype` is float64, let an engine that is made in the block keep, sum and send float64.

    Raises:
        ConfigError: This version of DeepSpeed lacks a function that has to be replaced.
    """
    if dtype != torch.float64:
        yield
        return
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Init

    get_data_types = DeepSpeedEngine.get_data_types
    replaced = {
        (ZeROOptimizer, "_configure_master_weights"): lambda *_, **__: torch.float64,
        (DeepSpeedEngine, "communication_data_type"): torch.float64,
        # The dtype of modules that are made inside stage 3's context; we make none there. On a CPU with fp16 DeepSpeed
        # checks the dtype of the weights here and refuses float64.
        (Init, "_set_dtype"): lambda init, *_: setattr(init, "dtype", torch.float32),
        # Without ZeRO (stage 0) the result chooses a wrapper for mixed precision, so it must stay as it is.
        (DeepSpeedEngine, "get_data_types"): lambda engine: (
            (torch.float64, torch.float64) if engine.zero_optimization() else get_data_types(engine)
        ),
    }
    before = {}
    try:
        for (owner, name), value in replaced.items():
            before[owner, name] = _existing(owner, name)
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


def widen(engine: Any) -> None:
    """Let an existing engine use float64 in its reductions (stage 0) and norms (stages 1 and 2)."""
    stage = engine.zero_optimization_stage()
    if stage == 0:
        from deepspeed.accelerator import get_accelerator

        accelerator = get_accelerator()
        supported = [*_existing(accelerator, "supported_dtypes")(), torch.float64]
        accelerator.supported_dtypes = lambda: supported
        engine.communication_data_type = torch.float64
    elif stage < 3:
        _existing(engine.optimizer, "get_grad_norm_direct")
        engine.optimizer.get_grad_norm_direct = _norm


def _norm(gradients: Iterable[Tensor], params: Any, norm_type: int = 2) -> Tensor:
    """Return the norm of a group's gradients, of which each rank has a part."""
    square = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
    dist.all_reduce(square)
    return square.sqrt()


def _existing(owner: Any, name: str) -> Any:
    try:
        return vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    except (KeyError, AttributeError) as error:
        from deepspeed import __version__

        message = f"precision: fp64 cannot be combined with DeepSpeed {__version__}: {owner} has no {name}; use fp32"
        raise ConfigError(message, code="strategy.excluded", key="precision", name=name) from error
