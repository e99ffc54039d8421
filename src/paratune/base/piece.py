"""A range of the elements of a tensor: what one rank has of it, in any strategy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Piece:
    """The elements `begin` to `end` - 1 of a tensor of `shape`, in row-major order.

    Shards of rows, equal parts of a flat tensor and whole tensors are all such ranges.
    """

    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Piece":
        return cls(tuple(shape), 0, math.prod(shape))

    def of(self, shape: Sequence[int], key: str) -> "Piece":
        """Return the piece to read of a stored tensor `key`: this one; of a scalar, such as a step count, the whole.

        Raises:
            ValueError: The tensor has another shape.
        """
        if shape and tuple(shape) != self.shape:
            raise ValueError(f"{key} has shape {tuple(shape)}, the model {self.shape}")
        return self if shape else Piece.whole(shape)

    def cut_from(self, tensor: Any, key: str) -> Any:
        """Return these elements of a whole tensor, flat and without a copy; a scalar as it is.

        Raises:
            ValueError: The tensor has another shape.
        """
        piece = self.of(tensor.shape, key)
        return tensor.flatten()[piece.begin : piece.end] if piece.shape else tensor
