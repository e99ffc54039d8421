"""Writes a short configuration file, of the options that a first run needs."""

from collections.abc import Mapping
from typing import Any

from paratune.config.plain import one_line

_ORDER = ("task", "data", "model", "train", "batch", "evaluate", "strategy")
"""Sections in the order of the file."""


def short_text(values: Mapping[str, Any], reasons: Mapping[str, str], head: str) -> str:
    """Return a configuration file with these values only; sections within sections are on one line.

    Args:
        values: Values by dotted key, such as data.columns.text.
        reasons: Comments by dotted key; those of values on one line are joined.
        head: Comment of the first line.
    """
    sections: dict[str, dict[str, Any]] = {section: {} for section in _ORDER}
    comments: dict[tuple[str, str], list[str]] = {}
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        name, _, inner = key.partition(".")
        if inner:
            sections[section].setdefault(name, {})[inner] = value
        else:
            sections[section][name] = value
        if dotted in reasons:
            label = f"{inner}: " if inner else ""
            comments.setdefault((section, name), []).append(f"{label}{reasons[dotted]}")
    lines = [f"# {head}"]
    for section, options in sections.items():
        if options:
            lines.append(f"{section}:")
        for name, value in options.items():
            comment = "; ".join(comments.get((section, name), ()))
            lines.append(f"  {name}: {one_line(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"
