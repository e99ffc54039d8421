"""The classifier of varieties: weights of features, and a calibration of the scores.

model.safetensors   weights, (2 ** NUM_BITS,), float32
model.json          bias, calibration, and the format of the features
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paratune.base.atomic import replace_file
from paratune.corpus.clean.variety.features import NUM_BITS, features
from paratune.errors import CheckpointError
from paratune.records import read_json, write_json

FORMAT = 1  # version of features and files; increased when the same text gives other features
WEIGHTS_FILE, MODEL_FILE = "model.safetensors", "model.json"
EUROPEAN, BRAZILIAN = "pt-PT", "pt-BR"
NUM_DIGITS = 4
"""Decimal places of a probability."""


@dataclass(frozen=True)
class VarietyCalibration:
    """The log-odds of pt-PT: slope * score + length_slope * score * log(characters) + bias."""

    slope: float
    length_slope: float
    bias: float

    def probability(self, score: float, num_characters: int) -> float:
        """Return the probability that a text with this score is European, from 0 to 1."""
        odds = (self.slope + self.length_slope * math.log(max(1, num_characters))) * score + self.bias
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, odds))))


@dataclass(frozen=True)
class VarietyModel:
    """A logistic regression over features."""

    weights: npt.NDArray[np.float32]
    """(2 ** NUM_BITS,); above 0 for pt-PT."""
    bias: float
    calibration: VarietyCalibration

    def score(self, text: str) -> float:
        """Return the score of a text; scores above 0 are for pt-PT."""
        indices, values = features(text)
        # Not a matrix product: the order of its sum depends on the number of threads.
        return float(np.sum(self.weights[indices].astype(np.float64) * values)) + self.bias

    def variety_of(self, text: str) -> tuple[str, float]:
        """Return pt-PT or pt-BR, with its probability, from 0.5 to 1."""
        european = round(self.calibration.probability(self.score(text), len(text)), NUM_DIGITS)
        return (EUROPEAN, european) if european >= 0.5 else (BRAZILIAN, round(1 - european, NUM_DIGITS))


def save(model: VarietyModel, folder: Path) -> None:
    """Write a model to an existing folder, model.json last."""
    from safetensors.numpy import save_file

    with replace_file(folder / WEIGHTS_FILE) as temporary:
        save_file({"weights": model.weights}, temporary)
    write_json(
        folder / MODEL_FILE,
        {"format": FORMAT, "num_bits": NUM_BITS, "bias": model.bias, "calibration": vars(model.calibration)},
    )


def load(folder: Path) -> VarietyModel:
    """Read a model.

    Raises:
        CheckpointError: There is no model, or it has another format.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        record = read_json(folder / MODEL_FILE)
        weights = load_file(folder / WEIGHTS_FILE)["weights"]
        if (record["format"], weights.shape) == (FORMAT, (2**NUM_BITS,)):
            return VarietyModel(weights, record["bias"], VarietyCalibration(**record["calibration"]))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        message = f"{folder} has no classifier of varieties ({error}); delete it"
        raise CheckpointError(message, code="corpus.damaged", folder=folder) from error
    message = f"{folder} has a classifier of another format; delete it"
    raise CheckpointError(message, code="run.other_version", folder=folder)
