"""The words that an n-gram model sees of a sentence."""

import re

_WORD = re.compile(
    r"(?P<number>\d+(?:[.,:]\d+)*)"
    r"|[^\W\d_]+(?:['’-][^\W\d_]+)*"  # with clitics and compounds: disse-lhe, guarda-chuva, d'água
    r"|[^\w\s\x00-\x1f\x7f-\x9f]"
)


def words_of(sentence: str) -> list[str]:
    """Return the words and marks of a sentence in lower case, each number as 0; none holds white space."""
    return ["0" if found["number"] else found.group() for found in _WORD.finditer(sentence.lower())]
