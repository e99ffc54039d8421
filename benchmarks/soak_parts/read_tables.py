"""Readers of data files, compared with the written tables and with other implementations."""

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tiny_questions import squad

from paratune.config.sections import FileReading
from paratune.data.json_tables import parse_json, squad_table
from paratune.data.read import read_table
from paratune.data.tables import decode, parse_csv, parse_paragraphs, parse_text, parse_tsv
from paratune.errors import DataError

from .fuzz import Difference, Reader, differ

Rows = list[dict[str, Any]]
_LETTERS = st.characters(codec="utf-8", exclude_characters="\0\ufeff")
CELL = st.one_of(st.text(st.sampled_from('ab ,;"\n\r\tçß€😀\u2028'), max_size=8), st.text(_LETTERS, max_size=5))
COMMA, TAB = FileReading(separator=","), FileReading(separator="tab")
NAMES = st.lists(st.text(st.sampled_from("abcdé_"), min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


@st.composite
def tables(draw: Callable[..., Any], cell: st.SearchStrategy[Any]) -> tuple[list[str], list[list[Any]]]:
    """Draw column names and rows."""
    names = draw(NAMES)
    row = st.lists(cell, min_size=len(names), max_size=len(names))
    return names, draw(st.lists(row, min_size=1, max_size=5))


def text_of(raw: bytes, source: str) -> str:
    return decode(raw, source)[0]


def rows_of(table: pa.Table) -> Rows:
    rows: Rows = table.to_pylist()
    return rows


def same_rows(subject: str, expected: Rows, actual: Rows) -> None:
    """Raise `Difference` if rows differ; NaN equals NaN."""
    differ(f"{subject}: rows", len(expected), len(actual))
    for number, (old, new) in enumerate(zip(expected, actual, strict=True)):
        for name in old.keys() | new.keys():
            differ(f"{subject}: row {number}, {name}", old.get(name), new.get(name))


def rfc4180(text: str, separator: str) -> list[list[str]]:
    """Return the records of a CSV text that are not blank, with a machine of four states.

    Raises:
        ValueError: A closing quote is followed by another character than a separator or a line end, or is missing.

    Source: RFC 4180, section 2; CR, LF and CRLF each end a line, and a quote within a field without quotes is a letter.
    """
    records: list[list[str]] = []
    record: list[str] = []
    field, state, is_blank = "", "start", True

    def end_line() -> None:
        nonlocal record, field, state, is_blank
        if not is_blank:
            records.append([*record, field])
        record, field, state, is_blank = [], "", "start", True

    for letter in text.replace("\r\n", "\n\0") + "\n":
        if letter == "\0":  # was the second half of CRLF
            if state == "quoted":
                field = field[:-1] + "\r\n"
            continue
        if state == "quoted":
            field, state = (field, "closed") if letter == '"' else (field + letter, state)
        elif state == "closed" and letter == '"':
            field, state = field + '"', "quoted"
        elif letter in "\r\n":
            end_line()
        elif letter == separator:
            record, field, state, is_blank = [*record, field], "", "start", False
        elif state == "closed":
            raise ValueError("text after a closing quote")
        elif state == "start" and letter == '"':
            state, is_blank = "quoted", False
        else:
            field, state, is_blank = field + letter, "plain", False
    if state != "start":
        raise ValueError("a closing quote is missing")
    return records


def _as_rows(records: list[list[str]]) -> Rows:
    names, *rows = records
    if any(len(row) != len(names) for row in rows):
        raise ValueError("uneven rows")
    return [dict(zip(names, row, strict=True)) for row in rows]


def csv_bytes(document: Any, separator: str = ",") -> bytes:
    names, rows = document
    text = io.StringIO()
    # Python's writer leaves a CR without quotes if lines end only with LF.
    form = {"lineterminator": "\n", "quoting": csv.QUOTE_ALL} if len(rows) % 2 else {"lineterminator": "\r\n"}
    csv.writer(text, delimiter=separator, **form).writerows([names, *rows])
    return text.getvalue().encode()


def whole_csv(document: Any, raw: bytes, place: Path) -> None:
    names, rows = document
    same_rows(
        "csv",
        [dict(zip(names, row, strict=True)) for row in rows],
        rows_of(parse_csv(text_of(raw, "x.csv"), "x.csv", COMMA)),
    )


def damaged_csv(document: Any, raw: bytes, place: Path) -> None:
    _held_against(partial(parse_csv, reading=COMMA), raw, lambda text: rfc4180(text, ","))


def damaged_tsv(document: Any, raw: bytes, place: Path) -> None:
    def both(text: str) -> list[list[str]]:
        if text.startswith('"') or '\t"' in text or '\n"' in text:
            try:
                records = rfc4180(text, "\t")
                if len(set(map(len, records))) <= 1:
                    return records
            except ValueError:
                pass
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [line.split("\t") for line in lines if line]

    _held_against(partial(parse_tsv, reading=TAB), raw, both)


def _held_against(parse: Callable[[str, str], pa.Table], raw: bytes, other: Callable[[str], list[list[str]]]) -> None:
    """Raise `Difference` if a reader accepts input that another one rejects or reads differently."""
    try:
        actual = rows_of(parse(text_of(raw, "x"), "x"))
    except DataError:
        return
    try:
        expected = _as_rows(other(text_of(raw, "x")))
    except ValueError as error:
        raise Difference(f"accepted as {actual}, though {error}") from error
    same_rows("damaged", expected, actual)


PLAIN_CELL = st.text(st.characters(codec="utf-8", exclude_characters='\0\ufeff\t\r\n"'), max_size=6)


def tsv_bytes(document: Any) -> bytes:
    names, rows = document
    return "".join("\t".join(row) + "\n" for row in [names, *rows]).encode()


def whole_tsv(document: Any, raw: bytes, place: Path) -> None:
    names, rows = document
    expected = [dict(zip(names, row, strict=True)) for row in rows if "\t".join(row)]
    actual = rows_of(parse_tsv(text_of(raw, "x.tsv"), "x.tsv", TAB))
    same_rows("tsv", expected, actual)


VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(_LETTERS, max_size=6),
    st.lists(st.integers(), max_size=2),
)
OBJECTS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "é"]), VALUE, min_size=1), min_size=1, max_size=5)
PLAIN = st.one_of(st.text(_LETTERS, max_size=6), st.none())


def json_lines(document: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=len(document) % 2 == 0) + "\n" for row in document).encode()


def whole_json(document: Rows, raw: bytes, place: Path) -> None:
    _same_json(document, parse_json(text_of(raw, "x.jsonl"), "x.jsonl"))


def damaged_lines(document: Rows, raw: bytes, place: Path) -> None:
    _json_held_against(raw, lambda text: [_loads(line) for line in text.split("\n") if line.strip()])


def damaged_list(document: Rows, raw: bytes, place: Path) -> None:
    _json_held_against(raw, _loads)


def _loads(text: str) -> Any:
    """Return the value that orjson reads; for NaN and numbers beyond 64 bits, the value of Python's JSON."""
    if re.search("[0-9]{19}", text):
        return json.loads(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _json_held_against(raw: bytes, other: Callable[[str], Any]) -> None:
    try:
        table = parse_json(text_of(raw, "x.json"), "x.json")
    except DataError:
        return
    text = text_of(raw, "x.json")
    try:
        rows = other(text)
    except ValueError:
        try:
            rows = [_loads(line) for line in text.split("\n") if line.strip()]
        except ValueError:  # one object over several lines
            rows = [_loads(text)]
    if isinstance(rows, dict):
        rows = [rows] if not isinstance(rows.get("data"), list) else rows["data"]
    _same_json(rows, table)


def _same_json(rows: Rows, table: pa.Table) -> None:
    differ("rows", len(rows), table.num_rows)
    for name in {name for row in rows for name in row}:
        column = table.column(name)
        is_text = pa.types.is_string(column.type)
        for number, (row, actual) in enumerate(zip(rows, column.to_pylist(), strict=True)):
            expected = row.get(name)
            if is_text and expected is not None and not isinstance(expected, str):
                expected, actual = _canonical(expected), _canonical(json.loads(actual))
            elif isinstance(expected, float) and isinstance(actual, float) and math.isnan(expected):
                actual = expected
            differ(f"row {number}, {name}", expected, actual)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def squad_bytes(document: tuple[int, int]) -> bytes:
    return json.dumps(squad(document[0], seed=document[1])).encode()


def whole_squad(document: tuple[int, int], raw: bytes, place: Path) -> None:
    paragraphs = [part for article in json.loads(raw)["data"] for part in article["paragraphs"]]
    expected = [question["id"] for part in paragraphs for question in part["qas"]]
    differ("ids", expected, parse_json(text_of(raw, "x.json"), "x.json")["id"].to_pylist())


def damaged_squad(document: tuple[int, int], raw: bytes, place: Path) -> None:
    try:
        actual = rows_of(parse_json(text_of(raw, "x.json"), "x.json"))
    except DataError:
        return
    value = _loads(text_of(raw, "x.json"))
    articles = value.get("data") if isinstance(value, dict) else None
    if isinstance(articles, list) and any("paragraphs" in item for item in articles if isinstance(item, dict)):
        same_rows("squad", rows_of(squad_table(value, "x.json")), actual)


PARQUET_VALUE = (st.text(_LETTERS, max_size=6), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans())


@st.composite
def typed_tables(draw: Callable[..., Any]) -> pa.Table:
    """Draw a table whose columns have one type each, with nulls."""
    num_rows = draw(st.integers(1, 6))
    columns = {}
    for name in draw(NAMES):
        value = st.one_of(st.none(), draw(st.sampled_from(PARQUET_VALUE)))
        columns[name] = draw(st.lists(value, min_size=num_rows, max_size=num_rows))
    return pa.table(columns)


def parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=("none", "snappy", "zstd")[table.num_rows % 3])
    return bytes(sink.getvalue().to_pybytes())


def whole_parquet(table: pa.Table, raw: bytes, place: Path) -> None:
    path = place / "x.parquet"
    path.write_bytes(raw)
    same_rows("parquet", rows_of(table), rows_of(read_table(str(path))))
    with duckdb.connect() as other:
        names, rows = table.column_names, other.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    same_rows("duckdb", [dict(zip(names, row, strict=True)) for row in rows], rows_of(read_table(str(path))))


def damaged_parquet(table: pa.Table, raw: bytes, place: Path) -> None:
    path = place / "x.parquet"
    path.write_bytes(raw)
    try:
        actual = read_table(str(path))
    except DataError:
        return
    rows_of(actual)  # an accepted table can be read, with valid text


# Without tabs: lines with equally many of them are a table.
TEXTS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff\r\n\t"), max_size=12), min_size=1, max_size=8
)


def text_bytes(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


def whole_text(lines: list[str], raw: bytes, place: Path) -> None:
    differ(
        "lines",
        [line for line in lines if line.strip()],
        parse_text(text_of(raw, "x.txt"), "x.txt")["text"].to_pylist(),
    )
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        paragraphs = [*paragraphs[:-1], [*paragraphs[-1], line]] if line.strip() else [*paragraphs, []]
    actual = [part.strip() for part in parse_paragraphs(text_of(raw, "x.txt"), "x.txt")["text"].to_pylist()]
    differ("paragraphs", ["\n".join(part).strip() for part in paragraphs if part], actual)


def damaged_text(lines: list[str], raw: bytes, place: Path) -> None:
    try:
        table = parse_text(text_of(raw, "x.txt"), "x.txt")
        if table.column_names != ["text"]:  # columns that tabs separate
            return
        actual = table["text"].to_pylist()
        parse_paragraphs(text_of(raw, "x.txt"), "x.txt")
    except DataError:
        return
    lines_of = re.split("\r?\n", text_of(raw, "x.txt"))
    lines_of[-1] = lines_of[-1].removesuffix("\r")
    differ("lines", [line for line in lines_of if line.strip()], actual)


def packed_bytes(lines: list[str]) -> bytes:
    return gzip.compress(text_bytes(["first", *lines]), mtime=0)


def damaged_gzip(lines: list[str], raw: bytes, place: Path) -> None:
    path = place / "x.txt.gz"
    path.write_bytes(raw)
    try:
        actual = read_table(str(path))["text"].to_pylist()
    except DataError:
        return
    expected = [line for line in ["first", *lines] if line.strip()]
    # A duplicated member is not damage, also where its first line continues the last one.
    twice = [line for line in ("\n".join(["first", *lines]) * 2).split("\n") if line.strip()]
    if actual[: len(expected)] != expected and actual != twice:
        differ("gzip", expected, actual)


READERS = (
    Reader("csv", tables(CELL), csv_bytes, whole_csv, damaged_csv),
    Reader("tsv", tables(PLAIN_CELL), tsv_bytes, whole_tsv, damaged_tsv),
    Reader("json-lines", OBJECTS, json_lines, whole_json, damaged_lines),
    Reader("json", OBJECTS, lambda rows: json.dumps(rows).encode(), whole_json, damaged_list),
    Reader("squad", st.tuples(st.integers(1, 4), st.integers(0, 99)), squad_bytes, whole_squad, damaged_squad),
    Reader("parquet", typed_tables(), parquet_bytes, whole_parquet, damaged_parquet),
    Reader("text", TEXTS, text_bytes, whole_text, damaged_text),
    Reader("gzip", TEXTS, packed_bytes, damaged_gzip, damaged_gzip),
)
