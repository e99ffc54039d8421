"""Explains rows of a file by one run or several: effects of words and parts, attention, faithfulness.

Dimensions: `W` words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.data.load import Split
from paratune.data.windows import BOUNDS, EXAMPLE
from paratune.errors import ConfigError, DataError
from paratune.explain.effects import integrated_gradients, occlusion, partition_shap
from paratune.explain.faithfulness import Faithfulness, measure
from paratune.explain.outputs import ExplainedOutput, Floats, RowOutput, answer_target, class_target
from paratune.explain.rows import TokenRow, read_rows
from paratune.infer.trained import TrainedModel
from paratune.models.onnx_model import OnnxModel
from paratune.tasks.spans import best_answers

METHODS = {
    "integrated_gradients": "integrated gradients",
    "occlusion": "occlusion by word",
    "partition_shap": "Shapley values (partition)",
}
"""Methods with their names for readers."""
ATTENTION = "attention"
"""Key of the order of the words by attention, beside those of `METHODS`."""
EXPLAINED_KINDS = ("classification", "multi_label", "ordinal", "regression", "qa")


@dataclass(frozen=True)
class ExplainOptions:
    """Options of an explanation."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Keys of `METHODS`, the one that colours the text first."""
    target: str | None = None
    """Class to explain; None: the predicted one."""
    num_steps: int = 50
    """First number of steps of integrated gradients."""
    max_steps: int = 400
    max_evals: int = 500
    """Most outputs that Shapley values may compute for a row."""
    batch_size: int = 32
    seed: int = 0
    """Determines the random orders of `faithfulness`."""


@dataclass(frozen=True, eq=False)
class RowExplanation:
    """The explanation of one row by one model."""

    row: TokenRow
    target: ExplainedOutput
    predicted: str
    """The prediction, as `paratune predict` writes it."""
    value: float
    """The explained number."""
    hidden_value: float
    """The same number with all words hidden."""
    effects: Mapping[str, Floats]
    """(W,) by method: effects of the words; positive ones raise the output."""
    sentences: Floats
    """Effect of hiding each sentence."""
    paragraphs: Floats
    """Effect of hiding each paragraph."""
    attention: Floats | None
    """(W, W): attention of the last layer from each word to each word, mean over heads; not an explanation. None where
    the model does not return it."""
    faithfulness: Faithfulness
    """Of the methods, and of the attention from the tokens that the head reads, where it is known (key `ATTENTION`)."""
    num_passes: int
    """Rows that the model computed."""
    replacement: str
    """Token that replaces hidden words."""

    def gap(self, method: str) -> float | None:
        """Return the sum of the effects minus what a method promises: the output minus that with all words hidden.

        None for a method that promises nothing.
        """
        if method not in ("integrated_gradients", "partition_shap"):
            return None
        return float(self.effects[method].sum()) - (self.value - self.hidden_value)


def select_rows(table: pa.Table, rows: Sequence[int], source: str) -> pa.Table:
    """Return some rows of a table.

    Raises:
        DataError: There is no such row.
    """
    missing = [row for row in rows if row >= table.num_rows]
    if missing:
        message = f"{source} has {table.num_rows} rows, 0 to {table.num_rows - 1}; --rows names {missing[0]}"
        raise DataError(message, code="explain.no_such_row", source=source, row=missing[0], num_rows=table.num_rows)
    return table.take(pa.array(rows, type=pa.int64()))


def require_explainable(trained: TrainedModel, name: str) -> None:
    """Raise a ConfigError for a model without a prediction for a row (a masked language model) or without gradients."""
    kind, problem = trained.task.kind, None
    if kind not in EXPLAINED_KINDS:
        problem = f"is a model of kind {kind}; explanations are for {', '.join(EXPLAINED_KINDS)}"
    elif getattr(trained.task, "windows", None) is not None:
        problem = "reads long texts in windows (task.windows), and an explanation is of one window"
    if problem is not None:
        raise ConfigError(f"{name} {problem}", code="explain.task", target=name, kind=kind)
    if isinstance(trained.model.hf, OnnxModel):
        message = f"{name} is an ONNX file, which has no gradients; explain the model that it was made from"
        raise ConfigError(message, code="explain.onnx", target=name)


def explain_rows(
    trained: TrainedModel,
    split: Split,
    options: ExplainOptions,
    targets: Sequence[ExplainedOutput] | None = None,
    on_row: Callable[[int, int], None] = lambda done, total: None,
) -> list[RowExplanation]:
    """Return the explanation of each row of a split.

    Args:
        trained: The model, prepared by `outputs.prepare`.
        targets: What is explained of each row; None: the prediction of this model.
        on_row: Called with the number of rows done, and of all rows.

    Raises:
        ConfigError: `options.target` is not a class, or the tokenizer is slow.
        DataError: A row has no word that the model reads.
    """
    found, windows, predicted = predict_targets(trained, split, options)
    rows = read_rows(trained, split, windows)
    explained = []
    for number, row in enumerate(rows):
        if not row.words:
            message = f"{split.source}: row {row.row} has no word that the model reads"
            raise DataError(message, code="explain.no_words", source=split.source, row=row.row)
        target = (targets or found)[number]
        output = RowOutput(trained, row, target, options.batch_size)
        # Attention is shown from the tokens that the head reads: those of the answer, or the first one.
        reads = sorted({target.index, target.last}) if trained.task.kind == "qa" else [0]
        explained.append(_explain(output, predicted[number], options, reads))
        on_row(number + 1, len(rows))
    return explained


def predict_targets(
    trained: TrainedModel, split: Split, options: ExplainOptions
) -> tuple[list[ExplainedOutput], list[int] | None, list[str]]:
    """Return for each row what is explained, the window of the answer (None in other tasks), and the prediction."""
    outputs = trained.apply(split, options.batch_size, lambda done, total: None).outputs
    columns = trained.recipe.prediction_columns(split, outputs, trained.tokenizer)
    predicted = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in columns["prediction"]]
    if trained.task.kind != "qa":
        best = outputs.argmax(axis=1).tolist()
        return [class_target(trained, index, options.target) for index in best], None, predicted
    if options.target is not None:
        class_target(trained, 0, options.target)
    targets, windows = _answer_targets(trained, split, outputs, predicted)
    return targets, windows, predicted


def _answer_targets(
    trained: TrainedModel, split: Split, outputs: Any, predicted: Sequence[str]
) -> tuple[list[ExplainedOutput], list[int]]:
    """Return the tokens of each answer and its window; for "no answer", the token for it in the least likely window."""
    answers = best_answers(split, outputs)
    num_best = (outputs.shape[1] - 2) // 4
    examples = np.asarray(split.store.row_values[EXAMPLE])
    targets, windows = [], []
    for question, answer in enumerate(predicted):
        own = np.flatnonzero(examples == question)
        is_null = answer == "" or answers.texts[question] == ""
        scores = -outputs[own, -2:].sum(axis=1) if is_null else outputs[own, 0] + outputs[own, num_best]
        window = int(own[np.nanargmax(np.where(np.isfinite(scores), scores, -np.inf))])
        null = int(split.store.row_values[BOUNDS][window, 0])
        first, last = outputs[window, [2 * num_best, 3 * num_best]].astype(int).tolist()
        place = (null, null, "") if is_null else (first, last, answer)
        targets.append(answer_target(trained, *place))
        windows.append(window)
    return targets, windows


def _explain(output: RowOutput, predicted: str, options: ExplainOptions, reads: Sequence[int]) -> RowExplanation:
    width = len(output.row.words)
    compute: dict[str, Callable[[], Floats]] = {
        "integrated_gradients": lambda: integrated_gradients(output, options.num_steps, options.max_steps),
        "occlusion": lambda: occlusion(output, np.arange(width)),
        "partition_shap": lambda: partition_shap(output, options.max_evals),
    }
    effects = {method: compute[method]() for method in options.methods}
    value, hidden_value = output.values(np.asarray([[True] * width, [False] * width])).tolist()
    orders, attention = dict(effects), None
    if (matrix := output.attention()) is not None:
        owners = np.arange(width)[None, :] == output.row.token_words[:, None]
        orders[ATTENTION] = matrix[reads].mean(axis=0) @ owners
        attention = (owners / owners.sum(axis=0)).T @ matrix @ owners
    return RowExplanation(
        row=output.row,
        target=output.target,
        predicted=predicted,
        value=value,
        hidden_value=hidden_value,
        effects=effects,
        sentences=occlusion(output, output.row.sentences),
        paragraphs=occlusion(output, output.row.paragraphs),
        attention=attention,
        faithfulness=measure(output, orders, options.seed),
        num_passes=output.num_passes,
        replacement=output.replacement,
    )


def require_same_words(explanations: Sequence[RowExplanation]) -> None:
    """Raise a ConfigError where the models of a row read different words: their tokenizers or lengths differ."""
    first, *others = explanations
    for other in others:
        if other.row.words != first.row.words:
            raise ConfigError(
                f"row {first.row.row}: the runs read {len(first.row.words)} and {len(other.row.words)} words; only "
                "runs with the same tokenizer and data.max_length can be compared",
                code="explain.runs_differ",
                row=first.row.row,
            )
