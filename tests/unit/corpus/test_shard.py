"""How the table of a shard is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import raises_code

from paratune.corpus.shard import ShardWriter, read_rows, reading

SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])


def rows(number: int, num_characters: int) -> Iterator[dict[str, Any]]:
    """Yield rows that differ and whose texts hold so many bytes each."""
    for item in range(number):
        yield {"id": f"{item:06d}", "text": f"{item:06d} " * (num_characters // 7)}


def written(path: Path, number: int, num_characters: int) -> list[int]:
    """Write a table; return the number of rows of each of its row groups."""
    with ShardWriter(path, SCHEMA) as table:
        for row in rows(number, num_characters):
            table.add(row)
    result = pq.ParquetFile(path)
    assert result.read().to_pylist() == list(rows(number, num_characters))
    return [result.metadata.row_group(item).num_rows for item in range(result.num_row_groups)]


def test_a_row_group_ends_with_its_rows_or_with_its_bytes(tmp_path: Path):
    assert written(tmp_path / "short", 25_001, 7) == [10_000, 10_000, 5_001]
    # 4 MiB are 4,194,304 bytes, and a row has 6 + 70,000: the 60th is the first to exceed them.
    assert written(tmp_path / "long", 130, 70_000) == [60, 60, 10]
    assert written(tmp_path / "even", 120, 70_000) == [60, 60]
    assert written(tmp_path / "none", 0, 7) == []


@pytest.mark.parametrize(("at_once", "num_bytes"), [(1, 1 << 30), (7, 1 << 30), (250, 2_000), (10**6, 1 << 30)])
def test_how_many_rows_are_held_as_dicts_does_not_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, num_bytes: int
):
    written(tmp_path / "usual", 3_000, 700)
    monkeypatch.setattr("paratune.corpus.shard.MAX_PYTHON_ROWS", at_once)
    monkeypatch.setattr("paratune.corpus.shard.MAX_PYTHON_BYTES", num_bytes)
    written(tmp_path / "other", 3_000, 700)
    assert (tmp_path / "other").read_bytes() == (tmp_path / "usual").read_bytes()


def test_halves_of_surrogate_pairs_become_question_marks(tmp_path: Path):
    with ShardWriter(tmp_path / "odd", SCHEMA) as table:
        table.add({"id": "1", "text": "bom \ud83d dia"})
        table.add({"id": "2", "text": "olá"})
    assert pq.read_table(tmp_path / "odd")["text"].to_pylist() == ["bom ? dia", "olá"]


@pytest.mark.parametrize("left", [None, b"", b"torn", b"PAR1 torn", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_table_that_cannot_be_read_is_named(left: bytes | None, tmp_path: Path):
    if left is not None:
        (tmp_path / "part-00001.parquet").write_bytes(left)
    with raises_code("corpus.damaged", "part-00001.parquet"):
        list(read_rows(tmp_path / "part-00001.parquet"))


def test_a_table_for_which_memory_is_short_is_not_called_damaged(tmp_path: Path):
    with pytest.raises(MemoryError), reading(tmp_path / "part-00000.parquet"):
        raise pa.ArrowMemoryError("malloc of size 64 failed")
