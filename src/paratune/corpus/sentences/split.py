"""Splits texts into sentences, line by line, rejects what does not look like one, and splits sentences into words.

A sentence ends at . ! ? or … before a capital, a digit, or a letter of a script without capitals. One table has the
exceptions in Portuguese, English, Spanish, French and German: abbreviations by what follows them. After an initial or
"U.E." a sentence begins only with a word that is no name.
"""

import re
from collections.abc import Iterator

from paratune.corpus.settings import STOP_WORDS, SentenceSettings

_ABBREVIATIONS = {
    "anything": """
        sr sra srs sras srª sr.ª srta dr dra drs dras dr.ª drª prof profa profs prof.ª profª eng enga eng.ª engª eng.º
        engº arq arqa arq.ª arqª arq.º exmo exma exmos exmas ex.mo ex.ma excmo excma sto sta mons cón Gen Ten Cap Maj
        Sarg alm Pres dep Col Cor Cmdt Univ Jr Fr Pe St Ste Lt Sgt Capt Gov Sen Rep Rev Hon coord org trad av avda
        trav lg urb ex p.ex cf aprox séc sécs vol vols cap caps vs ud uds dña mr mrs Ms messrs Mt MM mme mlle mgr Hr
        Hl ca bzw evtl inkl ggf i.e e.g eg z.b d.h u.a obs""",
    "a number": """
        n nº núm num no nr art arts al p pp pág págs pag pags fig figs abb bd sec sect ch chap str ref tel telef
        telem tlf máx mín esq dto apt lt kap tab v vv""",
    "a year": """
        jan fev feb mar abr apr mai may jun jul ago aug set sep sept out oct okt nov dez dec dic ene janv févr avr juil
        déc""",
    "a name": "ed Cia",
}
"""What follows an abbreviation -> abbreviations whose full stop then ends no sentence. A number may be a Roman one; a
day may be in place of a year after a month with a capital; a name is no word of `_BEGINNERS`. Those with a capital here
are words without it ("ten", "col")."""
_FOLLOWED_BY = {word: kind for kind, words in _ABBREVIATIONS.items() for word in words.split()}
_BEGINNERS = {
    *STOP_WORDS,
    *"""
    às ela elas ele eles este esta isto esse essa isso aquele aquela outro outra quando depois hoje ontem assim aqui
    então i the he she it we they this that these those there but and if when in on at el los las él ella pero un una y
    le les il elle ils elles une ce ces et mais der die das er sie es wir ein eine im am und aber
    """.split(),  # noqa: SIM905 - a list of so many would be long
}
"""Words that begin a sentence and no name."""
_OF_NAMES = {"da", "das", "de", "do", "dos", "e"}
"""Of these, words that follow an initial in a name: "J. De Souza"."""
_AFTER_ORDINALS = re.compile(
    r"(?:Jan(?:uar)?|Feb(?:ruar)?|März|Apr(?:il)?|Mai|Juni?|Juli?|Aug(?:ust)?|Sep(?:t(?:ember)?)?|Okt(?:ober)?"
    r"|Nov(?:ember)?|Dez(?:ember)?|Jahrhunderts?|Jh|Weltkriege?s?|Guerra|República|Dinastia|Concílio|Reich)\b"
)
"""Words after an ordinal number in German, and after a Roman one: "am 3. Mai", "II. Guerra"."""
_MARKS, _OPENING, _CLOSING = ".!?…。！？؟।", "\"'«“‘„([—–-*•¿¡", "\"'»”’“)]"
_OPEN, _CLOSE = re.escape(_OPENING), re.escape(_CLOSING)
_END = re.compile(rf"([{_MARKS}])((?:[{_CLOSE}]| »(?= ))*)( [{_OPEN} ]*|[«“‘„(—–¿¡]*)(?=[^\W_])")
AROUND = 80
"""Characters before and after a full stop that are read to find a missing space."""
_FIRST_WORD = re.compile(r"[^\W_]+")
_BEFORE = re.compile(r"(?:^|[^\w.-])([^\W\d_]{2,}|\d{4})$")
_SPOILS = re.compile(r"[/@\\_:=#]|www|\w\(")
_INITIALS = re.compile(r"(?:[^\W\d_]{1,2}\.)*[^\W\d_]|(?:[^\W\d_]{1,2}\.)+[^\W\d_]{2}")
_ROMAN = re.compile("[IVXLC]{2,}|[VX]")  # "I" is a word in English
_LABEL = re.compile(r"\(?(?:\d{1,3}|[ivxlIVXL]{1,5}|[a-zA-Z]|P\.S|N\.B)[.)]")
_BEGINS = re.compile(rf"[{_OPEN}\s]*(?:[^\W\d_]|\d)")
_ENDS = re.compile(rf"[.!?…][{_CLOSE}\s]*$")
_NGRAM_WORD = re.compile(
    r"(?P<number>\d+(?:[.,:]\d+)*)"
    r"|[^\W\d_]+(?:['’-][^\W\d_]+)*"  # with clitics and compounds: disse-lhe, guarda-chuva, d'água
    r"|[^\w\s\x00-\x1f\x7f-\x9f]"
)
_HAS_LETTER = re.compile(r"[^\W_]")


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with single spaces; the end of a line ends a sentence."""
    for line in text.split("\n"):
        line, start = " ".join(line.split()), 0
        for match in _END.finditer(line):
            mark, cut, after = match.end(1), match.end(2), match.end()
            if line[after].islower():
                continue
            if line[cut] == " ":
                is_end = line[mark - 1] != "." or line[mark - 2] in _MARKS or _ends(line, start, mark, after)
            else:
                is_end = line[mark - 1] in "。！？" or _lacks_space(line, mark, after)
                # “ closes after „ only, and " after an odd number of them; else they open the next sentence.
                earlier, quote = line[: cut - 1], line[cut - 1]
                cut -= quote == "“" and earlier.count("„") <= earlier.count("“")
                cut -= quote == '"' and earlier.count('"') % 2 == 0
            if is_end:
                yield line[start:cut]
                start = cut + (line[cut] == " ")
        if start < len(line):
            yield line[start:]


def _ends(line: str, start: int, mark: int, after: int) -> bool:
    """Return whether the full stop before `mark` ends the sentence from `start`; the next word begins at `after`."""
    word = line[max(start, line.rfind(" ", start, mark) + 1) : mark - 1].lstrip(_OPENING)
    follower, *_ = _FIRST_WORD.findall(line, after, after + AROUND)
    kind = _FOLLOWED_BY.get(word) or _FOLLOWED_BY.get(word.lower() if word[1:] else "")  # "P." is an initial
    if kind == "anything" or _LABEL.fullmatch(line, start, mark):
        return False
    if kind == "a number":
        return not (follower[0].isdigit() or _ROMAN.fullmatch(follower))
    if kind == "a name":
        return follower.lower() in _BEGINNERS
    if kind == "a year":
        return not (follower.isdigit() and (len(follower) == 4 or word[0].isupper()))
    is_before_initial = line[after + len(follower) : after + len(follower) + 1] == "."
    # "50 g. Misture", and not "d. h."
    is_unit = len(word) == 1 and word.islower() and not (mark >= 4 and line[mark - 4] == ".")
    if _INITIALS.fullmatch(word) and (is_before_initial or not is_unit):
        return follower.lower() in _BEGINNERS - _OF_NAMES and not is_before_initial
    is_ordinal = (word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word)
    return not (is_ordinal and _AFTER_ORDINALS.match(follower))


def _lacks_space(line: str, mark: int, after: int) -> bool:
    """Return whether a space is missing after `mark` ("fim.Começo"), and not part of an address, a name or a number."""
    head = line[max(0, mark - AROUND) : mark - 1].rpartition(" ")[2].rstrip(_CLOSING + _MARKS)
    tail = line[after : after + AROUND].split(" ")[0]
    before, (follower, *_) = _BEFORE.search(head), _FIRST_WORD.findall(tail)
    if not follower[0].isupper() or (follower[1:] and not (follower.isalpha() and follower[1:].islower())):
        return False
    is_dotted = (head + tail.rstrip(_MARKS + _CLOSING)).count(".") > (line[mark - 1] != ".")  # "doc.Title.Text"
    if is_dotted or before is None or before[1].lower() in _FOLLOWED_BY or _SPOILS.search(head + tail):
        return False
    is_clear = after > mark or line[mark - 2] in _MARKS  # no name has «, ?! or ...
    return is_clear or before[1].islower() or follower.lower() in _BEGINNERS


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
