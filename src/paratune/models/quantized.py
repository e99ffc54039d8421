"""Frozen linear layers with weights of 4 or 8 bits, by the kernels of bitsandbytes (`model.quantize_base`).

nf4: each number is one of 16 values between -1 and 1, times the largest absolute value of its 64 numbers: 4.5 bits
(Dettmers et al., QLoRA, NeurIPS 2023, section 3 and appendix E; without double quantization). int8: each number is an
integer from -127 to 127, times the largest absolute value of its row divided by 127.

Only weights are rounded: a pass dequantizes the weight of a layer in the dtype of the pass, multiplies, and frees it;
the backward pass dequantizes it again. The layers of bitsandbytes are not used: they keep the dtype of their first
pass, round activations to int8 on some devices, and hold scales outside of parameters, where no strategy shards or
saves them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from paratune.config.sections import BaseKind
from paratune.errors import ConfigError, require
from paratune.models.linear import OneDnnLinear
from paratune.models.task_model import find_blocks

BLOCK: Final = 64
"""Numbers that share a scale in nf4."""
_PART: Final = 1 << 18
"""Numbers that are quantized at once, in whole blocks: about 6 MB."""


class QuantizedLinear(nn.Module):
    """A frozen linear layer whose weight is quantized; like `nn.Linear` it computes in the dtype of autocast."""

    def __init__(self, layer: nn.Linear, kind: BaseKind) -> None:
        """Take bias and the quantized weight of a layer, which is not changed."""
        super().__init__()
        self.kind: BaseKind = kind
        self.in_features, self.out_features = layer.in_features, layer.out_features
        codes, scales = quantize(layer.weight.detach(), kind)
        self.weight = nn.Parameter(codes, requires_grad=False)
        """nf4: (out, in / 2), uint8; int8: (out, in), int8."""
        self.scales = nn.Parameter(scales, requires_grad=False)
        """The bytes of a float32 for each block or row, (N, 4), uint8, so that no cast of a strategy rounds them."""
        self.bias = layer.bias
        self.num_more = layer.weight.numel() - codes.numel() - scales.numel()
        """Numbers of the weight less those of its parameters here, which are bytes."""
        self.planned_dtype: torch.dtype | None = None
        """Dtype of autocast in a plan, whose tensors are on no device."""

    def forward(self, input: Tensor) -> Tensor:
        device, dtype = input.device.type, self.planned_dtype or input.dtype
        if device != "meta" and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(dtype)
        out: Tensor = _Product.apply(input.to(dtype), self.weight, self.scales, bias, self.kind)  # type: ignore[no-untyped-call]
        return out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, kind={self.kind}"


class _Product(torch.autograd.Function):
    """Saves only the quantized weight, which is no activation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, kind: BaseKind) -> Tensor:
        ctx.save_for_backward(codes, scales)
        ctx.kind = kind
        return functional.linear(x, dequantize(codes, scales, kind, x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, _, _, needs_bias, _ = ctx.needs_input_grad
        codes, scales = ctx.saved_tensors
        grad_x = grad @ dequantize(codes, scales, ctx.kind, grad.dtype) if needs_x else None
        return grad_x, None, None, grad.flatten(0, -2).sum(0) if needs_bias else None, None


def quantize(weight: Tensor, kind: BaseKind) -> tuple[Tensor, Tensor]:
    """Return codes and scales, as in `QuantizedLinear`, of a weight, (out, in) with an even `in`.

    Part by part, because the kernels need about 24 bytes for each number.
    """
    bitsandbytes, found = torch.ops.bitsandbytes, []
    for part in torch.split(weight, max(BLOCK, _PART // weight.shape[1] // BLOCK * BLOCK)):
        if kind == "int8":
            found.append(bitsandbytes.int8_vectorwise_quant(part.float(), 0.0)[:2])
        else:
            found.append(bitsandbytes.quantize_4bit(part.float(), BLOCK, kind, torch.uint8))
    codes, scales = (torch.cat([tensor.flatten() for tensor in parts]) for parts in zip(*found, strict=True))
    return codes.view(len(weight), -1), scales.view(torch.uint8).view(-1, 4)


def dequantize(codes: Tensor, scales: Tensor, kind: BaseKind, dtype: torch.dtype) -> Tensor:
    """Return the weight, (out, in), of codes and scales as in `QuantizedLinear`."""
    known = dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32  # of the kernels
    largest = scales.view(torch.float32).squeeze(1)
    if kind == "int8":
        weight: Tensor = codes.to(known).mul_(largest.unsqueeze(1) / 127)
    else:
        # As rows of one block each: with AVX-512, the kernel of bitsandbytes 0.50 begins a block in each row.
        flat = functional.pad(codes.flatten(), (0, len(largest) * BLOCK // 2 - codes.numel()))
        shape = [len(largest), BLOCK]
        weight = torch.ops.bitsandbytes.dequantize_4bit(flat, largest, BLOCK, kind, shape, known)
        weight = weight.flatten()[: 2 * codes.numel()].view(len(codes), -1)
    return weight.to(dtype)


def _base_layers(hf: Any) -> Iterator[nn.Linear]:
    """Yield the linear layers of the blocks; not those that transformers keeps in float32, whose code reads weights."""
    kept = set(getattr(hf, "_keep_in_fp32_modules", None) or ())
    inside = {id(module) for block in find_blocks(hf) for module in block.modules()}
    for name, module in hf.named_modules():
        # Not isinstance: the code around a subclass, as in nn.MultiheadAttention, may read its weight.
        is_linear = type(module) in (nn.Linear, OneDnnLinear) and id(module) in inside
        if is_linear and module.in_features % 2 == 0 and not kept.intersection(name.split(".")):
            yield module


def quantize_base(hf: Any, kind: BaseKind) -> None:
    """Replace the frozen linear layers of the blocks by `QuantizedLinear`, one by one.

    Raises:
        ConfigError: There are none.
        MissingDependency: bitsandbytes is not installed.
    """
    require("bitsandbytes", extra="gpu")
    ids = {id(layer) for layer in _base_layers(hf) if not layer.weight.requires_grad}
    if not ids:
        message = f"model.quantize_base: {kind}, but no linear layer in the blocks of {type(hf).__name__} is frozen"
        raise ConfigError(f"{message}; remove the option", code="config.no_effect", key="model.quantize_base")
    places: dict[int, list[tuple[nn.Module, str]]] = {}  # without the layers, whose weights are freed one by one
    for parent in hf.modules():
        for name, child in parent.named_children():
            if id(child) in ids:
                places.setdefault(id(child), []).append((parent, name))
    for (first, name), *others in places.values():
        layer = QuantizedLinear(getattr(first, name), kind)
        for parent, its_name in ((first, name), *others):
            setattr(parent, its_name, layer)


def round_base(hf: Any, kind: BaseKind) -> None:
    """Round the weights of the linear layers of the blocks to the values that `quantize_base` gives them.

    Raises:
        MissingDependency: bitsandbytes is not installed.
    """
    require("bitsandbytes", extra="gpu")
    for layer in _base_layers(hf):
        layer.weight.data = dequantize(*quantize(layer.weight.data, kind), kind, layer.weight.dtype)


def plain_weights(hf: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model by their names in `hf`, with float32 in place of quantized ones."""
    plain = dict(weights)
    for name, module in hf.named_modules():
        if isinstance(module, QuantizedLinear):
            codes, scales = plain[f"{name}.weight"], plain.pop(f"{name}.scales")
            plain[f"{name}.weight"] = dequantize(codes, scales, module.kind, torch.float32)
    return plain
