"""Reads the number of layers and the start token of a decoder from a model's configuration, without torch."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.base.run_files import MODEL_FOLDER, RUN_FILE
from paratune.config.feasibility.rules import DEMO_MODEL, DEMO_PACKAGE
from paratune.config.sections import ModelOptions

_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""Names of the number of layers in configurations of models."""
DECODER_START = "decoder_start_token_id"
_SHIFTED = frozenset({"t5", "mt5", "umt5"})
"""Values of `model_type` whose heads use a decoder: its inputs are the start token and then those of the encoder
(`_shift_right` of transformers' modeling_t5.py)."""


def lacks_decoder_start(values: Mapping[str, Any]) -> bool:
    """Return whether a model cannot run because its configuration has no start token for its decoder.

    Args:
        values: Of config.json, with `model.overrides` applied.
    """
    return values.get("model_type") in _SHIFTED and values.get(DECODER_START) is None


def num_layers(model: ModelOptions) -> int | None:
    """Return the number of layers of a run's model; None where only the hub has it."""
    if model.keep_layers is not None:
        return len(model.keep_layers)
    path = model_folder(model.name)
    if path is None:
        return None
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the run reports this error
    values = {**values, **model.overrides} if isinstance(values, dict) else {}
    return next((values[key] for key in _KEYS if type(values.get(key)) is int), None)


def model_folder(name: str) -> Path | None:
    """Return the folder of a model, of a run its `model/`; None for a model of the hub, and for a missing folder."""
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    path = Path(name).expanduser()
    if (path / RUN_FILE).is_file():
        path /= MODEL_FOLDER
    return path if path.is_dir() else None
