"""Splits texts into sentences, line by line, rejects what does not look like one, and splits sentences into words.

Blingfire splits; it recognizes most abbreviations. Wrong splits after Portuguese abbreviations are joined again.
"""

import re
from collections.abc import Iterator

from paratune.corpus.settings import SentenceSettings
from paratune.errors import require

_ABBREVIATIONS = """
    sr sra srs sras srª sr.ª dr dra drs dras dr.ª drª prof profa profs prof.ª profª eng enga eng.ª engª eng.º engº
    arq arqa arq.ª arqª arq.º exmo exma exmos exmas ex.mo ex.ma sto sta st pe fr mons cón gen ten maj sarg alm
    pres dep séc sécs cap caps art arts al pág págs fig figs vol vols n nº n.º núm cf p.ex ex ed coord org trad av trav
    lg urb tel telef telm ref aprox máx mín vs i.e e.g op cit
    """.split()  # noqa: SIM905 - a list of so many would be long
"""Abbreviations before a name or a number: their full stop does not end a sentence."""
_OPENING = "\"'«“‘„(\\[—–\\-*•¿¡"
_CLOSING = "\"'»”’“)\\]"
_NUMERAL = re.compile(r"\(?(?:\d{1,3}|[ivxlIVXL]{1,5}|[a-zA-Z])[.)]")
_BEGINS = re.compile(rf"[{_OPENING}\s]*(?:[^\W\d_]|\d)")
_ENDS = re.compile(rf"[.!?…][{_CLOSING}\s]*$")
_OPENING_MARKS = re.compile(rf"[{_OPENING}]+")
_NGRAM_WORD = re.compile(
    r"(?P<number>\d+(?:[.,:]\d+)*)"
    r"|[^\W\d_]+(?:['’-][^\W\d_]+)*"  # with clitics and compounds: disse-lhe, guarda-chuva, d'água
    r"|[^\w\s\x00-\x1f\x7f-\x9f]"
)
_HAS_LETTER = re.compile(r"[^\W_]")


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with single spaces; the end of a line ends a sentence."""
    split = require("blingfire", extra="corpus").text_to_sentences
    for line in text.split("\n"):
        if words := line.split():
            yield from _joined(split(" ".join(words)).split("\n"))


def _joined(pieces: list[str]) -> Iterator[str]:
    """Yield the sentences of a line, joined where the splitter was wrong."""
    sentence = ""
    for piece in pieces:
        last = _OPENING_MARKS.sub("", sentence.rsplit(" ", 1)[-1])
        ends_in_abbreviation = last.endswith(".") and last[:-1].lower() in _ABBREVIATIONS
        continues = piece[:1].islower() or _NUMERAL.fullmatch(sentence) or ends_in_abbreviation
        if sentence and not continues:
            yield sentence
            sentence = piece
        else:
            sentence = f"{sentence} {piece}" if sentence else piece
    if sentence:
        yield sentence


def rejection_reason(sentence: str, settings: SentenceSettings) -> str | None:
    """Return the first reason to reject a sentence, or None.

    few words, many words: fewer than `min_words`, more than `max_words`; a word contains a letter or a digit.
    few letters: the share of letters among characters other than spaces is below `min_letters`.
    capitals: the share of capitals among the letters is above `max_capitals`.
    no beginning: no capital, letter of a script without capitals, or digit at the start, after any opening marks.
    no end: no . ! ? or … at the end, before any closing marks.
    """
    num_words = sum(1 for word in sentence.split() if _HAS_LETTER.search(word))
    if num_words < settings.min_words:
        return "few words"
    if num_words > settings.max_words:
        return "many words"
    letters = [letter for letter in sentence if letter.isalpha()]
    if len(letters) < settings.min_letters * sum(not letter.isspace() for letter in sentence):
        return "few letters"
    if sum(map(str.isupper, letters)) > settings.max_capitals * len(letters):
        return "capitals"
    if settings.whole:
        begun = _BEGINS.match(sentence)
        if begun is None or sentence[begun.end() - 1].islower():
            return "no beginning"
        if _ENDS.search(sentence) is None:
            return "no end"
    return None


def ngram_words(sentence: str) -> list[str]:
    """Return words and punctuation marks of a sentence in lower case, with 0 for each number."""
    return ["0" if match["number"] else match.group() for match in _NGRAM_WORD.finditer(sentence.lower())]
