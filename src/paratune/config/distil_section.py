"""Options of a distillation: the model learns from the outputs of trained models, its teachers."""

from typing import Annotated, Literal

from pydantic import Field

from paratune.config.section import Columnar, PositiveFloat, Section

DEFAULT_TEMPERATURE = 2.0
"""Temperature where none is set, that of DistilBERT (Sanh et al. 2019)."""


class Distil(Section):
    """Train a smaller model, the student, with the outputs of trained models in addition to the labels (Hinton et al.
    2015). The outputs of the teachers for the training rows are computed once, before the first step."""

    teacher: Columnar
    """Run or model folder with the same task and labels; a list is an ensemble, whose mean output is learned. Its
    tokenizer and architecture may differ from those of `model`."""
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share w of the teacher in the loss of a row: (1 - w) * loss of the task + w * distance from the teacher."""
    distance: Literal["kl", "mse"] | None = None
    """Distance from the teacher. kl: T^2 times the KL divergence between the probabilities of teacher and student at
    temperature T (classification only); mse: mean squared difference of the outputs, such as logits. Default: kl in
    classification, otherwise mse."""
    temperature: PositiveFloat | None = None
    """With `distance: kl`: temperature T, by which logits are divided; default: 2."""


def distance_of(distil: Distil, task_kind: str) -> Literal["kl", "mse"]:
    """Return the distance from the teacher of a distillation, the given one or the default of the task."""
    return distil.distance or ("kl" if task_kind == "classification" else "mse")


def teacher_names(distil: Distil) -> list[str]:
    """Return the teachers as a list."""
    return [distil.teacher] if isinstance(distil.teacher, str) else list(distil.teacher)
