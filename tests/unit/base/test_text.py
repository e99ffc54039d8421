"""Control characters made visible: in one line, in several, and in the output of the command line."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paratune import cli
from paratune.base.text import plain, plain_lines
from paratune.errors import EXIT_DATA, DataError

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


def test_plain_escapes_control_characters():
    assert plain("a\x1b[31mb\nc\u202ed\ud800\x9b2J") == r"a\x1b[31mb\nc\u202ed\ud800\x9b2J"


@given(ANY_TEXT)
def test_plain_text_is_printable_on_one_line_and_utf8(text: str):
    shown = plain(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown


def test_plain_lines_keep_their_ends_alone():
    assert plain_lines("one\n  two\r\x1b[2J\n") == "one\n  two\\r\\x1b[2J\n"


@given(ANY_TEXT)
def test_plain_lines_are_as_many_as_before(text: str):
    assert plain_lines(text).splitlines() == [plain(line) for line in text.removesuffix("\n").split("\n") if text]


def test_an_error_does_not_act_in_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(words: object) -> None:
        raise DataError("data.csv lacks a column (it has: \x1b[2J)\n  second line", code="data.empty")

    monkeypatch.setattr(cli, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == EXIT_DATA
    assert capsys.readouterr().err == "error: data.csv lacks a column (it has: \\x1b[2J)  [data.empty]\n  second line\n"
