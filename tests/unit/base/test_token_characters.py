"""The characters of tokens, also where a tokenizer leaves some out."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tiny import tiny_tokenizer
from tokenizer_kinds import KINDS

from paratune.base.token_characters import token_characters

TOKENIZERS = {name: make() for name, make in KINDS.items()}


def pieces(kind: str, text: str) -> list[str]:
    """Return the characters of each token without special tokens and white space around them; empty ones left out."""
    encoding = TOKENIZERS[kind]([text]).encodings[0]
    (spans,) = token_characters([encoding], [text])
    inside = [
        text[slice(*span)].strip() for which, span in zip(encoding.sequence_ids, spans, strict=True) if which == 0
    ]
    return [piece for piece in inside if piece]


ALL = list(KINDS)
BYTES = [name for name in ALL if name.startswith(("spaced", "roberta"))]


@pytest.mark.parametrize(
    ("kinds", "text", "expected"),
    [
        (ALL, "I saw a dog in Lisbon", ["I", "saw", "a", "dog", "in", "Lisbon"]),
        (ALL, "  I saw\r\n a dog", ["I", "saw", "a", "dog"]),
        (["spaced"], "don't", ["don", "'", "'", "t"]),  # the space and the apostrophe are two tokens
        (["bert, cased", "bert, uncased", "nfd"], "don't", ["don", "'", "t"]),
        (["spaced"], "I é 👩‍💻", ["I", "é", "👩", "\u200d", "💻", "💻"]),  # two tokens have bytes of a letter
        (["bert, uncased", "nfd"], "ação e\u0301 já\u0301", ["ação", "e\u0301", "já\u0301"]),
        (["bert, cased"], "dog\u200b", ["dog"]),  # a character that nobody sees is part of no word
        (["bert, cased"], "Anna\ufffd dog", ["Anna\ufffd", "dog"]),  # a letter that was lost when it was decoded
    ],
)  # fmt: skip
def test_words_keep_all_of_their_letters(kinds: list[str], text: str, expected: list[str]):
    for kind in kinds:
        # Where kinds differ in the tokens of a word, the letters with a token are compared.
        found = _covered(kind, text).split() if kinds is ALL else pieces(kind, text)
        assert found == expected, kind


def _covered(kind: str, text: str) -> str:
    """Return a text with white space in place of the characters without a token."""
    encoding = TOKENIZERS[kind]([text]).encodings[0]
    (spans,) = token_characters([encoding], [text])
    places = {place for span in spans for place in range(*span)}
    return "".join(letter if place in places else " " for place, letter in enumerate(text))


@pytest.mark.parametrize("kind", ALL)
@given(text=some.text(some.sampled_from([*"aAéç日-.'I\t\n\r \u200d👩💻\u0301ﬁ½"]), max_size=20))
def test_visible_characters_are_covered_in_order(kind: str, text: str):
    tokenizer = TOKENIZERS[kind]
    encoding = tokenizer([text]).encodings[0]
    (spans,) = token_characters([encoding], [text])
    inside = [span for which, span in zip(encoding.sequence_ids, spans, strict=True) if which == 0]
    assert inside == sorted(inside)
    assert [end for _, end in inside] == sorted(end for _, end in inside)
    assert all(0 <= start <= end <= len(text) for start, end in inside)
    if kind in BYTES:  # each byte is in a token
        assert not any(letter.isprintable() and letter.strip() for letter in _without(spans, text))
    if encoding.offsets == sorted(encoding.offsets) and not _without(encoding.offsets, text).strip():
        assert spans == encoding.offsets


def _without(spans: list[tuple[int, int]], text: str) -> str:
    places = {place for span in spans for place in range(*span)}
    return "".join(letter for place, letter in enumerate(text) if place not in places)


def test_ordinary_offsets_are_unchanged():
    tokenizer, texts = tiny_tokenizer(), ["the film wasn't good", "É bom 😀 um joão\n"]
    encoding = tokenizer([texts[0]], [texts[1]]).encodings[0]
    assert token_characters([encoding], texts) == [encoding.offsets]


def test_windows_do_not_take_the_letters_of_the_window_before():
    # Tokens of "one" in two windows that share none: "on", and "e" in the second one.
    first = SimpleNamespace(offsets=[(0, 0), (0, 2)], sequence_ids=[None, 0])
    second = SimpleNamespace(offsets=[(0, 0), (2, 3), (5, 7)], sequence_ids=[None, 0, 0])
    assert token_characters([first, second], ["one two"]) == [[(0, 0), (0, 2)], [(0, 0), (2, 3), (4, 7)]]


def test_a_truncated_text_keeps_its_offsets():
    tokenizer = tiny_tokenizer()
    encoding = tokenizer(["good zoe"], truncation=True, max_length=4).encodings[0]
    assert encoding.tokens == ["[CLS]", "good", "z", "[SEP]"]
    assert token_characters([encoding, *encoding.overflowing], ["good zoe"])[0] == encoding.offsets


def test_a_word_without_a_token_stays_without():
    encoding = SimpleNamespace(offsets=[(0, 1), (4, 5)], sequence_ids=[0, 0])
    assert token_characters([encoding], ["a 日 b"]) == [[(0, 1), (4, 5)]]
