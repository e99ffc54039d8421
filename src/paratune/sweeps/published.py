"""A file of published figures and claims, read beside the matrix that it is about."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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

KEYS = ("source", "matrices")
_OF_A_MATRIX = ("where", "figures", "claims")
_BESIDE_MEASURES = ("values", "where", "source")
_OF_A_CLAIM = ("claim", "kind", "measure", "by", "of", "than", "along", "held", "where", "source")
_AMOUNT = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?)\s*([A-Za-z]*|%)\s*")


def read_published(path: Path, matrix: str, axes: Sequence[AxisOfValues]) -> tuple[Published, MatrixFile]:
    """Read the figures and claims of a file about a matrix.

    Args:
        matrix: Name of the matrix: the file may be about several.

    Returns:
        The figures and claims; and the file with its `problems`.

    Raises:
        ConfigError: The file cannot be read.
    """
    file = MatrixFile(path)
    return _PublishedReader(file, matrix, {axis.axis.label: axis for axis in axes}).read(), file


class _PublishedReader:
    """Reads one file, and collects its problems."""

    def __init__(self, file: MatrixFile, matrix: str, axes: Mapping[str, AxisOfValues]) -> None:
        self.file, self.matrix, self.axes = file, matrix, axes
        self.labels = {key: label for label, axis in axes.items() for key in (axis.axis.key, label)}
        self.source = ""

    def read(self) -> Published:
        content = self._mapping(self.file.value, "", KEYS)
        matrices = self._mapping(content.get("matrices"), "matrices")
        if matrices and self.matrix not in matrices:
            near = did_you_mean(self.matrix, map(str, matrices)) or f"; it has: {', '.join(map(str, matrices))}"
            message = f"matrices has nothing of {self.matrix}{near}; add it, or leave published: out of the matrix"
            self.file.refuse(message, "matrices", "published.no_matrix")
        self.source = self.file.text(content, "source", "")
        at = f"matrices.{self.matrix}"
        own = self._mapping(matrices.get(self.matrix), at, _OF_A_MATRIX) if self.matrix in matrices else {}
        where = self.file.text(own, "where", "")
        figures = [
            figure
            for number, item in enumerate(self._list(own.get("figures"), f"{at}.figures"))
            for figure in self._figures(item, f"{at}.figures[{number}]", where)
        ]
        claims = [
            claim
            for number, item in enumerate(self._list(own.get("claims"), f"{at}.claims"))
            if (claim := self._claim(item, f"{at}.claims[{number}]", where)) is not None
        ]
        if own and not figures and not claims and not self.file.problems:
            self.file.refuse(f"{at} has neither figures nor claims; add one", at, "config.required")
        self._check_once(figures, at)
        return Published(tuple(figures), tuple(claims))

    def _figures(self, content: Any, at: str, where: str) -> Iterator[PublishedFigure]:
        """Yield the figures of a line: it names values of axes, and one measure or several."""
        line = self._mapping(content, at)
        values = self._values(line.get("values"), f"{at}.values")
        place = self._place(line, at, where)
        measures = [key for key in line if key not in _BESIDE_MEASURES]
        if line and not measures:
            self.file.refuse(f"{at} has no measure, such as time: 26 min or f1: 0.91", at, "config.required")
        for key in measures:
            if key not in SYSTEM_MEASURES and key not in METRIC_NAMES:
                self._refuse_measure(key, f"{at}.{key}", [*SYSTEM_MEASURES, *METRIC_NAMES])
                continue
            amount = self._amount(line[key], key, f"{at}.{key}")
            if amount is not None and values is not None:
                yield PublishedFigure(values, key, *amount, *place)

    def _claim(self, content: Any, at: str, where: str) -> PublishedClaim | None:
        before = len(self.file.problems)
        line = self._mapping(content, at, _OF_A_CLAIM)
        text, kind, measure = (self.file.text(line, key, "") for key in ("claim", "kind", "measure"))
        for key, value in (("claim", text), ("measure", measure)):
            if line and not value:
                self.file.refuse(f"{at}.{key} is required", f"{at}.{key}", "config.required")
        if line and kind not in CLAIM_KINDS:
            allowed = ", ".join(CLAIM_KINDS)
            self.file.refuse(f"{at}.kind is {plain(kind) or 'missing'}; allowed: {allowed}", f"{at}.kind")
        known = list(SYSTEM_MEASURES) if kind in RATIO_CLAIMS else list(METRIC_NAMES)
        if kind in CLAIM_KINDS and measure and (measure not in known or measure == "state_memory"):
            self._refuse_measure(measure, f"{at}.measure", [name for name in known if name != "state_memory"])
        by = self._by(line, kind, f"{at}.by") if kind in CLAIM_KINDS else 0.0
        pairs = tuple(self._pairs(line, at))
        if len(self.file.problems) > before or not line:
            return None
        return PublishedClaim(text, kind, measure, by, pairs, *self._place(line, at, where))

    def _by(self, line: Mapping[Any, Any], kind: str, at: str) -> float:
        """Return the share of a ratio, which may be 0, or the margin of a score, which is above 0."""
        content = line.get("by", 0 if kind == "less" else None)
        written = _AMOUNT.fullmatch(content) if isinstance(content, str) else None
        # Of a score 1% could be a point of a hundred, or a hundredth of the baseline's: its margin is a plain number.
        is_share = written is not None and written[2] == "%" and kind in RATIO_CLAIMS
        value = float(written[1]) / 100 if written is not None and is_share else content
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if is_number and (0 <= value < 1 if kind in RATIO_CLAIMS else value > 0):
            return float(value)
        allowed = (
            "a share from 0 to below 100%, such as 10%"
            if kind in RATIO_CLAIMS
            else "a margin above 0, in the unit of the metric"
        )
        self.file.refuse(f"{at} is {describe_value(content)}; allowed: {allowed}", at)
        return 0.0

    def _pairs(self, line: Mapping[Any, Any], at: str) -> Iterator[ComparedPair]:
        """Yield the compared configurations: `of` beside `than`, or each value `along` an axis beside the first one."""
        if not line:
            return
        given = [key for key in ("of", "than", "along", "held") if key in line]
        if given == ["of", "than"]:
            of, than = (self._values(line[key], f"{at}.{key}") for key in given)
            if of == than and of is not None:
                self.file.refuse(f"{at}: of and than are the same configuration", at, "published.values")
            if of is not None and than is not None:
                yield ComparedPair(of, than)
        elif given in (["along"], ["along", "held"]):
            label = self.labels.get(str(line["along"]))
            fixed = self._values(line["held"], f"{at}.held") if "held" in line else {}
            if label is None:
                self._refuse_axis(line["along"], f"{at}.along")
            elif fixed is not None:
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
        for key, value in self._mapping(content, at).items():
            label = self.labels.get(str(key))
            if label is None:
                self._refuse_axis(key, at)
                continue
            axis = self.axes[label]
            name = find_value(axis, value)
            if name is None:
                self.file.refuse(
                    f"{at}: {show(value)} is not on the axis {key}; it has: {', '.join(axis.axis.values.values())}",
                    f"{at}.{key}",
                    "published.values",
                )
            elif axis.axis.is_seed:
                message = f"{at}: {key} has seeds, and figures are means over seeds; leave it out"
                self.file.refuse(message, f"{at}.{key}", "published.values")
            else:
                names[label] = name
        return names if len(self.file.problems) == before else None

    def _amount(self, content: Any, measure: str, at: str) -> tuple[float, str] | None:
        """Return a number with its unit, such as (120.0, "GB")."""
        units = measure_units(measure)
        text = content if isinstance(content, str) else repr(content) if type(content) in (int, float) else ""
        written = _AMOUNT.fullmatch(text)
        if written and written[2] in units and math.isfinite(float(written[1])):
            return float(written[1]), written[2]
        forms = ", ".join(f"NUMBER {unit}" if unit else "a number alone" for unit in units)
        self.file.refuse(f"{at} is {describe_value(content)}; allowed: {forms}", at, "published.amount")
        return None

    def _place(self, line: Mapping[Any, Any], at: str, where: str) -> tuple[str, str]:
        """Return the publication and the place in it; a figure without a source is refused."""
        source = self.file.text(line, "source", self.source)
        if line and not source:
            self.file.refuse(f"{at} has no source; give source: here, or for the whole file", at, "published.source")
        return source, self.file.text(line, "where", where)

    def _check_once(self, figures: Sequence[PublishedFigure], at: str) -> None:
        keys = [(figure.measure, sorted(figure.values.items())) for figure in figures]
        for key in keys:
            if keys.count(key) > 1:
                values = ", ".join(name for _, name in key[1]) or "the matrix"
                self.file.refuse(
                    f"{at}.figures has {key[0]} of {values} twice; keep one", f"{at}.figures", "published.values"
                )
                return

    def _refuse_axis(self, key: Any, at: str) -> None:
        near = did_you_mean(str(key), self.labels) or f"; there are: {', '.join(self.axes)}"
        self.file.refuse(f"{at}: {plain(str(key))} is not an axis of {self.matrix}{near}", at, "published.values")

    def _refuse_measure(self, key: Any, at: str, known: Sequence[str]) -> None:
        near = did_you_mean(str(key), known) or f"; there are: {', '.join(known)}"
        self.file.refuse(f"{at}: {plain(str(key))} is not a measure{near}", at, "published.measure")

    def _mapping(self, content: Any, at: str, known: Sequence[str] = ()) -> dict[Any, Any]:
        if not isinstance(content, dict) or not content:
            problem = "missing" if content is None else describe_value(content)
            if not at and self.file.problems:  # the problems of the YAML itself are enough
                return {}
            self.file.refuse(f"{at or 'the file'} is {problem}; allowed: a mapping", at, "config.not_mapping")
            return {}
        for key in content:
            if known and key not in known:
                near = did_you_mean(str(key), known) or f"; there are: {', '.join(known)}"
                place = f"{at}.{key}" if at else str(key)
                self.file.refuse(f"{plain(place)} is not a key here{near}", place, "config.unknown_key")
        return content

    def _list(self, content: Any, at: str) -> list[Any]:
        if content is None:
            return []
        if not isinstance(content, list):
            self.file.refuse(f"{at} is {describe_value(content)}; allowed: a list", at)
            return []
        return content


def published_beside(
    matrix: MatrixFile, content: Mapping[Any, Any], name: str, axes: Sequence[AxisOfValues]
) -> Published | None:
    """Return the figures and claims of the file that `published` names; None without the key."""
    given = matrix.text(content, "published", None)
    if given is None:
        return None
    try:
        published, file = read_published(matrix.path.parent / given, name, axes)
    except ConfigError as error:
        matrix.refuse(f"published: {error}", "published", error.code)
        return None
    matrix.problems += file.problems
    return published
