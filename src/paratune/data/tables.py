"""Strict parsers of lines: CSV, TSV, CoNLL and plain text. Malformed input is an error with its line.

A parser takes the bytes of a file and its name for messages, and returns a table. Imports no torch.
"""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

import pyarrow as pa

from paratune.base.text import listing
from paratune.errors import DataError

FIRST_LINE = b"header"
"""Key in the metadata of a table whose names of columns are the first line of a file."""
TOKENS, TAGS = "tokens", "tags"
"""Names of the columns of a table of CoNLL."""
_FORM, _UPOS, _NUM_COLUMNS = 1, 3, 10
"""Columns of CoNLL-U: the word, and its part of speech."""
_COMMENT = re.compile(r"#\s*[\w.:-]+(\s[\w.:-]+)* = |#\s*(newdoc|newpar)\b|#(begin|end) document\b")
"""Comments by their words: those of CoNLL-U, and the marks of documents of OntoNotes. A line `# O` is a word."""
_RANGE_OR_EMPTY = re.compile(r"\d+[-.]\d+")
"""Number of several words in one (1-2), or of a word that is not in the text (1.1)."""


def line_error(source: str, line: int, problem: str, *, code: str) -> DataError:
    """Return the error of a line of a file, counted from 1."""
    return DataError(f"{source}, line {line}: {problem}", code=code, source=source, line=line)


def decode(raw: bytes, source: str) -> str:
    """Return UTF-8 text without its byte order mark.

    Raises:
        DataError: It is not UTF-8 (the message has the first invalid byte and its line), or it is binary.
    """
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{source} is UTF-16; save it as UTF-8", code="data.encoding", source=source)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" not in raw:
            # The codec utf-8-sig counts from after the byte order mark.
            byte = error.start + (3 if raw.startswith(b"\xef\xbb\xbf") else 0)
            problem = (
                f"byte 0x{raw[byte]:02x} at offset {byte} is not UTF-8; save it as UTF-8, for example with "
                "iconv -f CP1252 -t UTF-8"
            )
            raise line_error(source, raw.count(b"\n", 0, byte) + 1, problem, code="data.encoding") from error
        text = "\0"
    if "\0" in text:
        message = f"{source} is a binary file, and its suffix is that of a text file"
        raise DataError(message, code="data.encoding", source=source)
    return text


def parse_csv(raw: bytes, source: str) -> pa.Table:
    """Parse comma-separated values (RFC 4180); every column is a string column.

    The separator is the semicolon where the header line has semicolons and no comma. Blank lines are skipped.

    Raises:
        DataError: A row has another number of fields than the header, a quote is misplaced, a column name repeats.
    """
    text = decode(raw, source)
    header = text.lstrip().partition("\n")[0]
    return _table(text, source, delimiter=";" if ";" in header and "," not in header else ",", quoted=True)


def parse_tsv(raw: bytes, source: str) -> pa.Table:
    """Parse tab-separated values; every column is a string column.

    There are two kinds of TSV: with quoted fields as in CSV, and with quotes as plain characters. Fields are unquoted
    when the whole file is well-formed as the first kind; otherwise quotes are plain characters.

    Raises:
        DataError: As `parse_csv`.
    """
    text = decode(raw, source)
    if text.startswith('"') or '\t"' in text or '\n"' in text:
        try:
            return _table(text, source, delimiter="\t", quoted=True)
        except DataError:
            pass
    return _table(text, source, delimiter="\t", quoted=False)


def _table(text: str, source: str, *, delimiter: str, quoted: bool) -> pa.Table:
    records = _records(text, source, delimiter, quoted)
    first = next(records, None)
    if first is None:
        raise DataError(f"{source} is empty: it has no header line", code="data.empty", source=source)
    header = first[1]
    if repeated := [name for name, count in Counter(header).items() if count > 1]:
        names = listing(repeated)
        problem = f"column {names} occurs more than once; rename one, or add a header line if line 1 is a row"
        raise line_error(source, 1, problem, code="data.column_twice")
    chunks: list[list[pa.Array]] = [[] for _ in header]
    rows: list[list[str]] = []
    for line, record in records:
        if len(record) != len(header):
            quotes = 'a field that contains a separator or a line break must be in "quotes"'
            advice = quotes if quoted else "a tab is missing or too many"
            problem = f"{len(record)} fields, but the header has {len(header)} ({listing(header)}); {advice}"
            raise line_error(source, line, problem, code="data.csv")
        rows.append(record)
        if len(rows) == 20_000:  # Arrow strings need a third of the memory of Python strings
            _flush(rows, chunks)
    _flush(rows, chunks)
    columns = [pa.chunked_array(chunk, type=pa.string()) for chunk in chunks]
    return pa.Table.from_arrays(columns, names=header, metadata={FIRST_LINE: b"1"})


def _flush(rows: list[list[str]], chunks: list[list[pa.Array]]) -> None:
    for chunk, values in zip(chunks, zip(*rows, strict=True), strict=False):
        # pa.array would import pandas (0.5 s) to check whether this is a Series.
        builder = pa.lib.StringBuilder()
        builder.append_values(values)
        chunk.append(builder.finish())
    rows.clear()


def _records(text: str, source: str, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the last line, fields) of each record that is not blank."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    limit = csv.field_size_limit(sys.maxsize)  # the default limit is 128 KiB
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
        try:
            for record in reader:
                if record:
                    yield reader.line_num, record
        except csv.Error as error:
            problem = f'{error}; write a quote inside a quoted field twice ("")'
            raise line_error(source, reader.line_num, problem, code="data.csv") from error
    finally:
        csv.field_size_limit(limit)


def parse_text(raw: bytes, source: str) -> pa.Table:
    """Parse plain text to the column text: one document per line, without its line end; blank lines are skipped."""
    lines = (line.removesuffix("\r") for line in decode(raw, source).split("\n"))
    return _documents(line for line in lines if line.strip())


def parse_paragraphs(raw: bytes, source: str) -> pa.Table:
    """Parse plain text to the column text: documents, separated by blank lines, with their line breaks."""
    text = decode(raw, source).replace("\r\n", "\n")
    return _documents(part.strip("\n") for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip())


def _documents(texts: Iterable[str]) -> pa.Table:
    return pa.table({"text": pa.array(texts, type=pa.large_string())})


def parse_conll(raw: bytes, source: str) -> pa.Table:
    """Parse lines of columns, as in CoNLL-2003: the first is the word, the last its tag.

    Columns are separated by tabs where a line has one, else by spaces. Lines `-DOCSTART-` are left out, and comments
    before a sentence: `# key = value`, and lines that begin with # and have another number of columns than the words
    (`#<tab>URL` in GermEval, `# id ...` in MultiCoNER). A file with one column has words without tags, for prediction.

    Returns:
        `tokens` and `tags`, lists of texts; a row for each sentence.

    Raises:
        DataError: It is not UTF-8, lines have different numbers of columns, or the first column numbers the words.
    """
    width = None
    sentences: list[list[list[str]]] = []
    for lines in _sentences(decode(raw, source)):
        words: list[list[str]] = []
        for number, line in lines:
            fields = _fields(line)
            is_start = fields[0] == "-DOCSTART-"
            if is_start or (not words and line.startswith("#") and _is_comment(line, lines, width)):
                continue
            width = width or len(fields)
            if len(fields) != width or not fields[0].strip():
                problem = (
                    f"{len(fields)} columns, and earlier lines have {width}; write one word and its tag per line, and "
                    "an empty line between two sentences"
                )
                raise line_error(source, number, problem, code="data.conll")
            words.append(fields)
        if words:
            sentences.append(words)
    _refuse_numbers_of_words(sentences, source)
    columns = {TOKENS: [[fields[0] for fields in words] for words in sentences]}
    if width != 1:
        columns[TAGS] = [[fields[-1] for fields in words] for words in sentences]
    return _sentence_table(columns)


def _fields(line: str) -> list[str]:
    return line.rstrip("\r").split("\t") if "\t" in line else line.split()


def _is_comment(line: str, lines: list[tuple[int, str]], width: int | None) -> bool:
    """Return whether a line that begins with # is a comment; `width` is None before the first word of the file."""
    if _COMMENT.match(line):
        return True
    if width is None:  # then the first line of this sentence without # has the columns of the file
        width = next((len(_fields(other)) for _, other in lines if not other.startswith("#")), None)
    return width is not None and len(_fields(line)) != width


def _refuse_numbers_of_words(sentences: list[list[list[str]]], source: str) -> None:
    """Raise a DataError where the first column counts the words, so that the words are in another column.

    In each sentence, each number is the one before it plus 1, whether a sentence begins with 0, with 1 or with the
    number after the last one. A file of one column, or with one word in each sentence, is not judged.
    """
    ids = [[fields[0] for fields in words if not _RANGE_OR_EMPTY.fullmatch(fields[0])] for words in sentences]
    is_one_column = not sentences or len(sentences[0][0]) == 1
    if is_one_column or max(map(len, ids)) < 2 or not all(number.isdecimal() for row in ids for number in row):
        return
    if any(int(after) != int(before) + 1 for row in ids for before, after in pairwise(row)):
        return
    message = (
        f"{source}: the first column, which must be the word, numbers the words of each sentence "
        f"({', '.join(fields[0] for fields in sentences[0][:3])}, ...); name a file of Universal Dependencies "
        "*.conllu, else write a file without this column, as cut -f 2- FILE does for tabs"
    )
    raise DataError(message, code="data.conll_numbers", source=source, column=1)


def parse_conllu(raw: bytes, source: str) -> pa.Table:
    """Parse CoNLL-U, the format of Universal Dependencies, to words and their universal parts of speech (UPOS).

    Lines that begin with # are comments. Lines of several words in one (1-2) and of words that are not in the text
    (1.1) are left out.

    Returns:
        As `parse_conll`.

    Raises:
        DataError: It is not UTF-8, or a line does not have 10 columns.

    Source: https://universaldependencies.org/format.html
    """
    columns: dict[str, list[list[str]]] = {TOKENS: [], TAGS: []}
    for lines in _sentences(decode(raw, source)):
        words = []
        for number, line in lines:
            if line.startswith("#"):  # a word has its number before it
                continue
            fields = line.rstrip("\r").split("\t")
            if len(fields) != _NUM_COLUMNS:
                problem = (
                    f"{len(fields)} columns; a line of CoNLL-U has {_NUM_COLUMNS}, separated by tabs; name a file with "
                    "other columns *.conll"
                )
                raise line_error(source, number, problem, code="data.conll")
            if fields[0].isdigit():
                words.append(fields)
        if words:
            columns[TOKENS].append([fields[_FORM] for fields in words])
            columns[TAGS].append([fields[_UPOS] for fields in words])
    return _sentence_table(columns)


def _sentence_table(columns: dict[str, list[list[str]]]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.list_(pa.string())) for name, values in columns.items()})


def _sentences(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each sentence with their numbers; comments before a sentence are part of it."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        else:
            sentence.append((number, line))
    if sentence:
        yield sentence
