"""Splits a sentence into the words of an n-gram model."""

import re

_WORD = re.compile(
    r"(?P<number>\d+(?:[.,:]\d+)*)"
    r"|[^\W\d_]+(?:['’-][^\W\d_]+)*"  # with clitics and compounds: disse-lhe, guarda-chuva, d'água
    r"|[^\w\s\x00-\x1f\x7f-\x9f]"
)


def ngram_words(sentence: str) -> list[str]:
    """Return words and punctuation marks of a sentence in lower case, with 0 for each number."""
    return ["0" if match["number"] else match.group() for match in _WORD.finditer(sentence.lower())]
