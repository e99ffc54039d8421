"""The number of layers of a model that lies in a folder, read without torch."""

import importlib.util
import json
from pathlib import Path

from paratune.config.feasibility.rules import DEMO_MODEL, DEMO_PACKAGE
from paratune.config.sections import ModelOptions

_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How configurations of models call the number of their layers."""


def num_layers(model: ModelOptions) -> int | None:
    """Return the number of layers of a model that lies in a folder; None where it is not known without the hub."""
    path = model_folder(model.name)
    if path is None:
        return None
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the run reports what is wrong with it
    values = {**values, **model.overrides} if isinstance(values, dict) else {}
    return next((values[key] for key in _KEYS if type(values.get(key)) is int), None)


def model_folder(name: str) -> Path | None:
    """Return the folder of a model; None for one of the hub, or that is not there."""
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    path = Path(name).expanduser()
    return path if path.is_dir() else None
