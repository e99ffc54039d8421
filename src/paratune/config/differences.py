"""Flattens a resolved configuration to dotted keys, and compares two configurations."""

import json
from collections.abc import Mapping
from typing import Any

from paratune.config.layers import OPAQUE


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key.

    Lists, empty mappings and the mapping of labels are leaves.
    """
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and dotted not in OPAQUE:
            leaves.update(flatten(value, f"{dotted}."))
        else:
            leaves[dotted] = value
    return leaves


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return each dotted key with different values in two resolved configurations, with both values.

    A missing key counts as null. Both are compared as JSON data, so one may come from a record.
    """
    flat_a, flat_b = (flatten(json.loads(json.dumps(values))) for values in (a, b))
    keys = [*flat_a, *(key for key in flat_b if key not in flat_a)]
    return [(key, flat_a.get(key), flat_b.get(key)) for key in keys if flat_a.get(key) != flat_b.get(key)]
