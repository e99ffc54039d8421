"""Precision policies: the dtypes of parameters, computation and reduction, and warnings about slow devices."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paratune import hardware
from paratune.config.feasibility import Target, precision_reasons
from paratune.config.problems import refuse
from paratune.errors import ConfigError


def frozen_linear_weights(module: nn.Module) -> set[Tensor]:
    """Return the frozen weights that only linear layers read, so that autocast computes with them in its own dtype."""
    linear: set[Tensor] = set()
    others: set[Tensor] = set()
    for child in module.modules():
        # Conv1D is the linear layer of GPT-2. An embedding may share its weight, and reads it without autocast.
        is_linear = isinstance(child, nn.Linear) or type(child).__name__ == "Conv1D"
        (linear if is_linear else others).update(child.parameters(recurse=False))
    return {weight for weight in linear - others if not weight.requires_grad}


def values_of(weight: Tensor) -> Callable[[], Tensor]:
    """Return a function that returns the present values of a weight.

    It draws new weights that have no memory yet (`models.new_weights`), each time, in the dtype of the model.
    """
    draw, data = vars(weight).get("draw"), weight.data
    return draw or (lambda: data)


@contextmanager
def changed(tensors: Iterable[Tensor], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """In the block, the tensors have the data of `change`; their own may be views of a file."""
    own = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, _ in own:
            tensor.data = change(tensor)
        yield
    finally:
        for tensor, data in own:
            tensor.data = data


@dataclass(frozen=True)
class Precision:
    """The dtypes of a run, the same for every strategy."""

    name: str
    """The value of the option `precision`."""
    param_dtype: torch.dtype
    """The dtype of weights, gradients and optimizer states."""
    autocast_dtype: torch.dtype | None
    """The dtype of matrix products and other operations in autocast's list; None for no autocast."""
    reduce_dtype: torch.dtype = torch.float32
    """The dtype in which gradients are summed over ranks and micro-batches."""
    tf32: bool = False
    """Whether products of float32 matrices may round their inputs to TF32's 10 bits of mantissa."""
    scales_loss: bool = False
    """Whether gradients are too small for fp16 without a loss scale (see strategies/loss_scale.py)."""
    pass_dtype: torch.dtype | None = None
    """If passes read 16-bit copies of the weights: the dtype of these copies, of activations, and of gradients before
    they are summed. None if passes read the weights themselves."""
    rounds_base: bool = False
    """Whether frozen weights of linear layers are held in `autocast_dtype` also where their file has another dtype."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of matrix products."""
        return self.autocast_dtype or self.pass_dtype or self.param_dtype

    def with_weights(self, name: str) -> "Precision":
        """Return the policy for the option `strategy.param_dtype`: passes read 16-bit copies of the weights.

        Args:
            name: fp32 returns this policy; bf16 and fp16, if equal to the policy's name, return one without autocast.

        Raises:
            ConfigError: `name` is neither fp32 nor the policy's name.
        """
        if name == "fp32":
            return self
        if name != self.name:
            problem = f"strategy.param_dtype: {name} needs precision: {name}, but this run has precision: {self.name}"
            text = f"{problem}; set both to the same value, or leave strategy.param_dtype out"
            raise ConfigError(text, code="precision.conflict", key="strategy.param_dtype", name=name)
        return replace(self, autocast_dtype=None, pass_dtype=self.compute_dtype)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context manager for forward passes on `device`."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Set PyTorch's global switches for float32 products; restore them at the end of the block.

        Backward passes use them too, so the block must contain a whole run and not only forward passes.
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
    except RuntimeError:  # the switch of the backend was set directly
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _switch(matmul: str, conv: str, rnn: str) -> None:
    # This sets both switches. After setting only torch.backends.cuda.matmul.fp32_precision,
    # get_float32_matmul_precision(), which PyTorch's compiler called, raises an error
    # (https://github.com/pytorch/pytorch/pull/189955).
    torch.set_float32_matmul_precision(matmul)
    # By default PyTorch lets cuDNN's convolutions use TF32.
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
    """Return the policy with this name (of `POLICIES`), and a warning if it is slow on `device`.

    `cpu_flags` are flags of the processor, such as avx512_bf16; None if unknown.

    Raises:
        ConfigError: The device does not support it, or is too slow with it to be useful.
    """
    refuse(precision_reasons(name, target_of(device)))
    if device.type == "cpu":
        return POLICIES[name], _slow_on_cpu(name, cpu_flags)
    return POLICIES[name], _slow_on_gpu(name, device) if device.type == "cuda" else None


def target_of(device: torch.device) -> Target:
    """Return the facts of a device of this machine for the rules of `config.feasibility`."""
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
        description=_describe_gpu(device),
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
    gpu = _describe_gpu(device)
    return f"precision: fp16 saves memory but little time on a GPU below compute capability 7.0; {gpu}"


def _describe_gpu(device: torch.device) -> str:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"{torch.cuda.get_device_name(device)} has {capability}"
