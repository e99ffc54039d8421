"""The step `lines`: removes lines that many pages of a host have, cookie notices, and menus.

Intermediate results, which are deleted at the end:

    runs/     for each shard sorted records of its lines: host, line, page
    common/   for each range of keys the lines that enough pages have

cut-00000.parquet   removed lines: id of the document, position, reason, line
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from paratune.base.atomic import replace_file
from paratune.corpus.clean.settings import Lines
from paratune.corpus.clean.step import Document, drop, with_text
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import ShardWriter, read_rows
from paratune.corpus.sorted_runs import NAMES_SCHEMA, RunWriter, counts, hash_64, merge, run_names, shard_runs, spans
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, stage_output, stage_tables

FORMAT = 1  # version of the rows; increased when the same input gives other rows
RUNS_FOLDER, COMMON_FOLDER = "runs", "common"
CUT_SCHEMA = pa.schema([("id", pa.string()), ("position", pa.int32()), ("reason", pa.string()), ("text", pa.string())])
MAX_NOTICE_WORDS = 60
"""Maximum number of words of a cookie notice; longer lines are text."""
MENU_LINES, MENU_WORDS = 6, 3
"""At least 6 successive lines of at most 3 words are a menu."""
MENU_PARTS, MENU_PART_WORDS = 4, 4
"""At least 4 parts of at most 4 words in one line are a menu."""

CommonRuns = tuple[tuple[int, tuple[Path, ...]], ...]
"""Runs of common lines: the first key of each range, and its runs."""

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

    Returns:
        Totals; `lines` counts the removed lines by reason.

    Raises:
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.lines
    settings = {**options.model_dump(), "format": FORMAT}
    work = partial(cut_lines, options, folder)
    stage = Stage("lines", folder, DOCUMENT_SCHEMA, work, settings, stage_output(before))
    inputs: list[tuple[Any, ...]] = [(path, number) for number, path in enumerate(stage_tables(before))]
    if not is_finished(stage):
        begin(stage)
        if options.min_pages is not None:
            inputs = _with_common_lines(stage, inputs, options.min_pages, run)
    totals = run(stage, inputs, more=lambda: {"lines": _count_removed(folder, len(inputs))})
    for name in (RUNS_FOLDER, COMMON_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return totals


def _with_common_lines(
    stage: Stage, inputs: Sequence[tuple[Any, ...]], min_pages: int, run: RunStage
) -> list[tuple[Any, ...]]:
    """Find the lines that enough pages have, and return the inputs of `cut_lines` with the runs of these lines."""
    run_folder, common_folder = stage.folder / RUNS_FOLDER, stage.folder / COMMON_FOLDER
    work = partial(count_lines, run_folder)
    counted = Stage("lines: count", run_folder, NAMES_SCHEMA, work, stage.settings, stage.source)
    run(counted, inputs)
    own = shard_runs(run_folder)
    runs = tuple(chain.from_iterable(own))
    ranges = spans(runs)
    work = partial(find_common_lines, runs, min_pages, common_folder)
    compared = Stage("lines: compare", common_folder, NAMES_SCHEMA, work, stage.settings, stage.source)
    run(compared, [(span, number) for number, span in enumerate(ranges)])
    common = tuple((start, tuple(paths)) for (start, _), paths in zip(ranges, shard_runs(common_folder), strict=True))
    return [(*arguments, tuple(paths), common) for arguments, paths in zip(inputs, own, strict=True)]


def count_lines(folder: Path, path: Path, number: int) -> Iterator[dict[str, str]]:
    """Write records of the lines in a table of documents, and yield the names of their runs."""
    with RunWriter(folder, number) as writer:
        for document in read_rows(path):
            host, page = host_and_page(document["url"])
            lines = [line_key(line) for line in document["text"].split("\n") if line.strip()]
            writer.add(host, np.array(lines, np.uint64), page)
    yield from run_names(writer)


def find_common_lines(
    runs: tuple[Path, ...], min_pages: int, folder: Path, span: tuple[int, int], number: int
) -> Iterator[dict[str, str]]:
    """Write the lines in a range of keys that enough pages have, and yield the names of their runs."""
    with RunWriter(folder, number) as writer:
        for keys in counts(merge(runs, span)):
            common = keys[keys["value"] >= min_pages]
            writer.add(common["high"], common["low"], common["value"])
    yield from run_names(writer)


def cut_lines(
    options: Lines, folder: Path, path: Path, number: int, runs: tuple[Path, ...] = (), common_runs: CommonRuns = ()
) -> Iterator[Document | DroppedRow]:
    """Yield documents without removed lines, which are written to cut-*.parquet, and drop those with too few words."""
    common = _common_lines(runs, common_runs)
    with replace_file(folder / cut_file(number)) as temporary, ShardWriter(temporary, CUT_SCHEMA) as cut:
        for document in read_rows(path):
            lines = document["text"].split("\n")
            reasons = _reasons(lines, host_and_page(document["url"])[0], common, options)
            for position, reason in sorted(reasons.items()):
                cut.add({"id": document["id"], "position": position, "reason": reason, "text": lines[position]})
            left = "\n".join(line for position, line in enumerate(lines) if position not in reasons)
            num_words = len(left.split())
            if not reasons:
                yield document
            elif num_words < options.min_words:
                yield drop(document, "too little left", f"{num_words} of {len(document['text'].split())} words")
            else:
                yield with_text(document, left)


def cut_file(number: int) -> str:
    return f"cut-{number:05d}.parquet"


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


def _common_lines(line_runs: Sequence[Path], common_runs: CommonRuns) -> frozenset[int]:
    """Return the common lines of some documents: host and line, 128 bits."""
    starts = np.array([start for start, _ in common_runs], np.uint64)
    common_lines: set[int] = set()
    for block in merge(line_runs) if common_runs else ():
        hosts, firsts, sizes = np.unique(block["high"], return_index=True, return_counts=True)
        for host, first, size in zip(hosts.tolist(), firsts.tolist(), sizes.tolist(), strict=True):
            lows = block["low"][first : first + size]
            _, runs = common_runs[int(np.searchsorted(starts, np.uint64(host), "right")) - 1]
            for common in merge(runs, (host, host + 1)):
                shared = np.intersect1d(common["low"], lows)
                common_lines.update((host << 64) | low for low in shared.tolist())
    return frozenset(common_lines)


def _reasons(lines: Sequence[str], host: int, common: frozenset[int], options: Lines) -> dict[int, str]:
    """Return the reasons for removing lines, by position."""
    reasons: dict[int, str] = {}
    if options.menus:
        reasons.update(dict.fromkeys(menu_lines(lines), "menu"))
    for position, line in enumerate(lines):
        if common and line.strip() and (host << 64) | line_key(line) in common:
            reasons[position] = "boilerplate"
        elif options.cookies and is_cookie_notice(line):
            reasons[position] = "cookies"
    return reasons


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


def _count_removed(folder: Path, num_shards: int) -> dict[str, int]:
    paths = (folder / cut_file(number) for number in range(num_shards))
    return dict(sorted(Counter(row["reason"] for path in paths for row in read_rows(path, ["reason"])).items()))
