"""A file of published figures and claims, read beside the matrix that it is about."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.config.validate import describe_value
from paratune.errors import ConfigError, did_you_mean
from paratune.records.published import (
    CLAIM_KINDS,
    METRIC_NAMES,
    RATIO_CLAIMS,
    SYSTEM_MEASURES,
    ComparedPair,
    Published,
    PublishedClaim,
    PublishedFigure,
    measure_units,
)
from paratune.sweeps.axes import AxisOfValues, find_value
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.values import show

_OF_A_MATRIX = ("where", "figures", "claims")
_BESIDE_MEASURES = ("values", "where")
_OF_A_CLAIM = ("claim", "kind", "measure", "by", "of", "than", "along", "held", "where")
_AMOUNT = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*([A-Za-z]*|%)\s*")
_SCORES_BY = "a margin above 0, in the unit of the metric"


def published_beside(
    matrix: MatrixFile, content: Mapping[Any, Any], name: str, axes: Sequence[AxisOfValues]
) -> Published | None:
    """Return the figures and claims of the file that `published` names; None without the key.

    Problems of the file are added to those of the matrix.
    """
    given = matrix.text(content, "published", None)
    if given is None:
        return None
    try:
        file = MatrixFile(matrix.path.parent / given)
    except ConfigError as error:
        matrix.refuse(f"published: {error}", "published", error.code)
        return None
    published = _PublishedReader(file, name, axes).read() if not file.problems else None
    matrix.problems += file.problems
    return published


class _PublishedReader:
    """Reads one file, and collects its problems."""

    def __init__(self, file: MatrixFile, matrix: str, axes: Sequence[AxisOfValues]) -> None:
        self.file, self.matrix = file, matrix
        self.axes = {axis.axis.label: axis for axis in axes}
        self.labels = {key: axis.axis.label for axis in axes for key in (axis.axis.key, axis.axis.label)}
        self.where = ""

    def read(self) -> Published:
        file, at = self.file, f"matrices.{self.matrix}"
        content = self._mapping(file.value, "the file", "a mapping, source: and matrices:", ("source", "matrices"))
        if content is None:
            return Published()
        matrices = self._mapping(content.get("matrices"), "matrices", "figures and claims by names of matrices") or {}
        if matrices and self.matrix not in matrices:
            near = did_you_mean(self.matrix, map(str, matrices)) or f"; it has: {', '.join(map(str, matrices))}"
            message = f"matrices has nothing of {self.matrix}{near}; add it, or leave published: out of the matrix"
            file.refuse(message, "matrices", "published.no_matrix")
            return Published()
        own = self._mapping(matrices.get(self.matrix), at, "figures: and claims:", _OF_A_MATRIX) if matrices else None
        source, self.where = file.text(content, "source", ""), file.text(own or {}, "where", "")
        if not source:
            file.refuse("source is required: the publication", "source", "published.source")
        figures = [
            figure for place, line in self._lines(own or {}, at, "figures") for figure in self._figures(line, place)
        ]
        claims = [self._claim(line, place) for place, line in self._lines(own or {}, at, "claims")]
        if not figures and not claims and not file.problems:
            file.refuse(f"{at} has neither figures nor claims; add one", at, "config.required")
        return Published(source, tuple(figures), tuple(claim for claim in claims if claim is not None))

    def _lines(self, own: Mapping[Any, Any], at: str, key: str) -> Iterator[tuple[str, dict[Any, Any]]]:
        """Yield each mapping of a list, with its place."""
        listed = own.get(key) or []
        if not isinstance(listed, list):
            self.file.refuse(f"{at}.{key} is {describe_value(listed)}; allowed: a list", f"{at}.{key}")
            return
        for number, item in enumerate(listed):
            place = f"{at}.{key}[{number}]"
            line = self._mapping(item, place, "a mapping", _OF_A_CLAIM if key == "claims" else ())
            if line is not None:
                yield place, line

    def _figures(self, line: Mapping[Any, Any], at: str) -> Iterator[PublishedFigure]:
        """Yield the figures of a line: it names values of axes, and one measure or several."""
        values, where = self._values(line.get("values"), f"{at}.values"), self.file.text(line, "where", self.where)
        measures = [key for key in line if key not in _BESIDE_MEASURES]
        if not measures:
            self.file.refuse(f"{at} has no measure, such as time: 26 min or f1: 0.91", at, "config.required")
        for key in measures:
            if key not in SYSTEM_MEASURES and key not in METRIC_NAMES:
                self._refuse_measure(key, f"{at}.{key}", [*SYSTEM_MEASURES, *METRIC_NAMES])
                continue
            units = measure_units(key)
            amount, unit = _amount(line[key])
            if amount is None or unit not in units:
                forms = ", ".join(f"NUMBER {unit}" if unit else "a number alone" for unit in units)
                message = f"{at}.{key} is {describe_value(line[key])}; allowed: {forms}"
                self.file.refuse(message, f"{at}.{key}", "published.amount")
            elif values is not None:
                yield PublishedFigure(values, key, amount, unit, where)

    def _claim(self, line: Mapping[Any, Any], at: str) -> PublishedClaim | None:
        before = len(self.file.problems)
        text, kind, measure = (self.file.text(line, key, "") for key in ("claim", "kind", "measure"))
        for key, value in (("claim", text), ("measure", measure)):
            if not value:
                self.file.refuse(f"{at}.{key} is required", f"{at}.{key}", "config.required")
        if kind not in CLAIM_KINDS:
            allowed = ", ".join(CLAIM_KINDS)
            self.file.refuse(f"{at}.kind is {plain(kind) or 'missing'}; allowed: {allowed}", f"{at}.kind")
            return None
        is_ratio = kind in RATIO_CLAIMS
        known = [name for name in SYSTEM_MEASURES if name != "state_memory"] if is_ratio else list(METRIC_NAMES)
        if measure and measure not in known:
            self._refuse_measure(measure, f"{at}.measure", known)
        given = line.get("by", 0 if kind == "less" else None)
        by, unit = _amount(given)
        # Of a score 1% could be a point of a hundred, or a hundredth of the baseline's: its margin is a plain number.
        by = None if by is None or unit not in ("%" * is_ratio, "") else by / 100 if unit else by
        if by is None or not (0 <= by < 1 if is_ratio else by > 0):
            allowed = "a share from 0 to below 100%, such as 10%" if is_ratio else _SCORES_BY
            self.file.refuse(f"{at}.by is {describe_value(given)}; allowed: {allowed}", f"{at}.by")
        pairs = tuple(self._pairs(line, at))
        if by is None or len(self.file.problems) > before:
            return None
        return PublishedClaim(text, kind, measure, by, pairs, self.file.text(line, "where", self.where))

    def _pairs(self, line: Mapping[Any, Any], at: str) -> Iterator[ComparedPair]:
        """Yield the compared configurations: `of` beside `than`, or each value `along` an axis beside the first one."""
        given = [key for key in ("of", "than", "along", "held") if key in line]
        if given == ["of", "than"]:
            of, than = (self._values(line[key], f"{at}.{key}") for key in given)
            if of == than and of is not None:
                self.file.refuse(f"{at}: of and than are the same configuration", at, "published.values")
            elif of is not None and than is not None:
                yield ComparedPair(of, than)
        elif given in (["along"], ["along", "held"]):
            label = self._label(line["along"], f"{at}.along")
            fixed = self._values(line["held"], f"{at}.held") if "held" in line else {}
            if label is not None and fixed is not None:
                first, *others = self.axes[label].axis.values
                yield from (ComparedPair({**fixed, label: name}, {**fixed, label: first}) for name in others)
        else:
            message = (
                f"{at} has {' and '.join(given) or 'nothing to compare'}; give of: and than: (values of axes), or "
                "along: (an axis) with held: (values of other axes)"
            )
            self.file.refuse(message, at, "published.values")

    def _values(self, content: Any, at: str) -> dict[str, str] | None:
        """Return the names of values by axis; None where something is wrong with them."""
        before = len(self.file.problems)
        names: dict[str, str] = {}
        for key, value in (self._mapping(content, at, "values of axes, such as {nproc: 4}") or {}).items():
            label = self._label(key, at)
            axis = None if label is None else self.axes[label]
            name = None if axis is None else find_value(axis, value)
            if label is None or axis is None:
                continue
            if name is None:
                problem = f"{show(value)} is not on the axis {key}; it has: {', '.join(axis.axis.values.values())}"
                self.file.refuse(f"{at}: {problem}", f"{at}.{key}", "published.values")
            elif axis.axis.is_seed:
                message = f"{at}: {key} has seeds, and figures are means over seeds; leave it out"
                self.file.refuse(message, f"{at}.{key}", "published.values")
            else:
                names[label] = name
        return names if len(self.file.problems) == before else None

    def _mapping(self, content: Any, at: str, allowed: str, known: Collection[str] = ()) -> dict[Any, Any] | None:
        """Return a mapping; None when the value is not one. Keys that are not `known`, if any are, are problems."""
        if not isinstance(content, dict):
            self.file.refuse(f"{at} is {describe_value(content)}; allowed: {allowed}", at)
            return None
        for key in content if known else ():
            if key not in known:
                near = did_you_mean(str(key), known) or f"; it has: {', '.join(known)}"
                self.file.refuse(f"{at}.{key} is not an option{near}", f"{at}.{key}", "config.unknown_key")
        return content

    def _label(self, key: Any, at: str) -> str | None:
        """Return the label of an axis."""
        if str(key) not in self.labels:
            near = did_you_mean(str(key), self.labels) or f"; there are: {', '.join(self.axes)}"
            self.file.refuse(f"{at}: {plain(str(key))} is not an axis of {self.matrix}{near}", at, "published.values")
        return self.labels.get(str(key))

    def _refuse_measure(self, key: Any, at: str, known: Sequence[str]) -> None:
        near = did_you_mean(str(key), known) or f"; there are: {', '.join(known)}"
        self.file.refuse(f"{at}: {plain(str(key))} is not a measure{near}", at, "published.measure")


def _amount(content: Any) -> tuple[float | None, str]:
    """Return a number and its unit, such as (120.0, "GB"); None where it is not a finite number."""
    text = content if isinstance(content, str) else repr(content) if type(content) in (int, float) else ""
    written = _AMOUNT.fullmatch(text)
    if written is None or not math.isfinite(float(written[1])):
        return None, ""
    return float(written[1]), written[2]
