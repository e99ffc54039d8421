"""Fills in options that follow from other options of the file, such as the columns of SQuAD."""

from typing import Any, Final

from paratune.config.layers import Layer
from paratune.config.problems import SourceLocation

QA_COLUMNS: Final[dict[str, str]] = {"text": "question", "text_pair": "context", "label": "answers", "id": "id"}
"""Columns of SQuAD, in its own layout and in that of `datasets`."""

IMPLIED_COLUMNS: Final[dict[str, dict[str, str]]] = {
    "qa": QA_COLUMNS,
    "token_classification": {"text": "tokens", "label": "tags"},
}
"""Columns by the kind of the task, which a file need not name."""


def fill_columns(layer: Layer) -> None:
    """Add, in place, the usual columns of the task that the file does not set."""
    task = layer.values.get("task")
    kind = task.get("kind") if isinstance(task, dict) else task
    for key, name in IMPLIED_COLUMNS.get(kind, {}).items() if isinstance(kind, str) else ():
        set_default(layer, f"data.columns.{key}", name, SourceLocation(f"task.kind: {kind}"))


def set_default(layer: Layer, dotted: str, value: Any, place: SourceLocation) -> None:
    """Set a key that is not set. Where a section is not a mapping, nothing is set: the checks report it."""
    *path, key = dotted.split(".")
    section = layer.values
    for name in path:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return
    if key not in section:
        section[key] = value
        layer.places[dotted] = place
        if isinstance(value, dict):
            layer.places.update({f"{dotted}.{inner_key}": place for inner_key in value})
