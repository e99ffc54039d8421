"""`Reason`, why a run is not possible: a stable code, the options that cause it, and facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reason:
    """Why a run is not possible; `words.text` returns the message."""

    code: str
    """Stable name, such as `strategy.too_few_ranks`."""
    keys: tuple[str, ...]
    """Dotted options that cause it, the one to change first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values of the message by name."""
