"""The recipe of masked language models: predicts hidden tokens of running text; a trained model fills in masks.

Dimension: `N` windows.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paratune.config.sections import Data, named_sources
from paratune.config.sources import has_tokens
from paratune.config.task_sections import MaskedLMTask
from paratune.data.columns import NO_MASK, Samples
from paratune.data.encode import ASKED, NUM_MASKABLE, TokenizeOptions
from paratune.data.load import SPLITS, Split, samples_fingerprint
from paratune.data.token_shards import open_tokens
from paratune.data.token_store import EXAMPLE, TokenStore
from paratune.data.tokenizers import check_mask_tokenizer, mask_vocabulary
from paratune.data.tokens import require_known, tokenize
from paratune.errors import CodedWarning, ConfigError, DataError, coded
from paratune.metrics.values import known, no_scores
from paratune.records.predictions import write_predictions
from paratune.tasks.corpus_tokens import token_settings
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

if TYPE_CHECKING:
    from paratune.data.loader import Collate
    from paratune.models.load import Head


class MaskedLMRecipe(TaskRecipe):
    """Recipe of masked language models."""

    _task: MaskedLMTask

    def check(self, options: TokenizeOptions) -> None:
        check_mask_tokenizer(options.tokenizer, whole_words=self._task.whole_words)

    def load_splits(self, data: Data, options: TokenizeOptions) -> dict[str, Split]:
        """Return the splits, from texts or from folders of tokens; see `TaskRecipe.load_splits`."""
        sources = {name: named_sources(getattr(data, name)) for name in SPLITS if getattr(data, name) is not None}
        folders = {name: files for name, files in sources.items() if all(map(has_tokens, files))}
        if not folders:
            return super().load_splits(data, options)
        self.check(options)
        unused = {f"max_rows.{name}": getattr(data.max_rows, name) for name in folders}
        unused |= {"split": data.split, "drop_duplicates": data.drop_duplicates} if "train" in folders else {}
        for key in (key for key, value in unused.items() if value):
            message = f"data.{key} has no effect on folders of tokens; remove it"
            message += ", and name a folder in data.validation" * (key == "split")
            raise ConfigError(message, code="config.no_effect", key=f"data.{key}")
        settings, splits = token_settings(options, self._task), {}
        for name, files in folders.items():
            samples, store = open_tokens(files, settings)
            source = " + ".join(files)
            require_known(store, options.tokenizer, source)
            _require_maskable(store, options.tokenizer, source)
            splits[name] = Split(name, source, samples, store, store.fingerprint)
        if len(folders) < len(sources):
            others = super().load_splits(data.model_copy(update=dict.fromkeys(folders)), options)
            if both := sorted(splits.keys() & others.keys()):
                message = f"data.{both[0]} names a folder and data.split.{both[0]} cuts rows from train; remove one"
                raise DataError(message, code="data.split_conflict", part=both[0])
            splits |= others
        return {name: splits[name] for name in SPLITS if name in splits}

    def make_split(
        self, name: str, source: str, samples: Samples, options: TokenizeOptions, *, require_labels: bool = True
    ) -> Split:
        """Return documents as a split with their windows; without labels, texts with masks to fill in."""
        if require_labels:
            store = self.make_tokens(samples, options, source)
            _require_maskable(store, options.tokenizer, source)
        else:
            store = tokenize(samples, options, self._task, source=source, fills_in=True)
            with_masks, examples = np.unique(store.examples, return_inverse=True)
            store = replace(store, row_values={**store.row_values, EXAMPLE: examples})
            without = {NO_MASK: len(samples) - len(with_masks)} if len(with_masks) < len(samples) else {}
            samples = samples.take(with_masks, num_dropped=samples.num_dropped | without)
        return Split(name, source, samples, store, samples_fingerprint(samples, self._task))

    def make_head(self) -> "Head":
        from paratune.models.load import Head

        return Head("AutoModelForMaskedLM")

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "Collate":
        from paratune.data.collators import MaskingCollator, question_batches

        if _has_masks(split):
            return question_batches(split.store, tokenizer.pad_token_id)
        return MaskingCollator(
            split.store,
            mask_vocabulary(tokenizer),
            tokenizer.pad_token_id,
            probability=self._task.mask_probability,
            whole_words=self._task.whole_words,
            seed=seed,
        )

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        warnings: list[CodedWarning] = []
        for split in splits.values():
            without = int((split.store.row_values[NUM_MASKABLE] == 0).sum())
            if without:
                what = "windows" if split.store.sample_offsets is None else "pieces of documents"
                message = f"{split.name}: {without} {what} have only special tokens; no token is hidden in them"
                warnings.append((message, coded("data.windows_without_text", split=split.name)))
        return warnings

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return masked_lm_scores(outputs)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        num_full = int((split.store.lengths == split.store.max_length).sum())
        counts = {"num_windows": split.num_samples, "num_full_windows": num_full}
        counts["num_truncated_documents"] = split.store.num_truncated
        hidden = {"num_hidden_tokens": int(outputs[:, 1].sum()), "num_found_tokens": int(outputs[:, 2].sum())}
        return {"windows": {**counts, **hidden}}

    def prediction_names(self) -> list[str]:
        return ["prediction", "tokens", "scores"]

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return for each text the best word of each mask, and the best words of each mask with their probabilities."""
        edges = np.flatnonzero(np.diff(split.store.examples)) + 1
        ids, shares = np.split(outputs, 2, axis=1)
        words = [[tokenizer.decode([number]).strip() for number in row] for row in ids.astype(np.int64).tolist()]
        words_by_text = [words[begin:end] for begin, end in zip([0, *edges], [*edges, len(words)], strict=True)]
        return {
            "prediction": [" ".join(mask[0] for mask in masks) for masks in words_by_text],
            "tokens": words_by_text,
            "scores": [part.tolist() for part in np.split(shares, edges)],
        }

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        """Write a row for each window: the row of its first token, its loss, numbers of hidden and found tokens.

        For texts with masks, write a row for each text, as `predict` does.
        """
        samples = split.samples
        if _has_masks(split):
            document, columns = np.arange(len(samples)), self.prediction_columns(split, outputs, tokenizer)
        else:
            begins = split.store.sample_offsets
            document = split.store.examples if begins is None else split.store.examples[begins[:-1]]
            columns = {
                "loss_sum": outputs[:, 0].astype(np.float64),
                "num_hidden": outputs[:, 1].astype(np.int64),
                "num_found": outputs[:, 2].astype(np.int64),
            }
        sources = None if samples.sources is None else [samples.sources[number] for number in document]
        write_predictions(folder, split.name, rows=samples.rows[document], ids=None, columns=columns, sources=sources)


def _require_maskable(store: TokenStore, tokenizer: Any, source: str) -> None:
    if not store.row_values[NUM_MASKABLE].any():
        special = tokenizer.unk_token or tokenizer.mask_token
        message = f"{source}: all tokens are special tokens, such as {special}: no token can be hidden"
        raise DataError(message, code="data.no_tokens", source=source)


def _has_masks(split: Split) -> bool:
    """Return whether a split has texts with masks to fill in, and not windows in which to hide tokens."""
    return ASKED in split.store.row_values


def masked_lm_scores(outputs: Outputs) -> Scores:
    """Return the scores of the windows of a split, averaged over hidden tokens in float64.

    `outputs`, (N, 3), have for each window the sum of the losses of its hidden tokens (natural logarithm), their
    number, and the number of correct predictions. The perplexity, exp of the mean loss of a token, is None where it is
    unknown or overflows float64; both scores are None without hidden tokens.
    """
    loss, num_hidden, num_found = np.asarray(outputs, dtype=np.float64).sum(axis=0).tolist()
    if num_hidden == 0:
        return no_scores("mlm")
    try:
        perplexity = math.exp(loss / num_hidden)
    except OverflowError:
        perplexity = math.inf
    return {"perplexity": known(perplexity), "accuracy": num_found / num_hidden}
