"""Scores that are computed again from prediction files, with the pseudovalues of samples.

The scores are those of `paratune.metrics`. Metrics that a prediction file does not determine (the loss, areas under
curves of several labels, scores at the best threshold) are not included. When a score cannot be computed from the file,
`CannotTell` has the reason, and the interval is over seeds alone.

Dimensions: `N` samples, `C` classes.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.text import plain
from paratune.config.metric_names import EMBEDDING_SCORES, METRICS
from paratune.metrics import classification, embeddings, entities
from paratune.metrics.regression import correlation, grade_scale, grades, quadratic_kappa
from paratune.records import predictions_file
from paratune.records.finished import RunRecord
from paratune.records.predictions import CLUSTER
from paratune.records.scores import BIAS, RATER_BIAS
from paratune.verdicts.jackknife import Floats, JackknifeScore, mean_over_classes, of_blocks, of_kinds, of_mean, of_sums

_AGREES = 1e-4  # how far a score that is computed again may be from the recorded one, relative to it
MAX_KINDS = 200  # kinds of samples up to which a score without one of each kind is computed
SAME_ROWS = (
    "source",
    "index",
    "label",
    "num_hidden",
    CLUSTER,
)  # equal columns of runs that were scored on the same rows
Ints = npt.NDArray[np.int64]
Clusters = Ints | None


class CannotTell(Exception):
    """A score cannot be computed from predictions; the message is the reason, and follows a colon in a sentence."""


class DamagedFile(CannotTell):
    """A prediction file exists and cannot be read; the cause says why."""


@dataclass(frozen=True, eq=False)
class PredictionRows:
    """The columns of a prediction file."""

    run: str
    columns: Mapping[str, npt.NDArray[Any]]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a column, (N,); `CannotTell` where there is none."""
        if name not in self.columns:
            raise CannotTell(f"the predictions of {plain(self.run)} have no column {name}")
        return self.columns[name]

    def numbers(self, name: str) -> Floats:
        """Return a column of numbers, (N,); `CannotTell` where there is none, or it has other values."""
        try:
            values = np.asarray(self[name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise CannotTell(f"column {name} in the predictions of {plain(self.run)} has no numbers") from error
        if not np.isfinite(values).all():
            raise CannotTell(f"column {name} in the predictions of {plain(self.run)} has rows without a number")
        return values

    @property
    def clusters(self) -> Clusters:
        """The cluster of each row, (N,), numbered from 0; None where rows count as independent."""
        if CLUSTER not in self.columns:
            return None
        return np.asarray(np.unique(self.columns[CLUSTER], return_inverse=True)[1], dtype=np.int64)

    def texts(self, name: str) -> list[str]:
        return ["" if value is None else str(value) for value in self[name].tolist()]


def read_rows(run: RunRecord, split: str) -> PredictionRows:
    """Read the prediction file of a split; `CannotTell` where there is none, it is damaged, or it has no rows."""
    import pyarrow as pa
    from pyarrow import parquet

    path = run.folder / predictions_file(split)
    if not path.is_file():
        raise CannotTell(f"{plain(run.name)} has no {path.name}")
    try:
        table = parquet.read_table(path)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DamagedFile(f"{path.name} of {plain(run.name)} cannot be read") from error
    if not table.num_rows or "index" not in columns:
        raise DamagedFile(f"{path.name} of {plain(run.name)} has no rows")
    if table.num_rows == 1:
        raise CannotTell(f"{path.name} of {plain(run.name)} has a single row, from which no interval can be computed")
    return PredictionRows(run.name, columns)


def score_again(run: RunRecord, rows: PredictionRows, split: str, metric: str) -> JackknifeScore:
    """Return a score of a run with the pseudovalues of its samples.

    Raises:
        CannotTell: The metric cannot be computed from predictions, the file does not match the record, or the score is
            undefined with all samples or without one of them.
    """
    scored = score_rows(run, rows, metric)
    if scored is None or not scored.is_known:
        raise CannotTell(f"{metric} of {plain(run.name)} is undefined without some of its samples")
    recorded = run.score(split, metric)
    if recorded is None or abs(scored.score - recorded) > _AGREES * max(abs(recorded), 1e-2):
        in_record = "none" if recorded is None else f"{recorded:.6g}"
        given = f"{metric} {scored.score:.6g}"
        raise CannotTell(f"the predictions of {plain(run.name)} give {given}, its record {in_record}")
    return scored


def score_rows(run: RunRecord, rows: PredictionRows, metric: str) -> JackknifeScore | None:
    """Return a score of some rows, without a check against the record; None where it is undefined, `CannotTell` where
    the metric cannot be computed from predictions, or the columns do not match the task."""
    kind = run.task
    is_absent = metric in _NOT_IN_FILES or (kind == "multi_label" and metric in classification.OF_RANKING)
    is_rater = metric.startswith(RATER_BIAS) and metric in rows.columns
    if is_absent or (not is_rater and metric not in (*METRICS.get(kind, ()), BIAS)):
        raise CannotTell(f"{plain(metric)} cannot be computed again from predictions")
    scored: JackknifeScore | None
    if is_rater:
        known = np.isfinite(np.asarray(rows[metric], dtype=np.float64))
        rows = PredictionRows(rows.run, {name: cells[known] for name, cells in rows.columns.items()})
        scored = of_mean(rows.numbers(metric)) if known.any() else None
    elif kind in ("classification", "ordinal"):
        scored = _classes(run, rows, metric)
    elif kind == "multi_label":
        scored = _sets(run, rows, metric)
    elif kind == "multiple_choice":
        scored = of_mean(np.equal(rows.texts("label"), rows.texts("prediction")))
    elif kind == "mlm":  # samples are windows
        loss, hidden, right = (rows.numbers(name) for name in ("loss_sum", "num_hidden", "num_found"))
        if metric == "perplexity":
            scored = of_sums(np.stack([loss, hidden], axis=1), lambda sums: np.exp(sums[..., 0] / sums[..., 1]))
        else:
            scored = of_sums(np.stack([right, hidden], axis=1), lambda sums: sums[..., 0] / sums[..., 1])
    elif kind == "token_classification":  # samples are sentences
        if metric in entities.OF_ENTITIES and run.setting("task.scheme") == "none":
            return None
        counts = np.stack([rows.numbers(name) for name in entities.COUNTS], axis=1)
        scored = of_sums(counts, lambda sums: entities.score_counts(sums, metric))
    elif kind == "qa":
        scores = 100 * rows.numbers(metric.rpartition("_")[2])
        if metric in {"exact", "f1"}:
            scored = of_mean(scores)
        else:
            has_answer = np.asarray([bool(text) for text in rows.texts("label")])
            counted = (has_answer if metric.startswith("has_answer") else ~has_answer).astype(np.float64)
            of_answers = np.stack([scores * counted, counted], axis=1)
            scored = of_sums(of_answers, lambda sums: sums[..., 0] / sums[..., 1])
    elif kind == "embedding" and metric not in EMBEDDING_SCORES.get(str(run.setting("task.loss")), ()):
        return None  # a score of another loss
    # The predictions of sentence embeddings are cosines.
    elif metric in embeddings.RETRIEVAL:
        ranks = rows.numbers("rank")
        scored = of_mean(ranks == 1 if metric == "recall_at_1" else 1 / ranks)
    elif metric in embeddings.TRIPLETS:
        is_closer = rows.numbers("prediction") > rows.numbers("negative") if "negative" in rows.columns else None
        scored = None if is_closer is None else of_mean(is_closer)
    elif metric in embeddings.RANKING:
        scored = mean_over_classes(metric, [rows.numbers("label") == 1], [rows.numbers("prediction")])
    else:
        scored = _numbers(run, rows, metric)
    return scored if scored is None or rows.clusters is None else scored.by_cluster(rows.clusters)


def _ids(run: RunRecord, names: Sequence[str], column: str) -> Ints:
    """Return class ids of names of classes in a column."""
    place = {label: number for number, label in enumerate(run.labels)}
    ids = [place.get(name) for name in names]
    if None in ids:
        raise CannotTell(f"the predictions of {plain(run.name)} have a {column} that is not a class of its task")
    return np.asarray(ids, dtype=np.int64)


def _classes(run: RunRecord, rows: PredictionRows, metric: str) -> JackknifeScore | None:
    """Return a score of classes, which may have an order: ids are ranks then."""
    labels, num_classes = _ids(run, rows.texts("label"), "label"), len(run.labels)
    if metric in classification.OF_RANKING:  # a score of the order of samples by the probability of each class
        shares_NC = np.stack([rows.numbers(f"score_{number}") for number in range(num_classes)], axis=1)
        odds_NC, ranked = classification.odds(shares_NC), classification.ranked_classes(num_classes)
        return mean_over_classes(metric, [labels == number for number in ranked], [odds_NC[:, at] for at in ranked])
    predictions = _ids(run, rows.texts("prediction"), "prediction")
    off = np.abs(labels - predictions)
    means = {"accuracy": off == 0, "mae": off, "within_one": off <= 1}
    if metric in means:
        return of_mean(means[metric])
    if metric in ("qwk", "spearman"):
        return _agreement(metric, labels, predictions, rows.clusters)
    score = functools.partial(classification.class_score, metric, num_classes=num_classes)
    return _of_pairs(labels, predictions, num_classes, score, rows.clusters)


def _of_pairs(
    true: Ints, given: Ints, num_classes: int, score: Callable[..., float | None], clusters: Clusters
) -> JackknifeScore | None:
    """Return a score of (true, given) pairs that takes weights."""
    if num_classes**2 > MAX_KINDS:
        return of_blocks(len(true), lambda left: score(true[left], given[left]), clusters)
    return of_kinds(
        true * num_classes + given,
        lambda pairs, counts: score(pairs // num_classes, pairs % num_classes, weights=counts),
    )


def _agreement(
    metric: str, true: npt.NDArray[Any], given: npt.NDArray[Any], clusters: Clusters
) -> JackknifeScore | None:
    """Return `spearman`, or `qwk`: Cohen's kappa with quadratic weights of steps on a scale."""
    if metric == "spearman":
        from scipy import stats  # loads for half a second

        return of_blocks(len(true), lambda kept: correlation(stats.spearmanr, given[kept], true[kept]), clusters)
    lowest = min(true.min(), given.min())
    true, given = true - lowest, given - lowest
    num_steps = int(max(true.max(), given.max())) + 1
    return None if num_steps < 2 else _of_pairs(true, given, num_steps, quadratic_kappa, clusters)


def _numbers(run: RunRecord, rows: PredictionRows, metric: str) -> JackknifeScore | None:
    targets, predictions = rows.numbers("label"), rows.numbers("prediction")
    if metric == "spearman":
        return _agreement(metric, targets, predictions, rows.clusters)
    if metric in {"qwk", "exact_agreement", "adjacent_agreement"}:
        step, limits = run.setting("task.round_to"), run.setting("task.range")
        grade_pairs = grades(predictions, targets, grade_scale(step, limits, run.run.grades))
        if grade_pairs is None:
            return None
        if metric == "qwk":
            return _agreement(metric, grade_pairs[1], grade_pairs[0], rows.clusters)
        return of_mean(np.abs(grade_pairs[0] - grade_pairs[1]) <= (metric == "adjacent_agreement"))
    if metric in {"mae", BIAS}:
        return of_mean(predictions - targets if metric == BIAS else np.abs(predictions - targets))
    # x predicted, y true. Around the mean: sums of squares of large numbers would lose their digits.
    x, y = predictions - targets.mean(), targets - targets.mean()
    sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)

    def score(sums: Floats) -> Floats:
        n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        if metric == "pearson":
            return np.asarray((xy - x * y / n) / np.sqrt((xx - x * x / n) * (yy - y * y / n)))
        mse = np.maximum(xx - 2 * xy + yy, 0) / n
        if metric == "r2":
            return np.asarray(1 - n * mse / (yy - y * y / n))
        return np.asarray(np.sqrt(mse) if metric == "rmse" else mse)

    return of_sums(sums, score)


def _sets(run: RunRecord, rows: PredictionRows, metric: str) -> JackknifeScore | None:
    true, given = members(run, rows, "label"), members(run, rows, "prediction")
    if metric == "accuracy":
        return of_mean((true == given).all(axis=1))
    if metric == "hamming_loss":
        return of_mean((true != given).mean(axis=1))
    if metric == "f1_samples":
        both, sizes = (true & given).sum(axis=1), true.sum(axis=1) + given.sum(axis=1)
        return of_mean(np.where(sizes == 0, 1.0, 2 * both / np.maximum(sizes, 1)))

    def f1(sums: Floats) -> Floats:
        """Return F1 of classes put together, from how often each class was right, is there, and was given."""
        both, true, given = np.split(sums, 3, axis=-1)
        if metric == "f1_micro":
            return np.asarray(2 * both.sum(-1) / np.maximum((true + given).sum(-1), 1))
        of_class = 2 * both / np.maximum(true + given, 1)
        if metric == "f1_macro":
            return np.asarray(of_class.mean(-1))
        return np.asarray((of_class * true).sum(-1) / np.maximum(true.sum(-1), 1))

    return of_sums(np.concatenate([true & given, true, given], axis=1).astype(np.float64), f1)


def members(run: RunRecord, rows: PredictionRows, column: str) -> npt.NDArray[np.bool_]:
    """Return which classes each row has, (N, C)."""
    separator = run.setting("task.separator")
    if not isinstance(separator, str) or not separator:
        raise CannotTell(f"the record of {plain(run.name)} does not contain the separator of labels")
    names = [text.split(separator) if text else [] for text in rows.texts(column)]
    is_member = np.zeros((len(names), len(run.labels)), dtype=np.bool_)
    rows_of_names = np.repeat(np.arange(len(names)), [len(own) for own in names])
    is_member[rows_of_names, _ids(run, [name for own in names for name in own], column)] = True
    return is_member


_NOT_IN_FILES = {"loss", "best_exact", "best_f1"}
