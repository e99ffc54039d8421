"""Iteration over the texts of files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from raised import raises_code

from paratune.data.texts import iterate_texts


def test_texts_of_several_kinds_of_files_are_iterated_in_order(tmp_path: Path):
    pq.write_table(pa.table({"text": ["um", None, " ", "dois"], "n": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("três\nquatro\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("text\ncinco\n", encoding="utf-8")
    sources = [str(tmp_path / name) for name in ("a.parquet", "b.txt", "c.csv")]
    assert list(iterate_texts(sources, "text")) == ["um", "dois", "três", "quatro", "cinco"]


def test_unreadable_files_are_reported(tmp_path: Path):
    pq.write_table(pa.table({"body": ["um"]}), tmp_path / "a.parquet")
    with raises_code("data.column_missing", "a.parquet"):
        list(iterate_texts([str(tmp_path / "a.parquet")], "text"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 torn")
    with raises_code("data.damaged", "b.parquet"):
        list(iterate_texts([str(tmp_path / "b.parquet")], "text"))
    with raises_code("data.not_found", "c.parquet"):
        list(iterate_texts([str(tmp_path / "c.parquet")], "text"))
