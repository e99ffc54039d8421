"""The step `personal`: replaces e-mail addresses, telephone numbers, NIFs and IBANs in documents by tokens.

libphonenumber recognises telephone numbers; check digits (python-stdnum) recognise NIFs and IBANs. Similar amounts of
money, numbers of laws and parts of web addresses are not changed.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paratune.corpus.clean.settings import Personal
from paratune.corpus.clean.step import Document, run_documents, unknown_value, with_text
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import read_rows
from paratune.corpus.stage import RunStage
from paratune.errors import require

FORMAT = 5  # version of the rows; increased when the same input gives other rows
TOKENS = {"email": "<EMAIL>", "phone": "<PHONE>", "nif": "<NIF>", "iban": "<IBAN>"}
"""Token of each kind of data."""
MIN_IBAN = 15
"""Characters of the shortest IBAN (Norway)."""
_HEAD = 4
"""Characters of an IBAN for country and check digits."""
BEFORE, AFTER = 40, 12
"""Characters around a number that are read."""
NO_MAX = 2**31
"""Invalid candidates in a text after which libphonenumber stops: practically never."""

_AT = r"(?:@|[ \t]{0,2}[\[(](?:at|arroba)[\])][ \t]{0,2})"
_DOT = r"(?:\.|[ \t]{0,2}[\[(](?:dot|ponto)[\])][ \t]{0,2})"
_EMAIL = re.compile(rf"(?<![\w.%+-])\w[\w.%+-]{{0,63}}{_AT}(?:[\w-]{{1,63}}{_DOT}){{1,8}}[a-z]{{2,24}}(?!\w)", re.I)
_ORDINARY = (
    r"(?:[aàeéo]|[ao]s|às|uma?|umas|uns|duas|meia|mil|cada|por|pela|pelo|d[aeo]s?|n[ao]s?|numa|em|com|sem|ou|que|são|tem|"
    r"dois|três|quatro|cinco|seis|sete|oito|nove|dez|vinte|trinta|quarenta|cinquenta|cem|preço|valor|cotação|reais|euros|"
    r"boi|vaca|gado|bezerr[oa]s?|novilh[oa]s?|gord[oa]s?|magr[oa]s?|médi[oa]s?|perfil|conta|twitter|instagram|"
    r"sinal|símbolo|carácter|caracter|caractere|tecla|letra|palavra)"
)
"""Words before "arroba" as a weight (15 kg) or as the sign, and after it where no name follows."""
_NAMED = rf"(?!{_ORDINARY}(?![\w.%+-]))\w"
_AT_IN_WORDS = rf"(?:{_AT}|[ \t]{{1,2}}arroba[ \t]{{1,2}})"
_DOT_IN_WORDS = rf"(?:{_DOT}|[ \t]{{1,2}}(?:dot|ponto)[ \t]{{1,2}})"
_IN_NAMES = r"[ \t]{1,2}(?:dot|ponto|underscore|underline|tra[cç]o|h[ií]fen)[ \t]{1,2}"
_TOP = (
    r"(?:com|org|net|edu|gov|info|eu|pt|br|mz|cv|gw|st|tl|mo|es|fr|it|uk|ie|nl|be|lu|ch|us|ca|ar|cl|mx"
    r"|(?:ao|de|me)(?![ \t]+\w))"  # also words
)
_SIGN = re.compile(r"@|arroba|[\[(]at[\])]", re.I)
_IN_WORDS = re.compile(r"arroba|[ \t](?:dot|ponto)[ \t]", re.I)
_EMAIL_IN_WORDS = re.compile(
    rf"(?<![\w.%+-])(?:(?:\w|{_NAMED}[\w-]{{1,31}}){_IN_NAMES}){{0,3}}{_NAMED}[\w.%+-]{{0,63}}{_AT_IN_WORDS}(?={_NAMED})"
    # A sentence after a period without a space is not a domain.
    rf"(?:[\w-]{{1,63}}{_DOT_IN_WORDS}(?-i:(?<!\.)|(?![A-Z][a-z]))){{1,8}}{_TOP}(?!\w)",
    re.I,
)
"""Addresses with "arroba" and "ponto" as words: nome arroba sapo ponto pt."""
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?:[ .-]?[A-Z0-9]){11,30}(?!\w)")
_GROUPED = r"\d(?:[ .-]?\d){8}"
_NIF_WORDS = r"(?:\bN\.?I\.?F\b|\bN\.?I\.?P\.?C\b|\bcontribuinte|identificação\s+fiscal|\bVAT\b|pessoa\s+colec?tiva)"
_NAMED_NIF = re.compile(rf"{_NIF_WORDS}[^\d\n]{{0,20}}?(?P<number>(?:PT ?)?{_GROUPED})(?!\d)", re.I)
_BARE_NIF = re.compile(r"(?<![\w.,/+-])(?P<number>(?:PT ?)?(?:[1235689]\d|45|7[0124-9])\d{7})(?![\w/]|[.,-]\d)")
_PHONE_WORD = re.compile(r"\b(?:tel|telef|telefone|telefax|fax|tlm|tlf|telem[oó]ve(?:l|is)|contac?tos?|ligue)\b", re.I)
_MONEY_BEFORE = re.compile(r"(?:[€$£]|\bEUR|\bUSD)\s?$")
_MONEY_AFTER = re.compile(
    r"\s?(?:[€$£%]|(?:EUR|USD|euros?|escudos|contos|reais|d[oó]lares|libras|habitantes|pessoas|milh[oõ]es|k[gm])\b)",
    re.I,
)
_REFERENCE_BEFORE = re.compile(
    r"(?:\bn\.?\s?[ºo°]\.?|\bref(?:er[eê]ncia|\.)?|\bprocesso|\blei|\bISBN|\bISSN|\bid)[ :]*$", re.I
)
_GOES_ON = re.compile(r",\d|/(?:19|20)\d\d(?!\d)")
_LINK = re.compile(r"(?:://|\bwww\.)\S*$")

_SPACES = dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
"""Non-breaking, thin and other spaces (Unicode Zs), which occur in numbers."""

Span = tuple[int, int]


def run_personal(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step; the column `num_masked` counts the replaced parts.

    Raises:
        ConfigError: The region is unknown.
        MissingDependency: phonenumbers or python-stdnum is not installed.
    """
    options = corpus.clean.personal
    regions = require("phonenumbers", extra="corpus").SUPPORTED_REGIONS
    require("stdnum", extra="corpus")
    if options.region not in regions:
        allowed = "allowed: ISO 3166 codes of two letters"
        raise unknown_value("clean.personal.region", options.region, regions, allowed)
    versions = {name: version(name) for name in ("phonenumbers", "python-stdnum")}
    settings = {**options.model_dump(), "format": FORMAT, **versions}
    return run_documents(folder, before, mask_documents, options, settings, run)


def mask_documents(options: Personal, path: Path) -> Iterator[Document]:
    """Yield the documents of a table with personal data in text and title masked."""
    for document in read_rows(path):
        text, num_masked = mask(document["text"], options)
        if document["title"]:
            title, more = mask(document["title"], options)
            document, num_masked = {**document, "title": title}, num_masked + more
        yield with_text(document, text, num_masked=num_masked)


def mask(text: str, options: Personal) -> tuple[str, int]:
    """Return a text with personal data replaced by tokens, and the number of tokens."""
    masked: list[tuple[Span, str]] = []
    spaced = text.translate(_SPACES)
    for kind, find in _FINDERS:
        if kind in options.kinds:
            for start, end in find(spaced, options):
                at = bisect_left(masked, ((start, end), ""))  # spans are sorted and do not overlap
                if (at == 0 or masked[at - 1][0][1] <= start) and (at == len(masked) or end <= masked[at][0][0]):
                    masked.insert(at, ((start, end), TOKENS[kind]))
    pieces, position = [], 0
    for (start, end), token in masked:
        pieces += [text[position:start], token]
        position = end
    return "".join([*pieces, text[position:]]), len(masked)


def _emails(text: str, _: Personal) -> Iterator[Span]:
    if _SIGN.search(text) is None:
        return
    # The second pattern takes ten times as long.
    patterns = [_EMAIL, _EMAIL_IN_WORDS] if _IN_WORDS.search(text) else [_EMAIL]
    spans = sorted(match.span() for pattern in patterns for match in pattern.finditer(text))
    begin = end = 0
    for first, last in spans:
        if first >= end and end:
            yield begin, end
        begin, end = (first, last) if first >= end else (begin, max(end, last))
    if end:
        yield begin, end


def _ibans(text: str, _: Personal) -> Iterator[Span]:
    at = 0
    while (match := _IBAN.search(text, at)) is not None:
        end = _end_of_iban(text, *match.span())
        # A match that is not an IBAN may contain one: "CP10 PT50 0002 ..."
        at = match.start() + _HEAD if end is None else end
        if end is not None:
            yield match.start(), end


def _end_of_iban(text: str, start: int, stop: int) -> int | None:
    """Return the end of the longest IBAN that starts at `start`, since capital words may follow it; None if none does.

    Candidates have the remainder 1: letters are 10 to 35, and the first four characters go to the end (ISO 13616,
    ISO/IEC 7064 MOD 97-10).
    """
    is_valid: Callable[[str], bool] = require("stdnum.iban", extra="corpus").is_valid
    head = int("".join(str(int(character, 36)) for character in text[start : start + _HEAD]))
    ends, rest = list[int](), 0
    for at in range(start + _HEAD, stop):
        if text[at] in " .-":
            continue
        value = int(text[at], 36)
        rest = (rest * (10 if value < 10 else 100) + value) % 97
        if at + 1 - start >= MIN_IBAN and (rest * 10**6 + head) % 97 == 1:
            ends.append(at + 1)
    return next((end for end in reversed(ends) if is_valid(text[start:end])), None)


def _phones(text: str, options: Personal) -> Iterator[Span]:
    module = require("phonenumbers", extra="corpus")
    for match in module.PhoneNumberMatcher(text, options.region, max_tries=NO_MAX):
        before, after = _around(text, match.start, match.end)
        if _GOES_ON.match(after) or _is_amount(before, after) or _LINK.search(before):
            continue
        is_named = _PHONE_WORD.search(before) is not None
        # A number with points may be a large number or a version.
        if is_named or not ("." in match.raw_string or _REFERENCE_BEFORE.search(before)):
            yield match.start, match.end


def _nifs(text: str, _: Personal, pattern: re.Pattern[str]) -> Iterator[Span]:
    is_valid: Callable[[str], bool] = require("stdnum.pt.nif", extra="corpus").is_valid
    for match in pattern.finditer(text):
        start, end = match.span("number")
        before, after = _around(text, start, end)
        is_other = pattern is _BARE_NIF and (
            _is_amount(before, after) or _REFERENCE_BEFORE.search(before) or _LINK.search(before)
        )
        if not is_other and is_valid(match["number"]):
            yield start, end


def _around(text: str, start: int, end: int) -> tuple[str, str]:
    return text[max(0, start - BEFORE) : start], text[end : end + AFTER]


def _is_amount(before: str, after: str) -> bool:
    return bool(_MONEY_BEFORE.search(before) or _MONEY_AFTER.match(after))


_FINDERS: list[tuple[str, Callable[[str, Personal], Iterator[Span]]]] = [
    ("iban", _ibans),
    ("email", _emails),
    ("nif", partial(_nifs, pattern=_NAMED_NIF)),
    ("phone", _phones),
    ("nif", partial(_nifs, pattern=_BARE_NIF)),
]
"""By priority: nine digits are a telephone number unless the text calls them a NIF."""
