"""Strict parsers of CSV, TSV, JSON lines and text: malformed input is an error with its line, never a shifted column.

Imports no torch.
"""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pyarrow as pa

from paratune.base.text import listing
from paratune.base.unique_keys import RepeatedKeyError, unique_keys
from paratune.data.header import FIRST_LINE
from paratune.data.squad import is_squad, squad_table, surrogate_error
from paratune.errors import DataError

NESTED_AT = "nested_at"
"""See `parse_json`."""
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16."""


def decode(raw: bytes, source: str) -> str:
    """Return UTF-8 text without its byte order mark.

    Raises:
        DataError: It is not UTF-8 (the message has the first invalid byte and its line), or it is binary.
    """
    if raw[:2] in _UTF_16_MARKS:
        raise DataError(f"{source} is UTF-16; save it as UTF-8", code="data.encoding", source=source)
    is_binary = DataError(
        f"{source} is a binary file, and its suffix is that of a text file", code="data.encoding", source=source
    )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in raw:
            raise is_binary from error
        # The codec utf-8-sig counts from after the byte order mark.
        byte = error.start + (3 if raw.startswith(b"\xef\xbb\xbf") else 0)
        line = raw.count(b"\n", 0, byte) + 1
        raise DataError(
            f"{source}, line {line}: byte 0x{raw[byte]:02x} at offset {byte} is not UTF-8; save it as UTF-8, "
            "for example with iconv -f CP1252 -t UTF-8",
            code="data.encoding",
            source=source,
            line=line,
            byte=byte,
        ) from error
    if "\0" in text:
        raise is_binary
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
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(
            f"{source}, line 1: column {listing(repeated)} occurs more than once; rename one, or add a header "
            "line if line 1 is a row",
            code="data.column_twice",
            source=source,
        )
    chunks: list[list[pa.Array]] = [[] for _ in header]
    rows: list[list[str]] = []
    for line, record in records:
        if len(record) != len(header):
            raise DataError(
                f"{source}, line {line}: {len(record)} fields, but the header has {len(header)} ({listing(header)}); "
                + (
                    'a field that contains a separator or a line break must be in "quotes"'
                    if quoted
                    else "a tab is missing or too many"
                ),
                code="data.csv",
                source=source,
                line=line,
            )
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
            raise DataError(
                f'{source}, line {reader.line_num}: {error}; write a quote inside a quoted field twice ("")',
                code="data.csv",
                source=source,
                line=reader.line_num,
            ) from error
    finally:
        csv.field_size_limit(limit)


def parse_json(raw: bytes, source: str) -> pa.Table:
    """Parse one JSON object per line, one list of objects, or SQuAD's layout; missing keys of an object become null.

    The list may also be the value of `data` in an object, as `datasets` reads it with `field="data"`.

    Returns:
        The columns. A column with values of several types has strings; where it has objects or lists, the metadata
        `NESTED_AT` of its field is the first row with one.

    Raises:
        DataError: A line is not a JSON object, an object has a key twice, or a part of SQuAD's layout is absent.
    """
    text = decode(raw, source)
    whole = _whole_object(text, source)
    if is_squad(whole):
        return squad_table(whole, source)
    if whole is not None and isinstance(whole.get("data"), list) and set(whole) <= {"data", "version"}:
        objects = _numbered(whole["data"])
    else:
        is_list = text.lstrip().startswith("[")
        objects = _numbered(_load_json(text, source, source, "")) if is_list else _lines(text, source)
    columns: dict[str, list[Any]] = {}
    nested_at: dict[str, str] = {}
    num_rows = 0
    for place, value in objects:
        if not isinstance(value, dict):
            raise DataError(
                f'{source}, {place}: {json.dumps(value)[:60]} is not an object; expected {{"column": value, ...}}',
                code="data.json",
                source=source,
            )
        for name, item in value.items():
            column = columns.setdefault(name, [])
            if isinstance(item, dict | list):
                nested_at.setdefault(name, place)
            column += [None] * (num_rows - len(column))  # rows without this key
            column.append(item)
        num_rows += 1
    for column in columns.values():
        column.extend([None] * (num_rows - len(column)))
    if not columns:
        raise DataError(f"{source} is empty: it has no object with columns", code="data.empty", source=source)
    arrays = {name: _column(values, f"{source}, column {name}") for name, values in columns.items()}
    # In a column of strings, objects and lists are JSON texts: `NESTED_AT` marks it, so that they are not used as text.
    mixed = {name for name, array in arrays.items() if name in nested_at and pa.types.is_string(array.type)}
    fields = [
        pa.field(name, array.type, metadata={NESTED_AT: nested_at[name]} if name in mixed else None)
        for name, array in arrays.items()
    ]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


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


def _whole_object(text: str, source: str) -> dict[str, Any] | None:
    """Return the whole text as one object; None where it is something else, such as one object per line."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):  # one object per line: `_lines` reports the line
            return None
        raise DataError(f"{source}: {error}", code="data.json", source=source) from error
    except (RecursionError, ValueError) as error:
        if not isinstance(error, json.JSONDecodeError):
            return None
        # "Extra data" follows a complete object: the text has one object per line.
        if error.msg != "Extra data" and '"paragraphs"' in text:
            raise DataError(
                f"{source}, line {error.lineno}: not JSON ({error}); it looks like SQuAD's layout, but is damaged "
                "or incomplete",
                code="data.json",
                source=source,
            ) from error
        return None
    return value if isinstance(value, dict) else None


def _lines(text: str, source: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines, which also splits at U+2028
        if line.strip():
            place = f"line {number}"
            yield place, _load_json(line, f"{source}, {place}", source, "; expected one object per line")


def _load_json(text: str, where: str, source: str, advice: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise DataError(f"{where}: {error}", code="data.json", source=source) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}){advice}", code="data.json", source=source) from error


def _numbered(values: list[Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(values):
        yield f"item {number}", value


def _column(values: list[Any], where: str) -> pa.Array:
    """Return values as an Arrow array, as strings where they have several types."""
    try:
        where.encode()  # raises for an invalid column name, too
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            texts = [
                item if item is None or isinstance(item, str) else json.dumps(item, ensure_ascii=False)
                for item in values
            ]
            return pa.array(texts, type=pa.string())
    except UnicodeEncodeError as error:
        raise surrogate_error(where, error, where=where) from error
