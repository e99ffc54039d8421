"""Undefined scores: they are None, never NaN."""

import math
from collections.abc import Iterable


def known(value: float) -> float | None:
    """Return a plain float, or None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def all_none(names: Iterable[str]) -> dict[str, float | None]:
    """Return None for each name."""
    return dict.fromkeys(names)
