"""A flat table of numbers: subject, plain name, unit, statistic, and the value in all its digits."""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROUNDING = 1e-12
"""Relative difference of sums in another order: the libraries of linear algebra choose theirs by the processor."""


class Key(NamedTuple):
    """The name of a number, without words of any record or report."""

    case: str
    """The question: a report of runs or of a matrix, or a comparison."""
    subject: str
    """A run, runs over which a mean is taken, or `A against B`."""
    measure: str
    unit: str
    statistic: str
    """value, mean, standard deviation, low, high, verdict, ..."""


Numbers = Mapping[Key, str]


@dataclass(frozen=True)
class Differences:
    """How numbers differ from the expected ones."""

    num_equal: int
    differs: dict[Key, tuple[str, str]]
    """Expected and actual value."""
    lost: dict[Key, str]
    new: dict[Key, str]

    @property
    def is_equal(self) -> bool:
        """Whether each expected number was found; new ones are allowed."""
        return not (self.differs or self.lost)

    def counts(self) -> str:
        return f"{self.num_equal} equal, {len(self.differs)} differ, {len(self.lost)} lost, {len(self.new)} new"


def compare(expected: Numbers, actual: Numbers) -> Differences:
    both = [key for key in expected if key in actual]
    differs = {key: (expected[key], actual[key]) for key in both if not _is_same(expected[key], actual[key])}
    return Differences(
        len(both) - len(differs),
        differs,
        {key: value for key, value in expected.items() if key not in actual},
        {key: value for key, value in actual.items() if key not in expected},
    )


def _is_same(expected: str, actual: str) -> bool:
    try:
        return expected == actual or math.isclose(float(expected), float(actual), rel_tol=ROUNDING)
    except ValueError:
        return False


def lines(differences: Differences, most: int = 20) -> Iterable[str]:
    """Yield the first numbers of each sort."""
    for sort, numbers in (("differs", differences.differs), ("lost", differences.lost), ("new", differences.new)):
        for key, value in list(numbers.items())[:most]:
            shown = f"{value[0]} expected, found {value[1]}" if isinstance(value, tuple) else value
            yield f"  {sort}: {' | '.join(key)}: {shown}"
        if len(numbers) > most:
            yield f"  {sort}: {len(numbers) - most} more"


def write(path: Path, numbers: Numbers) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Key._fields, "value"])
        writer.writerows([*key, value] for key, value in numbers.items())


def read(path: Path) -> dict[Key, str]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return {Key(*row[:-1]): row[-1] for row in rows}
