"""Counts the tokens of rows and predicts rows, as `paratune predict` does for a file."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.data.labels import first_rows
from paratune.data.load import Split
from paratune.errors import DataError
from paratune.infer.trained import TrainedModel
from paratune.serving.rows import Row, as_table

_SOURCE = "the request"


class Predictor:
    """A model for two threads: one counts tokens, the other one predicts.

    A tokenizer keeps its truncation while it works, so each thread has its own.
    """

    def __init__(self, trained: TrainedModel) -> None:
        self.trained = trained
        self._counter = replace(
            trained, tokenizer=copy.deepcopy(trained.tokenizer), recipe=copy.deepcopy(trained.recipe)
        )

    def count_tokens(self, rows: list[Row]) -> list[int]:
        """Return the number of tokens of each row, over all its windows.

        Raises:
            DataError: A row has no text, or its tokens cannot be used.
        """
        split = self._counter.read(_SOURCE, as_table(rows), require_labels=False)
        without = np.setdiff1d(np.arange(len(rows)), split.samples.rows).tolist()
        if without:
            raise DataError(
                f"rows without a text that the model can read: {first_rows(without)}",
                code="serve.row_without_text",
                rows=without,
            )
        if len(split.store) == len(rows):
            return [int(length) for length in split.store.lengths]
        # Question answering: a context of several windows. Each row is counted alone.
        return [self._num_tokens(row) for row in rows]

    def _num_tokens(self, row: Row) -> int:
        split: Split = self._counter.read(_SOURCE, as_table([row]), require_labels=False)
        return int(np.asarray(split.store.lengths).sum())

    def predict(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Return the columns that `paratune predict` writes for each row, by name."""
        split = self.trained.read(_SOURCE, as_table(rows), require_labels=False)
        outputs = self.trained.apply(split, len(rows), lambda done, total: None).outputs
        columns = self.trained.recipe.prediction_columns(split, outputs, self.trained.tokenizer)
        values = {name: pa.array(column).to_pylist() for name, column in columns.items()}
        return [{name: column[number] for name, column in values.items()} for number in range(len(rows))]
