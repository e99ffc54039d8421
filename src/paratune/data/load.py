"""Loads the samples of a configuration: reads and joins files, marks pseudo-labelled rows, cuts off parts of train.

Imports no torch.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.sections import Data, named_columns, named_sources
from paratune.config.task_sections import (
    MaskedLMTask,
    Task,
    class_names,
)
from paratune.data.columns import HELD_OUT, VALUES_OF_SAMPLES, LabelArray, Samples, TableReader
from paratune.data.duplicates import without_duplicates
from paratune.data.encode import TokenizeOptions
from paratune.data.labels import first_rows
from paratune.data.read import read_table
from paratune.data.selection import select
from paratune.data.splits import split_rows
from paratune.data.token_store import DROPPED_WINDOWS, TokenStore
from paratune.data.tokens import WARNED_TRUNCATED_SHARE, WARNED_UNKNOWN_SHARE, hash_texts
from paratune.errors import DataError

SPLITS = ("train", "validation", "test")
PSEUDO = "pseudo"
"""Column whose true values mark pseudo-labels; `paratune pseudo-label` writes it."""

Selector = Callable[..., Samples]
"""From a table, and `source` and `group_by` as keywords, to samples."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their tokens, of train, validation, test or another set."""

    name: str
    """train, validation, test, or the name of a set in `data.extra` or `data.predict`."""
    source: str
    """File or files of the rows, as in the configuration."""
    samples: Samples
    store: TokenStore
    fingerprint: str
    """SHA-256 over texts and labels, in order."""
    teacher: npt.NDArray[np.float32] | None = None
    """(num_rows, C), for the training split of a distillation: outputs that the student learns from its teachers."""

    @property
    def labels(self) -> LabelArray | None:
        """(num_rows,): int64 class ids or float32 targets; (num_rows, C) float32 where a row may have several."""
        return self.samples.labels

    @property
    def num_rows(self) -> int:
        """Rows of the file, without dropped rows."""
        return len(self.samples)

    @property
    def num_samples(self) -> int:
        """Rows, or the windows into which the rows were cut; batches consist of these."""
        return len(self.store)

    @property
    def num_pseudo(self) -> int:
        """Rows with a pseudo-label."""
        return 0 if self.samples.pseudo is None else int(self.samples.pseudo.sum())

    @property
    def num_dropped(self) -> dict[str, int]:
        """Dropped rows by reason; those of a file that was cut are counted in train."""
        return self.samples.num_dropped

    def record(self) -> dict[str, Any]:
        """Return the entry of the split in `run.json`."""
        return {
            "source": self.source,
            "sources": source_records(self.samples),
            "num_pseudo": self.num_pseudo,
            "num_rows": self.num_rows,
            "num_samples": self.num_samples,
            "num_sequences": len(self.store.sequence_lengths),
            "num_dropped": self.num_dropped,
            "fingerprint": self.fingerprint,
            "num_tokens": self.store.num_tokens,
            "num_truncated": self.store.num_truncated,
            "num_unknown_tokens": self.store.num_unknown,
        }


def source_records(samples: Samples) -> list[dict[str, Any]]:
    """Return the entries of several files in `run.json`; an empty list for a single file."""
    if samples.file_index is None:
        return []
    pseudo = np.zeros(len(samples), dtype=np.bool_) if samples.pseudo is None else samples.pseudo
    return [
        {
            "source": file,
            "num_rows": int((samples.file_index == number).sum()),
            "num_pseudo": int(pseudo[samples.file_index == number].sum()),
        }
        for number, file in enumerate(samples.files)
    ]


def default_selector(data: Data, task: Task) -> Selector:
    """Return the selector of a task that needs no tokenizer."""
    return lambda table, **how: select(TableReader(table, data.columns, data.missing, **how), task)


def read_samples(source: str | list[str], data: Data, selector: Selector, *, group_by: str | None = None) -> Samples:
    """Return the samples of one or several files; each must have all columns that the configuration names."""
    files = named_sources(source)
    parts = []
    for file in files:
        table = read_table(file, data.reading)
        parts.append(mark_pseudo(selector(table, source=file, group_by=group_by), table))
    # The one file of a pattern is named as its files: the record has the pattern as the source.
    return parts[0] if len(parts) == 1 and files == named_columns(source) else joined_samples(parts, tuple(files))


def mark_pseudo(samples: Samples, table: pa.Table) -> Samples:
    """Return the samples of a table with `pseudo` from its column."""
    return replace(samples, pseudo=is_pseudo(table)[samples.rows])


def is_pseudo(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have a pseudo-label, (num_rows,).

    A column `pseudo` with other values than true, false and null has another meaning, and marks no row.
    """
    values = table.column(PSEUDO).to_pylist() if table.column_names.count(PSEUDO) == 1 else []
    texts = ["" if value is None else str(value).lower() for value in values]
    is_flag = bool(texts) and set(texts) <= {"true", "false", ""}
    return np.array([text == "true" for text in texts]) if is_flag else np.zeros(table.num_rows, dtype=np.bool_)


def refuse_pseudo(samples: Samples, option: str, source: str) -> None:
    """Raise a DataError where a row of an evaluation set has a pseudo-label; `option` names its file, `source`."""
    if samples.pseudo is not None and samples.pseudo.any():
        rows = samples.rows[samples.pseudo].tolist()
        message = (
            f"{source} ({option}) has {len(rows)} pseudo-labelled rows: {first_rows(rows)}; scores on pseudo-labels "
            "only measure how far two models agree. Name the file in data.train"
        )
        raise DataError(message, code="data.pseudo_labels", source=source, option=option)


def joined_samples(parts: Sequence[Samples], files: tuple[str, ...]) -> Samples:
    """Return the samples of several files with these names, in their order; `rows` restarts in each."""

    def joined(values: Sequence[Any]) -> Any:
        if values[0] is None or isinstance(values[0], np.ndarray):
            return None if values[0] is None else np.concatenate(values)
        return list(chain.from_iterable(values))

    fields: dict[str, Any] = {name: joined([getattr(part, name) for part in parts]) for name in VALUES_OF_SAMPLES}
    fields["num_dropped"] = dict(sum((Counter(part.num_dropped) for part in parts), Counter()))
    fields["file_index"] = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64)
    return Samples(**fields, files=files)


def parts_with_progress(
    parts: Mapping[str, tuple[str, Samples]], options: TokenizeOptions
) -> Iterator[tuple[str, str, Samples, TokenizeOptions]]:
    """Yield name, source, samples and options of each part; `progress` counts the samples of all parts."""
    total, done = sum(len(samples) for _, samples in parts.values()), 0
    for name, (source, samples) in parts.items():

        def report(count: int, _: int, before: int = done) -> None:
            if options.progress is not None:
                options.progress(before + count, total)

        yield name, source, samples, replace(options, progress=report)
        done += len(samples)


def load_samples(data: Data, task: Task, selector: Selector | None = None) -> dict[str, tuple[str, Samples]]:
    """Return (source, samples) of each split, before any tokenizing; `selector` is `default_selector` when not given.

    Raises:
        DataError: A file or a column is wrong, or a part of the cut would be empty.
    """
    selector = selector or default_selector(data, task)
    parts: dict[str, tuple[str, Samples]] = {}
    for name in SPLITS:
        source = getattr(data, name)
        if source is None:
            continue
        group_by = data.split.group_by if data.split is not None and name == "train" else None
        samples = read_samples(source, data, selector, group_by=group_by)
        source = " + ".join(named_columns(source))
        if name != "train":
            refuse_pseudo(samples, f"data.{name}", source)
        cut_parts = _cut_train(samples, data) if name == "train" and data.split is not None else {name: samples}
        for part, rows in cut_parts.items():
            if part in parts or (part != name and getattr(data, part) is not None):
                message = f"data.{part} names a file and data.split.{part} cuts rows from train; remove one of the two"
                raise DataError(message, code="data.split_conflict", part=part)
            parts[part] = (source, rows)
    if not parts:
        raise DataError("data names no file: give data.train, data.validation or data.test", code="config.required")
    if data.drop_duplicates and "train" in parts:
        source, train = parts["train"]
        held_out = [samples for part, (_, samples) in parts.items() if part != "train"]
        parts["train"] = source, without_duplicates(train, held_out)
    parts = {name: (parts[name][0], _limit_rows(parts[name][1], data, name)) for name in SPLITS if name in parts}
    if "train" in parts and getattr(task, "raters", None) == "each":
        # After the cut, so that all rows of a text are in one part, and after the search for repeated texts.
        source, train = parts["train"]
        places, raters = np.nonzero(np.isfinite(ratings := np.asarray(train.ratings)))
        each = train.take(places, num_dropped=train.num_dropped)
        parts["train"] = source, replace(each, labels=ratings[places, raters])
    return parts


def _limit_rows(samples: Samples, data: Data, name: str) -> Samples:
    """Return at most `data.max_rows` rows, drawn with a fixed seed: files may be sorted by class."""
    most: int | None = getattr(data.max_rows, name)
    if most is None or most >= len(samples):
        return samples
    rows = np.random.default_rng(0).permutation(len(samples))[:most]
    return samples.take(np.sort(rows).astype(np.int64), num_dropped=samples.num_dropped)


def _cut_train(samples: Samples, data: Data) -> dict[str, Samples]:
    """Return the parts of the training rows. Pseudo-labelled rows are only in train, and do not change other parts."""
    assert data.split is not None
    marks = np.zeros(len(samples), dtype=np.bool_) if samples.pseudo is None else samples.pseudo
    labelled, pseudo = np.flatnonzero(~marks), np.flatnonzero(marks)
    if len(labelled) == 0:
        message = "data.split: all rows of data.train are pseudo-labelled; no row is left to evaluate on"
        raise DataError(message, code="data.split_empty", key="data.split")
    labels = None if samples.labels is None else samples.labels[labelled]
    groups = None if samples.groups is None else [samples.groups[index] for index in labelled]
    rows_by_part = {
        part: labelled[rows] for part, rows in split_rows(len(labelled), data.split, labels, groups).items()
    }
    num_dropped = dict(samples.num_dropped)
    if groups is not None:
        assert samples.groups is not None
        # With `held_out`, groups are whole only in the test set.
        whole = {"test"} if data.split.held_out is not None else rows_by_part.keys() - {"train"}
        held_out = {samples.groups[row] for part in whole for row in rows_by_part[part]}
        kept_pseudo = np.array([row for row in pseudo if samples.groups[row] not in held_out], dtype=np.int64)
        if len(kept_pseudo) < len(pseudo):
            num_dropped[HELD_OUT] = len(pseudo) - len(kept_pseudo)
        pseudo = kept_pseudo
    rows_by_part["train"] = np.sort(np.concatenate([rows_by_part["train"], pseudo]))
    return {
        part: samples.take(rows, num_dropped=num_dropped if part == "train" else None)
        for part, rows in rows_by_part.items()
    }


def samples_fingerprint(samples: Samples, task: Task) -> str:
    """Return the SHA-256, in hexadecimal, over texts, labels, answers, tags, choices and names of classes, in order."""
    sha = hashlib.sha256(json.dumps([task.kind, class_names(task)]).encode())
    hash_texts(sha, samples.texts)
    hash_texts(sha, samples.text_pairs)
    if samples.negatives is not None:
        hash_texts(sha, samples.negatives)
    for numbers in (samples.labels, samples.ratings):
        sha.update(b"" if numbers is None else np.ascontiguousarray(numbers).data)
    for values in (samples.answers, samples.choices):
        sha.update(b"" if values is None else json.dumps(values).encode())
    if samples.tags is not None:
        sha.update(json.dumps([samples.words, [tags.tolist() for tags in samples.tags]]).encode())
    return sha.hexdigest()


def unknown_warnings(splits: Mapping[str, Split]) -> list[str]:
    """Return a sentence for each split with many unknown tokens."""
    shares = {name: split.store.share_unknown for name, split in splits.items()}
    return [
        f"{name}: {format_share(share)} of the tokens replace text that is not in the tokenizer's vocabulary"
        for name, share in shares.items()
        if share is not None and share >= WARNED_UNKNOWN_SHARE
    ]


def truncation_warnings(splits: Mapping[str, Split], task: Task) -> list[str]:
    """Return a sentence for each split with many truncated samples."""
    can_cut = getattr(task, "windows", False) in (None, "documents")
    kind = "joined" if isinstance(task, MaskedLMTask) else "{stride: 32}"
    remedy = f"; task.windows: {kind} uses whole texts" if can_cut else ""
    warnings = []
    for name, split in splits.items():
        share = split.store.num_truncated / split.num_samples
        if share < WARNED_TRUNCATED_SHARE:
            continue
        limit = "longer than data.max_length and are truncated"
        if (dropped := split.store.row_values.get(DROPPED_WINDOWS)) is not None:
            limit = f"longer than task.windows.max_windows allows and are truncated by {dropped.sum()} windows"
        warnings.append(f"{name}: {format_share(share)} of the samples are {limit}{remedy}")
    return warnings


def split_records(splits: Mapping[str, Split]) -> dict[str, dict[str, Any] | None]:
    """Return the entries of the splits in `run.json`: train, validation and test (None if absent), then others."""
    names = dict.fromkeys([*SPLITS, *splits])
    return {name: splits[name].record() if name in splits else None for name in names}
