"""The steps `lines` and `quality`: remove lines and drop documents that are not running text.

`lines` removes lines that many pages of a host have, cookie notices, and menus. Intermediate results, which are deleted
at the end:

    hashes/   hashes of host, page and lines of each document
    common/   hashes of host and line of the lines that enough pages have

`quality` drops documents; the reason is the first failed rule.
"""

import re
import shutil
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unicodedata import category
from urllib.parse import urlsplit

import pyarrow as pa

from paratune.corpus.clean.step import Document, drop, hash_64, run_documents, with_text
from paratune.corpus.database import parquet, query
from paratune.corpus.settings import Corpus, Lines, Quality
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, part_file, read_rows
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, stage_output, stage_tables

LINES_FORMAT = QUALITY_FORMAT = 1  # versions of the rows; increased when the same input gives other rows
HASHES_FOLDER, COMMON_FOLDER = "hashes", "common"
HASHES_SCHEMA = pa.schema({"host": pa.uint64(), "page": pa.uint64(), "lines": pa.list_(pa.uint64())})
COMMON_SCHEMA = pa.schema({"host": pa.uint64(), "line": pa.uint64()})
MAX_NOTICE_WORDS = 60
"""Maximum number of words of a cookie notice; longer lines are text."""
MENU_LINES, MENU_WORDS = 6, 3
"""At least 6 successive lines of at most 3 words are a menu."""
MENU_PARTS, MENU_PART_WORDS = 4, 4
"""At least 4 parts of at most 4 words in one line are a menu."""

_COOKIES = re.compile(r"\bcookies?\b", re.I)
_CONSENT = re.compile(
    r"aceit|consent|concord|experi[eê]ncia|pol[ií]tica|\b(?:n?este|deste|nosso) (?:(?:web)?site|s[ií]tio|portal)\b"
    r"|accept|agree|polic(?:y|ies)|\bwe use\b|\b(?:our|this) (?:web)?site\b",
    re.I,
)
_SEPARATOR = re.compile(r"\s*[|·•»›>]\s*")
_ENDS_SENTENCE = re.compile(r"[.!?:;,…][\"'»”’)]*$")
_DIGITS = re.compile(r"\d+")


def run_lines(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Raises:
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.lines
    settings = {**options.model_dump(), "format": LINES_FORMAT}
    work = partial(cut_lines, options, folder)
    stage = Stage("lines", folder, DOCUMENT_SCHEMA, work, settings, stage_output(before))
    tables = stage_tables(before)
    if not is_finished(stage):
        begin(stage)
        if options.min_pages is not None:
            hashes, common = folder / HASHES_FOLDER, folder / COMMON_FOLDER
            run(Stage("lines: hash", hashes, HASHES_SCHEMA, hash_lines, settings, stage.source), [(t,) for t in tables])
            find = partial(find_common_lines, common, options.min_pages)
            compared = Stage("lines: compare", common, COMMON_SCHEMA, find, settings, stage.source)
            run(compared, [(stage_tables(hashes),)])
    totals = run(stage, [(path, number) for number, path in enumerate(tables)])
    for name in (HASHES_FOLDER, COMMON_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return totals


def hash_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of HASHES_SCHEMA for a table of documents."""
    for document in read_rows(path):
        host, page = host_and_page(document["url"])
        lines = {line_key(line) for line in document["text"].split("\n") if line.strip()}
        yield {"host": host, "page": page, "lines": list(lines)}


def find_common_lines(folder: Path, min_pages: int, tables: Sequence[Path]) -> Iterator[dict[str, int]]:
    """Yield the rows of COMMON_SCHEMA: the lines that enough pages of a host have."""
    if not tables:
        return
    lines = f"SELECT DISTINCT host, page, unnest(lines) AS line FROM {parquet(tables)}"
    sql = f"SELECT host, line FROM ({lines}) GROUP BY ALL HAVING count(*) >= ? ORDER BY ALL"
    for host, line in query(folder, sql, [min_pages]):
        yield {"host": host, "line": line}


def cut_lines(options: Lines, folder: Path, path: Path, number: int) -> Iterator[Document | DroppedRow]:
    """Yield documents without removed lines, and drop those with too few words left."""
    common: frozenset[tuple[Any, ...]] = frozenset()  # hashes of host and line, of the lines in this table
    if options.min_pages is not None:
        found, own = folder / COMMON_FOLDER / part_file(0), folder / HASHES_FOLDER / part_file(number)
        lines_here = f"SELECT host, unnest(lines) AS line FROM {parquet([own])}"
        sql = f"SELECT host, line FROM {parquet([found])} SEMI JOIN ({lines_here}) USING (host, line)"
        common = frozenset(query(folder, sql))
    for document in read_rows(path):
        lines = document["text"].split("\n")
        host, _ = host_and_page(document["url"])
        removed = set(menu_lines(lines)) if options.menus else set()
        for position, line in enumerate(lines):
            is_common = bool(common) and line.strip() and (host, line_key(line)) in common
            if is_common or (options.cookies and is_cookie_notice(line)):
                removed.add(position)
        left = "\n".join(line for position, line in enumerate(lines) if position not in removed)
        num_words = len(left.split())
        if not removed:
            yield document
        elif num_words < options.min_words:
            yield drop(document, "too little left", f"{num_words} of {len(document['text'].split())} words")
        else:
            yield with_text(document, left)


def host_and_page(url: str) -> tuple[int, int]:
    """Return 64-bit hashes of the host of a URL, without www, and of the page: host, path and query."""
    try:
        parts = urlsplit(url)
        host, rest = parts.hostname or "", f"{parts.path}?{parts.query}"
    except ValueError:
        host, rest = "", url
    host = host.removeprefix("www.")
    return hash_64(host.encode()), hash_64(f"{host}{rest.rstrip('?').rstrip('/')}".encode())


def line_key(line: str) -> int:
    """Return a 64-bit hash of a line that ignores case, white space and numbers."""
    return hash_64(_DIGITS.sub("0", " ".join(line.split()).casefold()).encode())


def is_cookie_notice(line: str) -> bool:
    """Return whether a line is about cookies and asks for consent, in Portuguese or English."""
    return bool(_COOKIES.search(line) and len(line.split()) <= MAX_NOTICE_WORDS and _CONSENT.search(line))


def menu_lines(lines: Sequence[str]) -> list[int]:
    """Return the positions of menus: lines of several short parts, and successive short lines."""
    menu, short = [], list[int]()
    for position, line in enumerate([*lines, "."]):  # ends a menu at the end of the text
        if line.strip() and len(line.split()) <= MENU_WORDS and not _ENDS_SENTENCE.search(line.strip()):
            if not _DIGITS.search(line):
                short.append(position)
                continue
        elif not line.strip():
            continue
        if len(short) >= MENU_LINES:
            menu += short
        short = []
        words = [len(part.split()) for part in _SEPARATOR.split(line.strip())]
        if len(words) >= MENU_PARTS and max(words) <= MENU_PART_WORDS and not _ENDS_SENTENCE.search(line.strip()):
            menu.append(position)
    return menu


SHORT_LINE = 30
"""Maximum number of characters of a short line."""
TOP_SIZES, REPEATED_SIZES = range(2, 5), range(5, 11)
"""Numbers of words of the n-grams of `Quality.max_top_ngrams` and `Quality.max_repeated_ngrams`."""
BULLETS = ("•", "-", "–", "*", "·")
ELLIPSES = ("...", "…")
ENDS = (".", "!", "?", ";", ":", "…", '"', "»", "”", "'", "’", ")")
"""Characters at the end of a line of running text."""
_STRIPPED = string.punctuation + "«»“”‘’…–—·•ºª"


class MeasuredText:
    """A text with its words and lines, which several measures use."""

    def __init__(self, text: str, options: Quality) -> None:
        self.text, self.options = text, options
        self.pieces = text.split()
        """Parts between white space."""
        self.words = [piece for piece in self.pieces if not all(category(sign)[0] in "PS" for sign in piece)]
        """Pieces that are not only punctuation."""
        self.lines = [line for line in text.split("\n") if line.strip()]
        """Lines that are not blank."""

    def share_of_lines(self, is_counted: Callable[[str], bool]) -> float:
        return sum(map(is_counted, self.lines)) / len(self.lines)

    @cached_property
    def stop_words(self) -> Counter[str]:
        """Number of occurrences of each stop word."""
        wanted = frozenset(self.options.stop_words)
        return Counter(word for piece in self.words if (word := piece.strip(_STRIPPED).lower()) in wanted)


QualityRule = tuple[str, float | None, float | None, Callable[[MeasuredText], float]]
"""Reason, smallest and largest value, and measure."""


def keep_running_text(options: Quality, path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that pass all rules, and drop the others with the first failed rule."""
    rules = quality_rules(options)
    for document in read_rows(path):
        problem = failed_rule(document["text"], options, rules)
        yield document if problem is None else drop(document, *problem)


run_quality = partial(run_documents, keep_running_text, QUALITY_FORMAT, ())
"""Runs the step."""


def failed_rule(text: str, options: Quality, rules: Sequence[QualityRule]) -> tuple[str, str] | None:
    """Return the first failed rule, with the value and its limit; None if a text passes."""
    page = MeasuredText(text, options)
    if not page.words:
        return "empty", "no word"
    lower = text.lower()
    for phrase in options.forbidden:
        if phrase.lower() in lower:
            return "forbidden text", phrase
    for reason, least, most, measure in rules:
        value = measure(page)
        if least is not None and value < least:
            return reason, f"{value:.4g}, at least {least:g}"
        if most is not None and value > most:
            return reason, f"{value:.4g}, at most {most:g}"
    return None


def top_ngram(page: MeasuredText, n: int) -> float:
    """Return the share of characters in the most frequent n-gram of pieces, 0 if no n-gram occurs twice."""
    counts = Counter(zip(*(page.pieces[k:] for k in range(n)), strict=False))
    ngram, count = counts.most_common(1)[0] if counts else ((), 0)
    # In a short text one n-gram is a large share without repetition.
    return 0.0 if count < 2 else (sum(map(len, ngram)) + n - 1) * count / len(page.text)


def repeated_ngrams(page: MeasuredText, n: int) -> float:
    """Return the share of characters in n-grams of pieces that repeat an earlier one, each character counted once."""
    seen: set[tuple[str, ...]] = set()
    pieces, position, num_characters = page.pieces, 0, 0
    while position <= len(pieces) - n:
        ngram = tuple(pieces[position : position + n])
        if ngram in seen:
            num_characters += sum(map(len, ngram))
            position += n
        else:
            seen.add(ngram)
            position += 1
    return num_characters / len(page.text)


MEASURES: dict[str, Callable[[MeasuredText], float]] = {
    "words": lambda page: len(page.words),
    "word_length": lambda page: sum(map(len, page.words)) / len(page.words),
    "bullet_lines": lambda page: page.share_of_lines(lambda line: line.lstrip().startswith(BULLETS)),
    "ellipsis_lines": lambda page: page.share_of_lines(lambda line: line.rstrip().endswith(ELLIPSES)),
    "alphabetic_words": lambda page: sum(any(map(str.isalpha, piece)) for piece in page.pieces) / len(page.pieces),
    "letters": lambda page: sum(map(str.isalpha, page.text)) / sum(map(len, page.pieces)),
    "stop_words": lambda page: len(page.stop_words),
    "stop_word_share": lambda page: page.stop_words.total() / len(page.words),
    "punctuated_lines": lambda page: page.share_of_lines(lambda line: line.rstrip().endswith(ENDS)),
    "short_lines": lambda page: page.share_of_lines(lambda line: len(line) <= SHORT_LINE),
    "lines_per_word": lambda page: page.text.count("\n") / len(page.pieces),
    "repeated_lines": lambda page: 1 - len(set(page.lines)) / len(page.lines),
    "repeated_line_characters": lambda page: (
        (sum(map(len, page.lines)) - sum(map(len, set(page.lines)))) / len(page.text)
    ),
}
"""Measure of each rule, whose limits are `min_NAME` and `max_NAME` of `Quality`; the fastest first."""


def quality_rules(options: Quality) -> list[QualityRule]:
    """Return the rules with a limit in these options, the fastest first; `Quality` describes their measures."""
    rules: list[QualityRule] = [
        (name.replace("_", " "), getattr(options, f"min_{name}", None), getattr(options, f"max_{name}", None), measure)
        for name, measure in MEASURES.items()
    ]
    rules[2:2] = [
        ("hash signs", None, options.max_symbols, lambda page: page.text.count("#") / len(page.pieces)),
        ("ellipses", None, options.max_symbols, lambda page: sum(map(page.text.count, ELLIPSES)) / len(page.pieces)),
    ]
    for n, most in zip(TOP_SIZES, options.max_top_ngrams, strict=True):
        rules.append((f"top {n}-gram", None, most, partial(top_ngram, n=n)))
    for n, most in zip(REPEATED_SIZES, options.max_repeated_ngrams, strict=True):
        rules.append((f"repeated {n}-grams", None, most, partial(repeated_ngrams, n=n)))
    return [rule for rule in rules if rule[1:3] != (None, None)]
