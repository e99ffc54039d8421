"""Compares the gradients of a strategy with those of the reference, and returns hashes of tensors."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from paratune.records.certificate import SMALLEST_TENSOR

FLOORS = {"fp64": 1e-6, "fp32": 1e-2, "tf32": 1e-2, "fp16": 1e-2, "bf16": 0.3}
"""The smallest divisor of a difference of gradients, as a share of the largest entry of all tensors, by precision. Some
gradients are 0 by construction (a bias before a softmax): their values are only rounding errors, which must not be
divided by themselves. Others are sums that nearly cancel (the bias of a head, over rows of two labels), which matters
in bf16."""


def compare_gradients(
    reference: Path, tensors: Iterator[tuple[str, Tensor | None]], *, floor: float = FLOORS["fp64"], is_first: bool
) -> dict[str, Any]:
    """Compare tensors with those of the same names in a safetensors file, on the first rank.

    Returns:
        `largest`: the largest entry of a tensor's difference, divided by its largest entry in the file, and `tensor`,
        the name of this tensor; `missing` and `unexpected` names; and the values of `Differences`.
    """
    worst: tuple[float, str | None] = (0.0, None)
    unexpected, differences = [], Differences()
    with safe_open(reference, framework="pt") as file:
        missing = dict.fromkeys(file.keys())
        largest = float(file.metadata()["largest"])
        for key, tensor in tensors:
            if tensor is None:
                continue
            name = key.removeprefix("optimizer/").removesuffix("/exp_avg")
            if key not in missing:
                unexpected.append(name)
                continue
            del missing[key]
            expected = file.get_tensor(key)
            differences.add(name, tensor, expected)
            difference = relative_difference(tensor, expected, largest, floor)
            if difference > worst[0]:
                worst = (difference, name)
    lacking = [key.removeprefix("optimizer/").removesuffix("/exp_avg") for key in missing] if is_first else []
    result = {"largest": worst[0], "tensor": worst[1], "missing": lacking, "unexpected": unexpected}
    return result | differences.as_dict()


class Differences:
    """Norms of a gradient and its reference over all tensors, in float64."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, float, float]] = []
        """Name, squared norm of the difference, and of the reference."""
        self._product = 0.0

    def add(self, name: str, tensor: Tensor, expected: Tensor) -> None:
        """Add a tensor and its reference; the difference of different shapes is infinite."""
        reference = expected.double().flatten()
        squared = float(reference @ reference)
        if tensor.shape != expected.shape:
            self._tensors.append((name, math.inf, squared))
            return
        own = tensor.detach().cpu().double().flatten()
        difference = own - reference
        self._tensors.append((name, float(difference @ difference), squared))
        self._product += float(own @ reference)

    def as_dict(self) -> dict[str, Any]:
        """Return the differences, each at least 0, and infinite if a number is not finite.

        Returns:
            `difference`: norm of the difference over that of the reference, |g - e| / |e|; `length`: |g.e / |e|^2 - 1|,
            how much longer or shorter g is in the direction of e; `worst_tensor`: the largest |g - e| / |e| of a single
            tensor, divided by at least `SMALLEST_TENSOR` of the norm of all tensors, and its `worst_name`.
        """
        squared_difference = math.fsum(difference for _, difference, _ in self._tensors)
        squared = math.fsum(part for _, _, part in self._tensors)
        if not self._tensors or not squared:
            return {"difference": 0.0, "length": 0.0, "worst_tensor": 0.0, "worst_name": None}
        floor = SMALLEST_TENSOR**2 * squared
        by_tensor = {name: _root(own / max(part, floor)) for name, own, part in self._tensors}
        name = max(by_tensor, key=lambda key: by_tensor[key])
        length = abs(self._product / squared - 1)
        return {
            "difference": _root(squared_difference / squared),
            "length": length if math.isfinite(length) else math.inf,
            "worst_tensor": by_tensor[name],
            "worst_name": name if by_tensor[name] else None,
        }


def _root(value: float) -> float:
    return math.sqrt(value) if math.isfinite(value) else math.inf


def relative_difference(tensor: Tensor, expected: Tensor, largest: float, floor: float = FLOORS["fp64"]) -> float:
    """Return the largest entry of the difference, divided by that of `expected` or, if larger, by `floor * largest`.

    Args:
        expected: Its reference; infinity is returned if the shapes differ or an entry is not a number.
        largest: The largest entry of all tensors, for tensors that are 0 apart from rounding.
    """
    if tensor.shape != expected.shape:
        return math.inf
    scale = max(float(expected.abs().max()), floor * largest)
    difference = float((tensor.double() - expected.double()).abs().max())
    if math.isnan(difference):
        return math.inf
    return difference / scale if scale else difference


def tensor_hashes(tensors: Iterable[tuple[str, Tensor | None]]) -> dict[str, str]:
    """Return the SHA-256 of each tensor in float32 by name; empty on ranks without tensors. Collective.

    -0 counts as 0, because a weight that is gathered as a sum of its parts and zeros has lost the sign.
    """
    hashes = {}
    for key, tensor in tensors:
        if tensor is not None:
            whole = (tensor.detach().float().cpu() + 0.0).contiguous().view(-1).view(torch.uint8)
            hashes[key.removeprefix("model/")] = hashlib.sha256(whole.numpy().data).hexdigest()
    return hashes
