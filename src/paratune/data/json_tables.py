"""Strict parsers of JSON: an object per line, a list of objects, SQuAD's layout, and those of annotation tools.

Imports no torch.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from paratune.base.text import listing
from paratune.base.unique_keys import RepeatedKeyError, unique_keys
from paratune.config.sections import AS_FOUND, FileReading
from paratune.data.tables import line_error
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

NUM_ANNOTATIONS = "num_annotations"
"""Column of files of Label Studio."""
_IS_EMPTY = "annotation_is_empty"
"""Column until all rows are read."""
NESTED_AT = "nested_at"
"""See `parse_json`."""
_ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int64()))])
"""Gold answers of a question, in the same layout as in `datasets`."""
_TEXTS = [(name, pa.string()) for name in ("id", "title", "context", "question")]
SQUAD = pa.schema([*_TEXTS, ("answers", _ANSWERS), ("is_impossible", pa.bool_())])
"""Columns of `squad_table`."""


def parse_json(text: str, source: str, reading: FileReading = AS_FOUND) -> pa.Table:
    """Parse one JSON object per line, one list of objects, or SQuAD's layout; missing keys of an object become null.

    The list may also be the value of `data` in an object, as `datasets` reads it with `field="data"`, and an object may
    have the columns of a table (`_rows_of_table`). A column with values of several types has strings; where it has
    objects or lists, the metadata `NESTED_AT` of its field is the first row with one.

    Raises:
        DataError: A line is not a JSON object, an object has a key twice, or a part of SQuAD's layout is absent.
    """
    whole = _whole_object(text, source)
    articles = None if whole is None else whole.get("data")
    if isinstance(articles, list) and any("paragraphs" in item for item in articles if isinstance(item, dict)):
        return squad_table(whole, source)
    objects: Iterator[tuple[str, Any]]
    items = None if whole is None else _rows_of_table(whole, source)
    if items is None and text.lstrip().startswith("["):
        items = _load_json(text, source, source, "")
    elif items is None and whole is not None:
        items = [whole]  # a row over several lines
    if items is not None:
        objects = ((f"item {number}", value) for number, value in enumerate(items))
    else:
        objects = _lines(text, source)
    first = [*islice(objects, 100)]
    rows = [value for _, value in first if isinstance(value, dict)]
    name, convert = next(((name, row) for name, is_one, row in JSON_FORMATS if any(map(is_one, rows))), ("", None))
    if convert is not None:
        log.info("%s: read as %s", source, name)
    columns: dict[str, list[Any]] = {}
    nested_at: dict[str, str] = {}
    num_rows = 0
    for place, value in chain(first, objects):
        if not isinstance(value, dict):
            shown = json.dumps(value, ensure_ascii=False)[:60]
            message = f'{source}, {place}: {shown} is not an object; expected {{"column": value, ...}}'
            raise DataError(message, code="data.unreadable", source=source)
        if convert is not None:
            try:
                value = convert(value)
            except (AttributeError, LookupError, TypeError) as error:
                message = f"{source}, {place}: it is not a row of {name}, as other rows are ({error!r:.60})"
                raise DataError(message, code="data.unreadable", source=source) from error
        for key, item in value.items():
            column = columns.setdefault(key, [])
            if isinstance(item, dict | list):
                nested_at.setdefault(key, place)
            column += [None] * (num_rows - len(column))  # rows without this key
            column.append(item)
        num_rows += 1
    for column in columns.values():
        column.extend([None] * (num_rows - len(column)))
    if name == "Label Studio":
        _finish_annotations(columns, source)
    if not columns:
        raise DataError(f"{source} is empty: it has no object with columns", code="data.empty", source=source)
    arrays = {name: column_of(values, f"{source}, column {name}") for name, values in columns.items()}
    # In a column of strings, objects and lists are JSON texts: `NESTED_AT` marks it, so that they are not used as text.
    mixed = {name for name, array in arrays.items() if name in nested_at and pa.types.is_string(array.type)}
    about = {name: {NESTED_AT: nested_at[name]} if name in mixed else None for name in arrays}
    fields = [pa.field(name, array.type, metadata=about[name]) for name, array in arrays.items()]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def _finish_annotations(columns: dict[str, list[Any]], source: str) -> None:
    """Replace, in place, null by an empty list for spans of rows whose annotation is empty, and warn of several ones.

    An empty annotation does not name the control of the spans, which other rows have.
    """
    counts, is_empty = columns[NUM_ANNOTATIONS], columns.pop(_IS_EMPTY)
    for key, column in columns.items():
        if any(value and as_spans(value) is not None for value in column):
            pairs = zip(column, is_empty, strict=True)
            columns[key] = [[] if empty and value is None else value for value, empty in pairs]
    if several := sum(count > 1 for count in counts):
        message = "%s: %d of %d rows have several annotations, of which the first is read (column %s has their number)"
        extra = coded("data.several_annotations", count=several)
        log.warning(message, source, several, len(counts), NUM_ANNOTATIONS, extra=extra)


def _rows_of_table(value: dict[str, Any], source: str) -> list[Any] | None:
    """Return the rows of a table in one object: `data`, or as `to_json` of pandas writes it; None for another object.

    Columns may also be lists, except in a file of JSON lines and where no text has a space: they are a row of words.

    Raises:
        DataError: The object has several tables, or rows or columns by other names than numbers.
    """
    parts, names, data = [*value.values()], value.get("columns"), value.get("data")
    has_other_lists = any(isinstance(part, list) for name, part in value.items() if name != "data")
    are_rows = isinstance(data, list) and all(isinstance(row, dict) for row in data) and not has_other_lists
    if are_rows or (isinstance(data, list) and set(value) <= {"data", "version"}):  # schema: orient="table"
        return data
    if isinstance(data, list) and isinstance(names, list):  # orient="split"
        width = len({*map(str, names)})
        is_row = [isinstance(row, list) and len(row) == len(names) == width for row in data]
        return [dict(zip(map(str, names), row, strict=True)) if is_row[at] else row for at, row in enumerate(data)]
    lengths = {len(part) if isinstance(part, list) else 0 for part in parts}
    items = [item for part in parts if isinstance(part, list) for item in part]
    is_table = any(isinstance(item, dict | list) or (isinstance(item, str) and " " in item) for item in items)
    if is_table and len(lengths) == 1 and max(lengths) > 1 and ".jsonl" not in source and ".ndjson" not in source:
        return [dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True)]
    keys = [dict.fromkeys(part) for part in parts if isinstance(part, dict)]
    if 0 < len(keys) == len(parts) and all(map(str.isdecimal, chain(*keys))):  # orient="columns", the default of pandas
        return [{name: part.get(key) for name, part in value.items()} for key in dict.fromkeys(chain(*keys))]
    if 0 < len(keys) == len(parts) and all(map(str.isdecimal, value)):  # orient="index"
        return parts
    # Lists of objects or lists are no values of a row, and objects with the same keys are rows or columns.
    named = [part for part in parts if isinstance(part, str | list | dict)]
    lists = [isinstance(part, list) and any(isinstance(item, dict | list) for item in part) for part in named]
    are_alike = 1 < len(keys) == len(parts) and len(set(keys[0]).intersection(*keys)) > 1
    if are_alike or (lists and all(lists)):
        advice = "write an object per line, or a list of objects (pandas: to_json(FILE, orient='records', lines=True))"
        message = f"{source} is one object, whose values are no columns of a row ({listing(value)}); {advice}"
        raise DataError(message, code="data.unreadable", source=source)
    return None


def squad_table(value: Any, source: str) -> pa.Table:
    """Return id, title, context, question, answers and is_impossible of each question, null where they are absent."""
    rows = list(_questions(value["data"], source))
    if not rows:
        raise DataError(f"{source} has SQuAD's layout, but no question", code="data.empty", source=source)
    try:
        return pa.Table.from_pylist(rows, schema=SQUAD)
    except UnicodeEncodeError as error:
        raise surrogate_error(source, error, source=source) from error


def surrogate_error(place: str, error: UnicodeEncodeError, **facts: Any) -> DataError:
    """Return the error for a text that cannot be written as UTF-8."""
    message = f"{place}: half of a surrogate pair (such as \\ud83d alone) is not text: {error}"
    return DataError(message, code="data.encoding", **facts)


def _questions(articles: list[Any], source: str) -> Iterator[dict[str, Any]]:
    for number, article in enumerate(articles):
        where = f"{source}, data[{number}]"
        title = _part(article, "title", str, where, needed=False)
        for place, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            inner = f"{where}.paragraphs[{place}]"
            context = _part(paragraph, "context", str, inner)
            for index, question in enumerate(_part(paragraph, "qas", list, inner)):
                here = f"{inner}.qas[{index}]"
                yield {
                    "id": str(_part(question, "id", (str, int), here)),
                    "title": title,
                    "context": context,
                    "question": _part(question, "question", str, here),
                    "answers": _answers(_part(question, "answers", list, here, needed=False), here),
                    "is_impossible": _part(question, "is_impossible", bool, here, needed=False),
                }


def _answers(answers: list[Any] | None, where: str) -> dict[str, list[Any]] | None:
    if answers is None:
        return None
    places = [(answer, f"{where}.answers[{number}]") for number, answer in enumerate(answers)]
    kinds = {"text": str, "answer_start": int}
    return {key: [_part(answer, key, kind, place) for answer, place in places] for key, kind in kinds.items()}


def _part(value: Any, key: str, kind: Any, where: str, *, needed: bool = True) -> Any:
    is_object = isinstance(value, dict)
    part = value.get(key) if is_object else value
    part = int(part) if kind is int and isinstance(part, str) and part.isdecimal() else part
    # bool is a subclass of int, but True is no id and no position.
    if is_object and isinstance(part, kind) and (kind is bool or not isinstance(part, bool)):
        return part
    if is_object and part is None and not needed:
        return None
    shown = repr(part) if len(repr(part)) <= 40 else f"{repr(part)[:40]}..."
    message = f"{where} is {shown}, not an object with {key!r}"
    if is_object:
        wanted = " or ".join(expected.__name__ for expected in (kind if isinstance(kind, tuple) else (kind,)))
        message = f"{where}.{key} {f'is {shown}' if key in value else 'is absent'}; expected {wanted}"
    raise DataError(message, code="data.unreadable", where=where, key=key)


def _whole_object(text: str, source: str) -> dict[str, Any] | None:
    """Return the whole text as one object; None where it is something else, such as one object per line."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):  # one object per line: `_lines` reports the line
            return None
        raise DataError(f"{source}: {error}", code="data.unreadable", source=source) from error
    except (RecursionError, ValueError) as error:
        if not isinstance(error, json.JSONDecodeError):
            return None
        # "Extra data" follows a complete object: the text has one object per line.
        if error.msg != "Extra data" and '"paragraphs"' in text:
            problem = f"not JSON ({error}); it looks like SQuAD's layout, but is damaged or incomplete"
            raise line_error(source, error.lineno, problem, code="data.unreadable") from error
        return None
    return value if isinstance(value, dict) else None


def _lines(text: str, source: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines, which also splits at U+2028
        if line.strip():
            place = f"line {number}"
            advice = "; expected one object per line, as jq -c . FILE > NEW.jsonl writes it"
            yield place, _load_json(line, f"{source}, {place}", source, advice)


def _load_json(text: str, where: str, source: str, advice: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise DataError(f"{where}: {error}", code="data.unreadable", source=source) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}){advice}", code="data.unreadable", source=source) from error


def column_of(values: list[Any], where: str) -> pa.Array:
    """Return values as an Arrow array, as strings where they have several types."""
    try:
        where.encode()  # raises for an invalid column name, too
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            is_text = (str, type(None))
            texts = [x if isinstance(x, is_text) else json.dumps(x, ensure_ascii=False) for x in values]
            return pa.array(texts, type=pa.string())
    except UnicodeEncodeError as error:
        raise surrogate_error(where, error, where=where) from error


def as_spans(value: Any) -> list[tuple[int, int, str]] | None:
    """Return (start, end, label) of each span of characters, from triples or objects; None where one is neither."""
    spans = []
    for item in value if isinstance(value, list) else [None]:
        if isinstance(item, dict):
            labels = item.get("labels")
            label = labels[0] if isinstance(labels, list) and labels else item.get("label")
            item = [item.get("start", item.get("start_offset")), item.get("end", item.get("end_offset")), label]
        if not isinstance(item, list) or list(map(type, item)) != [int, int, str]:
            return None
        spans.append((item[0], item[1], item[2]))
    return spans


def _doccano_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with objects in place of triples [0, 3, "PER"], which are no column of a table."""

    def spans(value: Any) -> Any:
        found = as_spans(value) if isinstance(value, list) and value and isinstance(value[0], list) else None
        return value if found is None else [dict(zip(("start", "end", "label"), span, strict=True)) for span in found]

    return {key: spans(value) for key, value in row.items()}


def _cluener_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with spans in place of {"PER": {"Ana": [[0, 2]]}}; the text has the end of its span."""
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        places = [(kind, *item) for kind, texts in row["label"].items() for item in texts.items()]
        spans = [(kind, first, first + len(text)) for kind, text, where in places for first, _ in where]
        return row | {"label": [{"start": start, "end": end, "label": kind} for kind, start, end in spans]}
    return row


def _prodigy_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an example without its tokens and options; of one that is not accepted, label and spans are null."""
    kept = {key: value for key, value in row.items() if key not in ("tokens", "options", "accept")}
    if "accept" in row:
        kept["label"] = row["accept"]
    if row.get("answer") == "accept" and not {"accept", "label"} & row.keys():
        kept.setdefault("spans", [])  # the row was looked at
    if row.get("answer", "accept") != "accept":
        kept |= {key: None for key in ("label", "spans") if key in kept}
    return kept


def _label_studio_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a task, and a column for each control of its first annotation, as in the export JSON-MIN."""
    annotations = [item for item in row["annotations"] if not item.get("was_cancelled")]
    made: dict[str, Any] = {}
    for result in annotations[0]["result"] if annotations else ():
        value, name = result.get("value", {}), result.get("from_name", "label")
        if "start" in value and "labels" in value:
            span = {"start": value["start"], "end": value["end"], "label": value["labels"][0]}
            made.setdefault(name, []).append(span)
        elif kind := next((key for key in ("choices", "rating", "number") if key in value), None):
            made[name] = value[kind]
    # These two are last, so that a field of the data cannot replace them.
    is_empty = bool(annotations) and not annotations[0]["result"]
    return {"id": row.get("id"), **row["data"], **made, NUM_ANNOTATIONS: len(annotations), _IS_EMPTY: is_empty}


JSON_FORMATS: tuple[tuple[str, Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
    ("Prodigy", lambda row: "_input_hash" in row, _prodigy_row),
    (
        "Label Studio",
        lambda row: isinstance(row.get("data"), dict) and isinstance(row.get("annotations"), list),
        _label_studio_row,
    ),
    ("CLUENER", lambda row: _cluener_row(row).get("label") not in (row.get("label"), []), _cluener_row),
    ("doccano, with spans", lambda row: _doccano_row(row) != row, _doccano_row),
)
"""Formats of rows of JSON: name, sign in one of the first rows, and the row that is read."""
