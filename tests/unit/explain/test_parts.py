"""Words and sentences."""

import pytest

from paratune.explain.rows import containing, sentences, words


def texts(text: str, ranges: list) -> list[str]:
    return [text[start:end] for start, end in ranges]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I won't go, ever!", ["I", "won't", "go", ",", "ever", "!"]),
        ("well-known  x...", ["well-known", "x", "..."]),
        ("não é", ["não", "é"]),
        ("好的 ok", ["好", "的", "ok"]),
        (" \n", []),
    ],
)
def test_words(text: str, expected: list[str]):
    assert texts(text, words(text)) == expected


def test_words_cover_all_characters_but_white_space():
    text = "A 3.5% rise\t(see 'x')…\n好、B_c 🙂"
    covered = {place for start, end in words(text) for place in range(start, end)}
    assert covered == {place for place, letter in enumerate(text) if not letter.isspace()}


def test_sentences_end_at_marks_and_at_lines():
    text = 'One is 3.5 here. "Two?" she said\n\n  three\r\nFour!! Five'
    assert texts(text, sentences(text)) == ["One is 3.5 here.", '"Two?"', "she said", "three", "Four!!", "Five"]


def test_containing_returns_the_range_of_each_position():
    text = "a b. c d. e"
    assert containing([place.start for place in words(text)], sentences(text)) == [0, 0, 0, 1, 1, 1, 2]
