"""A baseline that fits a linear model on TF-IDF features of words.

Dimensions: `N` rows, `V` features, `C` classes, `K` outputs: 1 for a number, C for classes.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from paratune.config.optional_sections import TfidfOptions
from paratune.data.columns import Samples
from paratune.errors import DataError

Array = np.ndarray[Any, Any]
ABSENT: Final = -1e4
"""Output of a class without a training row: its softmax is 0."""
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True)
class FittedTfidf:
    """A fitted baseline."""

    vectorizer: Any
    """Fitted TfidfVectorizer of scikit-learn."""
    estimator: Any
    """Fitted Ridge, LogisticRegression, LinearSVR or LinearSVC of scikit-learn."""
    mean: float | None
    """Mean of the training targets; the estimator learns the difference from it. None for classes."""
    num_classes: int
    """C; 0 for a number."""
    converged: bool
    """Whether the optimization converged before the largest number of iterations."""

    @property
    def name(self) -> str:
        return f"TF-IDF + {type(self.estimator).__name__}"

    @property
    def num_parameters(self) -> int:
        return int(np.size(self.estimator.coef_) + np.size(self.estimator.intercept_))

    def outputs(self, texts: Sequence[str]) -> Array:
        """Return outputs like those of a model, (N, K) float64.

        For a number, the prediction; for classes, log probabilities of logistic regression, or decision values of a
        support vector machine, whose softmax is no probability. A class without a training row has `ABSENT`.
        """
        features = self.vectorizer.transform(texts)
        if self.mean is not None:
            return np.asarray(self.estimator.predict(features) + self.mean, dtype=np.float64)[:, None]
        if hasattr(self.estimator, "predict_log_proba"):
            class_outputs = np.maximum(self.estimator.predict_log_proba(features), ABSENT)
        else:
            class_outputs = np.asarray(self.estimator.decision_function(features))
            if class_outputs.ndim == 1:  # for two classes, only the value of the second
                class_outputs = np.stack([np.zeros_like(class_outputs), class_outputs], axis=1)
        outputs_NC = np.full((len(texts), self.num_classes), ABSENT)
        outputs_NC[:, self.estimator.classes_] = class_outputs
        return outputs_NC

    def loss(self, outputs: Array, labels: Array) -> float | None:
        """Return the mean loss of a split from outputs, (N, K), and targets or class ids, (N,).

        It is the mean squared error, or the cross-entropy of logistic regression; None for a support vector machine,
        which has no probabilities, and where a class does not occur in training.
        """
        if self.mean is not None:
            return float(np.square(outputs[:, 0] - labels.astype(np.float64)).mean())
        own = outputs[np.arange(len(labels)), labels]
        if not hasattr(self.estimator, "predict_log_proba") or (own <= ABSENT).any():
            return None
        return float(-own.mean())


def texts_with_pairs(samples: Samples) -> list[str]:
    """Return the whole text of each row, (N,); the two texts of a pair are joined by a line break."""
    if samples.text_pairs is None:
        return samples.texts
    return [f"{text}\n{pair}" for text, pair in zip(samples.texts, samples.text_pairs, strict=True)]


class TfidfFitter:
    """The features of the training rows, on which estimators are fitted."""

    def __init__(
        self, options: TfidfOptions, texts: Sequence[str], labels: Array, *, num_classes: int, seed: int
    ) -> None:
        """Learn the words of the training rows and their idf.

        Args:
            options: Those of the configuration.
            texts: Training rows, (N,).
            labels: Their float targets or int64 class ids, (N,).
            num_classes: C, or 0 for a number.
            seed: Of the order of rows in support vector machines.

        Raises:
            DataError: No word occurs in enough rows.

        Source: sklearn.feature_extraction.text.TfidfVectorizer, with sublinear term frequencies (1 + log tf).
        """
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._options, self._labels, self._num_classes, self._seed = options, labels, num_classes, seed
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, options.max_ngram),
            min_df=options.min_rows,
            max_features=options.max_features,
            sublinear_tf=True,
        )
        try:
            self._features = self._vectorizer.fit_transform(texts)
        except ValueError as error:
            raise _fit_error(error) from error

    def fit(self, c: float) -> FittedTfidf:
        """Fit with one value of C.

        Raises:
            DataError: scikit-learn cannot fit the rows, for example where all have one class.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.svm import LinearSVC, LinearSVR

        mean = None if self._num_classes else float(self._labels.mean(dtype=np.float64))
        targets = self._labels if mean is None else self._labels.astype(np.float64) - mean
        if self._options.estimator == "svm":
            kind = LinearSVC if mean is None else LinearSVR
            estimator = kind(C=c, max_iter=_MAX_ITERATIONS, random_state=self._seed)
        elif mean is None:
            estimator = LogisticRegression(C=c, max_iter=_MAX_ITERATIONS)
        else:
            estimator = Ridge(alpha=1 / (2 * c))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            try:
                estimator.fit(self._features, targets)
            except ValueError as error:
                raise _fit_error(error) from error
        converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        return FittedTfidf(self._vectorizer, estimator, mean, self._num_classes, converged)


def _fit_error(error: ValueError) -> DataError:
    return DataError(
        f"baseline: scikit-learn cannot fit the training rows: {error}; give more rows, or a lower baseline.min_rows",
        code="baseline.not_fitted",
        key="baseline",
    )
