"""The recipe of multiple choice: one right choice among several for each text.

Dimensions: `N` questions, `K` most choices of a question.
"""

from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pyarrow as pa

from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import MultipleChoiceTask
from paratune.data.choices import choice_names, select_choices, tokenize_choices
from paratune.data.columns import Missing, Samples
from paratune.data.load import Split, samples_fingerprint
from paratune.data.loader import Collator
from paratune.data.tokens import TokenizeOptions
from paratune.metrics.choices import choice_scores
from paratune.models.load import Head, load_model
from paratune.models.task_model import TaskModel, freeze_output_bias
from paratune.precision import Precision
from paratune.records.predictions import softmax, write_predictions
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

PREDICTION_NAMES = ("prediction", "scores")


class MultipleChoiceRecipe(TaskRecipe):
    """Recipe of multiple choice."""

    def __init__(self, task: MultipleChoiceTask) -> None:
        self._task = task
        self._choice_names: list[str] | None = None
        self.names: list[str] = []

    @property
    def task(self) -> MultipleChoiceTask:
        """The task of the configuration; once data was read, with the format of its labels."""
        return self._task

    def select(
        self,
        table: pa.Table,
        *,
        columns: Columns,
        options: TokenizeOptions,
        missing: Missing,
        source: str,
        group_by: str | None = None,
        require_labels: bool = True,
    ) -> Samples:
        samples, label_format = select_choices(
            table, columns, self._task, missing, source=source, group_by=group_by, require_labels=require_labels
        )
        # Files are read in the order train, validation, test: all have the format of the training data.
        self._task = self._task.model_copy(update={"label_format": label_format})
        self._choice_names = choice_names(columns)
        return samples

    def make_split(
        self, name: str, source: str, samples: Samples, options: TokenizeOptions, *, require_labels: bool = True
    ) -> Split:
        """Return questions as a split whose samples have a sequence for each choice."""
        store = tokenize_choices(samples, options, source=source)
        return Split(name, source, samples, store, samples_fingerprint(samples, self._task))

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        head = Head("AutoModelForMultipleChoice")  # it has one output for each sequence
        made = load_model(model, self._task.kind, head, tokenizer, precision, seed, head_must_exist=head_must_exist)
        freeze_output_bias(made)
        return made

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collator:
        most_choices = int(split.store.num_sequences.max())
        return Collator(split.store, split.labels, tokenizer.pad_token_id, row_size=most_choices)

    def warnings(self, splits: Mapping[str, Split]) -> list[str]:
        return []

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        assert split.labels is not None
        return choice_scores(outputs, split.labels)

    def prediction_names(self) -> list[str]:
        return list(PREDICTION_NAMES)

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the predicted choice in the format of the labels, and the list of the probabilities of the choices."""
        counts = split.store.num_sequences.tolist()
        shares = [row[:count].tolist() for row, count in zip(softmax(outputs), counts, strict=True)]
        return dict(zip(PREDICTION_NAMES, (self._shown(split, outputs.argmax(axis=1)), shares), strict=True))

    def _shown(self, split: Split, places: Outputs) -> list[Any]:
        """Return the choices at these places, (N,), in the format of the labels; the index where no label was read."""
        how, choices = self._task.label_format or "index", split.samples.choices
        assert choices is not None
        if how == "text":
            return [row[place] for row, place in zip(choices, places.tolist(), strict=True)]
        if how == "name" and self._choice_names is not None:
            return [self._choice_names[place] for place in places.tolist()]
        if how == "letter":
            return [_letter(place) for place in places.tolist()]
        return [place + (how == "number") for place in places.tolist()]

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        known = {} if split.labels is None else {"label": self._shown(split, split.labels)}
        samples = split.samples
        write_predictions(
            folder, split.name, rows=samples.rows, ids=samples.ids,
            columns=known | self.prediction_columns(split, outputs, tokenizer), sources=samples.sources,
            clusters=samples.clusters,
        )  # fmt: skip


def _letter(place: int) -> str:
    """Return the letter of a choice: A to Z, then AA, AB and so on; labels have single letters."""
    first, last = divmod(place, len(ascii_uppercase))
    return (ascii_uppercase[first - 1] if first else "") + ascii_uppercase[last]
