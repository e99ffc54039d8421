"""Rows on quality: losses, scores, and the scores of a constant answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paratune.base.units import NOT_AVAILABLE, format_percent, percent_change
from paratune.config.metric_names import LABELS, OWN_PREFIX, is_lower_better, metric_label
from paratune.records.constant import compare_with_constant, is_better_score, not_better
from paratune.reports.rows.row import ReportRow, RowBuilder, count_text, in_form
from paratune.reports.runs.read import RunRecord

_SCORES = in_form(".4f")
_CONSTANT_METRICS = ("accuracy", "f1_macro", "exact", "rmse", "mae")
"""Metrics of a constant answer that are informative; without an answer, exact match and F1 are equal."""


def metric_name(metric: str) -> str:
    """Return the label of a metric, with an arrow to its better side."""
    if metric not in LABELS and not metric.startswith(OWN_PREFIX):
        return metric
    return f"{metric_label(metric)} {'↓' if is_lower_better(metric) else '↑'}"


def quality_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the training loss and the scores of every set."""
    loss, source = RowBuilder(runs, "Training loss"), "summary.loss.mean_last_epoch"
    yield loss.number("train_loss_last_epoch", "Mean of the last epoch", source, _SCORES)
    steps = [run.number("summary.kept_step") for run in runs]
    if any(step is not None for step in steps):
        kept = RowBuilder(runs, "Kept model")
        yield kept.row("kept_step", "Step (of all scores)", "summary.kept_step", steps, list(map(_kept_text, runs)))
    for split in _splits_of(runs):
        metrics = _metrics_of(runs, split)
        builder = RowBuilder(runs, f"{split.capitalize().replace('_', ' ')} scores")
        for metric in metrics:
            values = [run.number(("summary", "scores", split, metric)) for run in runs]
            source = f"summary.scores.{split}.{metric}"
            # With more than two classes f1 is f1_macro (`metrics.classification`).
            shown = metric != "f1" or "f1_macro" not in metrics or not _all_have_many_classes(runs)
            row = builder.row(f"{split}_{metric}", metric_name(metric), source, values, _SCORES(values), shown=shown)
            yield replace(row, metric=metric)


def constant_rows(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    """Yield the scores of a constant answer, and the change of the runs against them."""
    for split in ("test", "validation"):
        for metric in _CONSTANT_METRICS:
            path = ("summary", "baseline", "scores", split, metric)
            values = [run.number(path) for run in runs]
            if all(value is None for value in values):
                continue
            texts = [
                NOT_AVAILABLE if value is None else f"{value:.4f} (run {_from_constant(run, split, metric, value)})"
                for run, value in zip(runs, values, strict=True)
            ]
            key, label = f"{split}_constant_{metric}", f"{split.capitalize()} {metric_name(metric)}"
            builder = RowBuilder(runs, _constant_name(runs).capitalize())
            yield builder.row(key, label, ".".join(path), values, texts)


def _kept_text(run: RunRecord) -> str:
    """Return "50 of 75 (best accuracy)"."""
    step, metric = run.number("summary.kept_step"), run.get("summary.best.metric")
    if step is None:
        return NOT_AVAILABLE
    return f"{step:,.0f} of {count_text(run.number('summary.num_steps'))} ({f'best {metric}' if metric else 'last'})"


def _constant_name(runs: Sequence[RunRecord]) -> str:
    """Return the usual name of the constant answer of all runs, such as majority class."""
    names = {str(name) for run in runs if (name := run.get("summary.baseline.predicts"))}
    return names.pop() if len(names) == 1 else "constant answer"


def _from_constant(run: RunRecord, split: str, metric: str, constant: float) -> str:
    """Return "+20.0%, better": the change, and what it means for this metric."""
    value = run.number(("summary", "scores", split, metric))
    if value is None:
        return NOT_AVAILABLE
    change = format_percent(percent_change(value, constant))
    word = "equal" if value == constant else "better" if is_better_score(metric, value, constant) else "worse"
    return f"{change}, {word}"


def not_better_than_constant(run: RunRecord) -> str | None:
    """Return a sentence when the model is not better than a constant answer; None when it is, or nothing is known.

    The first headline metric of the task decides, on the test set or else on validation.
    """
    found = compare_with_constant(run.get("summary.scores"), run.get("summary.baseline"), run.get("run.task.metrics"))
    shown = None if found is None else not_better(found.model_dump(), run.name)
    return None if shown is None else shown.sentence


def _splits_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return validation, test, and the other sets that runs have scores of."""
    scored = [scores for run in runs if isinstance(scores := run.get("summary.scores"), dict)]
    return list(dict.fromkeys(["validation", "test", *(split for scores in scored for split in scores)]))


def _all_have_many_classes(runs: Sequence[RunRecord]) -> bool:
    """Return whether all classification runs have more than two classes."""
    labels = [run.get("run.task.labels") for run in runs]
    return all(len(names) > 2 for names in labels if isinstance(names, list))


def _metrics_of(runs: Sequence[RunRecord], split: str) -> list[str]:
    metrics: dict[str, None] = {}
    for run in runs:
        scores = run.get(f"summary.scores.{split}")
        metrics.update(dict.fromkeys(scores if isinstance(scores, dict) else ()))
    order = list(LABELS)
    return sorted(metrics, key=lambda metric: order.index(metric) if metric in order else len(order))
