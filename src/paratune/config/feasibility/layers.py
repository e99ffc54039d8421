"""What the configuration of a model says before the model is loaded, without torch: layers, start of a decoder."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.feasibility.rules import DEMO_MODEL, DEMO_PACKAGE
from paratune.config.sections import ModelOptions

_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How configurations of models call the number of their layers."""
DECODER_START = "decoder_start_token_id"
_SHIFTED = frozenset({"t5", "mt5", "umt5"})
"""Values of `model_type` whose heads read a decoder: its inputs are those of the encoder behind the start token
(`_shift_right` of transformers' modeling_t5.py)."""


def lacks_decoder_start(values: Mapping[str, Any]) -> bool:
    """Return whether a model cannot be run because its configuration names no start token of its decoder.

    Args:
        values: Of config.json, with `model.overrides` applied.
    """
    return values.get("model_type") in _SHIFTED and values.get(DECODER_START) is None


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
