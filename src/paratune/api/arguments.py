"""Arguments of functions of `paratune` that take one value or several."""

from collections.abc import Iterable
from typing import Any


def several(value: Any) -> Any:
    """Return one value or several as a tuple, and None as None. A text is one value: iterating gives its characters."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
