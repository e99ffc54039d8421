"""Writes plain data as YAML, so that reading it returns the same data; flattens and compares configurations."""

import json
import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import getitem
from typing import Any

from paratune.config.layers import OPAQUE
from paratune.config.yaml_tree import is_plain_text


def one_line(value: Any) -> str:
    """Return plain data as YAML on one line; reading it returns the same data."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{one_line(key)}: {one_line(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(one_line(item) for item in value)}]"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return value if is_plain_text(value) else _quoted(value)
    return json.dumps(value)


def yaml_lines(values: Mapping[Any, Any], comment: Callable[[str], str], prefix: str = "", depth: int = 0) -> list[str]:
    """Return nested mappings as lines of YAML.

    Args:
        comment: Called with the dotted key of each leaf; returns the comment after its value.
        prefix: Dotted key of `values`, with a dot at its end.
    """
    lines = []
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        name = f"{'  ' * depth}{one_line(key)}:"
        if isinstance(value, Mapping) and value and dotted not in OPAQUE:
            lines += [name, *yaml_lines(value, comment, f"{dotted}.", depth + 1)]
        else:
            lines.append(f"{name} {one_line(value)}  # {comment(dotted)}")
    return lines


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 reads 2e-05 as text, and 2.0e-05 as a number.
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _quoted(text: str) -> str:
    """Return text as a double-quoted YAML scalar, with invisible characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


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


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as nested mappings; the opposite of `flatten`."""
    sections: dict[str, Any] = {}
    for dotted, value in values.items():
        *path, last = dotted.split(".")
        section = sections
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return sections


def set_at(values: dict[str, Any], key: str, value: Any) -> None:
    """Replace a value of resolved settings; the last part of `key` may have dots, as the name of a data set may."""
    *above, last = key.split(".", 2)
    reduce(getitem, above, values)[last] = value


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return each dotted key with different values in two resolved configurations, with both values.

    A missing key counts as null. Both are compared as JSON data, so one may come from a record.
    """
    flat_a, flat_b = (flatten(json.loads(json.dumps(values))) for values in (a, b))
    keys = [*flat_a, *(key for key in flat_b if key not in flat_a)]
    return [(key, flat_a.get(key), flat_b.get(key)) for key in keys if flat_a.get(key) != flat_b.get(key)]
