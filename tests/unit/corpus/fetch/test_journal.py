import signal
import sqlite3
import subprocess
import sys

import pytest
from raised import raises_code

from paratune.corpus.fetch.run import Journal
from paratune.corpus.shard import DroppedRow

ROWS = {
    7: {"url": "http://a.pt/á", "payload": b"\n\0{}\n" * 3000},
    0: DroppedRow("http://a.pt/gone", "status", "404"),
    3: {"url": "http://a.pt/3", "payload": b""},
}


def fill(path):
    with Journal(path) as journal:
        for position, row in ROWS.items():
            journal.add(position, row)
    return path


def test_journal_entries_are_read_in_any_order(tmp_path):
    with Journal(fill(tmp_path / "journal")) as journal:
        assert [position in journal.known for position in range(8)] == [n in ROWS for n in range(8)]
        assert {position: journal.read(position) for position in (3, 7, 0)} == ROWS
        journal.add(1, ROWS[7])
        assert [journal.read(position) for position in (0, 1)] == [ROWS[0], ROWS[7]]


KILLED = """
import os, signal, sys
from pathlib import Path
from paratune.corpus.fetch.run import Journal
journal = Journal(Path(sys.argv[1]))
for position in range(20):
    journal.add(position, {"url": "u", "payload": bytes(100_000)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_entries_survive_a_kill(tmp_path):
    path = tmp_path / "journal"
    assert subprocess.run([sys.executable, "-c", KILLED, path]).returncode == -signal.SIGKILL
    with Journal(path) as journal:
        assert all(journal.read(position)["payload"] == bytes(100_000) for position in range(20))


@pytest.mark.parametrize("content", [b"rubbish", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_not_a_journal_counts_as_empty(tmp_path, content):
    path = fill(tmp_path / "journal")
    path.write_bytes(content)
    with Journal(path) as journal:
        assert 7 not in journal.known
        journal.add(7, ROWS[7])
        assert journal.read(7) == ROWS[7]


def test_a_journal_that_cannot_be_opened_now_is_kept(tmp_path, monkeypatch):
    path = fill(tmp_path / "journal")
    content, connect = path.read_bytes(), sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *more, **options: connect(*more, **options, timeout=0))
    with connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with raises_code("output.not_writable", "locked", path=path):
            Journal(path)
        other.rollback()
    other.close()
    assert path.read_bytes() == content
    path.write_bytes(b"rubbish")  # replaced, and the new file cannot be opened

    def connect_to_damaged(*more, **options):
        if not path.exists():
            raise sqlite3.OperationalError("unable to open database file")
        return connect(*more, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_to_damaged)
    with raises_code("output.not_writable", "unable to open", path=path):
        Journal(path)
