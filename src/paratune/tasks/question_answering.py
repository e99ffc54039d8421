"""The passage of a context that answers a question: windows, spans, "no answer", and the scores of SQuAD.

Floor 4. `W` windows, `N` questions.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.units import format_share
from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import QuestionAnsweringTask
from paratune.data.columns import Missing, Samples
from paratune.data.load import Split, load_samples, parts_in_turn, samples_fingerprint
from paratune.data.loader import Collator
from paratune.data.questions import answered_only, select_questions
from paratune.data.tokens import Tokenizing
from paratune.data.window_batches import WindowCollator
from paratune.data.windows import answer_tokens, are_too_long, count_out_of_reach, room, tokenize_windows
from paratune.errors import DataError, coded
from paratune.metrics.squad import (
    NAMES,
    RawScores,
    best_threshold,
    chosen_threshold,
    raw_scores,
    squad_scores,
)
from paratune.metrics.values import all_none
from paratune.models.load import Head, load_model
from paratune.models.objectives import question_answering
from paratune.models.task_model import TaskModel
from paratune.precision import Precision
from paratune.tasks.answer_files import question_ids, why_no_ids, write_answers
from paratune.tasks.protocol import Outputs, Scores
from paratune.tasks.spans import Answers, best_answers

log = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]
PREDICTION_NAMES = ("prediction", "null_odds", "best_answer")


class QuestionAnsweringRecipe:
    """See `protocol.TaskRecipe`."""

    def __init__(self, task: QuestionAnsweringTask) -> None:
        self._task = task
        self.names: list[str] = []
        self._answer_tokens: dict[str, IntArray] = {}
        """By the fingerprint of a split; an evaluation needs them each time."""
        self._last: tuple[Split, Outputs, Answers, RawScores | None] | None = None
        """What was found last, which scores, details and files of a split all need."""

    @property
    def task(self) -> QuestionAnsweringTask:
        """What is asked for; once data was read, with `unanswerable` as the data has it."""
        return self._task

    def load_splits(self, data: Data, how: Tokenizing) -> dict[str, Split]:
        selector = partial(self._select, columns=data.columns, how=how, missing=data.missing, require_labels=True)
        parts = load_samples(data, self._task, selector)
        chosen_on = [parts[name][1] for name in ("train", "validation") if name in parts]
        self._resolve(chosen_on or [samples for _, samples in parts.values()])
        if "test" in parts and self._task.unanswerable is False:
            source, samples = parts["test"]
            parts["test"] = source, answered_only(samples, data.missing, source=source)
        return {
            name: self._split(name, source, samples, told) for name, source, samples, told in parts_in_turn(parts, how)
        }

    def load_split(
        self, source: str, table: pa.Table, columns: Columns, how: Tokenizing, *, missing: Missing, require_labels: bool
    ) -> Split:
        samples = self._select(
            table, source=source, columns=columns, how=how, missing=missing, require_labels=require_labels
        )
        self._resolve([samples])
        return self._split("data", source, samples, how)

    def _select(
        self,
        table: pa.Table,
        *,
        source: str,
        columns: Columns,
        how: Tokenizing,
        missing: Missing,
        require_labels: bool,
        group_by: str | None = None,
    ) -> Samples:
        return select_questions(
            table,
            columns,
            missing,
            source=source,
            too_long=partial(are_too_long, how=how, room=room(how, self._task.stride)),
            group_by=group_by,
            require_labels=require_labels,
            may_lack_answers=self._task.unanswerable is not False,
        )

    def _split(self, name: str, source: str, samples: Samples, how: Tokenizing) -> Split:
        if samples.file_of is not None and samples.ids is not None and len(set(samples.ids)) < len(samples.ids):
            twice, _ = Counter(samples.ids).most_common(1)[0]
            raise DataError(
                f"{source}: the id {twice} is in several files; make it another one in all but one of them",
                code="data.id_twice",
                source=source,
            )
        store = tokenize_windows(samples, how, self._task.stride, source=source)
        return Split(name, source, samples, store, samples_fingerprint(samples, self._task))

    def _resolve(self, parts: Sequence[Samples]) -> None:
        """Decide whether there are questions without an answer, where the configuration leaves it to the data."""
        if self._task.unanswerable is None:
            found = any(not gold for samples in parts for gold in samples.answers or ())
            self._task = self._task.model_copy(update={"unanswerable": found})

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        objective = question_answering(num_best=self._task.num_best, max_answer_tokens=self._task.max_answer_tokens)
        # Two outputs a token: heads of some architectures take their number from it.
        head = Head("AutoModelForQuestionAnswering", num_outputs=2)
        return load_model(
            model, "qa", head, tokenizer, precision, seed, head_must_exist=head_must_exist, objective=objective
        )

    def initialise(self, model: TaskModel, train: Split) -> None:
        pass

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> WindowCollator:
        return WindowCollator(Collator(split.store, self._positions(split), tokenizer.pad_token_id))

    def _positions(self, split: Split) -> IntArray | None:
        if split.samples.answers is None:
            return None
        key = f"{split.fingerprint} {split.store.fingerprint}"
        if key not in self._answer_tokens:
            self._answer_tokens[key] = answer_tokens(split.store, split.samples.answers)
        return self._answer_tokens[key]

    def warnings(self, splits: Mapping[str, Split]) -> list[str]:
        found = []
        for split in splits.values():
            positions, answers = self._positions(split), split.samples.answers
            assert positions is not None
            assert answers is not None
            if count := count_out_of_reach(split.store, positions, answers):
                found.append(
                    f"{split.name}: {count} of {split.num_rows} questions have an answer that no window has all of, "
                    "and count as unanswerable in the loss; a larger task.stride or data.max_length may mend it"
                )
            if self._task.unanswerable and all(answers):
                found.append(
                    f"{split.name}: every question has an answer, and task.unanswerable is true: it has no example "
                    "of a question without an answer"
                )
        return found + _shared_contexts(splits)

    def settled(self, validation: tuple[Split, Outputs] | None) -> "QuestionAnsweringRecipe":
        if not self._task.unanswerable or self._task.null_threshold is not None:
            return self
        threshold = 0.0
        if validation is None:
            log.warning(
                "no validation set to choose task.null_threshold on: 0 is used", extra=coded("task.null_threshold")
            )
        elif not np.isnan(validation[1]).any():
            answers, raw = self._judged(*validation)
            threshold = chosen_threshold(raw, answers.null_odds)
            if threshold < answers.null_odds.min():
                log.warning(
                    "on the validation set nothing is better than to answer no question: task.null_threshold is %.4g, "
                    "below all odds there; a longer training may help, or a threshold of your own",
                    threshold,
                    extra=coded("task.null_threshold", value=threshold),
                )
        made = QuestionAnsweringRecipe(self._task.model_copy(update={"null_threshold": threshold}))
        made._answer_tokens, made._last = self._answer_tokens, self._last
        return made

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        if np.isnan(outputs).any():
            return all_none(NAMES)
        answers, raw = self._judged(split, outputs)
        return squad_scores(raw, answers.null_odds if self._task.unanswerable else None, self._threshold(answers, raw))

    def _found(self, split: Split, outputs: Outputs) -> tuple[Answers, RawScores | None]:
        """Return the best answers, and how good they are where that is known."""
        if self._last is None or self._last[0] is not split or self._last[1] is not outputs:
            answers, raw = best_answers(split, outputs), None
            if split.samples.answers is not None:
                texts = [[answer.text for answer in gold] for gold in split.samples.answers]
                raw = raw_scores(answers.texts, texts, self._task.articles)
            self._last = split, outputs, answers, raw
        return self._last[2:]

    def _judged(self, split: Split, outputs: Outputs) -> tuple[Answers, RawScores]:
        answers, raw = self._found(split, outputs)
        assert raw is not None
        return answers, raw

    def _threshold(self, answers: Answers, raw: RawScores | None) -> float:
        """Return the threshold that is set, or else the best one of these answers; 0 where nothing tells."""
        if self._task.null_threshold is not None:
            return self._task.null_threshold
        return 0.0 if raw is None else chosen_threshold(raw, answers.null_odds)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        if np.isnan(outputs).any():
            return {}
        answers, raw = self._judged(split, outputs)
        num_with = int(raw.has_answer.sum())
        found: dict[str, Any] = {"num_with_answer": num_with, "num_without_answer": split.num_rows - num_with}
        if self._task.unanswerable:
            found["null_threshold"] = self._threshold(answers, raw)
            found["best_exact_thresh"] = best_threshold(raw.exact, raw, answers.null_odds)[1]
            found["best_f1_thresh"] = best_threshold(raw.f1, raw, answers.null_odds)[1]
        return {"answers": found}

    def prediction_names(self) -> list[str]:
        return list(PREDICTION_NAMES if self._task.unanswerable is not False else PREDICTION_NAMES[:1])

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        answers, _ = self._found(split, outputs)
        if not self._task.unanswerable:
            return {"prediction": answers.texts}
        chosen = self._chosen(answers, None)
        return dict(zip(PREDICTION_NAMES, (chosen, answers.null_odds, answers.texts), strict=True))

    def _chosen(self, answers: Answers, raw: RawScores | None) -> list[str]:
        """Return the answer of each question, the empty text where it counts as unanswerable."""
        if not self._task.unanswerable:
            return answers.texts
        is_null = answers.null_odds > self._threshold(answers, raw)
        return ["" if null else text for null, text in zip(is_null.tolist(), answers.texts, strict=True)]

    def why_no_document(self, split: Split) -> str | None:
        return why_no_ids(split)

    def why_not_kept(self, split: Split) -> str | None:
        return self.why_no_document(split)

    def document(self, split: Split, outputs: Outputs) -> dict[str, str]:
        texts = self._chosen(self._found(split, outputs)[0], None)
        return dict(zip(question_ids(split), texts, strict=True))

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        answers, raw = self._found(split, outputs)
        threshold = self._threshold(answers, raw) if self._task.unanswerable else None
        write_answers(folder, split, outputs, answers, raw, self._chosen(answers, raw), threshold)


def _shared_contexts(splits: Mapping[str, Split]) -> list[str]:
    """Say which splits ask about contexts that were trained on: answers may be known by heart."""
    train = splits.get("train")
    known = set(train.samples.text_pairs or ()) if train is not None else set()
    found = []
    for split in splits.values():
        if split is train:
            continue
        count = sum(context in known for context in split.samples.text_pairs or ())
        if count:
            found.append(
                f"{count} of {split.num_rows} questions of {split.name} ({format_share(count / split.num_rows)}) are "
                "about a context that is also in train; data.split.group_by: context keeps them apart"
            )
    return found
