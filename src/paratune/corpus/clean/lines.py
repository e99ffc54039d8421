"""The step `lines`: removes lines that many pages of a host have, cookie notices, and menus.

Intermediate results, which are deleted at the end:

    hashes/   hashes of host, page and lines of each document
    common/   hashes of host and line of the lines that enough pages have
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from paratune.corpus.clean.step import Document, drop, hash_64, with_text
from paratune.corpus.database import parquet, query
from paratune.corpus.settings import Corpus, Lines
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, part_file, read_rows
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, stage_output, stage_tables

FORMAT = 1  # version of the rows; increased when the same input gives other rows
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
    settings = {**options.model_dump(), "format": FORMAT}
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
    if not _COOKIES.search(line) or len(line.split()) > MAX_NOTICE_WORDS:
        return False
    return _CONSENT.search(line) is not None


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
