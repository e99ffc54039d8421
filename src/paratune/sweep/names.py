"""How axes and values are called in tables and in the names of runs."""

import re
from typing import Any

from paratune.config.plain import one_line


def show(value: Any) -> str:
    """Return a value as tables show it: numbers short, a kind with its options behind it, all else as YAML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(show(each) for each in value)}]"
    if _has_kind(value):
        rest = ", ".join(f"{key}: {show(each)}" for key, each in value.items() if key != "kind")
        return f"{value['kind']} ({rest})" if rest else str(value["kind"])
    return value if isinstance(value, str) and value else one_line(value)


def value_name(value: Any, axis: str) -> str:
    """Return a value as part of the name of a run: text by itself, all else behind the name of its axis."""
    text = slug(show(value)) if isinstance(value, str | dict) else ""
    return text or slug(f"{axis}-{show(value)}")


def _has_kind(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def slug(text: str) -> str:
    """Return text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def short(key: str) -> str:
    """Return the last part of a key; of what a section is called, the section: model of model.name."""
    *above, last = key.split(".")
    return above[-1] if above and last in ("name", "kind") else last
