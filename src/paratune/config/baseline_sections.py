"""Options of baselines, which are fitted in place of a model."""

from typing import Annotated, Literal

from pydantic import Field

from paratune.config.section import Positive, PositiveFloat, Section
from paratune.errors import ConfigError


class TfidfOptions(Section):
    """A linear model over TF-IDF features of words, fitted by scikit-learn in one process on the CPU."""

    kind: Literal["tfidf"]
    """The baseline."""
    estimator: Literal["linear", "svm"] = "linear"
    """linear: ridge regression for numbers, logistic regression for classes; svm: a linear support vector machine for
    both."""
    max_ngram: Positive = 2
    """Maximum number of neighbouring words in a feature."""
    min_rows: Positive = 2
    """Minimum number of training rows with a feature."""
    max_features: Positive = 50_000
    """Maximum number of features; the most frequent ones are kept."""
    inverse_regularization: Annotated[list[PositiveFloat], Field(min_length=1)] = Field(
        default_factory=lambda: [0.01, 0.1, 1.0, 10.0, 100.0]
    )
    """Values of scikit-learn's C; the validation set selects one. The alpha of ridge regression is 1 / (2 C)."""


def refuse_baseline(baseline: TfidfOptions | None, use: str) -> None:
    """Refuse a baseline where steps are needed.

    Args:
        use: Use of the steps for the message, such as "paratune plan predicts".

    Raises:
        ConfigError: The configuration has a baseline.
    """
    if baseline is not None:
        message = f"baseline: {baseline.kind} has no steps, which {use}; leave it out: --set baseline=null"
        raise ConfigError(message, code="baseline.no_steps", key="baseline", kind=baseline.kind)
