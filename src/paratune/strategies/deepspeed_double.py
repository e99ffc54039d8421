"""DeepSpeed in float64, for proofs: the places where it takes float32 for the widest type there is.

Its configuration has no word for float64: master weights, reductions and norms would be rounded on their way. Nothing
here is used in other precisions. Methods that are replaced must be there, so that a version without them is noticed.
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
    """Let an engine that is made meanwhile keep, add up and send float64, if that is the `dtype`.

    Raises:
        ConfigError: This version of DeepSpeed is made in another way.
    """
    if dtype != torch.float64:
        yield
        return
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Init

    types_of = DeepSpeedEngine.get_data_types
    replaced = {
        (ZeROOptimizer, "_configure_master_weights"): lambda *_, **__: torch.float64,
        (DeepSpeedEngine, "communication_data_type"): torch.float64,
        # The dtype of modules that are made under stage 3, of which there are none. Where the processor computes in
        # fp16 it is that of the weights, and float64 is refused.
        (Init, "_set_dtype"): lambda init, *_: setattr(init, "dtype", torch.float32),
        # Without ZeRO the answer chooses a wrapper for mixed precision.
        (DeepSpeedEngine, "get_data_types"): lambda engine: (
            (torch.float64, torch.float64) if engine.zero_optimization() else types_of(engine)
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
    """Do the same to an engine that is made: to its reductions (stage 0) and its norms (stages 1 and 2)."""
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
    """Return the norm of one group's gradients over all ranks, each of which has a part of them."""
    square = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
    dist.all_reduce(square)
    return square.sqrt()


def _existing(owner: Any, name: str) -> Any:
    try:
        return vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    except (KeyError, AttributeError) as error:
        from deepspeed import __version__

        raise ConfigError(
            f"precision: fp64 cannot be combined with DeepSpeed {__version__}: {owner} has no {name}; use fp32",
            code="strategy.excluded",
            key="precision",
            name=name,
        ) from error
