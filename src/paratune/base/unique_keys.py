"""Refuses objects of JSON that have a key twice; `json.loads` silently takes the last value."""

from collections import Counter
from typing import Any

from paratune.base.text import listing


class RepeatedKeyError(ValueError):
    """An object has a key twice, so that its value is ambiguous."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; the `object_pairs_hook` of `json.loads`.

    Raises:
        RepeatedKeyError: A key occurs more than once.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = [key[:100] for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        message = f"the key {listing(repeated)} occurs more than once in an object; delete or rename one"
        raise RepeatedKeyError(message)
    return values
