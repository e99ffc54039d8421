"""What the scores share: an undefined value is None, never NaN and never a guess."""

import math
from collections.abc import Iterable


def known(value: float) -> float | None:
    """Return a plain float, or None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def all_none(names: Iterable[str]) -> dict[str, float | None]:
    """Return None for each name: nothing can be said."""
    return dict.fromkeys(names)
