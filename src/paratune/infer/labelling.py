"""Labels that models give: which models may be asked together, which rows are out, and the columns of the output."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import records
from paratune.config.sections import Columns, text_columns
from paratune.config.task_sections import ClassificationTask, RegressionTask, Task, class_names
from paratune.data.duplicates import text_hashes
from paratune.data.sources import PSEUDO
from paratune.errors import ConfigError, DataError, option_error
from paratune.infer.pseudo import FATES, KEPT, SEEN, asked_of, seen_fate
from paratune.tasks.answers import scale_of

ROW = "source_row"
OUTPUT = (PSEUDO, ROW, "confidence", "spread", "prediction")
"""Columns that the output has beside those of a training."""
KINDS = ("classification", "regression")


@dataclass(frozen=True)
class Voice:
    """What one of the models is, and what it said."""

    target: str
    task: Task
    columns: Columns
    group_by: str | None
    """Column that the run kept together when it cut its parts."""
    samples: Any
    """`paratune.data.columns.Samples` of the input: rows with a text."""
    outputs: np.ndarray[Any, Any]
    """(rows with a text, C) or (rows with a text, 1)."""
    seen: Mapping[str, Any]
    """`paratune.infer.seen.SeenTexts` by split."""
    facts: Mapping[str, Any]
    """For the record."""


def check_kind(target: str, task: Task, *, num_models: int) -> None:
    """Refuse a task whose answers no single number says the certainty of.

    Raises:
        ConfigError: It is such a task, or a regression with one model.
    """
    if task.kind not in KINDS:
        raise ConfigError(
            f"{target} has the task {task.kind}; pseudo-labels are for {' and '.join(KINDS)}, where one confidence (or "
            "one spread) is the certainty of the whole answer",
            code="task.unsupported",
            target=target,
            kind=task.kind,
        )
    if isinstance(task, RegressionTask) and num_models < 2:
        raise ConfigError(
            f"{target} is one regression model, and a number has no confidence: its certainty is measured by "
            "the spread over several runs; name at least two, such as the same configuration with other seeds",
            code="task.unsupported",
            target=target,
        )


def check_alike(first: Voice, target: str, task: Task, columns: Columns) -> None:
    """Make sure that a model answers the question of the first one, of the same texts.

    Raises:
        ConfigError: Task, classes or text columns differ.
    """
    if task.kind != first.task.kind or class_names(task) != class_names(first.task):
        raise ConfigError(
            f"{target} ({_task_text(task)}) and {first.target} ({_task_text(first.task)}) do not answer the same "
            "question; name runs of one task",
            code="pseudo_label.models_differ",
            target=target,
        )
    for key in ("text", "text_pair", "separator"):
        own, wanted = getattr(columns, key), getattr(first.columns, key)
        if own != wanted:
            raise ConfigError(
                f"data.columns.{key} is {own!r} in {target} and {wanted!r} in {first.target}",
                code="pseudo_label.models_differ",
                key=f"data.columns.{key}",
                target=target,
            )


def _task_text(task: Task) -> str:
    names = class_names(task)
    return f"{task.kind}: {', '.join(names)}" if names else task.kind


def check_columns(source: str, table: pa.Table, columns: Columns, group_by: str | None) -> None:
    """Refuse columns that the output would write over.

    Raises:
        DataError: One has the name of a column of the output, or holds what becomes the label.
    """
    carried = _carried(table, columns, [group_by])
    taken = [name for name in (*carried, columns.label) if name in OUTPUT]
    if taken:
        raise DataError(
            f"{source}: the output has a column {taken[0]} of its own, and the model's columns name one too (text, "
            "label, id or split.group_by); rename it",
            code="data.column_taken",
            source=source,
        )
    if columns.label in carried:
        raise DataError(
            f"{source}: the column {columns.label} would be kept (text, id or split.group_by) and is also that of the "
            "label, which the models give; name another with --label",
            code="data.column_taken",
            source=source,
            label=columns.label,
        )


def _carried(table: pa.Table, columns: Columns, groups: Sequence[str | None]) -> list[str]:
    """Return the columns of the input that the output has too: texts, id, and what is kept together in a cut."""
    names = dict.fromkeys([*text_columns(columns), columns.id, *groups])
    return [name for name in names if name is not None and name in table.column_names]


def check_rule(task: Task, voices: Sequence[Voice], threshold: float, max_per_class: int | None) -> None:
    """Make sure that the rule means something in this task.

    Raises:
        ConfigError: It does not.
    """
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


def refused_rows(voices: Sequence[Voice]) -> list[str | None]:
    """Return the fate of each row that is out whatever the models say of it."""
    hashes = text_hashes(voices[0].samples)
    first = np.zeros(len(hashes), dtype=np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    refused: list[str | None] = [None if is_first else "repeated" for is_first in first]
    known = [(seen_fate(name), each.hashes) for voice in voices for name, each in voice.seen.items()]
    # The last word is that of what is looked at first.
    for fate, seen in sorted(known, key=lambda each: SEEN.index(each[0]), reverse=True):
        for row in np.flatnonzero(np.isin(hashes, seen)):
            refused[row] = fate
    return refused


def output_table(table: pa.Table, voices: Sequence[Voice], opinion: Any, kept: np.ndarray[Any, Any]) -> pa.Table:
    """Return the output: the columns that a training reads, the label in its own form, and where it is from."""
    voice, columns = voices[0], voices[0].columns
    rows = voice.samples.rows[kept]
    names = _carried(table, columns, [each.group_by for each in voices])
    found = {name: table.column(name).take(pa.array(rows)) for name in names}
    values = opinion.values[kept]
    if isinstance(voice.task, ClassificationTask):
        forms = _label_values(voice.task)
        labels: Any = [forms[int(value)] for value in values]
        extra: dict[str, Any] = {}
    else:
        scale = scale_of(voice.task)
        labels, extra = (scale.reported(values) if scale else values), {"prediction": values}
    return pa.table(
        {
            **found,
            str(columns.label): labels,
            PSEUDO: np.ones(len(kept), dtype=np.bool_),
            "spread" if opinion.is_spread else "confidence": opinion.certainty[kept],
            **extra,
            ROW: rows,
        }
    )


def _label_values(task: ClassificationTask) -> list[Any]:
    """Return for each class the value by which the data says it; the first where several do."""
    if not isinstance(task.labels, dict):
        whole = all(isinstance(label, int) for label in task.labels)
        return list(task.labels) if whole else [str(label) for label in task.labels]
    firsts: dict[str, Any] = {}
    for value, name in task.labels.items():
        firsts.setdefault(name, str(value))
    return [firsts[name] for name in class_names(task)]


def classes_without_rows(task: Task, opinion: Any, fates: Sequence[str]) -> str | None:
    """Return which classes no kept row has, and what became of the rows that were given them; None without such."""
    found = []
    for number, name in enumerate(class_names(task) if isinstance(task, ClassificationTask) else ()):
        asked = asked_of(fates) & (opinion.values == number)
        counts = Counter(fates[row] for row in np.flatnonzero(asked).tolist())
        if not counts[KEPT]:
            why = ", ".join(f"{count} {FATES[fate]}" for fate, count in counts.most_common())
            found.append(f"{name!r} ({why or 'no row was given it'})")
    return f"no kept row has the label {', '.join(found)}; training on both makes it rarer" if found else None


def nothing_kept(source: str, opinion: Any, fates: Sequence[str], threshold: float) -> str:
    """Return why no row is kept, and how far the most certain one was from it."""
    why = "; ".join(f"{count} {FATES[fate]}" for fate, count in Counter(fates).most_common())
    asked = opinion.certainty[asked_of(fates) & np.isfinite(opinion.certainty)]
    best = ""
    if len(asked):
        best = (
            f" (smallest spread: {asked.min():.4g})"
            if opinion.is_spread
            else f" (largest confidence: {asked.max():.4g})"
        )
    return f"{source}: no row is kept with --threshold {threshold:g}{best}: {why}; nothing was written"


def group_by_of(run: Path | None) -> str | None:
    """Return the column by which a run kept rows together, so that training on both can do so again."""
    if run is None:
        return None
    split = records.read_run(run)["config"]["data"].get("split") or {}
    found: str | None = split.get("group_by")
    return found
