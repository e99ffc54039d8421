"""Compares the outputs and the decisions of a smaller model with those of the model that it was made from.

Dimensions: `N` rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.data.load import Split
from paratune.infer.trained import TrainedModel
from paratune.precision import POLICIES


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """What a model computes for the rows of a split."""

    values: tuple[np.ndarray[Any, Any], ...]
    """Outputs of each batch, such as logits; in question answering without those of padding."""
    decisions: tuple[Any, ...] | None
    """Of each row: class, set of classes, answer, tags; None where the output is a number, or not
    finite."""


@dataclass(frozen=True)
class OutputDifference:
    """How the outputs of a smaller model differ."""

    num_rows: int
    max_abs: float
    """Largest difference of an output, such as a logit; NaN or infinite if an output is."""
    mean_abs: float
    largest_output: float
    """Largest absolute output of the original model, for comparison."""
    agreement: float | None
    """Share of rows with the same decision; None where the output is a number."""


def compute_outputs(
    trained: TrainedModel, split: Split, batch_size: int, on_batch: Callable[[int, int], None]
) -> ModelOutputs:
    """Return the outputs of a model for `split` (from `trained.read`) in float32 on the CPU, from padded batches.

    `on_batch` is called with the number of batches done, and of all.
    """
    recorded: list[np.ndarray[Any, Any]] = []

    def record(batch: Batch, outputs: Tensor) -> None:
        values = outputs.float()
        if trained.task.kind == "qa":
            assert batch.attention_mask is not None
            values = values[batch.attention_mask.bool()]
        recorded.append(values.cpu().numpy())

    plain = replace(trained, precision=POLICIES["fp32"])
    plain.model.float().entry = None  # padded batches, which an ONNX file takes
    evaluation = plain.apply(split, batch_size, on_batch, record)
    decisions = None
    if trained.task.kind != "regression" and all(np.isfinite(values).all() for values in recorded):
        columns = trained.recipe.prediction_columns(split, evaluation.outputs, trained.tokenizer)
        decisions = tuple(columns["prediction"])
    return ModelOutputs(tuple(recorded), decisions)


def compare(original: ModelOutputs, smaller: ModelOutputs, num_rows: int) -> OutputDifference:
    """Return how the outputs of a model differ from those of the original one, for the same rows."""
    pairs = list(zip(original.values, smaller.values, strict=True))
    with np.errstate(invalid="ignore"):  # of infinite outputs
        differences = np.concatenate([np.abs(first.astype(np.float64) - second).ravel() for first, second in pairs])
    agreement = None
    if original.decisions is not None and smaller.decisions is not None:
        same = [bool(first == second) for first, second in zip(original.decisions, smaller.decisions, strict=True)]
        agreement = sum(same) / len(same)
    return OutputDifference(
        num_rows=num_rows,
        max_abs=float(differences.max()),
        mean_abs=float(differences.mean()),
        largest_output=max(float(np.abs(first).max()) for first, _ in pairs),
        agreement=agreement,
    )


def num_weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the weights of a model in float32; tied weights count once."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced numbers below `count`."""
    return [int(number) for number in np.linspace(0, count - 1, min(count, most))]
