"""Reads sentences from a table: lists of words, with a tag for each word.

Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paratune.base.text import listing
from paratune.config.task_sections import TokenClassificationTask
from paratune.data.columns import IntArray, Samples, TableReader
from paratune.data.labels import default_ids, first_rows, unseen_error
from paratune.errors import DataError, did_you_mean

_LISTS_NEEDED = (
    'lists of texts are needed, as in JSON lines {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, or a file in '
    "CoNLL format (*.conll)"
)


def select_words(reader: TableReader, task: TokenClassificationTask) -> Samples:
    """Return the sentences of a table: lists of words, and of tags where labels are read.

    Args:
        reader: The table; `columns.text` is the column of words, `columns.label` that of tags.
        task: Gives the tags.

    Raises:
        DataError: A column has no lists, a sentence has no words or not a tag for each word (`refuse`), or a tag is
            unknown.
    """
    columns, source = reader.columns, reader.source
    assert isinstance(columns.text, str)
    words, tags = reader.lists(columns.text, "text", advice=_LISTS_NEEDED), None
    if reader.require_labels and columns.label is not None:
        tags = reader.lists(columns.label, "label", advice=_LISTS_NEEDED)
    problems: dict[str, list[int]] = {"text": [], "tags": []}
    rows = []
    for row, sentence in enumerate(words):
        if not sentence or any(word is None or not word.strip() for word in sentence):
            problems["text"].append(row)
        elif tags is not None and (len(tags[row]) != len(sentence) or None in tags[row]):
            problems["tags"].append(row)
        else:
            rows.append(row)
    counts = "; ".join(
        f"{key} in {len(where)} of {len(words)} rows: {first_rows(where)}" for key, where in problems.items() if where
    )
    if counts and reader.missing == "refuse":
        raise DataError(
            f"{source}: each row needs words (column {columns.text}) and as many tags (column {columns.label}); not so "
            f"for {counts}. Correct the file, or drop such rows (data.missing: drop)",
            code="data.tags",
            source=source,
        )
    reader.require_rows(rows, f"missing: {counts}")
    dropped = {key: len(where) for key, where in problems.items() if where}
    samples = reader.samples([" ".join(map(str, sentence)) for sentence in words], None, rows, dropped)
    samples = replace(samples, words=[words[row] for row in rows])
    if tags is None:
        return samples
    return replace(samples, tags=_tag_ids([tags[row] for row in rows], rows, task, reader.label_place))


def _tag_ids(tags: list[list[str]], rows: Sequence[int], task: TokenClassificationTask, where: str) -> list[IntArray]:
    ids = {tag: number for number, tag in enumerate(task.labels)} | default_ids(task.labels)
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
        problem = f"{where}: {len(unseen)} tags are not among task.labels ({listing(ids)}): {listed}"
        raise unseen_error(problem, unseen)
    return [np.asarray([ids[tag] for tag in sentence], dtype=np.int64) for sentence in tags]
