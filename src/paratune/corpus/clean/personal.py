"""The step `personal`: replaces e-mail addresses, telephone numbers, NIFs and IBANs in documents by tokens.

libphonenumber recognises telephone numbers; check digits (python-stdnum) recognise NIFs and IBANs. Similar amounts of
money, numbers of laws and parts of web addresses are not changed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from paratune.corpus.clean.step import Document, run_documents, unknown_value, with_text
from paratune.corpus.settings import Personal
from paratune.corpus.shard import read_rows
from paratune.errors import require

FORMAT = 6  # version of the rows; increased when the same input gives other rows
TOKENS = {"email": "<EMAIL>", "phone": "<PHONE>", "nif": "<NIF>", "iban": "<IBAN>"}
"""Token of each kind of data."""
BEFORE, AFTER = 40, 12
"""Characters around a number that are read."""
NO_MAX = 2**31
"""Invalid candidates in a text after which libphonenumber stops: practically never."""

_AT = r"(?:@|[ \t]{0,2}[\[(](?:at|arroba)[\])][ \t]{0,2})"
_DOT = r"(?:\.|[ \t]{0,2}[\[(](?:dot|ponto)[\])][ \t]{0,2})"
_EMAIL = re.compile(rf"(?<![\w.%+-])\w[\w.%+-]{{0,63}}{_AT}(?:[\w-]{{1,63}}{_DOT}){{1,8}}[a-z]{{2,24}}(?!\w)", re.I)
"""nome@sapo.pt, also with signs in brackets: nome [at] sapo (ponto) pt."""
_SIGN = re.compile(r"@|[\[(](?:at|arroba)[\])]", re.I)
_IBAN = re.compile(r"(?<!\w)(?=([A-Z]{2}\d{2}(?:[ .-]?[A-Z0-9]){11,30}))")
"""Start of an IBAN, whole or in groups; its end is found by the check digits, since capital words may follow it."""
_GROUPED = r"\d(?:[ .-]?\d){8}"
_NIF_WORDS = r"(?:\bN\.?I\.?F\b|\bN\.?I\.?P\.?C\b|\bcontribuinte|identificação\s+fiscal|\bVAT\b|pessoa\s+colec?tiva)"
_NAMED_NIF = re.compile(rf"{_NIF_WORDS}[^\d\n]{{0,20}}?(?P<number>(?:PT ?)?{_GROUPED})(?!\d)", re.I)
"""Nine digits, in any groups, after a word for a tax number."""
_BARE_NIF = re.compile(r"(?<![\w.,/+-])(?P<number>(?:PT ?)?(?:[1235689]\d|45|7[0124-9])\d{7})(?![\w/]|[.,-]\d)")
"""Nine digits in a row, with a first digit of a NIF."""
_PHONE_WORD = re.compile(r"\b(?:tel|telef|telefone|telefax|fax|tlm|tlf|telem[oó]ve(?:l|is)|contac?tos?|ligue)\b", re.I)
_OTHER_BEFORE = re.compile(
    r"(?:[€$£]|\bEUR|\bUSD)\s?$"  # an amount
    r"|(?:\bn\.?\s?[ºo°]\.?|\bref(?:er[eê]ncia|\.)?|\bprocesso|\blei|\bISBN|\bISSN|\bid)[ :]*$",  # a reference
    re.I,
)
"""Before a number that is neither a telephone number nor a NIF."""
_LINK = re.compile(r"(?:://|\bwww\.)\S*$")
_OTHER_AFTER = re.compile(
    r"\s?(?:[€$£%]|(?:EUR|USD|euros?|escudos|contos|reais|d[oó]lares|libras|habitantes|pessoas|milh[oõ]es|k[gm])\b)"
    r"|,\d|/(?:19|20)\d\d(?!\d)",
    re.I,
)
"""After such a number: a unit, decimals, or the year of a law."""

_SPACES = dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
"""Non-breaking, thin and other spaces (Unicode Zs), which occur in numbers."""

Span = tuple[int, int]


def check_region(options: Personal) -> None:
    """Check that the region is known.

    Raises:
        ConfigError: It is not.
        MissingDependency: phonenumbers or python-stdnum is not installed.
    """
    regions = require("phonenumbers", extra="corpus").SUPPORTED_REGIONS
    require("stdnum", extra="corpus")
    if options.region not in regions:
        allowed = "allowed: ISO 3166 codes of two letters"
        raise unknown_value("clean.personal.region", options.region, regions, allowed)


def mask_documents(options: Personal, path: Path) -> Iterator[Document]:
    """Yield the documents of a table with personal data in text and title masked."""
    for document in read_rows(path):
        text, num_masked = mask(document["text"], options)
        if document["title"]:
            title, more = mask(document["title"], options)
            document, num_masked = {**document, "title": title}, num_masked + more
        yield with_text(document, text, num_masked=num_masked)


run_personal = partial(run_documents, mask_documents, FORMAT, ("phonenumbers", "python-stdnum"))
"""Runs the step; the column `num_masked` counts the replaced parts."""


def mask(text: str, options: Personal) -> tuple[str, int]:
    """Return a text with personal data replaced by tokens, and the number of tokens."""
    num_masked = 0
    for kind, find in _FINDERS:
        if kind in options.kinds:
            pieces, position = [], 0
            for start, end in find(text.translate(_SPACES), options):
                pieces += [text[position:start], TOKENS[kind]]
                position = end
                num_masked += 1
            text = "".join([*pieces, text[position:]])
    return text, num_masked


def _ibans(text: str, _: Personal) -> Iterator[Span]:
    is_valid: Callable[[str], bool] = require("stdnum.iban", extra="corpus").is_valid
    end = 0
    for match in _IBAN.finditer(text):
        start, stop = match.span(1)
        ends = (at for at in range(stop, start, -1) if not text[at : at + 1].isalnum())
        if start >= end:
            end = next((at for at in ends if is_valid(text[start:at])), end)
            if end > start:
                yield start, end


def _phones(text: str, options: Personal) -> Iterator[Span]:
    module = require("phonenumbers", extra="corpus")
    for match in module.PhoneNumberMatcher(text, options.region, max_tries=NO_MAX):
        before, after = text[max(0, match.start - BEFORE) : match.start], text[match.end : match.end + AFTER]
        # Without a word before it, a number with points may be a large number or a version.
        is_other = "." in match.raw_string or _OTHER_BEFORE.search(before)
        if _OTHER_AFTER.match(after) or _LINK.search(before):
            continue
        if _PHONE_WORD.search(before) or not is_other:
            yield match.start, match.end


def _nifs(text: str, _: Personal, pattern: re.Pattern[str]) -> Iterator[Span]:
    is_valid: Callable[[str], bool] = require("stdnum.pt.nif", extra="corpus").is_valid
    for match in pattern.finditer(text):
        start, end = match.span("number")
        before, after = text[max(0, start - BEFORE) : start], text[end : end + AFTER]
        is_other = pattern is _BARE_NIF and (
            _OTHER_BEFORE.search(before) or _OTHER_AFTER.match(after) or _LINK.search(before)
        )
        if not is_other and is_valid(match["number"]):
            yield start, end


_FINDERS: list[tuple[str, Callable[[str, Personal], Iterable[Span]]]] = [
    ("iban", _ibans),
    ("email", lambda text, _: (match.span() for match in _EMAIL.finditer(text)) if _SIGN.search(text) else ()),
    ("nif", partial(_nifs, pattern=_NAMED_NIF)),
    ("phone", _phones),
    ("nif", partial(_nifs, pattern=_BARE_NIF)),
]
"""By priority: nine digits are a telephone number unless the text calls them a NIF."""
