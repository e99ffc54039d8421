"""Rows of the comparison table about quality: losses, scores, and what a constant answer scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.units import NOT_AVAILABLE, format_percent, percent_change
from paratune.config.metric_names import LABELS, LOWER_IS_BETTER
from paratune.report.read import RunRecord
from paratune.report.rows import ReportRow, make_row, number_row, texts_of

_CONSTANT_METRICS = ("accuracy", "f1_macro", "exact", "rmse", "mae")
"""Of what a constant answer scores, the figures that say something; of no answer, exact match and F1 are the same."""


def metric_name(metric: str) -> str:
    """Return how a metric is written for readers, with an arrow to its better side where that is known."""
    if metric not in LABELS:
        return metric
    return f"{LABELS[metric]} {'↓' if metric in LOWER_IS_BETTER else '↑'}"


def quality_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the training loss and the scores of every set."""
    yield number_row(
        runs,
        "train_loss_last_epoch",
        "Training loss",
        "Mean of the last epoch",
        "summary.loss.mean_last_epoch",
        texts_of(_score),
    )
    for split in _splits_of(runs):
        metrics = _metrics_of(runs, split)
        for metric in metrics:
            values = [run.number(("summary", "scores", split, metric)) for run in runs]
            texts = [_score(value) for value in values]
            source = f"summary.scores.{split}.{metric}"
            row = make_row(
                runs,
                f"{split}_{metric}",
                f"{split.capitalize().replace('_', ' ')} scores",
                metric_name(metric),
                source,
                values,
                texts,
                # Of more than two classes f1 is f1_macro (`metrics.classification`).
                shown=metric != "f1" or "f1_macro" not in metrics or not _all_have_many_classes(runs),
            )
            yield replace(row, metric=metric)


def constant_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield what the same answer for every sample scores, and how far the runs are from it."""
    for split in ("test", "validation"):
        paths = {metric: ("summary", "baseline", "scores", split, metric) for metric in _CONSTANT_METRICS}
        for metric, path in paths.items():
            values = [run.number(path) for run in runs]
            if all(value is None for value in values):
                continue
            texts = [
                NOT_AVAILABLE if value is None else f"{_score(value)} (run {_from_constant(run, split, metric, value)})"
                for run, value in zip(runs, values, strict=True)
            ]
            yield make_row(
                runs,
                f"{split}_constant_{metric}",
                "The same answer for every sample",
                f"{split.capitalize()} {metric_name(metric)}",
                ".".join(path),
                values,
                texts,
            )


def _from_constant(run: RunRecord, split: str, metric: str, constant: float) -> str:
    return format_percent(percent_change(run.number(("summary", "scores", split, metric)), constant))


def _splits_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return validation, test, and what other sets any of the runs has scores of."""
    scored = [scores for run in runs if isinstance(scores := run.get("summary.scores"), dict)]
    return list(dict.fromkeys(["validation", "test", *(split for scores in scored for split in scores)]))


def _all_have_many_classes(runs: Sequence[RunRecord]) -> bool:
    """Return whether no run that tells classes apart has two of them."""
    labels = [run.get("run.task.labels") for run in runs]
    return all(len(each) > 2 for each in labels if isinstance(each, list))


def _metrics_of(runs: Sequence[RunRecord], split: str) -> list[str]:
    found: dict[str, None] = {}
    for run in runs:
        scores = run.get(f"summary.scores.{split}")
        found.update(dict.fromkeys(scores if isinstance(scores, dict) else ()))
    order = list(LABELS)
    return sorted(found, key=lambda metric: order.index(metric) if metric in order else len(order))


def _score(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.4f}"
