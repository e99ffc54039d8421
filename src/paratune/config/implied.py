"""What a file does not have to say because something else in it says it.

Floor 1.
"""

from typing import Any, Final

from paratune.config.layers import Layer
from paratune.config.problems import SourceLocation

QA_COLUMNS: Final[dict[str, str]] = {"text": "question", "text_pair": "context", "label": "answers", "id": "id"}
"""The columns of SQuAD, in its own layout and in that of `datasets`."""


def fill_columns(layer: Layer) -> None:
    """Put the columns of SQuAD under those that are said, in place, where the task is question answering."""
    task = layer.values.get("task")
    if task != "qa" and not (isinstance(task, dict) and task.get("kind") == "qa"):
        return
    for key, name in QA_COLUMNS.items():
        put_under(layer, f"data.columns.{key}", name, SourceLocation("task.kind: qa"))


def put_under(layer: Layer, dotted: str, value: Any, place: SourceLocation) -> None:
    """Set a key that is not set; a section that is none is left to the checks."""
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
            layer.places.update({f"{dotted}.{each}": place for each in value})
