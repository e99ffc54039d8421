"""Reads the rows of a request: JSON with the columns of the model, and nothing else."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa

from paratune.base.unique_keys import unique_keys
from paratune.config.sections import Columns, named_columns
from paratune.errors import DataError
from paratune.serving.settings import ServingLimits

Row = Mapping[str, Any]


def column_names(columns: Columns) -> dict[str, str]:
    """Return the accepted names of the columns of a row, and the column of the model that each one means.

    The names of the configuration are accepted, and `text` and `text_pair` where the model has one column for it.
    """
    names: dict[str, str] = {}
    for name, chosen in (("text", named_columns(columns.text)), ("text_pair", named_columns(columns.text_pair))):
        if len(chosen) == 1:
            names.setdefault(name, chosen[0])
        names |= {column: column for column in chosen}
    return names


def read_rows(body: bytes, columns: Columns, *, is_words: bool, limits: ServingLimits) -> list[Row]:
    """Return the rows of a request, with the columns of the model.

    Args:
        body: A JSON object: one row, or several rows as {"rows": [...]}.

    Raises:
        DataError: The body is not JSON, a column is unknown or missing, or a limit is exceeded.
    """
    try:
        document = json.loads(body, object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the body is not valid JSON: {error}", code="serve.body") from error
    rows = [document]
    if isinstance(document, dict) and isinstance(document.get("rows"), list):
        rows = document.pop("rows")
        if document:
            message = f"{next(iter(document))[:100]!r} beside rows is unknown; send rows alone"
            raise DataError(message, code="serve.columns", columns=["rows"])
    if not rows:
        raise DataError("rows is empty; give at least one row", code="serve.body")
    if len(rows) > limits.max_rows:
        message = f"{len(rows)} rows are more than {limits.max_rows}; send several requests"
        raise DataError(message, code="serve.too_many_rows", num_rows=len(rows), max_rows=limits.max_rows)
    names = column_names(columns)
    return [_read_row(number, row, names, is_words=is_words, limits=limits) for number, row in enumerate(rows)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read_row(number: int, row: Any, names: Mapping[str, str], *, is_words: bool, limits: ServingLimits) -> Row:
    if not isinstance(row, dict):
        message = f"row {number} is not an object; give an object with {', '.join(names)}"
        raise DataError(message, code="serve.body", row=number)
    read: dict[str, Any] = {}
    for key, value in row.items():
        column = names.get(key)
        if column is None or column in read:
            reason = "is not a column of this model" if column is None else "is given twice"
            message = f"row {number}: {key[:100]!r} {reason}; columns: {', '.join(names)}"
            raise DataError(message, code="serve.columns", row=number, columns=list(names))
        _check_value(number, key, value, is_words=is_words, max_chars=limits.max_chars)
        read[column] = value
    missing = sorted(set(names.values()) - set(read))
    if missing:
        message = f"row {number} has no {', '.join(missing)}"
        raise DataError(message, code="serve.columns", row=number, columns=list(names))
    return read


def _check_value(number: int, key: str, value: Any, *, is_words: bool, max_chars: int) -> None:
    words = value if is_words and isinstance(value, list) else [value]
    if (is_words and not isinstance(value, list)) or not words or not all(isinstance(word, str) for word in words):
        wanted = "a list of words" if is_words else "a text"
        raise DataError(f"row {number}: {key} must be {wanted}", code="serve.value", row=number, column=key)
    num_chars = sum(map(len, words))
    if num_chars > max_chars:
        message = f"row {number}: {key} has {num_chars} characters; at most {max_chars} are allowed"
        raise DataError(message, code="serve.text_too_long", row=number, num_chars=num_chars, max_chars=max_chars)
    try:
        "".join(words).encode()
    except UnicodeEncodeError as error:
        message = f"row {number}: {key} has half of a surrogate pair, which is not a character"
        raise DataError(message, code="serve.value", row=number, column=key) from error


def as_table(rows: list[Row]) -> pa.Table:
    """Return rows with the same columns as a table."""
    return pa.table({name: [row[name] for row in rows] for name in rows[0]})
