"""Published figures and claims: their file, read beside the matrix that it is about, and figures in tables."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, create_model

from paratune.base.text import listing, plain
from paratune.base.units import counted
from paratune.config.plain import one_line
from paratune.config.problems import failure
from paratune.config.section import Column, Section, Text
from paratune.errors import ConfigError, DataError, Fault, did_you_mean
from paratune.records.sweep import (
    MEASURE_UNITS,
    METRIC_NAMES,
    RATIO_CLAIMS,
    SYSTEM_MEASURES,
    ClaimKind,
    ComparedPair,
    Published,
    PublishedClaim,
    PublishedFigure,
)
from paratune.sweeps.axes import MatrixAxis, MatrixFile, find_one_of_each

_AMOUNT = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*([A-Za-z]*|%)\s*")


class PublishedFile(Section):
    """The file."""

    source: Text
    """The publication."""
    matrices: dict[str, Any]
    """Below the name of each matrix (its `name:`) what is published about it, `figures:` and `claims:`."""


class Claim(Section):
    """One published claim."""

    claim: Text
    """The claim in words."""
    relation: ClaimKind = Field(alias="kind")
    """How `of` compares with `than`."""
    measure: Text
    """The compared measure."""
    by: float | str | None = None
    """The share of `less` and `not_less`, such as 10%; the margin of a score otherwise."""
    of: dict[str, Any]
    """A configuration: values of axes. A list of values is several configurations, each compared with the other one."""
    than: dict[str, Any]
    """The other configuration."""
    where: Text | None = None
    """Table, figure or page."""


_MEASURES: dict[str, Any] = dict.fromkeys(MEASURE_UNITS, (float | str | None, None))
Figure = create_model("Figure", __base__=Section, values=(dict[str, Any], ...), where=(Text | None, None), **_MEASURES)
"""Published figures of one configuration, `values` of axes; each measure with its unit, such as `time: 26 min`."""


class OfMatrix(Section):
    """What is published about one matrix."""

    where: Text | None = None
    """Table, figure or page, of figures and claims without their own."""
    figures: list[Any] = Field(default_factory=list)
    """Each a `Figure`: sections of their own, so that the others are checked when one is wrong."""
    claims: list[Any] = Field(default_factory=list)
    """Each a `Claim`."""


class TableMapping(Section):
    """What the columns of a published table are."""

    source: Text
    """The publication."""
    where: Text | None = None
    """Table, figure or page."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark of a table with separators of thousands or decimal commas, which are refused without it."""
    rows: dict[str, Any] = Field(default_factory=dict)
    """By axis, the column that names its value in each row, or a `RowColumn`."""
    measures: dict[str, Any]
    """By measure, a `MeasureColumn` or a list of them."""


class RowColumn(Section):
    """A column that names the value of an axis in each row."""

    column: Column
    values: dict[Any, Any] | None = None
    """Value of the axis by cell, for all cells; null leaves the row out. Without it, cells are values."""


class MeasureColumn(Section):
    """A column of figures."""

    column: Column
    unit: Text | None = None
    """Unit of the cells; without it, each has its own."""
    of: dict[str, Any] = Field(default_factory=dict)
    """Values of axes that are the same in all rows, such as {stage: weights}."""


def published_beside(matrix: MatrixFile, given: str | None, name: str, axes: Sequence[MatrixAxis]) -> Published | None:
    """Return the figures and claims of the file that `published` names; its problems are added to the matrix's."""
    if given is None:
        return None
    try:
        file = MatrixFile(matrix.path.parent / given)
    except ConfigError as error:
        matrix.refuse(f"published: {error}", "published", error.code)
        return None
    matrix.problems += file.problems
    if file.problems:
        return None
    file.problems = matrix.problems
    whole, at = file.section(PublishedFile, file.value), f"matrices.{name}"
    if whole is None:
        return None
    if name not in whole.matrices:
        near = did_you_mean(name, whole.matrices) or f"; it has: {', '.join(whole.matrices)}"
        message = f"matrices has nothing of {name}{near}; add it, or leave published: out of the matrix"
        file.refuse(message, "matrices", "published.invalid")
        return None
    own = file.section(OfMatrix, whole.matrices[name], at)
    if own is None:
        return None
    if not own.figures and not own.claims:
        file.refuse(f"{at} has neither figures nor claims; add one", at, "config.required")
    figures, claims, where = list[PublishedFigure](), list[PublishedClaim](), own.where or ""
    for number, line in enumerate(own.figures):
        figures += _figures(file, axes, line, f"{at}.figures[{number}]", where)
    for number, line in enumerate(own.claims):
        claim = _claim(file, axes, line, f"{at}.claims[{number}]", where)
        claims += [] if claim is None else [claim]
    return Published(whole.source, tuple(figures), tuple(claims))


def _figures(file: MatrixFile, axes: Sequence[MatrixAxis], line: Any, at: str, where: str) -> Iterator[PublishedFigure]:
    figure = file.section(Figure, line, at)
    if figure is None:
        return
    values = find_one_of_each(file, axes, figure.values, f"{at}.values", "published.invalid")  # type: ignore[attr-defined]
    measures = figure.model_dump(exclude_none=True, exclude={"values", "where"})
    if not measures:
        file.refuse(f"{at} has no measure, such as time: 26 min or f1: 0.91", at, "config.required")
    for key, given in measures.items():
        amount, unit = _amount(given)
        if amount is None or unit not in MEASURE_UNITS[key]:
            forms = ", ".join(f"NUMBER {unit}" if unit else "a number alone" for unit in MEASURE_UNITS[key])
            file.refuse_value(given, forms, f"{at}.{key}", code="published.invalid")
        elif values is not None:
            yield PublishedFigure(values, key, amount, unit, figure.where or where)  # type: ignore[attr-defined]


def _claim(file: MatrixFile, axes: Sequence[MatrixAxis], line: Any, at: str, where: str) -> PublishedClaim | None:
    before = len(file.problems)
    claim = file.section(Claim, line, at)
    if claim is None:
        return None
    is_ratio = claim.relation in RATIO_CLAIMS
    known = [name for name in SYSTEM_MEASURES if name != "state_memory"] if is_ratio else METRIC_NAMES
    _check_known(file, claim.measure, known, "a measure", f"{at}.measure")
    given = 0 if claim.by is None and claim.relation == "less" else claim.by
    by, unit = _amount(given)
    # Of a score 1% could be a point of a hundred, or a hundredth of the baseline's: its margin is a plain number.
    by = None if by is None or unit not in ("%" * is_ratio, "") else by / 100 if unit else by
    if by is None or not (0 <= by < 1 if is_ratio else by > 0):
        score = "a margin above 0, in the unit of the metric"
        allowed = "a share from 0 to below 100%, such as 10%" if is_ratio else score
        file.refuse_value(given, allowed, f"{at}.by")
    than = find_one_of_each(file, axes, claim.than, f"{at}.than", "published.invalid")
    listed = [given if isinstance(given, list) else [given] for given in claim.of.values()]
    if [] in listed:
        file.refuse(f"{at}.of has an empty list; name at least one value", f"{at}.of", "published.invalid")
    pairs = []
    for values in itertools.product(*listed):
        of = find_one_of_each(file, axes, dict(zip(claim.of, values, strict=True)), f"{at}.of", "published.invalid")
        if of is None or than is None:
            break
        if of == than:
            file.refuse(f"{at}: of and than are the same configuration", at, "published.invalid")
        pairs.append(ComparedPair(of, than))
    if by is None or len(file.problems) > before:
        return None
    return PublishedClaim(claim.claim, claim.relation, claim.measure, by, tuple(pairs), claim.where or where)


def _check_known(file: MatrixFile, word: str, known: Iterable[str], what: str, at: str) -> None:
    """Refuse a word that is not `what`, which are the words in `known`."""
    if word not in (known := [*filter(None, known)]):
        near = did_you_mean(word, known) or f"; there are: {listing(known) or 'none'}"
        file.refuse(f"{at}: {plain(word)} is not {what}{near}", at, "published.invalid")


def _amount(content: Any) -> tuple[float | None, str]:
    """Return a number and its unit, such as (120.0, "GB"); None where it is not a finite number."""
    text = content if isinstance(content, str) else repr(content) if type(content) in (int, float) else ""
    written = _AMOUNT.fullmatch(text)
    if written is None or not math.isfinite(float(written[1])):
        return None, ""
    return float(written[1]), written[2]


def read_figures(path: Path, table: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `source` and `figures` of a table, as a published file has them, and counts of what was `left_out`.

    Args:
        path: The file of the mapping.
        table: Name of the table in messages.
        records: Its rows, at least one: cell by column.

    Raises:
        ConfigError: The mapping has problems, or does not fit the table.
        DataError: Cells are wrong, or a figure is there twice; lists the first 20.
    """
    mapping, keys, columns = _read_mapping(path, table, records[0])
    figures, places, wrong = dict[str, dict[str, Any]](), dict[str, str](), list[tuple[int, str, str]]()
    left_out = {"rows": 0, "empty_cells": 0}
    for row, record in enumerate(records, start=1):
        cells = {name: "" if cell is None else str(cell).strip() for name, cell in record.items()}
        values, unknown = dict[str, Any](), list[tuple[int, str, str]]()
        for axis, key in keys.items():
            cell = cells[key.column]
            known = {str(name): value for name, value in (key.values or ({cell: cell} if cell else {})).items()}
            if cell in known:
                values[axis] = known[cell]
            else:
                near = did_you_mean(cell, known) or f"; there are: {listing(known) or 'none'}"
                problem = f"{cell!r} is not in rows.{axis}.values{near}; add it, with null to leave its rows out"
                unknown.append((row, key.column, problem))
        if None in values.values():
            left_out["rows"] += 1
            continue
        wrong += unknown
        for measure, column in () if unknown else columns:
            cell, of = cells[column.column], values | column.of
            if cell.lower() in ("", "-", "–", "—", "n/a"):
                left_out["empty_cells"] += 1
                continue
            amount, unit = _amount(_with_point(cell, mapping.decimal))
            unit, name = unit or column.unit or "", one_line(dict(sorted(of.items())))
            first = places.setdefault(f"{measure} {name}", place := f"row {row}, column {column.column}")
            if amount is None or unit not in MEASURE_UNITS[measure] or column.unit not in (None, unit):
                units = column.unit or " or ".join(unit or "no unit" for unit in MEASURE_UNITS[measure])
                marks = 'the decimal of the mapping is "." for 1,234.5 and "," for 1.234,5'
                wrong.append((row, column.column, f"{cell!r} is not a number in {units}; see unit; {marks}"))
            elif first != place:
                wrong.append((row, column.column, f"{measure} of {name} is in {first}, too; see rows: and of:"))
            else:
                figure = f"{repr(amount).removesuffix('.0')}{' ' * (unit != '%')}{unit}" if unit else amount
                figures.setdefault(name, {"values": of})[measure] = figure
    if not figures and not wrong:
        wrong.append((1, next(iter(records[0])), "no row has a figure; see rows: and measures: of the mapping"))
    if wrong:
        heading = f"{plain(table)}: {counted(len(wrong), 'problem')}{', the first 20:' * (len(wrong) > 20)}"
        faults = [
            Fault("published.invalid", plain(f"row {row}, column {name}: {problem}"), {"row": row, "column": name})
            for row, name, problem in wrong[:20]
        ]
        raise DataError(heading, code="published.invalid", faults=faults)
    where = {} if mapping.where is None else {"where": mapping.where}
    return {"source": mapping.source, "figures": [figure | where for figure in figures.values()], "left_out": left_out}


def _read_mapping(
    path: Path, table: str, known: Iterable[str]
) -> tuple[TableMapping, dict[str, RowColumn], list[tuple[str, MeasureColumn]]]:
    """Return a mapping, the column of each axis, and the columns of measures; `known` are the columns of the table."""
    file = MatrixFile(path)
    mapping = None if file.problems else file.section(TableMapping, file.value)
    keys, columns = dict[str, RowColumn](), list[tuple[str, MeasureColumn]]()
    for axis, given in mapping.rows.items() if mapping else ():
        at, content = f"rows.{axis}", {"column": given} if isinstance(given, str) else given
        if (key := file.section(RowColumn, content, at)) is not None:
            _check_known(file, key.column, known, f"a column of {plain(table)}", f"{at}.column")
            keys[axis] = key
    for measure, given in mapping.measures.items() if mapping else ():
        _check_known(file, measure, MEASURE_UNITS, "a measure", f"measures.{measure}")
        for number, content in enumerate(given if isinstance(given, list) else [given]):
            at = f"measures.{measure}[{number}]" if isinstance(given, list) else f"measures.{measure}"
            if (column := file.section(MeasureColumn, content, at)) is None:
                continue
            _check_known(file, column.column, known, f"a column of {plain(table)}", f"{at}.column")
            if column.unit is not None and measure in MEASURE_UNITS:
                _check_known(file, column.unit, MEASURE_UNITS[measure], f"a unit of {measure}", f"{at}.unit")
            if twice := column.of.keys() & keys.keys():
                file.refuse(f"{at}.of and rows both have {listing(twice)}; keep one", f"{at}.of", "published.invalid")
            columns.append((measure, column))
    if mapping is None or file.problems:
        raise failure(path, file.problems, file.label)
    return mapping, keys, columns


def _with_point(cell: str, decimal: str | None) -> str:
    """Return a number with a decimal point and without separators of thousands; "" for other texts."""
    if decimal is None:
        return cell
    # Groups have three digits and the same separator; with decimal: ",", 0.912 is not 912.
    groups = rf"[1-9][0-9]{{0,2}}([\s'’{'.' if decimal == ',' else ','}])[0-9]{{3}}(?:\3[0-9]{{3}})*"
    parts = re.fullmatch(rf"([-+]?)({groups}|[0-9]+)(?:[{decimal}]([0-9]+))?(\s*[A-Za-z%]*)", cell)
    return "" if parts is None else f"{parts[1]}{re.sub('[^0-9]', '', parts[2])}.{parts[4] or 0}{parts[5]}"
