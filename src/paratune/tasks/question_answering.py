"""The recipe of extractive question answering: windows, spans, "no answer", and the scores of SQuAD.

Dimensions: `W` windows, `N` questions, `n` answers of a window.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.task_sections import QuestionAnsweringTask
from paratune.data.columns import Missing, Samples, TableReader
from paratune.data.encode import CHAR_END, CHAR_START, TokenizeOptions, are_too_long, question_room
from paratune.data.labels import first_rows
from paratune.data.load import Split
from paratune.data.questions import (
    answer_tokens,
    count_unreachable_answers,
    drop_misplaced,
    drop_unanswered,
    place_answers,
)
from paratune.data.selection import select
from paratune.data.token_store import TokenStore
from paratune.errors import CodedWarning, DataError, coded
from paratune.metrics.squad import RawScores, best_threshold, chosen_threshold, raw_scores, squad_scores, with_threshold
from paratune.metrics.values import no_scores
from paratune.records import write_json
from paratune.records.predictions import write_predictions
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

if TYPE_CHECKING:
    from paratune.data.loader import ChangedBatches
    from paratune.models.load import Head
    from paratune.models.objectives import Objective

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PREDICTION_NAMES = ("prediction", "null_odds", "best_answer")
_NO_SPAN = -1e9
"""Score where no passage of a context can be an answer; finite, so that JSON files can contain odds from it."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The best passage of each question, and the scores of it and of "no answer"."""

    texts: list[str]
    """(N,): the best passage of each context, even where "no answer" has a higher score."""
    scores: Floats
    """(N,): score of the passage, the sum of the logits of its first and last token."""
    null_scores: Floats
    """(N,): score of "no answer": the smallest over the windows of a question, because one window with the answer is
    enough."""

    @property
    def null_odds(self) -> Floats:
        """(N,): score of "no answer" minus score of the best passage."""
        return self.null_scores - self.scores


def _values_at(values: Any, offsets: Ints, tokens: Floats) -> Ints:
    return np.asarray(values)[offsets + np.maximum(tokens, 0).astype(np.int64)].astype(np.int64)


def best_answers(split: Split, outputs: Outputs) -> Answers:
    """Return the best answer of each question over its windows.

    `outputs` are (W, 4 n + 2), row outputs of `paratune.models.objectives.question_answering`.
    """
    assert split.samples.text_pairs is not None
    store, row_outputs = split.store, np.asarray(outputs, dtype=np.float64)
    num_best, num_questions = (row_outputs.shape[1] - 2) // 4, split.num_rows
    starts, ends, first, last = (row_outputs[:, number * num_best : (number + 1) * num_best] for number in range(4))
    offsets = np.asarray(store.offsets[:-1], dtype=np.int64)[:, None]
    # (W, n): first characters in the context, and characters after the last ones.
    begin = _values_at(store.token_values[CHAR_START], offsets, first)
    end = _values_at(store.token_values[CHAR_END], offsets, last)
    is_answer = (first >= 0) & (end > begin)  # a passage of only white space is no answer
    with np.errstate(invalid="ignore"):
        span_scores = np.where(is_answer, starts + ends, -np.inf)
    examples = store.examples
    null_scores = np.full(num_questions, np.inf)
    # The last two outputs are the logits of the token for "no answer", as first and as last token.
    np.minimum.at(null_scores, examples, row_outputs[:, -2:].sum(axis=1))
    places, best = span_scores.argmax(axis=1), span_scores.max(axis=1)
    # Sorted by question, the best window first; of equal windows the earlier one.
    order = np.lexsort((-best, examples))
    _, at = np.unique(examples[order], return_index=True)
    chosen = order[at]
    texts, scores = [""] * num_questions, np.full(num_questions, _NO_SPAN)
    for example, window in enumerate(chosen.tolist()):
        place = places[window]
        if np.isfinite(best[window]):
            texts[example] = split.samples.text_pairs[example][begin[window, place] : end[window, place]]
            scores[example] = best[window]
    return Answers(texts, scores, null_scores)


def question_ids(split: Split) -> list[str]:
    """Return the ids of the questions; without ids, their rows, with the file name where there are several files."""
    samples = split.samples
    if samples.ids is not None:
        return samples.ids
    rows = [str(row) for row in samples.rows.tolist()]
    sources = samples.sources
    return rows if sources is None else [f"{source}:{row}" for source, row in zip(sources, rows, strict=True)]


class QuestionAnsweringRecipe(TaskRecipe):
    """Recipe of extractive question answering."""

    _task: QuestionAnsweringTask
    """Once data was read, with `unanswerable` set from the data."""

    def __init__(self, task: QuestionAnsweringTask) -> None:
        super().__init__(task)
        self._answer_tokens: dict[str, Ints] = {}
        """Labels by the fingerprint of a split; each evaluation needs them."""
        self._last: tuple[Split, Outputs, Answers, RawScores | None] | None = None
        """The last answers, which scores, details and files of a split all need."""

    def check(self, options: TokenizeOptions) -> None:
        question_room(options, self._task.stride)

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        too_long = partial(are_too_long, options=options, stride=self._task.stride)
        return select(TableReader(table, **how), self._task, too_long=too_long)

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set `unanswerable` from the gold answers of train and validation, where the configuration does not set it.

        Positions of answers matter for what is learned: they must be right in the training data alone.
        """
        for name, (source, samples) in parts.items():
            place = partial(drop_misplaced, missing=missing) if name == "train" else place_answers
            parts = parts | {name: (source, place(samples, source=source))}
        if self._task.unanswerable is None:
            deciding = [parts[name] for name in ("train", "validation") if name in parts] or [*parts.values()]
            has_unanswerable = any(not gold for _, samples in deciding for gold in samples.answers or ())
            self._task = self._task.model_copy(update={"unanswerable": has_unanswerable})
        if "test" in parts and self._task.unanswerable is False:
            source, samples = parts["test"]
            return parts | {"test": (source, drop_unanswered(samples, missing, source=source))}
        return parts

    def make_tokens(self, samples: Samples, options: TokenizeOptions, source: str) -> TokenStore:
        """Return the windows of the contexts of questions."""
        if samples.file_index is not None and samples.ids is not None and len(set(samples.ids)) < len(samples.ids):
            twice, _ = Counter(samples.ids).most_common(1)[0]
            message = f"{source}: the id {twice} is in several files; change it in all but one of them"
            raise DataError(message, code="data.id_twice", source=source)
        return super().make_tokens(samples, options, source)

    def make_head(self) -> "Head":
        from paratune.models.load import Head

        # Two outputs per token: heads of some architectures read this number from the configuration.
        return Head("AutoModelForQuestionAnswering", num_outputs=2)

    def make_objective(self) -> "Objective":
        from paratune.models.objectives import question_answering

        return question_answering(num_best=self._task.num_best, max_answer_tokens=self._task.max_answer_tokens)

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "ChangedBatches":
        from paratune.data.collators import window_batches
        from paratune.data.loader import Collator

        return window_batches(Collator(split.store, self._positions(split), tokenizer.pad_token_id))

    def _positions(self, split: Split) -> Ints | None:
        if split.samples.answers is None:
            return None
        key = f"{split.fingerprint} {split.store.fingerprint}"
        if key not in self._answer_tokens:
            self._answer_tokens[key] = answer_tokens(split.store, split.samples.answers)
        return self._answer_tokens[key]

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        warnings: list[CodedWarning] = []
        train = splits.get("train")
        known = set(train.samples.text_pairs or ()) if train is not None else set()
        for split in splits.values():
            positions, answers = self._positions(split), split.samples.answers
            assert positions is not None
            assert answers is not None
            if count := count_unreachable_answers(split.store, positions, answers):
                message = (
                    f"{split.name}: {count} of {split.num_rows} questions have an answer that no window has whole, "
                    "and count as unanswerable in the loss; set a larger task.stride or data.max_length"
                )
                warnings.append((message, coded("data.answers_cut", split=split.name, num_rows=count)))
            num_known = 0 if split is train else sum(context in known for context in split.samples.text_pairs or ())
            if num_known:  # the model may have learned their answers
                message = (
                    f"{num_known} of {split.num_rows} questions of {split.name} "
                    f"({format_share(num_known / split.num_rows)}) are about a context that is also in train; "
                    "data.split.group_by: context keeps them apart"
                )
                facts = coded("data.contexts_shared", split=split.name, num_rows=num_known)
                warnings.append((message, facts))
        return warnings

    def tuned(self, validation: tuple[Split, Outputs] | None) -> Self:
        if not self._task.unanswerable or self._task.null_threshold is not None:
            return self
        threshold = 0.0
        if validation is None:
            message = "task.null_threshold is 0, because there is no validation set to choose it"
            log.warning(message, extra=coded("task.null_threshold"))
        elif not np.isnan(validation[1]).any():
            answers, raw = self._scored_answers(*validation)
            threshold = chosen_threshold(raw, answers.null_odds)
            if threshold < answers.null_odds.min():
                log.warning(
                    "on the validation set, answering no question has the best score: task.null_threshold is %.4g, "
                    "below all null odds there; train longer, or set a threshold",
                    threshold,
                    extra=coded("task.null_threshold", value=threshold),
                )
        recipe = type(self)(self._task.model_copy(update={"null_threshold": threshold}))
        recipe._answer_tokens, recipe._last = self._answer_tokens, self._last
        return recipe

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        if np.isnan(outputs).any():
            return no_scores(self.task.kind)
        answers, raw = self._scored_answers(split, outputs)
        return squad_scores(raw, answers.null_odds if self._task.unanswerable else None, self._threshold(answers, raw))

    def _best_answers(self, split: Split, outputs: Outputs) -> tuple[Answers, RawScores | None]:
        """Return the best answers, and their scores where there are gold answers."""
        if self._last is None or self._last[0] is not split or self._last[1] is not outputs:
            answers, raw = best_answers(split, outputs), None
            if split.samples.answers is not None:
                texts = [[answer.text for answer in gold] for gold in split.samples.answers]
                raw = raw_scores(answers.texts, texts, self._task.articles)
            self._last = split, outputs, answers, raw
        return self._last[2:]

    def _scored_answers(self, split: Split, outputs: Outputs) -> tuple[Answers, RawScores]:
        answers, raw = self._best_answers(split, outputs)
        assert raw is not None
        return answers, raw

    def _threshold(self, answers: Answers, raw: RawScores | None) -> float:
        """Return the threshold of the task, or else the best one for these answers; 0 without gold answers."""
        if self._task.null_threshold is not None:
            return self._task.null_threshold
        return 0.0 if raw is None else chosen_threshold(raw, answers.null_odds)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        if np.isnan(outputs).any():
            return {}
        answers, raw = self._scored_answers(split, outputs)
        num_with = int(raw.has_answer.sum())
        details: dict[str, Any] = {"num_with_answer": num_with, "num_without_answer": split.num_rows - num_with}
        if self._task.unanswerable:
            details["null_threshold"] = self._threshold(answers, raw)
            details["best_exact_thresh"] = best_threshold(raw.exact, raw, answers.null_odds)[1]
            details["best_f1_thresh"] = best_threshold(raw.f1, raw, answers.null_odds)[1]
        return {"answers": details}

    def prediction_names(self) -> list[str]:
        return list(PREDICTION_NAMES if self._task.unanswerable is not False else PREDICTION_NAMES[:1])

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        answers, _ = self._best_answers(split, outputs)
        if not self._task.unanswerable:
            return {"prediction": answers.texts}
        chosen = self._chosen(answers, None)
        return dict(zip(PREDICTION_NAMES, (chosen, answers.null_odds, answers.texts), strict=True))

    def _chosen(self, answers: Answers, raw: RawScores | None) -> list[str]:
        """Return the predicted answer of each question; the empty text for "no answer"."""
        if not self._task.unanswerable:
            return answers.texts
        is_null = answers.null_odds > self._threshold(answers, raw)
        return ["" if null else text for null, text in zip(is_null.tolist(), answers.texts, strict=True)]

    def document_problem(self, split: Split) -> str | None:
        ids, rows = split.samples.ids, split.samples.rows.tolist()
        if ids is None:
            return None
        if absent := [row for row, name in zip(rows, ids, strict=True) if not name.strip()]:
            return f"{split.source} has no id in {first_rows(absent)}"
        if len(set(ids)) == len(ids):
            return None
        return f"{split.source} has the same id twice ({Counter(ids).most_common(1)[0][0]})"

    def document(self, split: Split, outputs: Outputs) -> dict[str, str]:
        texts = self._chosen(self._best_answers(split, outputs)[0], None)
        return dict(zip(question_ids(split), texts, strict=True))

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        """Write a table, and SQuAD's layouts: predictions, and null odds where a question may have no answer."""
        answers, raw = self._best_answers(split, outputs)
        threshold = self._threshold(answers, raw) if self._task.unanswerable else None
        samples, ids, chosen = split.samples, question_ids(split), self._chosen(answers, raw)
        columns: dict[str, Any] = {}
        if samples.answers is not None:
            columns["label"] = [gold[0].text if gold else "" for gold in samples.answers]
        columns["prediction"] = chosen
        if raw is not None:
            for name, scores in (("exact", raw.exact), ("f1", raw.f1)):
                if threshold is not None:
                    scores = with_threshold(scores, raw, answers.null_odds, threshold)
                columns[name] = scores
        if threshold is not None:
            columns["null_odds"] = answers.null_odds
        write_predictions(
            folder, split.name, rows=samples.rows, ids=ids, columns=columns, sources=samples.sources,
            clusters=samples.clusters,
        )  # fmt: skip
        write_json(folder / f"predictions.{split.name}.json", dict(zip(ids, chosen, strict=True)))
        if threshold is not None:
            odds = answers.null_odds.tolist()
            write_json(folder / f"null_odds_{split.name}.json", dict(zip(ids, odds, strict=True)))
