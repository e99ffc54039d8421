"""Checks and outputs of pseudo-labelling: whether models have the same task, excluded rows, and output columns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import records
from paratune.base.text import listing
from paratune.config.sections import Columns, text_columns
from paratune.config.task_sections import ClassificationTask, RegressionTask, Task, class_names
from paratune.data.duplicates import text_hashes
from paratune.data.sources import PSEUDO
from paratune.errors import ConfigError, DataError, option_error
from paratune.infer.pseudo import KEPT, OUTCOMES, SEEN, is_predicted, seen_outcome
from paratune.tasks.answers import number_scale

ROW = "source_row"
OUTPUT = (PSEUDO, ROW, "confidence", "spread", "prediction")
"""Columns of the output in addition to those of a training file."""
KINDS = ("classification", "regression")


@dataclass(frozen=True)
class LabelModel:
    """One of the models, with its outputs."""

    target: str
    task: Task
    columns: Columns
    group_by: str | None
    """Column by which the run grouped rows when it split its data."""
    samples: Any
    """`paratune.data.columns.Samples` of the input: rows with a text."""
    outputs: np.ndarray[Any, Any]
    """(N, C) or (N, 1), for N rows with a text."""
    seen: Mapping[str, Any]
    """`paratune.infer.seen.SeenTexts` by split."""
    facts: Mapping[str, Any]
    """Facts of the model for the record."""


def check_kind(target: str, task: Task, *, num_models: int) -> None:
    """Raise a ConfigError for a task whose answers have no certainty as one number, and a single regression."""
    if task.kind not in KINDS:
        raise ConfigError(
            f"{target} has the task {task.kind}; pseudo-labels are only for {' and '.join(KINDS)}, where a single "
            "confidence or spread is the certainty of the whole answer",
            code="task.unsupported",
            target=target,
            kind=task.kind,
        )
    if isinstance(task, RegressionTask) and num_models < 2:
        raise ConfigError(
            f"{target} is a single regression model, and a number has no confidence: certainty is the spread over "
            "several runs; give at least two, such as the same configuration with different seeds",
            code="task.unsupported",
            target=target,
        )


def check_same_task(first: LabelModel, target: str, task: Task, columns: Columns) -> None:
    """Raise a ConfigError where a model has another task, other classes or other text columns than the first model."""
    if task.kind != first.task.kind or class_names(task) != class_names(first.task):
        raise ConfigError(
            f"{target} ({_task_text(task)}) and {first.target} ({_task_text(first.task)}) have different tasks; give "
            "runs of the same task",
            code="pseudo_label.models_differ",
            target=target,
        )
    for key in ("text", "text_pair", "separator"):
        value, expected = getattr(columns, key), getattr(first.columns, key)
        if value != expected:
            raise ConfigError(
                f"data.columns.{key} is {value!r} in {target} and {expected!r} in {first.target}",
                code="pseudo_label.models_differ",
                key=f"data.columns.{key}",
                target=target,
            )


def _task_text(task: Task) -> str:
    names = class_names(task)
    return f"{task.kind}: {listing(names, 8)}" if names else task.kind


def check_columns(source: str, table: pa.Table, columns: Columns, group_by: str | None) -> None:
    """Raise a DataError where a kept column has the name of a column of the output, or of the label."""
    kept = _kept_columns(table, columns, [group_by])
    reserved = [name for name in (*kept, columns.label) if name in OUTPUT]
    if reserved:
        raise DataError(
            f"{source}: the output has its own column {reserved[0]}, but a column of the model (text, label, id or "
            "split.group_by) has this name too; rename it",
            code="data.column_taken",
            source=source,
        )
    if columns.label in kept:
        raise DataError(
            f"{source}: the column {columns.label} is kept in the output (text, id or split.group_by) and is also the "
            "column of the predicted labels; choose another one with --label",
            code="data.column_taken",
            source=source,
            label=columns.label,
        )


def _kept_columns(table: pa.Table, columns: Columns, groups: Sequence[str | None]) -> list[str]:
    """Return the columns of the input that the output keeps: texts, id, and the columns of `split.group_by`."""
    names = dict.fromkeys([*text_columns(columns), columns.id, *groups])
    return [name for name in names if name is not None and name in table.column_names]


def check_rule(task: Task, models: Sequence[LabelModel], threshold: float, max_per_class: int | None) -> None:
    """Raise a ConfigError where an option of the rule is out of range for this task, or has no effect."""
    if isinstance(task, ClassificationTask):
        least = 1 / len(class_names(task))
        if not least < threshold <= 1:
            raise ConfigError(
                f"--threshold {threshold:g}: a confidence is above {least:.3g} (one of {len(class_names(task))} "
                "classes) and at most 1",
                code="cli.out_of_range",
                option="--threshold",
                value=threshold,
                least=least,
            )
    elif max_per_class is not None:
        raise option_error(
            "--max-per-class",
            max_per_class,
            f"no effect in {task.kind}, which has no classes; --limit",
            code="cli.no_effect",
            kind=task.kind,
        )


def excluded_rows(models: Sequence[LabelModel]) -> list[str | None]:
    """Return the outcome of each row that is excluded before the models are used; None for other rows."""
    hashes = text_hashes(models[0].samples)
    first = np.zeros(len(hashes), dtype=np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    excluded: list[str | None] = [None if is_first else "repeated" for is_first in first]
    outcome_hashes = [
        (seen_outcome(name), seen_split.hashes) for model in models for name, seen_split in model.seen.items()
    ]
    # Reversed, so that the first outcome in `SEEN` is written last and stays.
    for outcome, seen in sorted(outcome_hashes, key=lambda item: SEEN.index(item[0]), reverse=True):
        for row in np.flatnonzero(np.isin(hashes, seen)):
            excluded[row] = outcome
    return excluded


def output_table(table: pa.Table, models: Sequence[LabelModel], combined: Any, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Return the output: the columns of a training file, with labels in the form of the data, and their origin."""
    model, columns = models[0], models[0].columns
    rows = model.samples.rows[kept]
    names = _kept_columns(table, columns, [model.group_by for model in models])
    columns_by_name = {name: table.column(name).take(pa.array(rows)) for name in names}
    values = combined.values[kept]
    if isinstance(model.task, ClassificationTask):
        forms = _label_values(model.task)
        labels: Any = [forms[int(value)] for value in values]
        extra: dict[str, Any] = {}
    else:
        scale = number_scale(model.task)
        labels, extra = (scale.reported(values) if scale else values), {"prediction": values}
    return pa.table(
        {
            **columns_by_name,
            str(columns.label): labels,
            PSEUDO: np.ones(len(kept), dtype=np.bool_),
            "spread" if combined.is_spread else "confidence": combined.certainty[kept],
            **extra,
            ROW: rows,
        }
    )


def _label_values(task: ClassificationTask) -> list[Any]:
    """Return the value of each class in the data; the first one if there are several."""
    if not isinstance(task.labels, dict):
        whole = all(isinstance(label, int) for label in task.labels)
        return list(task.labels) if whole else [str(label) for label in task.labels]
    firsts: dict[str, Any] = {}
    for value, name in task.labels.items():
        firsts.setdefault(name, str(value))
    return [firsts[name] for name in class_names(task)]


def classes_without_rows(task: Task, combined: Any, outcomes: Sequence[str]) -> str | None:
    """Return the classes without kept rows, with the outcomes of the rows of these classes; None if there are none."""
    classes = []
    for number, name in enumerate(class_names(task) if isinstance(task, ClassificationTask) else ()):
        predicted = is_predicted(outcomes) & (combined.values == number)
        counts = Counter(outcomes[row] for row in np.flatnonzero(predicted).tolist())
        if not counts[KEPT]:
            why = ", ".join(f"{count} {OUTCOMES[outcome]}" for outcome, count in counts.most_common())
            classes.append(f"{name!r} ({why or 'never predicted'})")
    return f"no kept row has the label {', '.join(classes)}; pseudo-labels make it rarer" if classes else None


def nothing_kept_text(source: str, combined: Any, outcomes: Sequence[str], threshold: float) -> str:
    """Return the message if no row is kept: the reasons, and the certainty of the most certain row."""
    why = "; ".join(f"{count} {OUTCOMES[outcome]}" for outcome, count in Counter(outcomes).most_common())
    known = combined.certainty[is_predicted(outcomes) & np.isfinite(combined.certainty)]
    best = ""
    if len(known):
        best = (
            f" (smallest spread: {known.min():.4g})"
            if combined.is_spread
            else f" (largest confidence: {known.max():.4g})"
        )
    return f"{source}: no row is kept with --threshold {threshold:g}{best}: {why}; nothing was written"


def read_group_by(run: Path | None) -> str | None:
    """Return the column by which a run grouped rows in its split, so that a later training can group by it too."""
    if run is None:
        return None
    split = records.read_run(run)["config"]["data"].get("split") or {}
    group_by: str | None = split.get("group_by")
    return group_by
