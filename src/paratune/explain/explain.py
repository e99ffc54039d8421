"""Explains rows of a file: effects of words and sentences, attention, and whether the effects hold.

Dimensions: `W` words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paratune.data.load import Split
from paratune.errors import ConfigError, DataError
from paratune.explain.effects import Faithfulness, integrated_gradients, measure, occlusion, shapley
from paratune.explain.outputs import Bools, ExplainedOutput, Floats, RowOutput, explained_output
from paratune.explain.rows import TokenRow, read_rows, require_offsets
from paratune.infer.trained import TrainedModel
from paratune.models.onnx_model import OnnxModel

METHODS = {
    "integrated_gradients": "integrated gradients",
    "occlusion": "occlusion by word",
    "shapley": "Shapley values",
}
"""Methods with their names for readers."""
EXPLAINED_KINDS = ("classification", "multi_label", "ordinal", "regression")
NUM_STEPS, MAX_STEPS = 50, 400
"""First and largest number of steps of integrated gradients."""
MAX_EVALS = 500
"""Most outputs that Shapley values may compute for a row."""
SEED = 0
"""Determines the random orders of Shapley values and of `measure`."""


@dataclass(frozen=True, eq=False)
class RowExplanation:
    """The explanation of one row."""

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
    attention: Floats | None
    """(W, W): attention of the last layer from each word to each word, mean over heads; not an explanation. None where
    the model does not return it."""
    faithfulness: Faithfulness
    replacement: str
    """Token that replaces hidden words."""

    def holds(self, method: str) -> Bools:
        """Return which effects hold, (W,): the order of the words does, and the effect counts."""
        is_order = self.faithfulness.verdict(method) is None
        return is_order & (np.abs(self.effects[method]) >= self.target.smallest)

    def strongest(self, method: str, count: int) -> list[tuple[str, float]]:
        """Return the words with the largest effects that hold, and these effects."""
        values, holds = self.effects[method], self.holds(method)
        order = np.argsort(-np.abs(values) * holds, kind="stable")[: min(count, int(holds.sum()))]
        return [(self.row.word_text(at), float(values[at])) for at in order.tolist()]

    def gap(self, method: str) -> float | None:
        """Return the sum of the effects minus what a method promises: the output minus that with all words hidden.

        None for a method that promises nothing.
        """
        if method not in ("integrated_gradients", "shapley"):
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
        raise DataError(message, code="explain.rows", source=source, row=missing[0], num_rows=table.num_rows)
    return table.take(pa.array(rows, type=pa.int64()))


def require_explainable(trained: TrainedModel, name: str) -> None:
    """Raise a ConfigError for a model without a prediction for a row (a masked language model) or without gradients."""
    kind, problem = trained.task.kind, None
    if kind not in EXPLAINED_KINDS:
        problem = f"is a model of kind {kind}; explanations are for {', '.join(EXPLAINED_KINDS)}"
    elif getattr(trained.task, "targets", None):
        problem = "has several targets, and an explanation is of one number"
    elif getattr(trained.task, "windows", None) is not None:
        problem = "reads long texts in windows (task.windows), and an explanation is of one window"
    if problem is not None:
        raise ConfigError(f"{name} {problem}", code="task.unsupported", target=name, kind=kind)
    require_offsets(trained)
    if isinstance(trained.model.hf, OnnxModel):
        message = f"{name} is an ONNX file, which has no gradients; explain the model that it was made from"
        raise ConfigError(message, code="model.is_onnx", target=name)


def explain_rows(
    trained: TrainedModel,
    split: Split,
    *,
    methods: Sequence[str] = tuple(METHODS),
    target: str | None = None,
    batch_size: int = 32,
    on_row: Callable[[int, int], None] = lambda done, total: None,
) -> list[RowExplanation]:
    """Return the explanation of each row of a split.

    Args:
        trained: The model, prepared by `outputs.prepare`.
        methods: Keys of `METHODS`, the one that colours the text first.
        target: Class to explain; None: the predicted one.
        on_row: Called with the number of rows done, and of all rows.

    Raises:
        ConfigError: `target` is not a class.
        DataError: A row has no word that the model reads.
    """
    outputs = trained.apply(split, batch_size, lambda done, total: None).outputs
    columns = trained.recipe.prediction_columns(split, outputs, trained.tokenizer)
    predicted = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in columns["prediction"]]
    targets = [explained_output(trained, index, target) for index in outputs.argmax(axis=1).tolist()]
    rows = read_rows(trained, split)
    explained = []
    for number, row in enumerate(rows):
        output = RowOutput(trained, row, targets[number], batch_size)
        explained.append(_explain(output, predicted[number], methods))
        on_row(number + 1, len(rows))
    return explained


def _explain(output: RowOutput, predicted: str, methods: Sequence[str]) -> RowExplanation:
    width = len(output.row.words)
    compute: dict[str, Callable[[], Floats]] = {
        "integrated_gradients": lambda: integrated_gradients(output, NUM_STEPS, MAX_STEPS),
        "occlusion": lambda: occlusion(output, np.arange(width)),
        "shapley": lambda: shapley(output, MAX_EVALS, SEED),
    }
    effects = {method: compute[method]() for method in methods}
    value, hidden_value = output.values(np.asarray([[True] * width, [False] * width])).tolist()
    attention = None
    if (matrix := output.attention()) is not None:
        owners = np.arange(width)[None, :] == output.row.token_words[:, None]
        attention = (owners / owners.sum(axis=0)).T @ matrix @ owners
    return RowExplanation(
        row=output.row,
        target=output.target,
        predicted=predicted,
        value=value,
        hidden_value=hidden_value,
        effects=effects,
        sentences=occlusion(output, output.row.sentences),
        attention=attention,
        faithfulness=measure(output, effects, SEED),
        replacement=output.replacement,
    )
