"""Names of the metrics of each task, and which direction is better; targets of scores on a command line."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from paratune.base.text import plain
from paratune.errors import ConfigError

Direction = Literal["max", "min"]

METRICS: dict[str, tuple[str, ...]] = {
    "classification": (
        *("accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "recall", "matthews"),
        *("roc_auc", "average_precision", "loss"),
    ),
    "mlm": ("perplexity", "accuracy", "loss"),
    "multi_label": (
        *("f1_micro", "f1_macro", "f1_weighted", "f1_samples", "accuracy", "hamming_loss"),
        *("roc_auc", "average_precision", "loss"),
    ),
    "multiple_choice": ("accuracy", "loss"),
    "ordinal": ("accuracy", "mae", "within_one", "qwk", "spearman", "loss"),
    "regression": (
        *("rmse", "mse", "mae", "r2", "pearson", "spearman", "qwk", "exact_agreement", "adjacent_agreement", "loss"),
    ),
    "qa": (
        *("exact", "f1", "has_answer_exact", "has_answer_f1", "no_answer_exact", "no_answer_f1"),
        *("best_exact", "best_f1", "loss"),
    ),
    "token_classification": ("f1", "precision", "recall", "accuracy", "loss"),
    "embedding": (*("spearman", "pearson", "recall_at_1", "mrr", "accuracy", "average_precision", "roc_auc", "loss"),),
    "own": ("loss",),
}
"""Metrics by the kind of the task; the loss is the training loss on the split."""

HEADLINES: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro"),
    "regression": ("rmse", "mae", "r2"),
    "multi_label": ("f1_micro", "f1_macro"),
    "ordinal": ("qwk", "mae", "accuracy"),
    "qa": ("exact", "f1"),
    "token_classification": ("f1", "accuracy"),
}
"""Headline metrics by the kind of the task; other kinds have the first of their `METRICS`."""

EMBEDDING_SCORES: dict[str, tuple[str, ...]] = {
    "multiple_negatives_ranking": ("recall_at_1", "mrr", "accuracy"),
    "cosine_similarity": ("spearman", "pearson"),
    "triplet": ("accuracy",),
    "contrastive": ("average_precision", "roc_auc"),
}
"""Metrics of embeddings by `task.loss`, without the loss; `accuracy` is that of triplets."""

LOWER_IS_BETTER = frozenset({"loss", "rmse", "mse", "mae", "hamming_loss", "perplexity"})
"""Larger values of all other metrics are better."""

OWN_PREFIX = "own_"
"""Start of the names of scores of the user's own metrics (`evaluate.metrics`)."""
LOWER_ENDINGS = ("_error", "_loss", "_deviance")
"""Ends of the names of own metrics whose smaller values are better, as in scikit-learn."""

LABELS = {
    "perplexity": "Perplexity",
    "accuracy": "Accuracy",
    "f1": "F1",
    "f1_macro": "F1, macro",
    "f1_micro": "F1, micro",
    "f1_weighted": "F1, weighted",
    "f1_samples": "F1, mean of rows",
    "precision": "Precision",
    "recall": "Recall",
    "matthews": "Matthews correlation",
    "hamming_loss": "Hamming loss",
    "roc_auc": "ROC AUC",
    "average_precision": "Average precision",
    "recall_at_1": "Recall@1",
    "mrr": "Mean reciprocal rank",
    "within_one": "Within one class",
    "rmse": "RMSE",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R²",
    "pearson": "Pearson r",
    "spearman": "Spearman ρ",
    "qwk": "Quadratic weighted kappa",
    "exact_agreement": "Exact agreement",
    "adjacent_agreement": "Adjacent agreement",
    "exact": "Exact match",
    "has_answer_exact": "Exact match, with an answer",
    "has_answer_f1": "F1, with an answer",
    "no_answer_exact": "Exact match, without an answer",
    "no_answer_f1": "F1, without an answer",
    "best_exact": "Exact match at its best threshold",
    "best_f1": "F1 at its best threshold",
    "loss": "Loss",
}
"""Titles of metrics in tables, in the order of the columns; other metrics follow with their own names."""


def has_targets(label: str | list[str] | None, raters: str | None) -> bool:
    """Return whether the label of a regression is several targets: a list of columns that are not raters of one."""
    return isinstance(label, list) and raters is None


def direction(metric: str) -> Direction:
    """Return whether larger ("max") or smaller ("min") values of a metric are better.

    Raises:
        KeyError: No task has a metric of this name, and it is not the name of an own metric.
    """
    if not metric.startswith(OWN_PREFIX) and not any(metric in names for names in METRICS.values()):
        raise KeyError(metric)
    return "min" if is_lower_better(metric) else "max"


def is_lower_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better; False for unknown names."""
    return metric in LOWER_IS_BETTER or (metric.startswith(OWN_PREFIX) and metric.endswith(LOWER_ENDINGS))


def metric_name(metric: str) -> str:
    """Return the label of a metric, with an arrow to its better side."""
    if metric not in LABELS and not metric.startswith(OWN_PREFIX):
        return metric
    return f"{metric_label(metric)} {'↓' if is_lower_better(metric) else '↑'}"


def score_range(metric: str, task: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a metric; scores of qa are per cent."""
    if metric.startswith((OWN_PREFIX, "bias")):
        return -math.inf, math.inf
    if metric in ("r2", "pearson", "spearman", "qwk", "matthews"):
        return -math.inf if metric == "r2" else -1.0, 1.0
    if metric in LOWER_IS_BETTER - {"hamming_loss"}:
        return 0.0, math.inf
    return 0.0, 100.0 if task == "qa" else 1.0


def metric_label(metric: str) -> str:
    """Return the title of a metric in tables; the name of a metric that has none."""
    if metric.startswith(OWN_PREFIX):
        return f"{metric.removeprefix(OWN_PREFIX)} (own)"
    return LABELS.get(metric, metric)


def key_of(name: str) -> str:
    """Return the name of the metric with this name or title, in letters of any case; an unknown name unchanged."""
    keys = {key.lower(): key for key in LABELS} | {label.lower(): key for key, label in LABELS.items()}
    return keys.get(name.lower(), name)


_PATTERN = re.compile(
    r"\s*([^<>=]*[^<>=\s])\s*(>=|<=)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*"
)


@dataclass(frozen=True)
class ScoreTarget:
    """A score to reach."""

    metric: str
    value: float

    @property
    def is_higher_better(self) -> bool:
        """Whether larger values are better."""
        return direction(self.metric) == "max"

    @property
    def text(self) -> str:
        return f"{self.metric} {'≥' if self.is_higher_better else '≤'} {self.value:g}"

    def is_met(self, score: float) -> bool:
        """Return whether a score is at least as good."""
        return score >= self.value if self.is_higher_better else score <= self.value


def parse_target(text: str, option: str = "--target") -> ScoreTarget:
    """Return the target in the value of an option, such as "f1_macro>=0.88", "F1, macro>=0.88" or "loss<=0.3".

    Raises:
        ConfigError: It is not a target, the metric does not exist, or the direction is wrong for the metric.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        message = f"{option} {plain(text)!r} is not a target; write METRIC>=VALUE or METRIC<=VALUE, as f1_macro>=0.88"
        raise ConfigError(message, code="cli.invalid_value", option=option)
    metric, sign, value = key_of(match[1]), match[2], float(match[3])
    try:
        wanted = ">=" if direction(metric) == "max" else "<="
    except KeyError:
        known = ", ".join(sorted({name for names in METRICS.values() for name in names}))
        message = f"{option} {plain(text)}: {plain(metric)} is not a metric; allowed: {known}"
        raise ConfigError(message, code="metric.unknown", option=option, metric=metric) from None
    if sign != wanted:
        better = "larger" if wanted == ">=" else "smaller"
        message = f"{option} {plain(text)}: {metric} is better when it is {better}; write {metric}{wanted}{value:g}"
        raise ConfigError(message, code="metric.unknown", option=option, metric=metric, value=value)
    return ScoreTarget(metric, value)
