"""How far the gradients of a strategy are from those of the reference, tensor by tensor and all together."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from paratune.records.certificate import SMALLEST_TENSOR

FLOORS = {"fp64": 1e-6, "fp32": 1e-2, "tf32": 1e-2, "fp16": 1e-2, "bf16": 0.3}
"""The least by which a difference of gradients is divided, as a share of the largest entry of all, by precision. Some
gradients are 0 by construction (a bias before a softmax): what is computed of them is rounding, and rounding divided by
itself. Others are sums that nearly cancel (the bias of a head, over rows of two labels), which shows in bf16."""


def compare_gradients(
    reference: Path, tensors: Iterator[tuple[str, Tensor | None]], *, floor: float = FLOORS["fp64"], is_first: bool
) -> dict[str, Any]:
    """Return how far tensors are from those of the same names in a file.

    Args:
        reference: A safetensors file.
        tensors: Name and whole tensor, None on ranks other than the first.
        floor: Of `FLOORS`.
        is_first: Whether this is the first rank; the others only take part.

    Returns:
        `largest`: the largest entry of a tensor's difference, over its largest entry in the file, and `tensor`, which
        one it is; `missing` and `unexpected` names; and what `Differences` gives.
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
    found = {"largest": worst[0], "tensor": worst[1], "missing": lacking, "unexpected": unexpected}
    return found | differences.as_dict()


class Differences:
    """Norms over all tensors of a gradient beside its reference, in float64."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, float, float]] = []
        """Name, squared norm of the difference, and of the reference."""
        self._product = 0.0

    def add(self, name: str, tensor: Tensor, expected: Tensor) -> None:
        """Take a tensor and its reference; of another shape it is infinitely far."""
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
        """Return the differences, each at least 0 and infinite where a number is not finite.

        Returns:
            `difference`: norm of the difference over that of the reference, |g - e| / |e|; `length`: |g.e / |e|^2 - 1|,
            how much longer or shorter g is in the direction of e; `worst_tensor`: the largest |g - e| / |e| of one
            tensor, over at least `SMALLEST_TENSOR` of the norm of all, and its `worst_name`.
        """
        apart = math.fsum(difference for _, difference, _ in self._tensors)
        squared = math.fsum(part for _, _, part in self._tensors)
        if not self._tensors or not squared:
            return {"difference": 0.0, "length": 0.0, "worst_tensor": 0.0, "worst_name": None}
        floor = SMALLEST_TENSOR**2 * squared
        by_tensor = {name: _root(own / max(part, floor)) for name, own, part in self._tensors}
        name = max(by_tensor, key=lambda key: by_tensor[key])
        length = abs(self._product / squared - 1)
        return {
            "difference": _root(apart / squared),
            "length": length if math.isfinite(length) else math.inf,
            "worst_tensor": by_tensor[name],
            "worst_name": name if by_tensor[name] else None,
        }


def _root(value: float) -> float:
    return math.sqrt(value) if math.isfinite(value) else math.inf


def relative_difference(tensor: Tensor, expected: Tensor, largest: float, floor: float = FLOORS["fp64"]) -> float:
    """Return the largest entry of the difference over that of `expected`, or over a share of `largest` if more.

    Args:
        tensor: Of any shape.
        expected: Of the same shape; infinity is returned otherwise, and where an entry is not a number.
        largest: The largest entry of all tensors, which is what a tensor that is 0 but for rounding is measured by.
        floor: Of `FLOORS`.
    """
    if tensor.shape != expected.shape:
        return math.inf
    scale = max(float(expected.abs().max()), floor * largest)
    difference = float((tensor.double() - expected.double()).abs().max())
    if math.isnan(difference):
        return math.inf
    return difference / scale if scale else difference
