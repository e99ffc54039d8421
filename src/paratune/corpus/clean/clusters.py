"""Computes clusters of documents from pairs with union-find in a file.

The file has 8 bytes for the parent of each document, 0 for a root.

Source: Tarjan and van Leeuwen, Worst-case analysis of set union algorithms, JACM 1984 (path halving).
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from paratune.base.atomic import replace_file
from paratune.corpus.shard import reading, writing

ROOTS_FILE = "roots.bin"
ROOTS_AT_ONCE = 1 << 16


def write_roots(path: Path, num_documents: int, pairs: Iterable[tuple[int, int]]) -> None:
    """Write the first document of the cluster of each document; the file is complete or absent.

    Args:
        num_documents: Number of documents in the corpus, counted from 0.
        pairs: Pairs of documents in the same cluster, in any order.

    Raises:
        CheckpointError: The file is not writable.
    """
    with writing(path=path), replace_file(path) as temporary, temporary.open("w+b", buffering=0) as file:
        file.truncate(8 * num_documents)
        forest = _Forest(file.fileno())
        for first, second in pairs:
            forest.join(first, second)
        forest.flatten(num_documents)


def read_roots(path: Path, start: int, count: int) -> list[int]:
    """Return the first document of the cluster of each of `count` documents from `start`.

    Raises:
        CheckpointError: The file is unreadable.
    """
    with reading(path):
        parents = np.fromfile(path, "<u8", count, offset=8 * start).astype(np.int64) - 1
    roots: list[int] = np.where(parents < 0, np.arange(start, start + count), parents).tolist()
    return roots


class _Forest:
    """A parent for each document, always an earlier one: the root of a tree is its first document."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def _parent(self, document: int) -> int:
        return int.from_bytes(os.pread(self._handle, 8, 8 * document), "little") - 1

    def _set(self, document: int, parent: int) -> None:
        os.pwrite(self._handle, (parent + 1).to_bytes(8, "little"), 8 * document)

    def root(self, document: int) -> int:
        while (parent := self._parent(document)) >= 0:
            above = self._parent(parent)
            if above < 0:
                return parent
            self._set(document, above)
            document = above
        return document

    def join(self, document: int, other: int) -> None:
        first, second = sorted((self.root(document), self.root(other)))
        if first != second:
            self._set(second, first)

    def flatten(self, num_documents: int) -> None:
        """Make the root of each document its parent; the parents of earlier documents are roots already."""
        for start in range(0, num_documents, ROOTS_AT_ONCE):
            size = min(ROOTS_AT_ONCE, num_documents - start)
            parents = np.frombuffer(os.pread(self._handle, 8 * size, 8 * start), "<u8")
            for index in np.flatnonzero(parents).tolist():
                above = self._parent(int(parents[index]) - 1)
                if above >= 0:
                    self._set(start + index, above)
