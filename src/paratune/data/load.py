"""The whole way from the configuration to splits that can be trained on: read, select, cut, tokenize.

Floor 3, without torch.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.sections import Columns, Data
from paratune.config.task_sections import Task, class_names
from paratune.data.columns import HELD_OUT, LabelArray, Missing, Samples, select
from paratune.data.sources import (
    Selector,
    read_samples,
    refuse_pseudo,
    selector_of,
    source_records,
    sources_text,
    split_off_pseudo,
)
from paratune.data.splits import cut
from paratune.data.token_store import TokenStore
from paratune.data.tokens import WARNED_UNKNOWN_SHARE, Tokenizing, hash_texts, tokenize
from paratune.errors import DataError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their tokens; a position in one is the same position in the other."""

    name: str
    """train, validation, test, or as the configuration calls it."""
    source: str
    """Where the rows are from, as the configuration says it."""
    samples: Samples
    """Texts, labels, ids, original rows."""
    store: TokenStore
    """Tokens."""
    fingerprint: str
    """SHA-256 over texts and labels in their order."""

    @property
    def labels(self) -> LabelArray | None:
        """(num_rows,): int64 class ids or float32 targets; (num_rows, C) float32 where a row may have several."""
        return self.samples.labels

    @property
    def num_rows(self) -> int:
        """Rows of the file, after those with something missing were dropped."""
        return len(self.samples)

    @property
    def num_samples(self) -> int:
        """What batches are made of: rows, or the windows that they were cut into."""
        return len(self.store)

    @property
    def num_pseudo(self) -> int:
        """Rows among them whose label a model gave."""
        return 0 if self.samples.pseudo is None else int(self.samples.pseudo.sum())

    @property
    def num_dropped(self) -> dict[str, int]:
        """Dropped rows by what they lacked; of a file that was cut they are counted at the train part."""
        return self.samples.num_dropped

    def record(self) -> dict[str, Any]:
        """Return what `run.json` says of the split."""
        return {
            "source": self.source,
            "sources": source_records(self.samples),
            "num_pseudo": self.num_pseudo,
            "num_rows": self.num_rows,
            "num_samples": self.num_samples,
            "num_dropped": self.num_dropped,
            "fingerprint": self.fingerprint,
            "num_tokens": self.store.num_tokens,
            "num_truncated": self.store.num_truncated,
            "num_unknown_tokens": self.store.num_unknown,
        }


def load_splits(data: Data, task: Task, how: Tokenizing) -> dict[str, Split]:
    """Return the splits that the configuration names or cuts, by name, in the order train, validation, test.

    Args:
        data: The section of the configuration.
        task: Says what labels mean.
        how: Tokenizer, limits, cache; its progress is told how far the tokenizing of all splits is.

    Raises:
        DataError: Something is wrong with a file, a column or the cut.
        Stopped: `how.stop` said so.
    """
    return {
        name: Split(name, source, samples, tokenize(samples, told, source=source), samples_fingerprint(samples, task))
        for name, source, samples, told in parts_in_turn(load_samples(data, task), how)
    }


def parts_in_turn(
    parts: Mapping[str, tuple[str, Samples]], how: Tokenizing
) -> Iterator[tuple[str, str, Samples, Tokenizing]]:
    """Yield name, source and samples of each part, and how to tokenize it: told of is the progress of all parts."""
    total, done = sum(len(samples) for _, samples in parts.values()), 0
    for name, (source, samples) in parts.items():

        def report(count: int, _: int, before: int = done) -> None:
            if how.progress is not None:
                how.progress(before + count, total)

        yield name, source, samples, replace(how, progress=report)
        done += len(samples)


def load_samples(data: Data, task: Task, selector: Selector | None = None) -> dict[str, tuple[str, Samples]]:
    """Return (source, samples) of each split, before any tokenizing.

    Args:
        data: The section of the configuration.
        task: Says what labels mean.
        selector: Takes the samples from a table; that of most tasks when not given.

    Raises:
        DataError: As `load_splits`.
    """
    selector = selector or selector_of(data, task)
    parts: dict[str, tuple[str, Samples]] = {}
    for name in SPLITS:
        source = getattr(data, name)
        if source is None:
            continue
        group_by = data.split.group_by if data.split is not None and name == "train" else None
        samples = read_samples(source, data, selector, group_by=group_by)
        source = sources_text(source)
        if name != "train":
            refuse_pseudo(samples, f"data.{name}", source)
        cut_parts = _cut(samples, data) if name == "train" and data.split is not None else {name: samples}
        for part, rows in cut_parts.items():
            if part in parts or (part != name and getattr(data, part) is not None):
                raise DataError(
                    f"data.{part} names a file and data.split.{part} cuts one; keep one of the two",
                    code="data.split_conflict",
                    part=part,
                )
            parts[part] = (source, rows)
    if not parts:
        raise DataError("data names no file: give data.train, data.validation or data.test", code="data.no_file")
    return {name: (parts[name][0], _drawn(parts[name][1], data, name)) for name in SPLITS if name in parts}


def _drawn(samples: Samples, data: Data, name: str) -> Samples:
    """Return as many rows as `data.max_rows` allows, drawn with a fixed seed: the first ones may be of one class."""
    most: int | None = getattr(data.max_rows, name)
    if most is None or most >= len(samples):
        return samples
    rows = np.random.default_rng(0).permutation(len(samples))[:most]
    return samples.take(np.sort(rows).astype(np.int64), num_dropped=samples.num_dropped)


def _cut(samples: Samples, data: Data) -> dict[str, Samples]:
    """Return the parts of the training rows; what a model labelled is in none but train, and changes no other part."""
    assert data.split is not None
    given, pseudo = split_off_pseudo(samples)
    if len(given) == 0:
        raise DataError(
            "data.split: all rows of data.train are pseudo-labelled; no row is left to evaluate on",
            code="data.split_empty",
            key="data.split",
        )
    labels = None if samples.labels is None else samples.labels[given]
    groups = None if samples.groups is None else [samples.groups[index] for index in given]
    rows_by_part = {part: given[rows] for part, rows in cut(len(given), data.split, labels, groups).items()}
    num_dropped = dict(samples.num_dropped)
    if groups is not None:
        assert samples.groups is not None
        held_out = {samples.groups[row] for part, rows in rows_by_part.items() if part != "train" for row in rows}
        kept = np.array([row for row in pseudo if samples.groups[row] not in held_out], dtype=np.int64)
        if len(kept) < len(pseudo):
            num_dropped[HELD_OUT] = len(pseudo) - len(kept)
        pseudo = kept
    rows_by_part["train"] = np.sort(np.concatenate([rows_by_part["train"], pseudo]))
    return {
        part: samples.take(rows, num_dropped=num_dropped if part == "train" else None)
        for part, rows in rows_by_part.items()
    }


def load_split(
    source: str,
    table: pa.Table,
    columns: Columns,
    task: Task,
    how: Tokenizing,
    *,
    missing: Missing = "refuse",
    require_labels: bool = True,
) -> Split:
    """Return one file as a split, for evaluating or predicting with a model that is already trained.

    Args:
        source: Name of the file in messages.
        table: What `read_table` gave for it.
        columns: Which columns hold what.
        task: Says what labels mean.
        how: Tokenizer, limits, cache.
        missing: What happens to rows that lack something.
        require_labels: False for prediction: the label column is not looked at.

    Raises:
        DataError: Something is wrong with the file or a column.
        Stopped: `how.stop` said so.
    """
    samples = select(table, columns, task, missing, source=source, require_labels=require_labels)
    return Split("data", source, samples, tokenize(samples, how, source=source), samples_fingerprint(samples, task))


def samples_fingerprint(samples: Samples, task: Task) -> str:
    """Return the SHA-256, in hexadecimal, over texts, labels, answers and names of classes, in their order."""
    sha = hashlib.sha256(json.dumps([task.kind, class_names(task)]).encode())
    hash_texts(sha, samples.texts)
    hash_texts(sha, samples.text_pairs)
    if samples.labels is not None:
        sha.update(np.ascontiguousarray(samples.labels).data)
    if samples.answers is not None:
        sha.update(json.dumps(samples.answers).encode())
    return sha.hexdigest()


def unknown_warnings(splits: Mapping[str, Split]) -> list[str]:
    """Return a sentence for each split of which the tokenizer's vocabulary lacks a noticeable part."""
    shares = {name: split.store.share_unknown for name, split in splits.items()}
    return [
        f"{name}: {format_share(share)} of the tokens stand for text that is not in the tokenizer's vocabulary"
        for name, share in shares.items()
        if share is not None and share >= WARNED_UNKNOWN_SHARE
    ]


def split_records(splits: Mapping[str, Split]) -> dict[str, dict[str, Any] | None]:
    """Return what `run.json` says of the data: train, validation and test, null where there is none; then others."""
    names = dict.fromkeys([*SPLITS, *splits])
    return {name: splits[name].record() if name in splits else None for name in names}
