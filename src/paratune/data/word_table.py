"""Reads sentences from a table: lists of words, with a tag for each word.

Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import Columns
from paratune.config.task_sections import TokenClassificationTask
from paratune.data.columns import Missing, Samples, lists_of_texts, require_columns, unlabelled_samples
from paratune.data.labels import first_rows
from paratune.errors import DataError, did_you_mean

IntArray = npt.NDArray[np.int64]


def select_words(
    table: pa.Table,
    columns: Columns,
    task: TokenClassificationTask,
    missing: Missing,
    *,
    source: str,
    group_by: str | None = None,
    require_labels: bool = True,
) -> Samples:
    """Return the sentences of a table: lists of words, and of tags where labels are read.

    Args:
        table: From `read_table`.
        columns: `text` is the column of words, `label` that of tags.
        task: Gives the tags.
        missing: Whether sentences without words, or without a tag for each word, are an error, or are dropped.
        source: Name of the table in messages.
        group_by: Column of groups.
        require_labels: False, for prediction, does not read tags.

    Raises:
        DataError: A column is absent or has no lists, a sentence cannot be used (`refuse`), or a tag is unknown.
    """
    assert isinstance(columns.text, str)
    require_columns(table, columns, source, group_by, require_labels)
    words = _lists(table, columns.text, "text", source)
    tags = _lists(table, columns.label, "label", source) if require_labels and columns.label is not None else None
    problems: dict[str, list[int]] = {"text": [], "tags": []}
    rows = []
    for row, sentence in enumerate(words):
        if not sentence or any(word is None or not word.strip() for word in sentence):
            problems["text"].append(row)
        elif tags is not None and (len(tags[row]) != len(sentence) or None in tags[row]):
            problems["tags"].append(row)
        else:
            rows.append(row)
    told = "; ".join(
        f"{key} in {len(where)} of {len(words)} rows: {first_rows(where)}" for key, where in problems.items() if where
    )
    if told and missing == "refuse":
        raise DataError(
            f"{source}: each row needs words (column {columns.text}) and as many tags (column {columns.label}); not so "
            f"for {told}. Correct the file, or drop such rows (data.missing: drop)",
            code="data.tags",
            source=source,
        )
    if not rows:
        raise DataError(f"{source}: no row is left; missing: {told}", code="data.no_rows_left", source=source)
    texts = [" ".join(map(str, sentence)) for sentence in words]
    dropped = {key: len(where) for key, where in problems.items() if where}
    samples = unlabelled_samples(table, columns, texts, None, rows, dropped, source=source, group_by=group_by)
    samples = replace(samples, words=[words[row] for row in rows])
    if tags is None:
        return samples
    return replace(samples, tags=_tag_ids([tags[row] for row in rows], rows, task, f"{source}, column {columns.label}"))


def _lists(table: pa.Table, name: str, key: str, source: str) -> list[list[Any]]:
    """Return a column of lists of texts; an empty list for null."""
    lists = lists_of_texts(table, name)
    if lists is None:
        raise DataError(
            f"{source}, column {name} (data.columns.{key}) contains {table.column(name).type}; lists of texts are "
            'needed, as in JSON lines {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, or a file in CoNLL format '
            "(*.conll)",
            code="data.not_words",
            source=source,
            name=name,
            key=f"data.columns.{key}",
        )
    return lists


def _tag_ids(tags: list[list[str]], rows: Sequence[int], task: TokenClassificationTask, where: str) -> list[IntArray]:
    ids = {tag: number for number, tag in enumerate(task.labels)}
    unseen: dict[str, list[int]] = {}
    for row, sentence in zip(rows, tags, strict=True):
        for tag in sentence:
            if tag not in ids:
                unseen.setdefault(tag, []).append(row)
    if unseen:
        listed = "; ".join(
            f"{tag!r}{did_you_mean(tag, ids)}: {first_rows(sorted(set(of_tag)), 3)}"
            for tag, of_tag in sorted(unseen.items(), key=lambda item: -len(item[1]))[:5]
        )
        raise DataError(
            f"{where}: {len(unseen)} tags are not among task.labels ({', '.join(ids)}): {listed}; add them to "
            "task.labels, or correct the file",
            code="data.label_unseen",
        )
    return [np.asarray([ids[tag] for tag in sentence], dtype=np.int64) for sentence in tags]
