"""The recipe of token classification: a tag for each word, such as named entities or parts of speech."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paratune.base.units import format_share
from paratune.config.task_sections import TokenClassificationTask
from paratune.data.encode import WORD, TokenizeOptions, tags_by_word
from paratune.data.load import Split
from paratune.data.tokenizers import require_fast
from paratune.errors import CodedWarning, coded
from paratune.metrics.entities import (
    COUNTS,
    TaggedSentences,
    count_without_begin,
    entity_scores,
    scores_by_type,
    sentence_counts,
)
from paratune.metrics.values import no_scores
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

if TYPE_CHECKING:
    from paratune.data.collators import WordCollator
    from paratune.models.load import Head


class TokenClassificationRecipe(TaskRecipe):
    """Recipe of token classification."""

    _task: TokenClassificationTask

    def check(self, options: TokenizeOptions) -> None:
        require_fast(options.tokenizer, "tags of words need")

    def make_head(self) -> "Head":
        from paratune.models.load import Head

        return Head("AutoModelForTokenClassification", num_outputs=len(self.names), names=tuple(self.names))

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "WordCollator":
        from paratune.data.collators import WordCollator

        return WordCollator(split.store, split.samples.tags, tokenizer.pad_token_id)

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        warnings: list[CodedWarning] = []
        for split in splits.values():
            words, tags = split.samples.words, split.samples.tags
            assert words is not None
            num_words = sum(map(len, words))
            lost = num_words - int((np.asarray(split.store.token_values[WORD]) >= 0).sum())
            if lost:
                message = (
                    f"{split.name}: {lost} of {num_words} words ({format_share(lost / num_words)}) have no token, most "
                    "behind data.max_length; they are not trained on, and count as wrong"
                )
                warnings.append((message, coded("data.words_without_token", split=split.name)))
            if tags is not None and self._task.scheme == "iob2":
                wrong = sum(count_without_begin(self._named(sentence)) for sentence in tags)
                if wrong:
                    effect = "they belong to no entity" if self._task.strict else "they begin an entity, as in seqeval"
                    message = (
                        f"{split.name}: {wrong} I- tags have no B- or I- tag of their type in front; {effect} "
                        "(task.strict)"
                    )
                    warnings.append((message, coded("data.tags_without_begin", split=split.name)))
        return warnings

    def _named(self, tags: Any) -> list[str]:
        return [self.names[int(tag)] for tag in tags]

    def _predicted(self, split: Split, outputs: Outputs) -> list[list[str | None]]:
        """Return the tag of each word; None for a word without a token."""
        assert split.samples.words is not None
        sentences = []
        for row, words in enumerate(split.samples.words):
            tags = tags_by_word(outputs[row], split.store, row, len(words)).tolist()
            sentences.append([None if tag < 0 else self.names[tag] for tag in tags])
        return sentences

    def _tagged(self, split: Split, outputs: Outputs) -> TaggedSentences:
        assert split.samples.tags is not None
        true = [self._named(tags) for tags in split.samples.tags]
        has_entities = self._task.scheme == "iob2"
        return TaggedSentences(true, self._predicted(split, outputs), has_entities, self._task.strict)

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return no_scores(self.task.kind) if np.isnan(outputs).any() else entity_scores(self._tagged(split, outputs))

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        if np.isnan(outputs).any() or self._task.scheme != "iob2":
            return {}
        return {"entities": scores_by_type(self._tagged(split, outputs))}

    def prediction_names(self) -> list[str]:
        return ["prediction"]

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the list of the tags of each sentence, with null for a word without a token."""
        return {"prediction": self._predicted(split, np.nan_to_num(outputs, nan=-1.0))}

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the tags of each sentence as text, and where they are known the true tags and `COUNTS`."""
        # A word without a token has "_", as CoNLL-U writes it.
        predicted = self._predicted(split, np.nan_to_num(outputs, nan=-1.0))
        columns: dict[str, Any] = {"prediction": [" ".join(tag or "_" for tag in tags) for tags in predicted]}
        if split.samples.tags is None:
            return columns
        tagged = self._tagged(split, np.nan_to_num(outputs, nan=-1.0))
        counts = dict(zip(COUNTS, sentence_counts(tagged).T, strict=True))
        return {"label": [" ".join(tags) for tags in tagged.true], **columns, **counts}
