"""The loss of a distillation: that of the task, and the distance of the outputs from those of teachers.

Dimensions: `N` rows of a split, `B` rows of a batch, `C` outputs.

Sources: Hinton et al., Distilling the Knowledge in a Neural Network, 2015, section 2, for the probabilities at a
temperature and the factor T^2; Ba and Caruana, Do Deep Nets Really Need to be Deep?, NeurIPS 2014, section 2.2, for the
squared difference of logits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.optional_sections import DEFAULT_TEMPERATURE, Distil, distance_of
from paratune.models.objectives import Objective


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

    The distance needs `Batch.teacher`, (B, C). Without it, as in an evaluation, the loss is that of `objective` alone,
    so that it can be compared with that of a model without teachers.
    `distil` gives the weight w, the distance and the temperature.
    """
    is_divergence = distance_of(distil, task_kind) == "kl"
    temperature, weight = distil.temperature or DEFAULT_TEMPERATURE, distil.weight

    def row_losses(outputs: Tensor, batch: Batch) -> Tensor:
        if batch.teacher is None:
            return objective.row_losses(outputs, batch)
        teacher_BC = batch.teacher.to(outputs.dtype)
        distance_B = (outputs - teacher_BC).square().mean(dim=-1)
        if is_divergence:  # T^2 KL(teacher || student), where the teacher has probabilities at temperature T
            log_student_BC = functional.log_softmax(outputs / temperature, dim=-1)
            distance_B = temperature**2 * functional.kl_div(log_student_BC, teacher_BC, reduction="none").sum(dim=-1)
        return distance_B if weight == 1 else (1 - weight) * objective.row_losses(outputs, batch) + weight * distance_B

    return replace(objective, row_losses=row_losses)
