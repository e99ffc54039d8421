"""Hidden tokens of running text, found again; and, with a trained model, masks in texts filled in.

Floor 4. `N` windows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import MaskedLMTask
from paratune.data.columns import Missing, Samples, select
from paratune.data.documents import check_tokenizer, make_questions, make_windows, vocabulary_of
from paratune.data.load import Split, load_samples, parts_in_turn, samples_fingerprint
from paratune.data.loader import Collate
from paratune.data.masking import MaskingCollator, QuestionCollator, num_hidden
from paratune.data.tokens import Tokenizing
from paratune.errors import DataError
from paratune.metrics.masked_lm import masked_lm_scores
from paratune.models.load import Head, load_model
from paratune.models.task_model import TaskModel
from paratune.precision import Precision
from paratune.records.predictions import write_predictions
from paratune.tasks.protocol import Outputs, Scores


class MaskedLMRecipe:
    """See `protocol.TaskRecipe`."""

    def __init__(self, task: MaskedLMTask) -> None:
        self._task = task
        self.names: list[str] = []

    @property
    def task(self) -> MaskedLMTask:
        return self._task

    def load_splits(self, data: Data, how: Tokenizing) -> dict[str, Split]:
        check_tokenizer(how.tokenizer, whole_words=self._task.whole_words)
        parts = parts_in_turn(load_samples(data, self._task), how)
        return {name: self._split(name, source, samples, told) for name, source, samples, told in parts}

    def load_split(
        self, source: str, table: pa.Table, columns: Columns, how: Tokenizing, *, missing: Missing, require_labels: bool
    ) -> Split:
        check_tokenizer(how.tokenizer, whole_words=self._task.whole_words)
        samples = select(table, columns, self._task, missing, source=source, require_labels=require_labels)
        if require_labels:
            return self._split("data", source, samples, how)
        samples, store = make_questions(samples, how, source=source)
        return Split("data", source, samples, store, samples_fingerprint(samples, self._task))

    def _split(self, name: str, source: str, samples: Samples, how: Tokenizing) -> Split:
        store = make_windows(samples, how, self._task.windows, whole_words=self._task.whole_words, source=source)
        if not store.of_rows["num_maskable"].any():
            special = how.tokenizer.unk_token or how.tokenizer.mask_token
            raise DataError(
                f"{source}: all tokens are special ones, such as {special}: there is nothing to hide",
                code="data.no_tokens",
                source=source,
            )
        return Split(name, source, samples, store, samples_fingerprint(samples, self._task))

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        head = Head("AutoModelForMaskedLM")
        return load_model(model, "mlm", head, tokenizer, precision, seed, head_must_exist=head_must_exist)

    def initialise(self, model: TaskModel, train: Split) -> None:
        return

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collate:
        if _asks(split):
            return QuestionCollator(split.store, tokenizer.pad_token_id)
        return MaskingCollator(
            split.store,
            vocabulary_of(tokenizer),
            tokenizer.pad_token_id,
            probability=self._task.mask_probability,
            whole_words=self._task.whole_words,
            seed=seed,
        )

    def warnings(self, splits: Mapping[str, Split]) -> list[str]:
        found = []
        for split in splits.values():
            found += self._hidden_too_much(split)
            without = int((split.store.of_rows["num_maskable"] == 0).sum())
            if without:
                found.append(f"{split.name}: {without} windows have special tokens alone; nothing is hidden in them")
        return found

    def _hidden_too_much(self, split: Split) -> list[str]:
        """Warn where one token, or one word, is far more of a window than is to be hidden."""
        num_maskable, share = split.store.of_rows["num_maskable"], self._task.mask_probability
        least = num_hidden(num_maskable, share)
        if self._task.whole_words:
            least = np.maximum(least, split.store.of_rows["smallest_word"])
        hidden = float(least.sum() / max(1, num_maskable.sum()))
        if hidden <= 2 * share:
            return []
        thing = "word" if self._task.whole_words else "token"
        joined = "" if self._task.windows == "joined" else "; task.windows: joined makes longer windows"
        return [
            f"{split.name}: {format_share(hidden)} of the tokens are hidden, not {format_share(share)} "
            f"(task.mask_probability): of each window at least one {thing}, however short it is{joined}"
        ]

    def settled(self, validation: tuple[Split, Outputs] | None) -> "MaskedLMRecipe":
        return self

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
        """Return of each text the best word of each mask, and for each mask the best words and their probabilities."""
        edges = np.flatnonzero(np.diff(split.store.of_rows["document"])) + 1
        ids, shares = np.split(outputs, 2, axis=1)
        words = [[tokenizer.decode([number]).strip() for number in row] for row in ids.astype(np.int64).tolist()]
        words_of = [words[begin:end] for begin, end in zip([0, *edges], [*edges, len(words)], strict=True)]
        return {
            "prediction": [" ".join(mask[0] for mask in masks) for masks in words_of],
            "tokens": words_of,
            "scores": [part.tolist() for part in np.split(shares, edges)],
        }

    def why_no_document(self, split: Split) -> str | None:
        return f"{self._task.kind} has no JSON layout"

    def why_not_kept(self, split: Split) -> str | None:
        return None

    def document(self, split: Split, outputs: Outputs) -> Any:
        raise NotImplementedError(self.why_no_document(split))

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        """Write a row for each window: the row in which it begins, its loss, and what was hidden and found.

        Of texts with masks, a row for each text, as `predict` writes it.
        """
        samples = split.samples
        if _asks(split):
            document, columns = np.arange(len(samples)), self.prediction_columns(split, outputs, tokenizer)
        else:
            document = split.store.of_rows["document"]
            columns = {
                "loss_sum": outputs[:, 0].astype(np.float64),
                "num_hidden": outputs[:, 1].astype(np.int64),
                "num_found": outputs[:, 2].astype(np.int64),
            }
        sources = None if samples.sources is None else [samples.sources[number] for number in document]
        write_predictions(folder, split.name, rows=samples.rows[document], ids=None, columns=columns, sources=sources)


def _asks(split: Split) -> bool:
    """Say whether a split holds texts with masks to fill in, and not windows to hide tokens in."""
    return "asked" in split.store.of_rows
