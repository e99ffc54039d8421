"""Feedback on the essays of a file, from a run for regression or ordered labels with saved predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import named_columns
from paratune.data.load import Split
from paratune.errors import CheckpointError, ConfigError, DataError
from paratune.feedback.conformal import Coverage, check_coverage, half_width, limited
from paratune.feedback.human import HumanRule, Scored, make_rule, signals
from paratune.feedback.removal import RemovedPart, numbers, removed_parts
from paratune.feedback.surface import SurfaceFacts, Usual, compare_length, plain_words, surface_facts
from paratune.infer.trained import TrainedModel
from paratune.records import RUN_FILE, predictions_file
from paratune.records.predictions import NumberScale, ordinal_columns
from paratune.tasks.answers import number_scale, scale_of_grades

Floats = npt.NDArray[np.float64]
KINDS = ("regression", "ordinal")
NUM_NEIGHBOURS = 3


@dataclass(frozen=True)
class FeedbackOptions:
    """Options of feedback."""

    level: float = 0.9
    """Coverage of the intervals."""
    agreement: float | None = None
    """Quadratic weighted kappa that model and person should reach together."""
    batch_size: int = 32


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

    def text(self, value: float) -> str:
        """Return a number on the scale of the labels for readers: of ordered classes the name of the nearest one."""
        if self.names:
            return self.names[int(np.clip(np.rint(value), 0, len(self.names) - 1))]
        return f"{float(self.scale.reported(np.asarray([value]))[0]):.4g}"

    def interval(self, value: float) -> tuple[float, float]:
        """Return the interval of a prediction."""
        return limited(value, self.half, self.scale.limits)


@dataclass(frozen=True, eq=False)
class Reference:
    """Labelled essays to compare with."""

    source: str
    texts: tuple[str, ...]
    prompts: tuple[str | None, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Neighbour:
    """A similar text of the reference."""

    index: int
    """Index in the reference."""
    similarity: float
    """Cosine of TF-IDF vectors, 0 to 1."""


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
    """Whether the rule sends it to a person."""
    parts: tuple[RemovedPart, ...]
    facts: SurfaceFacts
    usual: Usual | None
    """Usual length; None without a reference."""
    neighbours: tuple[Neighbour, ...]
    is_truncated: bool
    """Whether the model does not read its end."""

    @property
    def sentences(self) -> list[RemovedPart]:
        """Its sentences, where there are several."""
        return [part for part in self.parts if part.kind == "sentence"]


def calibrate(run: Path, trained: TrainedModel, options: FeedbackOptions) -> ScoreCalibration:
    """Return the calibration of a run, from its saved predictions on validation and test.

    Raises:
        CheckpointError: The run has no saved predictions of a validation set.
        ConfigError: The task has no ordered labels.
        DataError: The validation set is too small for the coverage.
    """
    require_scores(trained, str(run))
    validation = read_scored(run, "validation", trained)
    if validation is None:
        raise CheckpointError(
            f"{run} has no {predictions_file('validation')}, with which intervals are calibrated; train it with "
            "data.validation or data.split.validation",
            code="feedback.no_validation",
            target=str(run),
        )
    half = half_width(validation.residuals, options.level)
    if half is None:
        message = (
            f"{run}: {len(validation.labels)} validation rows are too few for intervals with a coverage of "
            f"{options.level:g}; lower --coverage"
        )
        raise DataError(message, code="feedback.too_few_rows", num_rows=len(validation.labels), coverage=options.level)
    test = read_scored(run, "test", trained)
    splits = {"validation": validation} | ({} if test is None else {"test": test})
    scale = label_scale(trained)
    return ScoreCalibration(
        names=tuple(trained.names),
        scale=scale,
        level=options.level,
        half=half,
        num_rows=len(validation.labels),
        coverage=None if test is None else check_coverage(test.residuals, half, len(validation.labels), options.level),
        rule=make_rule(splits, scale, scale_of_grades(trained.task) or scale, options.agreement),
        centre=float(np.median(validation.predicted)),
    )


def require_scores(trained: TrainedModel, target: str) -> None:
    """Raise a ConfigError for a model that is not a run for regression or ordered labels."""
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


def label_scale(trained: TrainedModel) -> NumberScale:
    """Return the scale on which scores are reported."""
    if trained.task.kind == "ordinal":
        return NumberScale(1.0, (0.0, float(len(trained.names) - 1)))
    return number_scale(trained.task) or NumberScale()


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


def text_columns(trained: TrainedModel, split: Split, table: pa.Table) -> dict[str, list[str]]:
    """Return the text columns of the model for the rows of a split, (N,) each; the last one has the essays."""
    columns = trained.columns
    names = [*named_columns(columns.text), *named_columns(columns.text_pair)]
    rows = table.take(pa.array(split.samples.rows))
    return {name: rows.column(name).to_pylist() for name in names}


def prompts_of(trained: TrainedModel, columns: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return the texts of the columns before the essays, joined; None where there are none."""
    before = list(columns.values())[:-1]
    return [trained.columns.separator.join(row) for row in zip(*before, strict=True)] if before else None


def make_reference(trained: TrainedModel, source: str, table: pa.Table, run_calibration: ScoreCalibration) -> Reference:
    """Return the labelled essays of a file.

    Raises:
        DataError: The file has no labels, or something is wrong with a column.
    """
    split = trained.read(source, table, require_labels=True)
    columns = text_columns(trained, split, table)
    prompts, texts = prompts_of(trained, columns), list(columns.values())[-1]
    assert split.labels is not None
    labels = tuple(run_calibration.text(float(label)) for label in split.labels)
    return Reference(source, tuple(texts), tuple(prompts or [None] * len(texts)), labels)


def nearest(texts: Sequence[str], reference: Sequence[str], count: int) -> list[list[Neighbour]]:
    """Return for each text the most similar texts of the reference, the most similar first.

    The vectors are TF-IDF of words and pairs of words, fitted on the reference. Equal texts are left out: an essay of
    the reference is no neighbour of itself.

    Args:
        reference: Other essays; at least one has a word.
        count: Neighbours of each text, at most.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    known = vectorizer.fit_transform(reference).T
    found = []
    for text, vector in zip(texts, vectorizer.transform(texts), strict=True):
        # One text at a time: all similarities at once need len(texts) x len(reference) numbers.
        row = (vector @ known).toarray()[0]
        order = (at for at in np.argsort(-row, kind="stable").tolist() if row[at] > 0 and reference[at] != text)
        found.append([Neighbour(at, float(row[at])) for at in islice(order, count)])
    return found


def give_feedback(
    trained: TrainedModel,
    split: Split,
    table: pa.Table,
    calibration: ScoreCalibration,
    reference: Reference | None,
    options: FeedbackOptions,
    on_batch: Callable[[int, int], None],
) -> list[EssayFeedback]:
    """Return feedback on each essay of a split.

    Args:
        split: Essays, from `trained.read`.
        table: The rows that it was read from.
        reference: Labelled essays; None compares with none.
        on_batch: Called with the number of batches done, and of all.
    """
    columns = text_columns(trained, split, table)
    prompts, texts = prompts_of(trained, columns), list(columns.values())[-1]
    outputs = trained.apply(split, options.batch_size, lambda done, total: None).outputs
    predicted = numbers(trained, outputs)
    parts = removed_parts(trained, columns, predicted, options.batch_size, on_batch)
    similar: Sequence[Sequence[Neighbour]] = [[] for _ in texts]
    lengths: list[int] = []
    if reference is not None:
        similar = nearest(texts, reference.texts, NUM_NEIGHBOURS)
        lengths = [len(plain_words(text)) for text in reference.texts]
    is_sent = sent_rows(calibration, predicted, outputs, trained)
    full, read = np.asarray(split.store.full_lengths), np.diff(np.asarray(split.store.offsets))
    found = []
    for at, text in enumerate(texts):
        facts = surface_facts(text)
        prompt = None if prompts is None else prompts[at]
        value = float(predicted[at])
        found.append(
            EssayFeedback(
                row=int(split.samples.rows[at]),
                id=None if split.samples.ids is None else split.samples.ids[at],
                prompt=prompt,
                text=text,
                predicted=value,
                interval=calibration.interval(value),
                is_sent=bool(is_sent[at]),
                parts=tuple(parts[at]),
                facts=facts,
                usual=compare_length(facts.num_words, prompt, lengths, reference.prompts) if reference else None,
                neighbours=tuple(similar[at]),
                is_truncated=bool(full[at] > read[at]),
            )
        )
    return found


def sent_rows(
    calibration: ScoreCalibration, predicted: Floats, outputs: npt.NDArray[Any], trained: TrainedModel
) -> npt.NDArray[np.bool_]:
    """Return which rows the rule sends to a person, (N,)."""
    rule = calibration.rule
    if rule.threshold is None:
        return np.zeros(len(predicted), dtype=np.bool_)
    doubt = None
    if trained.task.kind == "ordinal":
        columns = ordinal_columns(outputs, trained.names)
        doubt = 1 - np.stack([columns[f"score_{at}"] for at in range(len(trained.names))]).max(axis=0)
    values = signals(predicted, doubt, calibration.scale, calibration.centre)[rule.signal]
    is_sent: npt.NDArray[np.bool_] = values >= rule.threshold
    return is_sent
