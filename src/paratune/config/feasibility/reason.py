"""A reason why a run is not possible: a stable code, the options that it is about, and the facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reason:
    """One reason; `words.text` makes a sentence of it."""

    code: str
    """Stable, by subject: `strategy.too_few_ranks`."""
    keys: tuple[str, ...]
    """Dotted options that it is about, the one to change first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Names and numbers of the sentence."""
