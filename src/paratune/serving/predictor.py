"""Reads the rows of a request, tokenizes and predicts them, as `paratune predict` does for a file, without a disk."""

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.unique_keys import unique_keys
from paratune.config.sections import Columns, named_columns
from paratune.data.labels import first_rows
from paratune.data.load import Split, joined_samples
from paratune.data.token_store import EXAMPLE, joined_store
from paratune.errors import DataError, ParatuneError
from paratune.explain.effects import occlusion
from paratune.explain.outputs import RowOutput, explained_output
from paratune.explain.page import FULL_COLOUR, marked_words
from paratune.explain.rows import read_rows as token_rows
from paratune.feedback.feedback import KINDS, ScoreCalibration, calibrate, numbers
from paratune.infer.trained import TrainedModel
from paratune.reports.document import MarkedText
from paratune.serving.access import ServingLimits

Row = Mapping[str, Any]
log = logging.getLogger(__name__)
_SOURCE = "the request"
_UNKNOWN = ("feedback.no_validation", "feedback.too_few_rows")


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
        raise DataError(f"the body is not valid JSON: {error}", code="serve.value") from error
    rows = [document]
    if isinstance(document, dict) and isinstance(document.get("rows"), list):
        rows = document.pop("rows")
        if document:
            message = f"{next(iter(document))[:100]!r} beside rows is unknown; send rows alone"
            raise DataError(message, code="serve.value", columns=["rows"])
    if not rows:
        raise DataError("rows is empty; give at least one row", code="serve.value")
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
        raise DataError(message, code="serve.value", row=number)
    read: dict[str, Any] = {}
    for key, value in row.items():
        column = names.get(key)
        if column is None or column in read:
            reason = "is not a column of this model" if column is None else "is given twice"
            message = f"row {number}: {key[:100]!r} {reason}; columns: {', '.join(names)}"
            raise DataError(message, code="serve.value", row=number, columns=list(names))
        _check_value(number, key, value, is_words=is_words, max_chars=limits.max_chars)
        read[column] = value
    missing = sorted(set(names.values()) - set(read))
    if missing:
        message = f"row {number} has no {', '.join(missing)}"
        raise DataError(message, code="serve.value", row=number, columns=list(names))
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


@dataclass(frozen=True, eq=False)
class TokenizedRow:
    """A row of a request with its tokens."""

    request: Split
    """All rows of its request."""
    number: int
    """Its number in the request, from 0."""
    places: npt.NDArray[np.int64]
    """Its samples in the store of the request: one, or the windows of its context."""
    num_tokens: int
    """Over all its windows."""


@dataclass(frozen=True)
class Answer:
    """The answer to a row."""

    columns: dict[str, Any]
    """The columns that `paratune predict` writes, by name."""
    interval: list[Any] | None
    """Bounds of the score, numbers or names of ordered classes; None where they are not known."""


class Predictor:
    """A model for two threads: one tokenizes, the other one predicts.

    A tokenizer keeps its truncation while it works, so the first thread has its own.
    """

    def __init__(self, trained: TrainedModel, calibration: ScoreCalibration | None = None) -> None:
        self.trained = trained
        self._calibration = calibration
        self._reader = replace(
            trained, tokenizer=copy.deepcopy(trained.tokenizer), recipe=copy.deepcopy(trained.recipe)
        )

    def tokenize(self, rows: list[Row]) -> list[TokenizedRow]:
        """Return the rows of a request with their tokens.

        Raises:
            DataError: A row has no text, or its tokens cannot be used.
        """
        table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
        split = self._reader.read(_SOURCE, table, require_labels=False, is_cached=False)
        without = np.setdiff1d(np.arange(len(rows)), split.samples.rows).tolist()
        if without:
            message = f"rows without a text that the model can read: {first_rows(without)}"
            raise DataError(message, code="serve.value", rows=without)
        # Windows of a question are samples; those of a long text are one.
        owners = split.store.examples if split.store.sample_offsets is None else np.arange(len(rows))
        places = [np.flatnonzero(owners == number) for number in range(len(rows))]
        lengths = split.store.lengths
        return [TokenizedRow(split, number, at, int(lengths[at].sum())) for number, at in enumerate(places)]

    def predict(self, rows: list[TokenizedRow]) -> list[Answer]:
        """Return the answer to each row."""
        split = as_split(rows)
        outputs = self.trained.apply(split, len(rows), lambda done, total: None).outputs
        columns = self.trained.recipe.prediction_columns(split, outputs, self.trained.tokenizer)
        values = {name: pa.array(column).to_pylist() for name, column in columns.items()}
        intervals: list[list[Any] | None] = [None] * len(rows)
        if (calibration := self._calibration) is not None:
            bounds = map(calibration.interval, numbers(self.trained, outputs).tolist())
            intervals = [list(map(calibration.text, both)) if calibration.names else list(both) for both in bounds]
        return [
            Answer({name: column[number] for name, column in values.items()}, interval)
            for number, interval in enumerate(intervals)
        ]

    def explain(self, row: TokenizedRow) -> dict[str, Any]:
        """Return how much the output of the prediction falls when each word is hidden (`occlusion`)."""
        split = as_split([row])
        outputs = self.trained.apply(split, 1, lambda done, total: None).outputs
        target = explained_output(self.trained, int(outputs[0].argmax()), None)
        (read,) = token_rows(self.trained, split)
        effects = occlusion(RowOutput(self.trained, read, target, 32), np.arange(len(read.words)))
        words = marked_words(read, effects, np.abs(effects) >= target.smallest)
        shares = MarkedText("", words, full=FULL_COLOUR * target.smallest).strengths
        marked = [asdict(word) | {"strength": share} for word, share in zip(words, shares, strict=True)]
        return {"explained": target.name, "words": marked}


def as_split(rows: list[TokenizedRow]) -> Split:
    """Return rows of several requests as one split."""
    store = joined_store([(row.request.store, row.places) for row in rows])
    if EXAMPLE in store.row_values:
        counts = [int(row.request.store.num_sequences_at(row.places).sum()) for row in rows]
        owners = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        store = replace(store, row_values={**store.row_values, EXAMPLE: owners})
    parts = [row.request.samples.take(np.asarray([row.number])) for row in rows]
    samples = replace(joined_samples(parts, ()), rows=np.arange(len(rows)), file_index=None)
    return Split("data", _SOURCE, samples, store, fingerprint="")


def read_calibration(trained: TrainedModel) -> ScoreCalibration | None:
    """Return the calibration of a run for scores; None for other models, and for runs with too few predictions.

    Raises:
        CheckpointError: The saved predictions are damaged.
    """
    if trained.task.kind not in KINDS or trained.run is None or getattr(trained.task, "targets", None):
        return None
    try:
        return calibrate(trained, str(trained.run))
    except ParatuneError as error:
        if error.code not in _UNKNOWN:
            raise
        log.info("scores have no interval: %s", error)
        return None


def describe(calibration: ScoreCalibration | None) -> dict[str, Any] | None:
    """Return the calibration as JSON values: wanted coverage, half-width, and the coverage of the test set."""
    if calibration is None:
        return None
    test = calibration.coverage
    return {
        "coverage": calibration.level,
        "half_width": calibration.half,
        "num_validation_rows": calibration.num_rows,
        "test": None if test is None else {"num_rows": test.num_rows, "share": test.share, "is_kept": test.is_kept},
    }
