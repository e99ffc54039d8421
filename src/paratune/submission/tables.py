"""Writes and checks the tables of a submission to GLUE.

Source: the submission format on gluebenchmark.com/faq; row counts of the test sets: the data card of nyu-mll/glue.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from paratune.config.glue import GLUE
from paratune.errors import DataError

HEADER = "index\tprediction"
LOWEST, HIGHEST = 0.0, 5.0
"""Range of similarities in STS-B."""
_SHOWN = 5
_MAX_DIGITS = 9
"""Maximum number of digits of an index; the largest table has six."""


@dataclass(frozen=True)
class SubmissionTable:
    """The format of one file of a submission."""

    task: str
    """Name in `GLUE`."""
    num_rows: int
    """Number of rows of the official test set."""
    sets: tuple[str, ...] = ("test",)
    """Possible names of the set in a run of the task."""
    takes_ids: bool = False
    """Whether classes are written as official ids instead of names."""

    @property
    def words(self) -> dict[str, str] | None:
        """Return the text in the table for each class; None for numbers."""
        names = GLUE[self.task].classes
        return {name: str(index) if self.takes_ids else name for index, name in enumerate(names)} or None


TABLES: Final[dict[str, SubmissionTable]] = {
    "CoLA.tsv": SubmissionTable("cola", 1063, takes_ids=True),
    "SST-2.tsv": SubmissionTable("sst2", 1821, takes_ids=True),
    "MRPC.tsv": SubmissionTable("mrpc", 1725, takes_ids=True),
    "STS-B.tsv": SubmissionTable("stsb", 1379),
    "QQP.tsv": SubmissionTable("qqp", 390965, takes_ids=True),
    "MNLI-m.tsv": SubmissionTable("mnli", 9796, ("test", "test_matched")),
    "MNLI-mm.tsv": SubmissionTable("mnli", 9847, ("test_mismatched",)),
    "QNLI.tsv": SubmissionTable("qnli", 5463),
    "RTE.tsv": SubmissionTable("rte", 3000),
    "WNLI.tsv": SubmissionTable("wnli", 146, takes_ids=True),
    "AX.tsv": SubmissionTable("mnli", 1104, ("ax", "diagnostic")),
}
"""Tables by file name, in the order of the benchmark."""


@dataclass(frozen=True)
class TablePredictions:
    """Predictions for a test set."""

    source: str
    """Source of the predictions, for messages."""
    rows: Sequence[int]
    """Row of each prediction in the test set, from 0."""
    values: Sequence[Any]
    """Class names, or numbers; None for a missing prediction."""
    num_rows: int | None = None
    """Number of rows of the test set, if known."""


@dataclass(frozen=True)
class SubmissionNote:
    """A problem of a submission."""

    file: str
    message: str
    is_error: bool = True
    """False for a warning."""

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


def table_text(name: str, predicted: TablePredictions) -> str:
    """Return the text of a table; numbers are clipped to 0 to 5 and have three decimals.

    Raises:
        DataError: Rows are missing or duplicate, or a prediction is invalid for the task.
    """
    missing = {row for row, value in zip(predicted.rows, predicted.values, strict=True) if value is None}
    rows = dict(zip(predicted.rows, predicted.values, strict=True))
    last = max(max(rows, default=-1) + 1, predicted.num_rows or 0)
    missing |= set(range(last)) - set(rows)
    if missing:
        raise DataError(
            f"{predicted.source}: {len(missing)} of {last} rows have no prediction: {_some(sorted(missing))} (counted "
            f"from 0); {name} needs one for every row, so correct the texts of these rows and predict again",
            code="submission.rows",
            source=predicted.source,
            last=last,
            name=name,
        )
    if len(rows) < len(predicted.rows):
        message = f"{predicted.source}: {len(predicted.rows) - len(rows)} rows are duplicate; predict again"
        raise DataError(message, code="submission.rows", source=predicted.source)
    words = TABLES[name].words
    written = [_written(rows[row], words, name, predicted.source, row) for row in range(last)]
    return "\n".join([HEADER, *(f"{row}\t{word}" for row, word in enumerate(written))]) + "\n"


def _written(value: Any, words: dict[str, str] | None, name: str, source: str, row: int) -> str:
    if words is not None and str(value) in (*words, *words.values()):
        return words.get(str(value), str(value))
    number = _number(value) if words is None else None
    if number is not None:
        return f"{min(max(number, LOWEST), HIGHEST):.3f}"
    allowed = "numbers" if words is None else f"classes: {', '.join(words)}"
    message = f"{source}: row {row} has the prediction {value!r}; {name} requires {allowed}"
    raise DataError(message, code="submission.value", source=source, row=row, value=value, name=name)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def check_table(name: str, text: str, *, any_size: bool) -> list[SubmissionNote]:
    """Return the problems of a table.

    Args:
        any_size: Whether another number of rows than the official one is allowed, such as for tests in other languages.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    header, *rows = lines or [""]
    notes = []
    if header != HEADER:
        notes.append(SubmissionNote(name, f'line 1 is {header[:60]!r}; it must be "index", a tab and "prediction"'))
        rows = rows if not header[:1].isdigit() else lines
    cells = [line.split("\t") for line in rows]
    torn = [number for number, row in enumerate(cells) if len(row) != 2]
    if torn:
        notes.append(SubmissionNote(name, f"{len(torn)} rows do not have two columns: {_some(torn)} (counted from 0)"))
        return notes
    notes += _index_findings(name, [row[0] for row in cells], any_size=any_size)
    notes += _word_findings(name, [row[1] for row in cells])
    return notes


def _index_findings(name: str, indices: list[str], *, any_size: bool) -> Iterator[SubmissionNote]:
    official = TABLES[name].num_rows
    odd = [index for index in indices if not index.isdecimal()]
    if odd:
        yield SubmissionNote(name, f"{len(odd)} indices are not whole numbers, such as {odd[0][:40]!r}")
        return
    long = [index for index in indices if len(index) > _MAX_DIGITS]
    if long:
        yield SubmissionNote(name, f"{len(long)} indices are too large, such as {long[0][:40]}")
        return
    numbers = [int(index) for index in indices]
    twice = sorted(number for number, count in Counter(numbers).items() if count > 1)
    if twice:
        yield SubmissionNote(name, f"{len(twice)} indices occur more than once: {_some(twice)}")
    num_rows = max(min(max(numbers, default=-1) + 1, len(numbers)), 0 if any_size else official)
    beyond = sorted(number for number in set(numbers) if number >= num_rows)
    if beyond:
        yield SubmissionNote(name, f"{len(beyond)} indices are beyond the last row, {num_rows - 1}: {_some(beyond)}")
    missing = sorted(set(range(num_rows)) - set(numbers))
    if missing:
        yield SubmissionNote(name, f"{len(missing)} indices are missing: {_some(missing)}")
    falls = [later for earlier, later in pairwise(numbers) if later < earlier]
    if falls:
        yield SubmissionNote(name, f"rows are not sorted by index: {_some(falls)} are too late")
    if len(numbers) != official:
        advice = "another test set than the official one" if any_size else "for a test of another language: --any-size"
        yield SubmissionNote(name, f"{len(numbers)} rows, and the official test has {official}; {advice}", not any_size)


def _word_findings(name: str, words: list[str]) -> Iterator[SubmissionNote]:
    known = TABLES[name].words
    if known is not None:
        odd = sorted(set(words) - set(known.values()))
        count = sum(word not in known.values() for word in words)
        if odd:
            shown = ", ".join(repr(word[:40]) for word in odd[:_SHOWN])
            yield SubmissionNote(name, f"{count} predictions are {shown}; allowed: {', '.join(known.values())}")
        return
    odd = [word for word in words if (number := _number(word)) is None or not LOWEST <= number <= HIGHEST]
    if odd:
        message = f"{len(odd)} predictions are not numbers from {LOWEST:g} to {HIGHEST:g}, such as {odd[0][:40]!r}"
        yield SubmissionNote(name, message)


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
