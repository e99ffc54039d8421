"""Feedback on the essays of a file, from a run for regression or ordered labels with saved predictions.

Intervals of scores are made by split conformal prediction: calibrated on validation, checked on test. Unlike in
`explain`, a sentence is deleted and not masked: the model reads a text as a learner could have written it, and of a
text that is too long it then reads more of the end. Dimensions: `N` rows, of the calibration or of the file, `M` rows
of the check.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import named_columns
from paratune.data.load import Split
from paratune.errors import CheckpointError, ConfigError, DataError
from paratune.explain.outputs import Floats, smallest_effect
from paratune.explain.rows import CharRange, sentences
from paratune.infer.trained import TrainedModel
from paratune.records import RUN_FILE, predictions_file
from paratune.records.constant import ConstantComparison
from paratune.records.predictions import NumberScale, probabilities
from paratune.tasks.sequence import number_scale
from paratune.verdicts.slices import wilson

MAX_CHARACTERS = 100_000_000
"""Most characters of an essay in all its copies without a sentence: 1,000 sentences of 100 characters reach them."""
KINDS = ("regression", "ordinal")


def numbers(trained: TrainedModel, outputs: npt.NDArray[Any]) -> Floats:
    """Return the predicted numbers, (N,), from outputs: of ordered classes the expected class, counted from 0."""
    if trained.task.kind == "ordinal":
        above = np.minimum.accumulate(probabilities(outputs.astype(np.float64)), axis=1)
        expected: Floats = above.sum(axis=1)
        return expected
    return outputs[:, 0].astype(np.float64)


@dataclass(frozen=True)
class RemovedPart:
    """A sentence of a text, and what its removal changes."""

    place: CharRange
    text: str
    effect: float
    """Prediction of the whole text minus prediction without the sentence; positive: it raises the prediction."""


def removed_parts(
    trained: TrainedModel,
    columns: Mapping[str, Sequence[str]],
    predicted: Floats,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> list[list[RemovedPart]]:
    """Return the effect of removing each sentence of each essay; a text with one sentence has no parts.

    Args:
        columns: The text columns of the model, (N,) each; the last one has the essays, whose parts are removed.
        predicted: (N,), predictions of the whole texts, from `numbers`.
        on_batch: Called with the number of batches done, and of all.

    Raises:
        DataError: An essay has so many sentences that its copies without one of them do not fit in memory.
    """
    essay, texts = list(columns.items())[-1]
    split = [sentences(text) for text in texts]
    parts = [(row, place) for row, places in enumerate(split) if len(places) > 1 for place in places]
    found: list[list[RemovedPart]] = [[] for _ in texts]
    if not parts:
        return found
    for row, count in Counter(row for row, _ in parts).items():
        if count * len(texts[row]) > MAX_CHARACTERS:
            raise DataError(
                f"the text that begins {texts[row][:40]!r} has {len(texts[row]):,} characters in {count:,} sentences: "
                "too many to predict it without each of them; shorten the text, or leave it out",
                code="feedback.text_too_long",
                num_parts=count,
                num_characters=len(texts[row]),
            )
    shorter = {name: [values[row] for row, _ in parts] for name, values in columns.items()}
    shorter[essay] = [texts[row][: place.start] + texts[row][place.end :] for row, place in parts]
    values = predict_texts(trained, shorter, batch_size, on_batch)
    for (row, place), value in zip(parts, values.tolist(), strict=True):
        text = texts[row][place.start : place.end]
        found[row].append(RemovedPart(place, text, float(predicted[row]) - value))
    return found


def predict_texts(
    trained: TrainedModel,
    columns: Mapping[str, Sequence[str]],
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> Floats:
    """Return the predicted numbers of texts, (N,), whose tokens are not kept; arguments as in `removed_parts`."""
    # These texts are never read again, and would fill the cache of tokens.
    split = trained.read("parts of the texts", pa.table(dict(columns)), require_labels=False, is_cached=False)
    return numbers(trained, trained.apply(split, batch_size, on_batch).outputs)


def rank_of_half_width(num_rows: int, level: float) -> int:
    """Return the rank, from 1, of the absolute residual that is the half-width: ceil((N + 1) level)."""
    # Without rounding, 100 * 0.07 = 7.000000000000001 would have the rank 8.
    return math.ceil(round((num_rows + 1) * level, 9))


def half_width(residuals: Floats, level: float) -> float | None:
    """Return the half-width of intervals with at least this coverage; None where there are too few rows.

    Args:
        residuals: (N,), label minus prediction, of rows that the model was not trained on.
        level: Wanted coverage, between 0 and 1.

    Source: Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018, algorithm 2.
    """
    rank = rank_of_half_width(len(residuals), level)
    return None if rank > len(residuals) else float(np.sort(np.abs(residuals))[rank - 1])


@dataclass(frozen=True)
class Coverage:
    """How many labels of other rows are inside their intervals."""

    num_rows: int
    num_inside: int
    low: float
    high: float
    """95% interval of the share (Wilson)."""
    p_value: float
    """Probability of at most so many rows inside, if calibration and check have rows of the same kind."""

    @property
    def share(self) -> float:
        return self.num_inside / self.num_rows

    @property
    def is_kept(self) -> bool:
        """Whether the promise is compatible with the check: p is at least 0.025."""
        return self.p_value >= 0.025


def check_coverage(residuals: Floats, half: float, num_calibrated: int, level: float) -> Coverage:
    """Return the coverage of intervals on other rows.

    Given the calibration, the number of rows inside has a beta-binomial distribution: the coverage of a calibration
    with N rows is Beta(k, N + 1 - k) for the rank k of the half-width.

    Args:
        residuals: (M,), label minus prediction; at least one.
        half: Result of `half_width`.
        num_calibrated: N.
        level: Wanted coverage.

    Source: Vovk, Conditional Validity of Inductive Conformal Predictors, ACML 2012.
    """
    from scipy.stats import betabinom

    count, inside = len(residuals), int((np.abs(residuals) <= half).sum())
    rank = rank_of_half_width(num_calibrated, level)
    p: Any = betabinom.cdf(inside, count, rank, num_calibrated + 1 - rank)
    low, high = wilson(inside, count)
    return Coverage(count, inside, low, high, float(p))


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """Errors of a run, from its saved predictions."""

    names: tuple[str, ...]
    """Names of the ordered classes; empty for numbers."""
    scale: NumberScale
    level: float
    half: float
    """Half-width of the intervals."""
    num_rows: int
    """Rows of the validation set."""
    coverage: Coverage | None
    """On the test set; None where the run has none."""
    smallest: float
    """Smallest effect on the score that counts."""
    not_better: ConstantComparison | None
    """The comparison with a constant answer, if the model is not better."""
    spread: float | None
    """Two standard deviations of the training labels, between which most of them are; None: unknown."""

    def text(self, value: float) -> str:
        """Return a number on the scale of the labels for readers: of ordered classes the name of the nearest one."""
        if self.names:
            return self.names[int(np.clip(np.rint(value), 0, len(self.names) - 1))]
        return f"{float(self.scale.reported(np.asarray([value]))[0]):.4g}"

    def interval(self, value: float) -> tuple[float, float]:
        """Return the interval of a prediction, cut off at the limits of the scale."""
        low, high = np.clip([value - self.half, value + self.half], *(self.scale.limits or (-np.inf, np.inf))).tolist()
        return low, high

    def is_for_a_person(self, interval: tuple[float, float]) -> bool | None:
        """Return whether a person should read an essay; None where the spread of the labels is unknown.

        All essays of a model that is not better than a constant answer; of another one those with an interval wider
        than `spread`, which says less about the score than most labels do.
        """
        if self.not_better is not None:
            return True
        return None if self.spread is None else interval[1] - interval[0] > self.spread


@dataclass(frozen=True, eq=False)
class EssayFeedback:
    """Feedback on one essay."""

    row: int
    """Row of the file, counted from 0."""
    id: str | None
    prompt: str | None
    text: str
    predicted: float
    interval: tuple[float, float]
    parts: tuple[RemovedPart, ...]
    is_truncated: bool
    """Whether the model does not read its end."""


def calibrate(trained: TrainedModel, target: str, *, level: float = 0.9) -> ScoreCalibration:
    """Return the calibration of a run, from its saved predictions on validation and test.

    Args:
        target: Name of the model in messages.
        level: Coverage of the intervals.

    Raises:
        CheckpointError: The run has no saved predictions of a validation set.
        ConfigError: The task has no ordered labels, or the model is not in a run.
        DataError: The validation set is too small for the coverage.
    """
    run = require_scores(trained, target)
    validation = read_residuals(run, "validation", trained)
    if validation is None:
        raise CheckpointError(
            f"{target} has no {predictions_file('validation')}, with which intervals are calibrated; train it with "
            "data.validation or data.split.validation",
            code="feedback.no_validation",
            target=target,
        )
    num_rows, half = len(validation), half_width(validation, level)
    if half is None:
        message = (
            f"{target}: {num_rows} validation rows are too few for intervals with a coverage of {level:g}; lower "
            "--coverage"
        )
        raise DataError(message, code="feedback.too_few_rows", num_rows=num_rows, coverage=level)
    test, scale = read_residuals(run, "test", trained), number_scale(trained.task) or NumberScale()
    if trained.names:
        scale = NumberScale(1.0, (0.0, float(len(trained.names) - 1)))
    return ScoreCalibration(
        names=tuple(trained.names),
        scale=scale,
        level=level,
        half=half,
        num_rows=num_rows,
        coverage=None if test is None else check_coverage(test, half, num_rows, level),
        smallest=smallest_effect(trained),
        not_better=trained.not_better,
        spread=None if trained.label_deviation is None else 2 * trained.label_deviation,
    )


def require_scores(trained: TrainedModel, target: str) -> Path:
    """Return the run of a model; raise a ConfigError where it is not one for regression or ordered labels."""
    kind, problem = trained.task.kind, None
    if kind not in KINDS:
        problem = f"is a model of kind {kind}; feedback is for scores: {' and '.join(KINDS)}"
    elif getattr(trained.task, "targets", None):
        problem = "has several targets (data.columns.label), which feedback does not support"
    elif getattr(trained.task, "windows", None) is not None:
        problem = "reads long texts in windows (task.windows), which feedback does not support"
    if problem is not None:
        raise ConfigError(f"{target} {problem}", code="task.unsupported", target=target, kind=kind)
    if trained.run is None or not (trained.run / RUN_FILE).is_file():
        raise ConfigError(
            f"{target} is not a run of paratune; feedback needs the predictions that a run keeps of its validation set",
            code="run.not_found",
            target=target,
        )
    return trained.run


def read_residuals(run: Path, split: str, trained: TrainedModel) -> Floats | None:
    """Return label minus prediction of the rows of a split, (N,), as the run has saved them; None where it has not.

    Raises:
        CheckpointError: The file is damaged.
    """
    from pyarrow import parquet

    path = run / predictions_file(split)
    if not path.is_file():
        return None
    try:
        table = parquet.read_table(path)
        if trained.task.kind == "regression":
            predicted, labels = (table[name].to_numpy().astype(np.float64) for name in ("prediction", "label"))
            residuals: Floats = labels - predicted
            return residuals
        shares = np.stack([table[f"score_{at}"].to_numpy() for at in range(len(trained.names))], axis=1)
        rank_of = {name: rank for rank, name in enumerate(trained.names)}
        ranks = np.asarray([rank_of[name] for name in table["label"].to_pylist()], dtype=np.float64)
        return ranks - shares.astype(np.float64) @ np.arange(shares.shape[1])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", code="run.damaged", record=path) from error


def give_feedback(
    trained: TrainedModel,
    split: Split,
    table: pa.Table,
    calibration: ScoreCalibration,
    batch_size: int,
    on_batch: Callable[[int, int], None],
) -> list[EssayFeedback]:
    """Return feedback on each essay of a split.

    Args:
        split: Essays, from `trained.read`.
        table: The rows that it was read from.
        on_batch: Called with the number of batches done, and of all.
    """
    names = [*named_columns(trained.columns.text), *named_columns(trained.columns.text_pair)]
    rows = table.take(pa.array(split.samples.rows))
    columns = {name: rows.column(name).to_pylist() for name in names}
    *before, texts = columns.values()  # the last one has the essays
    join = trained.columns.separator.join
    outputs = trained.apply(split, batch_size, lambda done, total: None).outputs
    predicted = numbers(trained, outputs)
    parts = removed_parts(trained, columns, predicted, batch_size, on_batch)
    is_truncated = np.asarray(split.store.full_lengths) > np.diff(np.asarray(split.store.offsets))
    return [
        EssayFeedback(
            row=int(split.samples.rows[at]),
            id=None if split.samples.ids is None else split.samples.ids[at],
            prompt=join(column[at] for column in before) or None,
            text=text,
            predicted=float(predicted[at]),
            interval=calibration.interval(float(predicted[at])),
            parts=tuple(parts[at]),
            is_truncated=bool(is_truncated[at]),
        )
        for at, text in enumerate(texts)
    ]
