"""Baselines that are fitted in place of a model: what text alone gives without an encoder."""

from typing import Annotated, Literal

from pydantic import Field

from paratune.config.section import Positive, PositiveFloat, Section
from paratune.errors import ConfigError


class TfidfOptions(Section):
    """A linear model over TF-IDF features of words, fitted by scikit-learn in one process on the CPU."""

    kind: Literal["tfidf"]
    """The baseline."""
    estimator: Literal["linear", "svm"] = "linear"
    """What is fitted: linear is ridge regression for numbers and logistic regression for classes; svm is a linear
    support vector machine for either."""
    max_ngram: Positive = 2
    """Words in a row that are one feature, at most."""
    min_rows: Positive = 2
    """Training rows that a feature occurs in, at least."""
    max_features: Positive = 50_000
    """Features, at most: the most frequent ones."""
    inverse_regularization: Annotated[list[PositiveFloat], Field(min_length=1)] = Field(
        default_factory=lambda: [0.01, 0.1, 1.0, 10.0, 100.0]
    )
    """Values of scikit-learn's C, of which the validation set chooses; the alpha of ridge regression is 1 / (2 C)."""


def refuse_baseline(baseline: TfidfOptions | None, what: str) -> None:
    """Refuse a baseline where steps are needed.

    Args:
        baseline: Of the configuration.
        what: What is done with steps, such as "paratune plan predicts".

    Raises:
        ConfigError: There is one.
    """
    if baseline is not None:
        raise ConfigError(
            f"baseline: {baseline.kind} has no steps, which {what}; leave it out: --set baseline=null",
            code="baseline.no_steps",
            key="baseline",
            kind=baseline.kind,
        )
