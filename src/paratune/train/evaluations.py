"""The splits of a run as evaluations see them: their batches on this rank, and the scores of what came of them."""

from collections.abc import Iterator
from contextlib import closing

from paratune.batch import Batch
from paratune.data.loader import Collate, EvalBatches, eval_batches
from paratune.data.workers import BatchesAhead
from paratune.engine.evaluate import Evaluation
from paratune.hangs.pulse import working
from paratune.models.batch_layout import BatchLayout
from paratune.strategies.protocol import Layout
from paratune.train.prepare import Prepared, collator_of, workers_of


class SplitEvaluations:
    """Of one process."""

    def __init__(self, prepared: Prepared, layout: Layout, batch_layout: BatchLayout) -> None:
        self._prepared = prepared
        self._layout = layout
        self._batch_layout = batch_layout
        self._collators: dict[str, Collate] = {}
        self.recipe = prepared.recipe
        """With what the validation set has decided, once it has."""

    def batches_of(self, split: str) -> tuple[int, Iterator[Batch]]:
        """Return how many batches this rank has of a split, and the batches."""
        batches = eval_batches(
            self._collator(split),
            batch_size=self._prepared.config.evaluate.batch_size,
            data_rank=self._layout.data_rank,
            data_world_size=self._layout.data_world_size,
        )
        return len(batches), self._made_ahead(batches)

    def _made_ahead(self, batches: EvalBatches) -> Iterator[Batch]:
        with closing(BatchesAhead(batches.step, range(len(batches)), workers_of(self._prepared))) as ahead:
            for step in ahead:
                yield from step

    def _collator(self, split: str) -> Collate:
        """Return what makes batches of a split: the same in each evaluation, for what it has drawn and counted."""
        if split not in self._collators:
            self._collators[split] = collator_of(self._prepared, split, self._batch_layout)
        return self._collators[split]

    def score(self, split: str, evaluation: Evaluation) -> dict[str, float | None]:
        """Return the scores of a split, and its loss; nothing where it has no labels."""
        if split not in self._prepared.labelled:
            return {}
        with working(f"compute the scores of {split}"):
            found = self.recipe.scores(self._prepared.splits[split], evaluation.outputs)
        return {**found, "loss": evaluation.loss}

    def settle(self, validation: Evaluation | None) -> None:
        """Let the validation set, where there is one, decide what the recipe leaves to it."""
        part = self._prepared.splits.get("validation")
        self.recipe = self.recipe.settled(None if validation is None or part is None else (part, validation.outputs))
