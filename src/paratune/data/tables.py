"""Strict parsers of lines: CSV, TSV and plain text. Malformed input is an error with its line.

A parser takes the text of a file, its name for messages, and how it is read; it returns a table. Imports no torch.
"""

import ast
import codecs
import csv
import io
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product
from typing import Any, Literal

import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import AS_FOUND, FileReading
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

ENCODING = b"encoding"
"""Key in the metadata of a table with the encoding that was guessed for its file."""
FIRST_LINE = b"header"
"""Key in the metadata of a table whose names of columns are the first line of a file."""
SEPARATOR = b"separator"
"""Key in the metadata of a table with the text between its fields."""
SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 100_000
"""Characters at the beginning of a file, from which its layout and its format are found."""
_MARKS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
"""Byte order marks of other encodings than UTF-8; one of UTF-32 begins with one of UTF-16."""


def separator_of(table: pa.Table) -> str | None:
    """Return the text between the fields of the file of a table; None for other kinds of files."""
    separator = (table.schema.metadata or {}).get(SEPARATOR)
    return None if separator is None else str(separator.decode())


def line_error(source: str, line: int, problem: str, *, code: str) -> DataError:
    """Return the error of a line of a file, counted from 1."""
    return DataError(f"{source}, line {line}: {problem}", code=code, source=source, line=line)


def decode(raw: bytes, source: str, encoding: str | None = None) -> tuple[str, str | None]:
    """Return the text of a file without its byte order mark, and its encoding where that was guessed.

    Without `encoding` the text is UTF-8, what the mark tells, or cp1252 where that is likely.

    Raises:
        DataError: It has another encoding (the message has the first invalid byte and its line), or it is binary.
    """
    marked = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    codec = encoding or marked or "utf-8"
    is_utf8 = codecs.lookup(codec).name == "utf-8"
    if encoding is None and marked is not None:
        log.info("%s: read as %s, by its byte order mark", source, marked)
    try:
        text = raw.decode("utf-8-sig" if is_utf8 else codec)
    except UnicodeDecodeError as error:
        if encoding is None and b"\0" in raw:
            message = f"{source} is a binary file, and its suffix is that of a text file"
            raise DataError(message, code="data.encoding", source=source) from error
        # The codec utf-8-sig counts from after the byte order mark.
        byte = error.start + (3 if is_utf8 and raw.startswith(codecs.BOM_UTF8) else 0)
        begin = max(raw.rfind(b"\n", 0, byte) + 1, byte - 30)
        shown = raw[begin : byte + 30].partition(b"\n")[0].decode("cp1252", "replace")
        line = raw.count(b"\n", 0, byte) + 1
        # Characters of cp1252 mostly stand alone: other alphabets have runs, broken UTF-8 pairs, cp1250 signs in words.
        sign = rb"[a-z][\x80-\x84\x86-\x90\x9f\xa1-\xac\xae-\xb6\xb8-\xbf][a-z]"
        in_runs = sum(map(len, re.findall(rb"[\x80-\xff]{3,}|[\xc2-\xf4][\x80-\xbf]|" + sign, raw)))
        is_alone = 2 * in_runs < len(re.findall(rb"[\x80-\xff]", raw))
        if encoding is None and marked is None and is_alone and not re.search(rb"[\0\x81\x8d\x8f\x90\x9d]", raw):
            message = "%s: not UTF-8; read as cp1252: line %d is %r; if it is wrong, set data.encoding (cp1250: Polish)"
            log.warning(message, source, line, shown, extra=coded("data.encoding", source=source, line=line))
            return raw.decode("cp1252"), "cp1252"
        advice = "save it as UTF-8, or set data.encoding" + ("" if encoding else f": as cp1252 it is {shown!r}")
        problem = f"byte 0x{raw[byte]:02x} at offset {byte} is not {codec.upper()}; {advice}"
        raise line_error(source, line, problem, code="data.encoding") from error
    if "\0" in text:
        message = f"{source} is a binary file, and its suffix is that of a text file"
        raise DataError(message, code="data.encoding", source=source)
    return text, None


def parse_csv(text: str, source: str, reading: FileReading = AS_FOUND, usual: str = ",") -> pa.Table:
    """Parse values between separators (RFC 4180); every column is a string column. Blank lines are skipped.

    The separator is that of `reading`, of a first line `sep=;`, or the one with which the header and all rows at the
    beginning of the file have the same number of fields; else `usual`. There are two kinds of values between tabs: with
    quoted fields, and with quotes as plain characters. Such fields are unquoted when the whole file is well-formed as
    the first kind.

    Raises:
        DataError: A row has another number of fields than the first, a quote is misplaced, a column name repeats.
    """
    if first := re.match(r"sep=([^\r\n])(?=\r?\n)", text):
        text = text[first.end() :]  # the rest of the line is blank, so that lines keep their numbers
    given = "\t" if reading.separator == "tab" else reading.separator or (first[1] if first else None)
    separator = given or _found_separator(text, usual)
    if separator != usual and reading.separator is None:
        log.info("%s: separated by %r", source, separator)
    table = partial(_table, text, source, delimiter=separator, has_header=reading.header)
    if reading.quote is not None:
        return table(quote=None if reading.quote == "none" else reading.quote)
    if separator == "\t":
        try:
            return table(quote='"' if text.startswith('"') or '\t"' in text or '\n"' in text else None)
        except DataError as error:
            quoted = len(re.findall(r'(?m)(?:^|\t)"[^\t\n]*"(?=\t|\r?$)', text))
            if 10 <= len(re.findall(r'(?m)(?:^|\t)"', text)) < 1.1 * quoted:
                message = "%s; until it is corrected, quotes are plain characters in all fields, also around them"
                log.warning(message, error, extra=coded("data.quotes_plain", source=source))
            return table(quote=None)
    return table(quote='"')


parse_tsv = partial(parse_csv, usual="\t")
"""Parse tab-separated values, as `parse_csv`."""


def _found_separator(text: str, usual: str) -> str:
    """Return the first separator with which all rows of the sample have the fields of the header, at least two."""
    sample, is_cut = text[:SAMPLE], len(text) > SAMPLE
    header = sample.lstrip().partition("\n")[0]
    candidates = [mark for mark in dict.fromkeys((usual, *SEPARATORS)) if mark in header]
    for mark, quote in product(candidates, ('"', None)):
        counts = []
        try:
            for _, record in _records(sample, "", mark, quote):
                counts.append(len(record))
        except DataError as error:
            if not is_cut or "end of data" not in str(error):
                continue
        if len({*(counts[:-1] if is_cut else counts)}) == 1:
            return mark
    return ";" if ";" in candidates and usual not in candidates else usual


def _table(text: str, source: str, *, delimiter: str, quote: str | None, has_header: bool) -> pa.Table:
    records = _records(text, source, delimiter, quote)
    first = next(records, None)
    if first is None:
        raise DataError(f"{source} is empty: it has no header line", code="data.empty", source=source)
    width, names = len(first[1]), first[1] if has_header else [str(number + 1) for number in range(len(first[1]))]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        advice = "rename one, or set data.header: false if line 1 is a row"
        problem = f"column {listing(repeated, width=200)} occurs more than once; {advice}"
        raise line_error(source, 1, problem, code="data.column_twice")
    chunks: list[list[pa.Array]] = [[] for _ in names]
    rows: list[list[str]] = []
    for line, record in records if has_header else chain([first], records):
        if len(record) != width:
            advice = "data.separator and data.quote may be wrong, or a tab is missing or too many"
            if quote is not None:
                advice = f"a field that contains {delimiter!r} or a line break must be in quotes; or set data.separator"
            known = f"the header has {width} ({listing(names, width=200)})" if has_header else f"line 1 has {width}"
            raise line_error(source, line, f"{len(record)} fields, but {known}; {advice}", code="data.unreadable")
        rows.append(record)
        if len(rows) == 20_000:  # Arrow strings need a third of the memory of Python strings
            _flush(rows, chunks)
    _flush(rows, chunks)
    texts = (pa.chunked_array(chunk, type=pa.string()) for chunk in chunks)
    columns = [_with_lists(column, f"{source}, column {name}") for name, column in zip(names, texts, strict=True)]
    about = {SEPARATOR: delimiter} | ({FIRST_LINE: b"1"} if has_header else {})
    return pa.Table.from_arrays(columns, names=names, metadata=about)


def _with_lists(column: pa.ChunkedArray, where: str) -> pa.Array | pa.ChunkedArray:
    """Return lists for a column of texts such as "['tea', 'hot']" (to_csv of pandas), or texts of their paragraphs."""
    start = column[:100].to_pylist()
    if not any(start) or not all(text[:1] + text[-1:] in ("", "[]") for text in start):
        return column
    try:
        with warnings.catch_warnings(action="ignore"):  # of backslashes in texts that are no lists
            lists = [_as_list(text) if text else None for text in column.to_pylist()]
        lengths = [len(item) for items in lists for item in items or () if isinstance(item, str)]
        # Labels and words are shorter than paragraphs, but for an address among them.
        is_text = max(lengths, default=0) > 100 and sum(lengths) > 20 * len(lengths)
        found = pa.array(["\n".join(items or ()) for items in lists] if is_text else lists)
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, pa.ArrowException):
        return column
    log.info("%s: lists, as Python prints them, are read as %s", where, "texts" if is_text else "lists")
    return found


def _as_list(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = ast.literal_eval(text)
        if repr(value) != text:  # numpy prints ['tea' 'hot'], which Python joins to one text
            value = ast.literal_eval(re.sub(r"""(?<=['"])\s+(?=['"])""", ", ", text))
    if not isinstance(value, list):
        raise TypeError(text)
    return value


def _flush(rows: list[list[str]], chunks: list[list[pa.Array]]) -> None:
    for chunk, values in zip(chunks, zip(*rows, strict=True), strict=False):
        # pa.array would import pandas (0.5 s) to check whether this is a Series.
        builder = pa.lib.StringBuilder()
        builder.append_values(values)
        chunk.append(builder.finish())
    rows.clear()


def _records(text: str, source: str, delimiter: str, quote: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the last line, fields) of each record that is not blank."""
    quoting: Literal[0, 3] = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, quotechar=quote, quoting=quoting, strict=True)
    limit = csv.field_size_limit(sys.maxsize)  # the default limit is 128 KiB
    try:
        for record in reader:
            if record:
                yield reader.line_num, record
    except csv.Error as error:
        problem = f'{error}; write a quote inside a quoted field twice ("")'
        raise line_error(source, reader.line_num, problem, code="data.unreadable") from error
    finally:
        csv.field_size_limit(limit)


def parse_text(text: str, source: str, reading: FileReading = AS_FOUND) -> pa.Table:
    """Parse plain text to the column text: one document per line, without its line end; blank lines are skipped.

    Text whose first lines all have the same number of tabs, and text with `data.separator` or `data.header: false`, is
    a table as for `parse_csv`.
    """
    first_lines = text[:SAMPLE].split("\n")[: -1 if len(text) > SAMPLE else None]
    tabs = {line.count("\t") for line in first_lines if line.strip()}
    if reading.separator is not None or not reading.header or (len(tabs) == 1 and 0 not in tabs):
        return parse_tsv(text, source, reading)
    return _documents(line.removesuffix("\r") for line in text.split("\n") if line.strip())


def parse_paragraphs(text: str, source: str, reading: FileReading = AS_FOUND) -> pa.Table:
    """Parse plain text to the column text: documents, separated by blank lines, with their line breaks."""
    text = text.replace("\r\n", "\n")
    return _documents(part.strip("\n") for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip())


def _documents(texts: Iterable[str]) -> pa.Table:
    return pa.table({"text": pa.array(texts, type=pa.large_string())})
