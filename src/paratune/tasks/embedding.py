"""The recipe of sentence embeddings: a vector for each text, trained on pairs or triplets of texts."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.sections import ModelOptions
from paratune.config.task_sections import EmbeddingTask, group_size
from paratune.data.columns import LabelArray, Missing, Samples, TableReader
from paratune.data.encode import TokenizeOptions, text_numbers
from paratune.data.load import Split
from paratune.data.selection import select
from paratune.errors import CodedWarning, ConfigError, DataError, coded
from paratune.metrics.embeddings import ranking_scores, retrieval_scores, similarity_scores, triplet_scores
from paratune.models.config import load_config
from paratune.models.locate import locate
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

if TYPE_CHECKING:
    from paratune.data.loader import Collator
    from paratune.models.load import Head
    from paratune.models.objectives import Objective
    from paratune.models.task_model import TaskModel

log = logging.getLogger(__name__)
EMBEDDING = "embedding"
"""Column with the vector of a text, in predictions of single texts."""


class EmbeddingRecipe(TaskRecipe):
    """Recipe of sentence embeddings."""

    _task: EmbeddingTask

    @property
    def group_size(self) -> int:
        return group_size(self._task)

    @property
    def _has_labels(self) -> bool:
        """Whether the data has a label or a score for each pair."""
        return self._task.loss in ("cosine_similarity", "contrastive")

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        """Return the samples of a table; for a prediction, which compares pairs, without the negatives of triplets."""
        if not how.get("require_labels", True):  # before the reader checks that the columns exist
            how["columns"] = how["columns"].model_copy(update={"negative": None})
        return select(TableReader(table, **how), self._task)

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set the range of scores from the training data, or from the only file, where the task has none."""
        if self._task.loss == "cosine_similarity" and self._task.score_range is None:
            source, samples = parts.get("train") or next(iter(parts.values()))
            if samples.labels is not None:
                low, high = float(samples.labels.min()), float(samples.labels.max())
                if low == high:
                    remedy = "set task.score_range, the scores of the cosines 0 and 1"
                    message = f"{source}: all scores are {low:g}; {remedy}"
                    raise DataError(message, code="data.one_class", source=source, value=low)
                self._task = self._task.model_copy(update={"score_range": [low, high]})
        return parts

    def make_split(
        self, name: str, source: str, samples: Samples, options: TokenizeOptions, *, require_labels: bool = True
    ) -> Split:
        split = super().make_split(name, source, samples, options)
        if not require_labels or self._has_labels:
            return split
        return replace(split, samples=replace(samples, labels=text_numbers(split.store)))

    def make_head(self) -> "Head":
        from paratune.models.load import ENCODER, Head

        return Head(ENCODER)

    def make_objective(self) -> "Objective":
        from paratune.models.embedding import embedding

        return embedding(self._task)

    def load_model(
        self, model: ModelOptions, *arguments: Any, head_must_exist: bool = False, **options: Any
    ) -> "TaskModel":
        """Return the encoder with pooling; it has no new weights.

        Raises:
            ConfigError: The folder has modules of sentence-transformers that are not supported, the model has an
                encoder and a decoder, or it cannot be loaded.
        """
        from paratune.models.save import read_modules

        modules, given = read_modules(Path(locate(model.name))), (self._task.pooling, self._task.normalize)
        is_new = not model.from_scratch and not head_must_exist
        if is_new and modules is not None and given != (modules.pooling, modules.normalize):
            log.warning(
                "%s was trained with task.pooling: %s and task.normalize: %s, and the configuration has %s and %s",
                *(model.name, modules.pooling, str(modules.normalize).lower(), given[0], str(given[1]).lower()),
                extra=coded("model.other_pooling", name=model.name),
            )
        if getattr(load_config(model), "is_encoder_decoder", False):
            message = f"model.name: {model.name} has an encoder and a decoder; embeddings are from models that are "
            message += "only an encoder, such as BERT, or only a decoder"
            raise ConfigError(message, code="model.unsupported", key="model.name", name=model.name)
        return super().load_model(model, *arguments, head_must_exist=head_must_exist, **options)

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "Collator":
        """Return the collator; labels are scores from 0 to 1, labels 0 and 1, or (N, K) the numbers of texts."""
        from paratune.data.loader import Collator

        labels: LabelArray | None = split.labels
        if self._task.loss == "cosine_similarity" and labels is not None:
            assert self._task.score_range is not None, "set by resolve"
            low, high = self._task.score_range
            labels = ((labels.astype(np.float64) - low) / (high - low)).astype(np.float32)
        return Collator(split.store, labels, tokenizer.pad_token_id, row_size=int(split.store.num_sequences.max()))

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        warnings: list[CodedWarning] = []
        for split in splits.values():
            if self._has_labels and split.labels is not None and split.labels.min() == split.labels.max():
                message = f"{split.name}: all {split.num_rows} pairs have the label {split.labels[0]:g}"
                warnings.append((message, coded("data.labels_constant", split=split.name)))
        train = splits.get("train")
        if train is not None and train.samples.text_pairs is not None and not self._has_labels:
            num_equal = sum(map(str.__eq__, train.samples.texts, train.samples.text_pairs))
            if num_equal:
                share = format_share(num_equal / train.num_rows)
                message = (
                    f"train: in {num_equal} of {train.num_rows} pairs ({share}) both texts are the same, from which a "
                    "model learns nothing"
                )
                warnings.append((message, coded("data.pairs_equal", split="train", num_rows=num_equal)))
        return warnings

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        if self._task.loss == "cosine_similarity":
            assert split.labels is not None
            return similarity_scores(outputs[:, 0], split.labels)
        if self._task.loss == "contrastive":
            assert split.labels is not None
            return ranking_scores(outputs[:, 0], split.labels)
        from paratune.models.embedding import COSINE, NEGATIVE, RANK

        scores: Scores = {} if self._task.loss == "triplet" else retrieval_scores(outputs[:, RANK])
        if outputs.shape[1] > NEGATIVE:
            scores |= triplet_scores(outputs[:, COSINE], outputs[:, NEGATIVE])
        return scores

    def prediction_names(self) -> list[str]:
        return ["prediction", EMBEDDING]

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the cosine of each pair, or the vector of each text."""
        if split.samples.text_pairs is not None:
            return {"prediction": outputs[:, 0].astype(np.float64)}
        values = pa.array(outputs.astype(np.float32).reshape(-1))
        return {EMBEDDING: pa.FixedSizeListArray.from_arrays(values, outputs.shape[1])}

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the cosine of each pair, and its label, or its rank and the cosine of the negative."""
        from paratune.models.embedding import COSINE, NEGATIVE, RANK

        columns: dict[str, Any] = {}
        if outputs.shape[1] == 1:
            columns["prediction"] = outputs[:, 0].astype(np.float64)
            if split.labels is not None:
                columns = {"label": split.labels.astype(np.float64), **columns}
        else:
            columns["prediction"] = outputs[:, COSINE].astype(np.float64)
            if self._task.loss != "triplet":
                columns["rank"] = np.nan_to_num(outputs[:, RANK], nan=0).astype(np.int64)
            if outputs.shape[1] > NEGATIVE:
                columns["negative"] = outputs[:, NEGATIVE].astype(np.float64)
        return columns
