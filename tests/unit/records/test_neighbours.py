"""Which runs were trained side by side, from the log of a sweep."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.records.neighbours import log_neighbour, neighbours_of


def logged(path: Path, text: str) -> Path:
    """Write a log: `+a` begins the run a, `~a` resumes it, `-a` ends it, `start` starts a sweep."""
    for word in text.split():
        if word == "start":
            log_neighbour(path, "start")
        else:
            log_neighbour(path, {"+": "begin", "~": "resume", "-": "end"}[word[0]], word[1:])
    return path


@pytest.mark.parametrize(
    ("text", "names", "is_constant"),
    [
        ("start +a", (), True),
        ("start +b -b +a", (), True),
        ("start +b +a", ("b",), True),
        ("start +a +b", ("b",), False),
        ("start +b +a -b", ("b",), False),
        ("start +b +a -b +c", ("b", "c"), False),
        ("start +a -a +b", (), True),
        # A killed sweep leaves its runs open; the next one resumes them.
        ("start +b +a start ~a", ("b",), False),
        ("start +b +a start ~b ~a", ("b",), True),
        ("start +a start ~b ~a", ("b",), False),
        # It began in turn, before there was a log.
        ("start +b ~a", ("b",), False),
        ("start ~a", (), True),
        # The run of before is deleted.
        ("start +b +a -a -b start +a -a", (), True),
        ("start +b +a -b +c -a -c start +c +a", ("c",), True),
    ],
)
def test_neighbours_of_a_run(text: str, names: tuple[str, ...], is_constant: bool, tmp_path: Path):
    found = neighbours_of(logged(tmp_path / "log", text), "a")
    assert found is not None
    assert (found.names, found.is_constant) == (names, is_constant)


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path):
    with raises_code("output.not_writable", path=tmp_path / "absent" / "log"):
        log_neighbour(tmp_path / "absent" / "log", "start")


def test_what_the_log_does_not_tell_is_unknown(tmp_path: Path):
    assert neighbours_of(tmp_path / "none", "a") is None
    path = logged(tmp_path / "log", "start +b")
    assert neighbours_of(path, "a") is None
    path.write_text(path.read_text() + '{"time": 1.0, "event": "begin", "ru')
    assert neighbours_of(path, "a") is None
