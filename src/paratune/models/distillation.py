"""The loss of a distillation: that of the task, and the distance of the outputs from those of teachers.

Dimensions: `N` rows of a split, `B` rows of a batch, `C` outputs, `L` learned layers, `D` width.

Sources: Hinton et al., Distilling the Knowledge in a Neural Network, 2015, section 2, for the probabilities at a
temperature and the factor T^2; Ba and Caruana, Do Deep Nets Really Need to be Deep?, NeurIPS 2014, section 2.2, for the
squared difference of logits; Sun et al., Patient Knowledge Distillation for BERT Model Compression, EMNLP 2019, section
3.2, for hidden states.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.distil_section import DEFAULT_TEMPERATURE, Distil, HiddenStates, distance_of
from paratune.errors import ConfigError
from paratune.models.objectives import Objective
from paratune.models.sequences import at_least_float32
from paratune.models.task_model import TaskModel, find_blocks, read_packed


def teacher_targets(outputs: Sequence[np.ndarray[Any, Any]], distil: Distil, task_kind: str) -> npt.NDArray[np.float32]:
    """Return what the student learns from its teachers, (N, C): the mean of their outputs, (N, C) each, such as logits.

    With `distance: kl`, it is the mean of the probabilities at the temperature.
    """
    values = [torch.from_numpy(np.asarray(values)).double() for values in outputs]
    if distance_of(distil, task_kind) == "kl":
        temperature = distil.temperature or DEFAULT_TEMPERATURE
        values = [(value / temperature).softmax(dim=-1) for value in values]
    mean: npt.NDArray[np.float32] = torch.stack(values).mean(dim=0).float().numpy()
    return mean


def distilled(objective: Objective, distil: Distil, task_kind: str) -> Objective:
    """Return an objective whose loss of a row is (1 - w) * that of `objective` + w * the distance from the teachers.

    The distance needs `Batch.teacher`, whose first C columns are those of the outputs, (B, C). Without it, as in an
    evaluation, the loss is that of `objective` alone, so that it can be compared with that of a model without teachers.
    `distil` gives the weight w, the distance and the temperature.
    """
    distance: Callable[[Tensor, Tensor], Tensor] = _squared_difference
    if distance_of(distil, task_kind) == "kl":
        distance = partial(_divergence, temperature=distil.temperature or DEFAULT_TEMPERATURE)
    row_losses = partial(_row_losses, task_losses=objective.row_losses, distance=distance, weight=distil.weight)
    return replace(objective, row_losses=row_losses)


def keep_first_states(model: TaskModel, layers: Sequence[int], key: str, name: str) -> dict[int, Tensor]:
    """Return a dictionary that each forward pass fills: by layer, the state of the first token of each row, (B, D).

    Raises:
        ConfigError: The model `name` does not have the layers, numbered from 0, of the option `key`.
    """
    blocks, kept = find_blocks(model.hf), dict[int, Tensor]()
    if not blocks or max(layers) >= len(blocks):
        raise ConfigError(
            f"{key}: {name} has {len(blocks)} layers, numbered from 0, and no layer {max(layers)}",
            code="distil.hidden",
            key=key,
            value=max(layers),
        )

    def keep(layer: int, _module: Any, _inputs: Any, outputs: Any) -> None:
        batch = model.present_batch
        if batch is None:
            return
        if batch.is_packed:
            kept[layer] = read_packed(outputs, batch, "rows", "first").squeeze(1)
        else:
            hidden_BSD = outputs if isinstance(outputs, Tensor) else outputs[0]
            kept[layer] = hidden_BSD[:, 0]

    for layer in layers:
        blocks[layer].register_forward_hook(partial(keep, layer))
    return kept


def normalised(kept: dict[int, Tensor], layers: Sequence[int]) -> Tensor:
    """Return the kept states, each of length 1, (B, L, D), at least float32."""
    states_BLD = torch.stack([kept[layer] for layer in layers], dim=1)
    return functional.normalize(at_least_float32(states_BLD), dim=-1)


def learn_states(model: TaskModel, hidden: HiddenStates, teacher_width: int, name: str) -> None:
    """Add to the loss of each row b times the sum over layers of ||s - t||^2, where s and t are normalised states.

    The states of the teacher, whose width is D, are the last L * D columns of `Batch.teacher`; without it, nothing is
    added. `hidden` gives layers and factor b.

    Raises:
        ConfigError: The student has another width, or not these layers.
    """
    width = getattr(model.hf.config, "hidden_size", None)
    if width != teacher_width:
        raise ConfigError(
            f"distil.hidden: {name} has the width {width}, and the teacher {teacher_width}; their states can be "
            "compared only with the same width: use another student, or leave distil.hidden out",
            code="distil.hidden",
            key="distil.hidden",
            value=width,
        )
    kept = keep_first_states(model, hidden.layers, "distil.hidden.layers", name)

    def distance(outputs: Tensor, batch: Batch) -> Tensor:
        if batch.teacher is None:
            return outputs.new_zeros(())
        states_BLD = normalised(kept, hidden.layers)
        teacher_BLD = batch.teacher[:, outputs.shape[1] :].reshape(states_BLD.shape).to(states_BLD.dtype)
        squares_B = (states_BLD - teacher_BLD).square().sum(dim=(1, 2))
        return hidden.weight * (squares_B * batch.row_weight.to(squares_B.dtype)).sum()

    model.more_loss = distance


def _row_losses(
    outputs: Tensor,
    batch: Batch,
    *,
    task_losses: Callable[[Tensor, Batch], Tensor],
    distance: Callable[[Tensor, Tensor], Tensor],
    weight: float,
) -> Tensor:
    if batch.teacher is None:
        return task_losses(outputs, batch)
    distance_B = distance(outputs, batch.teacher[:, : outputs.shape[1]].to(outputs.dtype))
    return distance_B if weight == 1 else (1 - weight) * task_losses(outputs, batch) + weight * distance_B


def _divergence(outputs: Tensor, probabilities: Tensor, *, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student), (B,), where `probabilities` are those of the teacher at temperature T."""
    log_student_BC = functional.log_softmax(outputs / temperature, dim=-1)
    divergence_BC = functional.kl_div(log_student_BC, probabilities, reduction="none")
    return temperature**2 * divergence_BC.sum(dim=-1)


def _squared_difference(outputs: Tensor, teacher: Tensor) -> Tensor:
    """Return the squared difference, (B,), as a mean over outputs."""
    return (outputs - teacher).square().mean(dim=-1)
