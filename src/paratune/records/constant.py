"""The comparison of a model with the same answer for every row, which `paratune.json` keeps beside the model."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from paratune.config.metric_names import is_lower_better, metric_label
from paratune.errors import CheckpointError

CONSTANT: Final = "constant"
"""Key of the comparison in `paratune.json`."""
LABEL_DEVIATION: Final = "label_deviation"
"""Key in `paratune.json`: standard deviation of the training labels of scores; None for other tasks."""


class ConstantComparison(BaseModel, frozen=True):
    """A score of a model, and that of a constant answer on the same rows."""

    predicts: str
    """Usual name of the answer, such as majority class."""
    split: str
    metric: str
    model: float
    constant: float

    @property
    def is_better(self) -> bool:
        """Whether the model is better than the constant answer."""
        return self.model < self.constant if is_lower_better(self.metric) else self.model > self.constant

    @property
    def sentence(self) -> str:
        """The comparison in words, for a model that is not better: what follows its name and "is"."""
        return (
            f"not better than the {self.predicts}: {self.split} {metric_label(self.metric)} {self.model:.4f}, of the "
            f"{self.predicts} {self.constant:.4f}."
        )

    @property
    def warning(self) -> str:
        """The sentence beside answers of a model that is not better."""
        return f"The model is {self.sentence} Do not rely on its answers."


def compare_with_constant(scores: Any, baseline: Any, metrics: Any) -> ConstantComparison | None:
    """Return the comparison by the first headline metric that is known of both, on the test set or else on validation.

    Args:
        scores: `scores` of summary.json.
        baseline: `baseline` of summary.json: the constant answer and its scores; None for tasks without one.
        metrics: Headline metrics of the task.

    Returns:
        None where nothing can be compared.
    """
    known = baseline if isinstance(baseline, Mapping) else {}
    for split in ("test", "validation"):
        for metric in metrics if isinstance(metrics, list | tuple) else ():
            model, constant = _score(scores, split, metric), _score(known.get("scores"), split, metric)
            if model is not None and constant is not None:
                name = str(known.get("predicts"))
                return ConstantComparison(predicts=name, split=split, metric=metric, model=model, constant=constant)
    return None


def _score(scores: Any, split: str, metric: str) -> float | None:
    of_split = scores.get(split) if isinstance(scores, Mapping) else None
    value = of_split.get(metric) if isinstance(of_split, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def not_better(known: Mapping[str, Any], place: object) -> ConstantComparison | None:
    """Return the comparison in the record beside a model that is not better than a constant answer.

    Args:
        known: Content of `paratune.json`; empty for a model of another program.
        place: Its name in messages.

    Returns:
        None for a model that is better, and where nothing is known.

    Raises:
        CheckpointError: The entry is damaged.
    """
    try:
        found = TypeAdapter(ConstantComparison | None).validate_python(known.get(CONSTANT))
        return None if found is None or found.is_better else found
    except ValidationError as error:
        message = f"{place} is damaged: {CONSTANT}: {error}; copy the folder again, or train again"
        raise CheckpointError(message, code="run.damaged", record=place) from error
