"""Feedback on the essays of a file, from a run for regression or ordered labels with saved predictions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import named_columns
from paratune.data.load import Split
from paratune.errors import CheckpointError, ConfigError, DataError
from paratune.explain.outputs import smallest_effect
from paratune.feedback.conformal import Coverage, check_coverage, half_width
from paratune.feedback.human import HumanRule, Scored, make_rule, signals
from paratune.feedback.removal import RemovedPart, numbers, removed_parts
from paratune.infer.trained import TrainedModel
from paratune.records import RUN_FILE, predictions_file
from paratune.records.constant import ConstantComparison
from paratune.records.predictions import NumberScale, ordinal_columns
from paratune.tasks.answers import number_scale, scale_of_grades

Floats = npt.NDArray[np.float64]
KINDS = ("regression", "ordinal")


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
    rule: HumanRule
    centre: float
    """Median prediction of the validation set."""
    smallest: float
    """Smallest effect on the score that counts."""
    not_better: ConstantComparison | None
    """The comparison with a constant answer, if the model is not better: then a person reads all essays."""

    def text(self, value: float) -> str:
        """Return a number on the scale of the labels for readers: of ordered classes the name of the nearest one."""
        if self.names:
            return self.names[int(np.clip(np.rint(value), 0, len(self.names) - 1))]
        return f"{float(self.scale.reported(np.asarray([value]))[0]):.4g}"

    def interval(self, value: float) -> tuple[float, float]:
        """Return the interval of a prediction, cut off at the limits of the scale."""
        low, high = np.clip([value - self.half, value + self.half], *(self.scale.limits or (-np.inf, np.inf))).tolist()
        return low, high


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
    is_sent: bool
    """Whether a person should read it."""
    parts: tuple[RemovedPart, ...]
    is_truncated: bool
    """Whether the model does not read its end."""


def calibrate(
    trained: TrainedModel, target: str, *, level: float = 0.9, agreement: float | None = None
) -> ScoreCalibration:
    """Return the calibration of a run, from its saved predictions on validation and test.

    Args:
        target: Name of the model in messages.
        level: Coverage of the intervals.
        agreement: Quadratic weighted kappa that model and person should reach together.

    Raises:
        CheckpointError: The run has no saved predictions of a validation set.
        ConfigError: The task has no ordered labels, or the model is not in a run.
        DataError: The validation set is too small for the coverage.
    """
    run = require_scores(trained, target)
    validation = read_scored(run, "validation", trained)
    if validation is None:
        raise CheckpointError(
            f"{target} has no {predictions_file('validation')}, with which intervals are calibrated; train it with "
            "data.validation or data.split.validation",
            code="feedback.no_validation",
            target=target,
        )
    num_rows, half = len(validation.labels), half_width(validation.residuals, level)
    if half is None:
        message = (
            f"{target}: {num_rows} validation rows are too few for intervals with a coverage of {level:g}; lower "
            "--coverage"
        )
        raise DataError(message, code="feedback.too_few_rows", num_rows=num_rows, coverage=level)
    test, scale = read_scored(run, "test", trained), number_scale(trained.task) or NumberScale()
    if trained.names:
        scale = NumberScale(1.0, (0.0, float(len(trained.names) - 1)))
    splits = {"validation": validation} | ({} if test is None else {"test": test})
    return ScoreCalibration(
        names=tuple(trained.names),
        scale=scale,
        level=level,
        half=half,
        num_rows=num_rows,
        coverage=None if test is None else check_coverage(test.residuals, half, num_rows, level),
        rule=make_rule(splits, scale, scale_of_grades(trained.task) or scale, agreement),
        centre=float(np.median(validation.predicted)),
        smallest=smallest_effect(trained),
        not_better=trained.not_better,
    )


def require_scores(trained: TrainedModel, target: str) -> Path:
    """Return the run of a model; raise a ConfigError where it is not one for regression or ordered labels."""
    kind, problem = trained.task.kind, None
    if kind not in KINDS:
        problem = f"is a model of kind {kind}; feedback is for scores: {' and '.join(KINDS)}"
    elif getattr(trained.task, "windows", None) is not None:
        problem = "reads long texts in windows (task.windows), which feedback does not support"
    if problem is not None:
        raise ConfigError(f"{target} {problem}", code="feedback.task", target=target, kind=kind)
    if trained.run is None or not (trained.run / RUN_FILE).is_file():
        raise ConfigError(
            f"{target} is not a run of paratune; feedback needs the predictions that a run keeps of its validation set",
            code="feedback.no_run",
            target=target,
        )
    return trained.run


def read_scored(run: Path, split: str, trained: TrainedModel) -> Scored | None:
    """Return the saved predictions of a split; None where the run has none.

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
            return Scored(predicted, labels)
        shares = np.stack([table[f"score_{at}"].to_numpy() for at in range(len(trained.names))], axis=1)
        rank_of = {name: rank for rank, name in enumerate(trained.names)}
        ranks = np.asarray([rank_of[name] for name in table["label"].to_pylist()], dtype=np.float64)
        return Scored(shares.astype(np.float64) @ np.arange(shares.shape[1]), ranks, 1 - shares.max(axis=1))
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
    is_sent = sent_rows(calibration, predicted, outputs, trained)
    is_truncated = np.asarray(split.store.full_lengths) > np.diff(np.asarray(split.store.offsets))
    return [
        EssayFeedback(
            row=int(split.samples.rows[at]),
            id=None if split.samples.ids is None else split.samples.ids[at],
            prompt=join(column[at] for column in before) or None,
            text=text,
            predicted=float(predicted[at]),
            interval=calibration.interval(float(predicted[at])),
            is_sent=bool(is_sent[at]),
            parts=tuple(parts[at]),
            is_truncated=bool(is_truncated[at]),
        )
        for at, text in enumerate(texts)
    ]


def sent_rows(
    calibration: ScoreCalibration, predicted: Floats, outputs: npt.NDArray[Any], trained: TrainedModel
) -> npt.NDArray[np.bool_]:
    """Return which rows a person should read, (N,): those of the rule; all of a model that is not of use."""
    rule = calibration.rule
    if calibration.not_better is not None or rule.threshold is None:
        return np.full(len(predicted), calibration.not_better is not None)
    doubt = None
    if trained.task.kind == "ordinal":
        columns = ordinal_columns(outputs, trained.names)
        doubt = 1 - np.stack([columns[f"score_{at}"] for at in range(len(trained.names))]).max(axis=0)
    is_sent: npt.NDArray[np.bool_] = (
        signals(predicted, doubt, calibration.scale, calibration.centre)[rule.signal] >= rule.threshold
    )
    return is_sent
