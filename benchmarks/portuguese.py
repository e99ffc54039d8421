"""What the benchmarks of Portuguese texts share: words, shared runs of words, the held-out sentences, commands."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

SHARED_WORDS = 8
"""A text that has so many words in a row with one that is measured on is not trained on."""


def column(path: Path, name: str) -> list[str]:
    return pq.read_table(path, columns=[name])[name].to_pylist()


def assin_sentences(data: Path) -> list[str]:
    """Return both sentences of every pair of ASSIN pt-PT, of all three parts."""
    return [
        text
        for split in ("train", "validation", "test")
        for name in ("sentence1", "sentence2")
        for text in column(data / "assin_ptpt" / f"{split}.parquet", name)
    ]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


class ShingleSet:
    """All runs of so many words in some texts; a shorter text is a run of its own."""

    def __init__(self, texts: Iterable[str], length: int = SHARED_WORDS) -> None:
        self._length = length
        self._runs = {run for text in texts for line in text.splitlines() for run in self._of(line)}

    def _of(self, line: str) -> Iterator[tuple[str, ...]]:
        found = words(line)
        for begin in range(max(1, len(found) - self._length + 1)):
            yield tuple(found[begin : begin + self._length])

    def __contains__(self, line: str) -> bool:
        return any(run in self._runs for run in self._of(line))


def paratune(*arguments: str) -> str:
    """Run a command of paratune, and return what it prints; it stops this script where it fails."""
    done = subprocess.run([sys.executable, "-m", "paratune", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
