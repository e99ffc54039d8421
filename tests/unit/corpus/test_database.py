"""Queries on tables of a corpus: expected rows are computed in Python."""

import os
import platform
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import raises_code

from paratune.base.atomic import delete_remains
from paratune.corpus import database
from paratune.corpus.database import connection, delete_scratch, parquet, query, repeated_rows

NAMES = (
    "a[b]c",
    "abc",
    "st*r",
    "star",
    "wh?",
    "why",
    "**",
    "[[]",
    "[!a]",
    "{a,b}",
    "a",
    "it's",
    "run=3",
    "key=x/host=y",
)


def write(folder, *shards):
    paths = [folder / f"it's [{number}]*.parquet" for number in range(len(shards))]
    for path, keys in zip(paths, shards, strict=True):
        pq.write_table(pa.table({"key": pa.array(keys, pa.string())}), path)
    return paths


def test_a_row_is_repeated_when_an_earlier_one_of_any_table_has_its_value(tmp_path):
    # c is twice in the second table itself and first in the first one; e is twice in the second.
    tables = write(tmp_path, ["a", "b", "c", None], ["x", "c", "c", None, "e", "e"], [], ["a", None, "e"])
    assert list(repeated_rows(tmp_path, tables, "key")) == [(1, 1), (1, 2), (1, 5), (3, 0), (3, 2)]
    assert list(repeated_rows(tmp_path, [], "key")) == []


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_change_the_result(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(database, "THREADS", threads)
    chance = random.Random(1)
    shards = [chance.choices([None, *map(str, range(3000))], k=2000) for _ in range(5)]
    expected, seen = [], {None}
    for number, keys in enumerate(shards):
        for row, key in enumerate(keys):
            if key is not None and key in seen:
                expected.append((number, row))
            seen.add(key)
    assert list(repeated_rows(tmp_path, write(tmp_path, *shards), "key")) == expected


def test_errors_of_duckdb_become_data_errors(tmp_path, monkeypatch):
    (table,) = write(tmp_path, ["a"])
    with raises_code("corpus.damaged", "nothing"):
        list(query(tmp_path, f"SELECT nothing FROM {parquet([table])}"))
    monkeypatch.setattr(database, "MEMORY", "1MiB")
    with raises_code("output.not_writable", "Out of Memory Error", folder=tmp_path):
        list(query(tmp_path, "SELECT sum(i), list(i) FROM range(1000000) numbers(i)"))
    with raises_code("output.not_writable", "IO Error"):  # as when the disk is full
        list(query(tmp_path, f"FROM {parquet([tmp_path / 'missing'])}"))


def test_names_of_folders_are_not_interpreted(tmp_path):
    paths = [tmp_path / name / "it.parquet" for name in NAMES]
    for name, path in zip(NAMES, paths, strict=True):
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"key": [name]}), path)
    assert [list(query(tmp_path, f"FROM {parquet([path])}")) for path in paths] == [[(name,)] for name in NAMES]
    assert list(query(tmp_path, f"FROM {parquet(paths)}")) == [(name,) for name in NAMES]


def test_processes_keep_the_temporary_folders_of_others(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    name = f".duckdb-{platform.node()}"
    alive, dead, of_another = (
        tmp_path / f"{start}.{pid}"
        for start, pid in ((name, os.getppid()), (name, ended.stdout.strip()), (f"{name}2", ended.stdout.strip()))
    )
    for folder in (alive, dead, of_another):
        folder.mkdir()
    list(query(tmp_path, "SELECT 1"))
    assert sorted(tmp_path.iterdir()) == [alive, of_another]
    delete_remains(tmp_path, is_locked=True)  # as a build does in `work`, while others may read the corpus
    assert sorted(tmp_path.iterdir()) == [alive, of_another]
    delete_scratch(tmp_path, is_locked=True)  # as a build does in the folder of a stage
    assert not list(tmp_path.iterdir())


def test_a_connection_keeps_the_files_of_another_one_of_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "MEMORY", "64MiB")
    monkeypatch.setattr(database, "THREADS", 1)
    with connection(tmp_path) as db:
        db.execute("CREATE TABLE texts AS SELECT i, repeat('x', 200) AS text FROM range(600000) numbers(i)")
        (own,) = tmp_path.iterdir()
        assert list(query(tmp_path, "SELECT 1")) == [(1,)]
        assert list(tmp_path.iterdir()) == [own]
        assert db.execute("SELECT count(*), sum(length(text)) FROM texts").fetchone() == (600_000, 120_000_000)
    assert not list(tmp_path.iterdir())


def test_data_larger_than_memory_uses_files(tmp_path, monkeypatch):
    # 600,000 texts of 200 letters are 120 MB, ordered by something else than their order.
    monkeypatch.setattr(database, "MEMORY", "64MiB")
    monkeypatch.setattr(database, "THREADS", 1)
    with connection(tmp_path) as db:
        db.execute("CREATE TABLE texts AS SELECT i, repeat('x', 200) AS text FROM range(600000) numbers(i)")
        (own,) = tmp_path.iterdir()
        assert sum(path.stat().st_size for path in own.iterdir()) > 2**20
        result = db.execute("SELECT count(*), sum(i), sum(length(text)) FROM (FROM texts ORDER BY hash(i))").fetchone()
    assert result == (600_000, 600_000 * 599_999 // 2, 120_000_000)
    assert not list(tmp_path.iterdir())
