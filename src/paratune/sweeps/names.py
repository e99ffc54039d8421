"""Names of axes and values in tables and in the names of runs."""

import re
from typing import Any

from paratune.config.plain import one_line


def show(value: Any) -> str:
    """Return a value for tables: short numbers, a kind followed by its options, other values as YAML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if _has_kind(value):
        rest = ", ".join(f"{key}: {show(item)}" for key, item in value.items() if key != "kind")
        return f"{value['kind']} ({rest})" if rest else str(value["kind"])
    return value if isinstance(value, str) and value else one_line(value)


def value_name(value: Any, axis: str) -> str:
    """Return a value as part of the name of a run: a text by itself, other values after the name of the axis."""
    text = slug(show(value)) if isinstance(value, str | dict) else ""
    return text or slug(f"{axis}-{show(value)}")


def _has_kind(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def slug(text: str) -> str:
    """Return text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def short(key: str) -> str:
    """Return the last part of a key; for `name` and `kind` the part before: model of model.name."""
    *above, last = key.split(".")
    return above[-1] if above and last in ("name", "kind") else last
