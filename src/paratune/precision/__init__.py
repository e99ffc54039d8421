"""Arithmetic as one policy: the dtypes of parameters, computing and reduction, and what a device does badly.

Floor 2.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from paratune import hardware
from paratune.config.feasibility.rules import precision_reasons
from paratune.config.feasibility.target import Target
from paratune.config.feasibility.words import refuse
from paratune.errors import ConfigError


@dataclass(frozen=True)
class Precision:
    """How a run computes, the same for every strategy."""

    name: str
    """As in the configuration."""
    param_dtype: torch.dtype
    """Of weights, gradients and optimizer states."""
    autocast_dtype: torch.dtype | None
    """Of matrix products and other operations that autocast lists; None computes in `pass_dtype` or `param_dtype`."""
    reduce_dtype: torch.dtype = torch.float32
    """In which gradients are summed over ranks and micro-batches."""
    tf32: bool = False
    """Whether products of float32 matrices may round their inputs to TF32's 10 bits of mantissa."""
    scales_loss: bool = False
    """Whether gradients would be too small for 16 bits of fp16 without a loss scale (see strategies/loss_scale.py)."""
    pass_dtype: torch.dtype | None = None
    """Of the weights that passes read, of activations, and of gradients before they are summed, where passes read
    copies in 16 bits of the weights in `param_dtype`; None where they read the weights themselves."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of matrix products."""
        return self.autocast_dtype or self.pass_dtype or self.param_dtype

    def with_weights(self, name: str) -> "Precision":
        """Return the policy whose passes read copies of the weights in 16 bits, without autocast.

        Args:
            name: fp32 for this policy itself, else the policy's own name, bf16 or fp16 (`strategy.param_dtype`).

        Raises:
            ConfigError: It is another one than this policy computes in.
        """
        if name == "fp32":
            return self
        if name != self.name:
            raise ConfigError(
                f"strategy.param_dtype: {name} needs precision: {name}, and this run has precision: {self.name}; "
                "set both to the same, or leave strategy.param_dtype out",
                code="precision.conflict",
                key="strategy.param_dtype",
                name=name,
            )
        return replace(self, autocast_dtype=None, pass_dtype=self.compute_dtype)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which forward passes run on `device`."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Set PyTorch's switches for float32 products as this policy says; put them back at the end.

        They hold for the whole process, backward passes included, so this goes around a run and not around a step.
        """
        cudnn: Any = torch.backends.cudnn
        before = _matmul_now(), cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        kind = "tf32" if self.tf32 else "ieee"
        try:
            _switch("high" if self.tf32 else "highest", kind, kind)
            yield
        finally:
            _switch(*before)


def _matmul_now() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # somebody set the backend's own switch, of which this one knows nothing
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _switch(matmul: str, conv: str, rnn: str) -> None:
    # Not torch.backends.cuda.matmul.fp32_precision: after it, whatever asks get_float32_matmul_precision(), as
    # PyTorch's own compiler did, gets an error (https://github.com/pytorch/pytorch/pull/189955). This sets both.
    torch.set_float32_matmul_precision(matmul)
    # PyTorch lets cuDNN's convolutions use TF32 unless it is told otherwise.
    cudnn: Any = torch.backends.cudnn
    cudnn.conv.fp32_precision = conv
    cudnn.rnn.fp32_precision = rnn


POLICIES = {
    "fp32": Precision("fp32", torch.float32, None),
    "tf32": Precision("tf32", torch.float32, None, tf32=True),
    "fp16": Precision("fp16", torch.float32, torch.float16, scales_loss=True),
    "bf16": Precision("bf16", torch.float32, torch.bfloat16),
    "fp64": Precision("fp64", torch.float64, None, torch.float64),
}


def precision_policy(
    name: str, device: torch.device, cpu_flags: Collection[str] | None
) -> tuple[Precision, str | None]:
    """Return the policy called `name`, and a warning when `device` does it slowly.

    Args:
        name: One of `POLICIES`.
        device: Where it will compute.
        cpu_flags: Flags of the processor, such as avx512_bf16; None when they are not known.

    Raises:
        ConfigError: The device cannot do it at all, or so badly that nobody can want it.
    """
    refuse(precision_reasons(name, target_of(device)))
    if device.type == "cpu":
        return POLICIES[name], _slow_on_cpu(name, cpu_flags)
    return POLICIES[name], _slow_on_gpu(name, device) if device.type == "cuda" else None


def target_of(device: torch.device) -> Target:
    """Return what the rules of `config.feasibility` ask of a device of this machine."""
    if device.type == "cpu":
        return Target(is_cpu=True, description="this run computes on the CPU")
    if device.type != "cuda":
        return Target(is_cpu=False, description=f"this run computes on {device.type}")
    missing = {
        "bf16": not torch.cuda.is_bf16_supported(including_emulation=False),
        "tf32": not torch.cuda.is_tf32_supported(),
    }
    return Target(
        is_cpu=False,
        description=_said(device),
        missing_precisions=frozenset(name for name, is_missing in missing.items() if is_missing),
        is_tf32_disabled=os.environ.get("NVIDIA_TF32_OVERRIDE") == "0",
    )


def _slow_on_cpu(name: str, cpu_flags: Collection[str] | None) -> str | None:
    if name != "bf16" or cpu_flags is None or hardware.BF16_FLAGS & set(cpu_flags):
        return None
    return (
        "precision: bf16 will be slower than fp32 on this CPU: it has neither avx512_bf16 nor amx_bf16 "
        "(docs/explanation/precision.md#on-a-cpu)"
    )


def _slow_on_gpu(name: str, device: torch.device) -> str | None:
    if name != "fp16" or torch.cuda.get_device_capability(device) >= (7, 0):
        return None
    return f"precision: fp16 saves memory and hardly time on a GPU below compute capability 7.0; {_said(device)}"


def _said(device: torch.device) -> str:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"{torch.cuda.get_device_name(device)} has {capability}"
