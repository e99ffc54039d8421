"""The recipe of multiple choice: one right choice among several for each text.

Dimensions: `N` questions, `K` most choices of a question.
"""

from string import ascii_uppercase
from typing import Any

import pyarrow as pa

from paratune.config.task_sections import MultipleChoiceTask
from paratune.data.choices import choice_names, select_choices, tokenize_choices
from paratune.data.columns import Samples, TableReader
from paratune.data.load import Split
from paratune.data.loader import Collator
from paratune.data.token_store import TokenStore
from paratune.data.tokens import TokenizeOptions
from paratune.metrics.classification import choice_scores
from paratune.models.load import Head
from paratune.models.task_model import TaskModel, freeze_output_bias
from paratune.records.predictions import softmax
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

PREDICTION_NAMES = ("prediction", "scores")


class MultipleChoiceRecipe(TaskRecipe):
    """Recipe of multiple choice."""

    _task: MultipleChoiceTask
    """Once data was read, with the format of its labels."""
    _choice_names: list[str] | None = None

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        reader = TableReader(table, **how)
        samples, label_format = select_choices(reader, self._task)
        # Files are read in the order train, validation, test: all have the format of the training data.
        self._task = self._task.model_copy(update={"label_format": label_format})
        self._choice_names = choice_names(reader.columns)
        return samples

    def make_tokens(self, samples: Samples, options: TokenizeOptions, source: str) -> TokenStore:
        """Return the tokens of questions: a sequence for each choice."""
        return tokenize_choices(samples, options, source=source)

    def make_head(self) -> Head:
        return Head("AutoModelForMultipleChoice")  # it has one output for each sequence

    def load_model(self, *arguments: Any, **options: Any) -> TaskModel:
        model = super().load_model(*arguments, **options)
        freeze_output_bias(model)
        return model

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collator:
        most_choices = int(split.store.num_sequences.max())
        return Collator(split.store, split.labels, tokenizer.pad_token_id, row_size=most_choices)

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

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        known = {} if split.labels is None else {"label": self._shown(split, split.labels)}
        return known | self.prediction_columns(split, outputs, tokenizer)


def _letter(place: int) -> str:
    """Return the letter of a choice: A to Z, then AA, AB and so on; labels have single letters."""
    first, last = divmod(place, len(ascii_uppercase))
    return (ascii_uppercase[first - 1] if first else "") + ascii_uppercase[last]
