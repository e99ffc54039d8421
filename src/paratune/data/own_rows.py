"""Reads the rows of the user's own data set: a torch Dataset, a data set of `datasets`, or any iterable of mappings."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from paratune.config.own_code import OWN_ERRORS, call_own_code, described_error, same_folder
from paratune.config.section import OwnCode
from paratune.config.sources import CODE
from paratune.errors import ConfigError, DataError


def read_own_rows(source: str) -> pa.Table:
    """Return the rows of a source `code:package.module:function`, or `...?key=value&key=value` with keyword arguments.

    The function is called once, with the arguments as texts. It returns an Arrow table, an object with a length and
    items such as a torch Dataset, or another iterable that ends. Rows are mappings of columns to values.

    Raises:
        ConfigError: The function cannot be imported or called.
        DataError: The arguments cannot be read; or it returns something else, or the number of rows differs from the
            length.
    """
    name, _, query = source.removeprefix(CODE).partition("?")
    rows = call_own_code(OwnCode.model_construct(function=name, options=_arguments(query, source)), source)
    if isinstance(rows, pa.Table):
        return rows
    try:
        with same_folder():
            read = _read(rows, source)
    except (ConfigError, DataError):
        raise
    except OWN_ERRORS as error:  # a user's data set may raise anything
        raise DataError(
            f"{source}: reading its rows raised {described_error(error)}",
            code="data.own_rows",
            source=source,
        ) from error
    for number, row in enumerate(read):
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise DataError(
                f"{source}: row {number} is of type {type(row).__name__}; a row is a mapping of column names to values",
                code="data.own_rows",
                source=source,
                row=number,
            )
    columns = dict.fromkeys(key for row in read for key in row)
    try:
        return pa.table({key: pa.array([row.get(key) for row in read]) for key in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{source}: the values of a column have different types, or a type that Arrow does not have: {error}; use "
            "texts, numbers and lists of them",
            code="data.own_rows",
            source=source,
        ) from error


def _arguments(query: str, source: str) -> dict[str, str]:
    """Return the keyword arguments of a source, what follows the question mark."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        pairs = []
    arguments = dict(pairs)
    if len(arguments) != len(pairs) or bool(arguments) != bool(query):
        raise DataError(
            f"{source}: what follows ? is {query}; write key=value&key=value, each key once",
            code="data.own_arguments",
            source=source,
            value=query,
        )
    return arguments


def _read(rows: Any, source: str) -> list[Any]:
    """Return all rows, as many as the length before and after reading."""
    before = len(rows) if hasattr(rows, "__len__") else None
    if before is not None and hasattr(rows, "__getitem__") and not isinstance(rows, Mapping):
        read = [rows[number] for number in range(before)]
    elif isinstance(rows, Iterable) and not isinstance(rows, Mapping | str):
        read = list(rows)
    else:
        raise DataError(
            f"{source} returned {type(rows).__name__}; return a data set or an iterable of mappings",
            code="data.own_rows",
            source=source,
        )
    after = len(rows) if before is not None else None
    if before != after or before not in (None, len(read)):
        raise DataError(
            f"{source}: its length was {before} before and {after} after reading, and it has {len(read)} rows; a data "
            "set must not change",
            code="data.own_rows",
            source=source,
        )
    return read
