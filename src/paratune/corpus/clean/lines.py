"""Lines that are no text of a document: those that many pages of a host have, notices of cookies, and menus.

While the step runs, and deleted after it:

    runs/     of each shard of documents a record of each line: its host, the line, and the page; sorted
    common/   of each span of the keys the lines that enough pages have

cut-00000.parquet   the lines that were cut: id of the document, position, reason, and the line
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.console import Display
from paratune.corpus.clean.settings import Lines
from paratune.corpus.clean.step import Document, lost, read_documents, with_text
from paratune.corpus.rows import DOCUMENT_SCHEMA, Lost
from paratune.corpus.runs import NAMES_SCHEMA, RunWriter, counts, hash_64, merge, named_runs, spans
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import ShardWriter
from paratune.corpus.stage import Stage, begin, is_finished, output_of, parts, run_stage

FORMAT = 1
"""Of the rows: raised when the same input gives others than before."""
RUNS_FOLDER, COMMON_FOLDER = "runs", "common"
CUT_SCHEMA = pa.schema([("id", pa.string()), ("position", pa.int32()), ("reason", pa.string()), ("text", pa.string())])
MAX_NOTICE_WORDS = 60
"""Of a notice of cookies; longer lines speak of something."""
MENU_LINES, MENU_WORDS = 6, 3
"""So many lines of so few words one after the other are a menu."""
MENU_PARTS, MENU_PART_WORDS = 4, 4
"""So many parts of so few words in one line are a menu."""

_COOKIES = re.compile(r"\bcookies?\b", re.I)
_CONSENT = re.compile(
    r"aceit|consent|concord|experi[eê]ncia|pol[ií]tica|\b(?:n?este|deste|nosso) (?:(?:web)?site|s[ií]tio|portal)\b"
    r"|accept|agree|polic(?:y|ies)|\bwe use\b|\b(?:our|this) (?:web)?site\b",
    re.I,
)
_SEPARATOR = re.compile(r"\s*[|·•»›>]\s*")
_ENDS_SENTENCE = re.compile(r"[.!?:;,…][\"'»”’)]*$")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class _Documents:
    """A table of documents, its number, and the folder that what is made of it belongs in."""

    path: Path
    number: int
    folder: Path
    options: Lines
    runs: tuple[Path, ...] = ()
    """Of these documents."""
    common: tuple[tuple[int, tuple[Path, ...]], ...] = ()
    """Common lines: the first key of each span, and its runs."""


@dataclass(frozen=True)
class _Span:
    runs: tuple[Path, ...]
    span: tuple[int, int]
    number: int
    folder: Path
    min_pages: int


def run_lines(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Run the step: documents without lines that are no text.

    Returns:
        Its totals; `lines` counts what was cut, by reason.

    Raises:
        CheckpointError: The stage before is not finished, or the folder cannot be written.
    """
    options = corpus.clean.lines
    settings = {**options.model_dump(), "format": FORMAT}
    stage = Stage("lines", folder, DOCUMENT_SCHEMA, cut_lines, settings, output_of(before))
    inputs = [_Documents(path, number, folder, options) for number, path in enumerate(parts(before))]
    if not is_finished(stage):
        begin(stage)
        if options.min_pages is not None:
            inputs = _with_common(stage, inputs, options.min_pages, workers, display)
    totals = run_stage(stage, inputs, workers=workers, display=display, more=lambda: {"lines": _num_cut(stage, inputs)})
    for name in (RUNS_FOLDER, COMMON_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return totals


def _with_common(
    stage: Stage, inputs: Sequence[_Documents], min_pages: int, workers: int, display: Display
) -> list[_Documents]:
    """Find the lines that enough pages have, and return the inputs with where these are."""
    folders = stage.folder / RUNS_FOLDER, stage.folder / COMMON_FOLDER
    counted = Stage("lines: count", folders[0], NAMES_SCHEMA, count_lines, stage.settings, stage.source)
    first = [_Documents(each.path, each.number, folders[0], each.options) for each in inputs]
    run_stage(counted, first, workers=workers, display=display)
    own = named_runs(folders[0])
    runs = tuple(path for each in own for path in each)
    cut = [_Span(runs, span, number, folders[1], min_pages) for number, span in enumerate(spans(runs))]
    common = Stage("lines: compare", folders[1], NAMES_SCHEMA, find_common, stage.settings, stage.source)
    run_stage(common, cut, workers=workers, display=display)
    found = tuple((each.span[0], tuple(paths)) for each, paths in zip(cut, named_runs(folders[1]), strict=True))
    return [
        _Documents(each.path, each.number, each.folder, each.options, tuple(paths), found)
        for each, paths in zip(inputs, own, strict=True)
    ]


def count_lines(each: _Documents) -> Iterator[dict[str, str]]:
    """Write records of the lines of some documents, and yield the names of their runs."""
    with RunWriter(each.folder, each.number) as writer:
        for document in read_documents(each.path):
            host, page = host_and_page(document["url"])
            lines = [line_key(line) for line in document["text"].split("\n") if line.strip()]
            writer.add(host, np.array(lines, np.uint64), page)
    yield from ({"name": name} for name in writer.names)


def find_common(each: _Span) -> Iterator[dict[str, str]]:
    """Write the lines of a span that enough pages have, and yield the names of their runs."""
    with RunWriter(each.folder, each.number) as writer:
        for keys in counts(merge(each.runs, each.span)):
            found = keys[keys["value"] >= each.min_pages]
            writer.add(found["high"], found["low"], found["value"])
    yield from ({"name": name} for name in writer.names)


def cut_lines(each: _Documents) -> Iterator[Document | Lost]:
    """Yield documents without the lines that are cut, which are written beside them, or why nothing is left."""
    common = _common_of(each)
    path = each.folder / cut_file(each.number)
    with replace_file(path) as temporary, ShardWriter(temporary, CUT_SCHEMA) as cut:
        for document in read_documents(each.path):
            lines = document["text"].split("\n")
            reasons = _reasons(lines, host_and_page(document["url"])[0], common, each.options)
            for position, reason in sorted(reasons.items()):
                cut.add({"id": document["id"], "position": position, "reason": reason, "text": lines[position]})
            left = "\n".join(line for position, line in enumerate(lines) if position not in reasons)
            num_words = len(left.split())
            if not reasons:
                yield document
            elif num_words < each.options.min_words:
                yield lost(document, "too little left", f"{num_words} of {len(document['text'].split())} words")
            else:
                yield with_text(document, left)


def cut_file(number: int) -> str:
    return f"cut-{number:05d}.parquet"


def host_and_page(url: str) -> tuple[int, int]:
    """Return 64 bits each of the host of a URL, without www, and of the page: host, path and query."""
    try:
        found = urlsplit(url)
        host, rest = found.hostname or "", f"{found.path}?{found.query}"
    except ValueError:
        host, rest = "", url
    host = host.removeprefix("www.")
    return hash_64(host.encode()), hash_64(f"{host}{rest.rstrip('?').rstrip('/')}".encode())


def line_key(line: str) -> int:
    """Return 64 bits of a line, whatever its case, white space and numbers."""
    return hash_64(_DIGITS.sub("0", " ".join(line.split()).casefold()).encode())


def _common_of(each: _Documents) -> frozenset[int]:
    """Return which lines of these documents are common: host and line, in 128 bits."""
    starts = np.array([start for start, _ in each.common], np.uint64)
    found: set[int] = set()
    for block in merge(each.runs) if each.common else ():
        hosts, firsts, sizes = np.unique(block["high"], return_index=True, return_counts=True)
        for host, first, size in zip(hosts.tolist(), firsts.tolist(), sizes.tolist(), strict=True):
            lows = block["low"][first : first + size]
            _, runs = each.common[int(np.searchsorted(starts, np.uint64(host), "right")) - 1]
            for common in merge(runs, (host, host + 1)):
                shared = np.intersect1d(common["low"], lows)
                found.update((host << 64) | low for low in shared.tolist())
    return frozenset(found)


def _reasons(lines: Sequence[str], host: int, common: frozenset[int], options: Lines) -> dict[int, str]:
    """Return why lines are cut, by their positions."""
    found: dict[int, str] = {}
    if options.menus:
        found.update(dict.fromkeys(menu_lines(lines), "menu"))
    for position, line in enumerate(lines):
        if common and line.strip() and (host << 64) | line_key(line) in common:
            found[position] = "boilerplate"
        elif options.cookies and is_cookie_notice(line):
            found[position] = "cookies"
    return found


def is_cookie_notice(line: str) -> bool:
    """Return whether a line tells of cookies and asks to accept them, in Portuguese or English."""
    if not _COOKIES.search(line) or len(line.split()) > MAX_NOTICE_WORDS:
        return False
    return _CONSENT.search(line) is not None


def menu_lines(lines: Sequence[str]) -> list[int]:
    """Return the positions of lines that are menus: several short parts in one, or several short lines together."""
    found, short = [], list[int]()
    for position, line in enumerate([*lines, "."]):  # a line that ends what goes on to the end
        if line.strip() and len(line.split()) <= MENU_WORDS and not _ENDS_SENTENCE.search(line.strip()):
            if not _DIGITS.search(line):
                short.append(position)
                continue
        elif not line.strip():
            continue
        if len(short) >= MENU_LINES:
            found += short
        short = []
        words = [len(part.split()) for part in _SEPARATOR.split(line.strip())]
        if len(words) >= MENU_PARTS and max(words) <= MENU_PART_WORDS and not _ENDS_SENTENCE.search(line.strip()):
            found.append(position)
    return found


def _num_cut(stage: Stage, inputs: Sequence[_Documents]) -> dict[str, int]:
    reasons = Counter[str]()
    for each in inputs:
        with pq.ParquetFile(stage.folder / cut_file(each.number)) as table:
            for batch in table.iter_batches(columns=["reason"]):
                reasons.update(batch.column(0).to_pylist())
    return dict(sorted(reasons.items()))
