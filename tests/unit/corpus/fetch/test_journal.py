import pytest

from paratune.corpus.fetch.journal import Journal
from paratune.corpus.rows import DroppedRow

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
        assert [position in journal for position in range(8)] == [n in ROWS for n in range(8)]
        assert {position: journal.read(position) for position in (3, 7, 0)} == ROWS
        journal.add(1, ROWS[7])
        assert [journal.read(position) for position in (0, 1)] == [ROWS[0], ROWS[7]]


def test_a_torn_record_is_cut_off_wherever_it_was_torn(tmp_path):
    whole = fill(tmp_path / "whole").read_bytes()
    last = whole.index(b'{"position": 3')
    for cut in range(last, len(whole)):
        path = tmp_path / "torn"
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert [position in journal for position in ROWS] == [True, True, False]
            journal.add(3, ROWS[3])
            assert journal.read(3) == ROWS[3]
        assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"rubbish", b"{}\n", b"[]\n", b'{"position": 1, "num_bytes": null}\n'])
def test_a_file_that_is_not_a_journal_counts_as_empty(tmp_path, content):
    path = tmp_path / "journal"
    path.write_bytes(content)
    with Journal(path) as journal:
        assert 1 not in journal
    assert path.read_bytes() == b""
