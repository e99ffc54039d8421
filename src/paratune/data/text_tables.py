"""Parsing CSV, TSV, JSON lines and text strictly: what is malformed is an error with its line, never a shifted column.

Floor 3, without torch.
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
from paratune.data.squad import is_squad, squad_table
from paratune.errors import DataError

NESTED_AT = "nested_at"
"""See `parse_json`."""
_BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def decode(raw: bytes, source: str) -> str:
    """Return UTF-8 text without its byte order mark.

    Raises:
        DataError: It is not UTF-8 (the first bad byte and its line are named), or it is binary.
    """
    if raw[:2] in _BYTE_ORDER_MARKS:
        raise DataError(
            f"{source} is {_BYTE_ORDER_MARKS[raw[:2]]}; save it as UTF-8", code="data.encoding", source=source
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in raw:
            raise DataError(
                f"{source} is a binary file, not the text that its suffix promises", code="data.encoding", source=source
            ) from error
        # utf-8-sig counts from behind the mark.
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
        raise DataError(
            f"{source} is a binary file, not the text that its suffix promises", code="data.encoding", source=source
        )
    return text


def parse_csv(raw: bytes, source: str) -> pa.Table:
    """Parse comma-separated values (RFC 4180); every column is a string column.

    The separator is the semicolon where the header line has semicolons and no comma. Blank lines are passed over.

    Raises:
        DataError: A row has another number of fields than the header, a quote is misplaced, a column name repeats.
    """
    text = decode(raw, source)
    header = text.lstrip().partition("\n")[0]
    return _table(text, source, delimiter=";" if ";" in header and "," not in header else ",", quoted=True)


def parse_tsv(raw: bytes, source: str) -> pa.Table:
    """Parse tab-separated values; every column is a string column.

    Both kinds of TSV are about: with quoted fields as in CSV, and with quotes that are plain characters. Quotes are
    unwrapped when the whole file is well-formed that way; else they are plain characters.

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
            f"{source}, line 1: column {listing(repeated)} occurs more than once; rename one",
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
                    'a field with a separator or a line break in it must stand in "quotes"'
                    if quoted
                    else "a tab is missing or too many"
                ),
                code="data.csv",
                source=source,
                line=line,
            )
        rows.append(record)
        if len(rows) == 20_000:  # arrow strings take a third of the memory of Python ones
            _flush(rows, chunks)
    _flush(rows, chunks)
    columns = [pa.chunked_array(chunk, type=pa.string()) for chunk in chunks]
    return pa.Table.from_arrays(columns, names=header)


def _flush(rows: list[list[str]], chunks: list[list[pa.Array]]) -> None:
    for chunk, values in zip(chunks, zip(*rows, strict=True), strict=False):
        # pa.array would import pandas, which takes half a second, to look whether this is a Series.
        builder = pa.lib.StringBuilder()
        builder.append_values(values)
        chunk.append(builder.finish())
    rows.clear()


def _records(text: str, source: str, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its last line, fields) of each record that is not blank."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses texts over 128 KiB
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
        try:
            for record in reader:
                if record:
                    yield reader.line_num, record
        except csv.Error as error:
            raise DataError(
                f'{source}, line {reader.line_num}: {error}; a quote inside a quoted field is written twice ("")',
                code="data.csv",
                source=source,
                line=reader.line_num,
            ) from error
    finally:
        csv.field_size_limit(limit)


def parse_json(raw: bytes, source: str) -> pa.Table:
    """Parse one JSON object a line, one list of objects, or SQuAD's layout; a key that an object lacks is null there.

    A list may also stand alone under `data`, as `datasets` reads it with `field="data"`.

    Returns:
        The columns. Those with values of several types are strings; where objects or lists are among them, the metadata
        `NESTED_AT` of the field names the first row that has one.

    Raises:
        DataError: A line is not a JSON object, has a key twice, or a part of SQuAD's layout is absent.
    """
    text = decode(raw, source)
    whole = _whole_object(text, source)
    if is_squad(whole):
        return squad_table(whole, source)
    if whole is not None and isinstance(whole.get("data"), list) and set(whole) <= {"data", "version"}:
        objects = _numbered(whole["data"])
    else:
        objects = _listed(text, source) if text.lstrip().startswith("[") else _lines(text, source)
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
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * num_rows
            if isinstance(item, dict | list):
                nested_at.setdefault(name, place)
            if len(column) < num_rows:
                column.extend([None] * (num_rows - len(column)))
            column.append(item)
        num_rows += 1
    for column in columns.values():
        column.extend([None] * (num_rows - len(column)))
    if not columns:
        raise DataError(f"{source} is empty: it holds no object with columns", code="data.empty", source=source)
    made = {name: _column(values, f"{source}, column {name}") for name, values in columns.items()}
    # A column of strings with objects or lists among them holds these as JSON.
    joined = {name for name, array in made.items() if name in nested_at and pa.types.is_string(array.type)}
    fields = [
        pa.field(name, array.type, metadata={NESTED_AT: nested_at[name]} if name in joined else None)
        for name, array in made.items()
    ]
    return pa.Table.from_arrays(list(made.values()), schema=pa.schema(fields))


def parse_text(raw: bytes, source: str) -> pa.Table:
    """Parse plain text, a document a line; blank lines are passed over.

    Returns:
        One column, text: the lines without their ends.

    Raises:
        DataError: As `decode`.
    """
    lines = (line.removesuffix("\r") for line in decode(raw, source).split("\n"))
    return _documents(line for line in lines if line.strip())


def parse_paragraphs(raw: bytes, source: str) -> pa.Table:
    """Parse plain text whose documents are separated by blank lines; a document keeps its line breaks.

    Returns:
        One column, text.

    Raises:
        DataError: As `decode`.
    """
    text = decode(raw, source).replace("\r\n", "\n")
    return _documents(part.strip("\n") for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip())


def _documents(texts: Iterable[str]) -> pa.Table:
    return pa.table({"text": pa.array(texts, type=pa.large_string())})


def _whole_object(text: str, source: str) -> dict[str, Any] | None:
    """Return the object that the whole text is; None where it is something else, such as an object a line."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except _RepeatedKey as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):  # an object a line: its line will be named
            return None
        raise DataError(f"{source}: {error}", code="data.json", source=source) from error
    except (RecursionError, ValueError) as error:
        if not isinstance(error, json.JSONDecodeError):
            return None
        # Of an object a line the first one is whole, and then there is more.
        if error.msg != "Extra data" and '"paragraphs"' in text:
            raise DataError(
                f"{source}, line {error.lineno}: not JSON ({error}); it seems to have SQuAD's layout, and is damaged "
                "or cut off",
                code="data.json",
                source=source,
            ) from error
        return None
    return found if isinstance(found, dict) else None


def _lines(text: str, source: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: texts may hold U+2028
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line, object_pairs_hook=_unique)
        except _RepeatedKey as error:
            raise DataError(
                f"{source}, line {number}: {error}", code="data.json", source=source, number=number
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{source}, line {number}: not JSON ({error}); expected one object a line",
                code="data.json",
                source=source,
                number=number,
            ) from error


def _listed(text: str, source: str) -> Iterator[tuple[str, Any]]:
    try:
        values = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{source}, line {error.lineno}: not JSON ({error})", code="data.json", source=source
        ) from error
    except _RepeatedKey as error:
        raise DataError(f"{source}: {error}", code="data.json", source=source) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: not JSON that can be read: {error}", code="data.json", source=source) from error
    yield from _numbered(values)


class _RepeatedKey(ValueError):
    """An object has a key twice: which of the values is meant cannot be known."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise _RepeatedKey(f"the key {listing(repeated)} occurs more than once in an object; delete or rename one")
    return values


def _numbered(values: list[Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(values):
        yield f"item {number}", value


def _column(values: list[Any], where: str) -> pa.Array:
    """Return a column as it is, or as strings where the values are of several types."""
    try:
        where.encode()  # the column's name is text as well
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            texts = [
                item if item is None or isinstance(item, str) else json.dumps(item, ensure_ascii=False)
                for item in values
            ]
            return pa.array(texts, type=pa.string())
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: half of a surrogate pair (such as \\ud83d alone) is not text: {error}",
            code="data.encoding",
            where=where,
        ) from error
