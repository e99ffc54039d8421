"""Functions of the benchmarks of Portuguese texts: words, shared word sequences, held-out sentences, commands."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

SHARED_WORDS = 8
"""A training text that shares this many consecutive words with a test text is left out."""


def column(path: Path, name: str) -> list[str]:
    return pq.read_table(path, columns=[name])[name].to_pylist()


def assin_sentences(data: Path) -> list[str]:
    """Return both sentences of every pair of ASSIN pt-PT, of all three splits."""
    return [
        text
        for split in ("train", "validation", "test")
        for name in ("sentence1", "sentence2")
        for text in column(data / "assin_ptpt" / f"{split}.parquet", name)
    ]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


class ShingleSet:
    """All sequences of `length` words in some texts; a shorter text is one sequence."""

    def __init__(self, texts: Iterable[str], length: int = SHARED_WORDS) -> None:
        self._length = length
        self._runs = {run for text in texts for line in text.splitlines() for run in self._of(line)}

    def _of(self, line: str) -> Iterator[tuple[str, ...]]:
        line_words = words(line)
        for begin in range(max(1, len(line_words) - self._length + 1)):
            yield tuple(line_words[begin : begin + self._length])

    def __contains__(self, line: str) -> bool:
        return any(run in self._runs for run in self._of(line))


def paratune(*arguments: str) -> str:
    """Run a command of paratune, and return its output; this script stops if the command fails."""
    completed = subprocess.run(
        [sys.executable, "-m", "paratune", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return completed.stdout
