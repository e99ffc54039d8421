"""The comparison of a model with the same answer for every row, which `paratune.json` keeps beside the model."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from paratune.config.metric_names import is_lower_better, metric_label
from paratune.records.typed import checked

CONSTANT: Final = "constant"  # key of the comparison in `paratune.json`
LABEL_DEVIATION: Final = "label_deviation"  # key: standard deviation of training labels that are numbers


class ConstantComparison(BaseModel, frozen=True):
    """A score of a model, and that of a constant answer on the same rows."""

    predicts: str  # usual name of the answer, such as majority class
    split: str
    metric: str
    model: float
    constant: float

    @property
    def sentence(self) -> str:
        """What follows the name of a model that is not better, and "is"."""
        return (
            f"not better than the {self.predicts}: {self.split} {metric_label(self.metric)} {self.model:.4f}, of the "
            f"{self.predicts} {self.constant:.4f}."
        )

    @property
    def warning(self) -> str:
        return f"The model is {self.sentence} Do not rely on its answers."


def is_better_score(metric: str, score: float, other: float) -> bool:
    return score < other if is_lower_better(metric) else score > other


def compare_with_constant(
    scores: Mapping[str, Any], baseline: Mapping[str, Any] | None, metrics: Sequence[str]
) -> ConstantComparison | None:
    """Return the comparison by the first headline metric that is known of both, on the test set or else on validation.

    None where nothing can be compared. `scores` and `baseline` are those of summary.json.
    """
    constants = (baseline or {}).get("scores") or {}
    for split in ("test", "validation"):
        own, other = (known.get(split) or {} for known in (scores, constants))
        for metric in metrics:
            if own.get(metric) is not None and other.get(metric) is not None:
                return ConstantComparison(
                    predicts=str(baseline and baseline.get("predicts")),
                    split=split,
                    metric=metric,
                    model=own[metric],
                    constant=other[metric],
                )
    return None


def not_better(compared: Any, place: object) -> ConstantComparison | None:
    """Return a recorded comparison if the model is not better than the constant answer; None if nothing is known.

    Raises:
        CheckpointError: The entry `CONSTANT` of the record at this place is damaged.
    """
    remedy = "copy the folder again, or train again"
    found: ConstantComparison | None = checked(ConstantComparison | None, compared, f"{place}: {CONSTANT}", remedy)
    return None if found is None or is_better_score(found.metric, found.model, found.constant) else found
