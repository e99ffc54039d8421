"""A file of published figures and claims, read beside the matrix that it is about."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field, create_model

from paratune.base.text import plain
from paratune.config.section import Section, Text
from paratune.errors import ConfigError, did_you_mean
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
    if claim.measure not in known:
        near = did_you_mean(claim.measure, known) or f"; there are: {', '.join(known)}"
        message = f"{at}.measure: {plain(claim.measure)} is not a measure{near}"
        file.refuse(message, f"{at}.measure", "published.invalid")
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


def _amount(content: Any) -> tuple[float | None, str]:
    """Return a number and its unit, such as (120.0, "GB"); None where it is not a finite number."""
    text = content if isinstance(content, str) else repr(content) if type(content) in (int, float) else ""
    written = _AMOUNT.fullmatch(text)
    if written is None or not math.isfinite(float(written[1])):
        return None, ""
    return float(written[1]), written[2]
