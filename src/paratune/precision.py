"""Arithmetic as one policy: the dtype of parameters and of computing, and what a device does badly.

Floor 2.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from paratune.errors import ConfigError


@dataclass(frozen=True)
class Precision:
    """The dtypes of a run."""

    name: str
    """As in the configuration."""
    param_dtype: torch.dtype
    """Of weights, gradients and optimizer states."""
    autocast_dtype: torch.dtype | None
    """Of matrix products and other operations that autocast lists; None computes in `param_dtype`."""

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which forward passes run on `device`."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)


POLICIES = {
    "fp32": Precision("fp32", torch.float32, None),
    "bf16": Precision("bf16", torch.float32, torch.bfloat16),
    "fp64": Precision("fp64", torch.float64, None),
}


def precision_policy(
    name: str, device: torch.device, cpu_flags: Collection[str] | None
) -> tuple[Precision, str | None]:
    """Return the policy called `name`, and a warning when `device` does it slowly.

    Args:
        name: fp32, bf16 or fp64.
        device: Where it will compute.
        cpu_flags: Flags of the processor, such as avx512_bf16; None when they are not known.

    Raises:
        ConfigError: The device cannot do it at all.
    """
    policy = POLICIES[name]
    if name != "bf16":
        return policy, None
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"precision: bf16 needs a GPU of compute capability 8.0 or newer; {torch.cuda.get_device_name(device)} has "
            f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}: use precision: fp32"
        )
    if device.type == "cpu" and cpu_flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"} & set(cpu_flags):
        return policy, (
            "precision: bf16 will be slower than fp32 on this CPU: it has neither avx512_bf16 nor amx_bf16 "
            "(docs/measuring.md#precision)"
        )
    return policy, None
