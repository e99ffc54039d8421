"""From what an evaluation kept of each window to one answer for each question, and its n-best list.

Floor 4. `W` windows, `N` questions, `n` answers kept of a window.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.data.load import Split
from paratune.data.windows import CHAR_END, CHAR_START, EXAMPLE
from paratune.tasks.protocol import Outputs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_NO_SPAN = -1e9
"""Score where nothing of a context can be an answer; finite, so that files can hold what follows from it."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers that were found, and what the model thinks of there being none."""

    texts: list[str]
    """(N,): the best passage of each context, whatever the model thinks of there being no answer."""
    scores: Floats
    """(N,): of these, the sum of the logits of first and last token."""
    null_scores: Floats
    """(N,): of "no answer"; the smallest over the windows of a question, because only one has to have the answer."""

    @property
    def null_odds(self) -> Floats:
        """(N,): how much more the model thinks of "no answer" than of the best passage."""
        return self.null_scores - self.scores


@dataclass(frozen=True, eq=False)
class _Spans:
    """The answers that were kept, by window; those that are nothing have the score -inf."""

    start_logits: Floats
    """(W, n)."""
    end_logits: Floats
    """(W, n)."""
    scores: Floats
    """(W, n): the sum of both."""
    begins: Ints
    """(W, n): first characters in the context."""
    ends: Ints
    """(W, n): characters behind the last ones."""
    null_logits: Floats
    """(W, 2): of first and last token, both that of "no answer"."""
    examples: Ints
    """(W,): the questions."""


def _spans(split: Split, outputs: Outputs) -> _Spans:
    store, kept = split.store, np.asarray(outputs, dtype=np.float64)
    num_best = (kept.shape[1] - 2) // 4
    starts, ends, first, last = (kept[:, number * num_best : (number + 1) * num_best] for number in range(4))
    offsets = np.asarray(store.offsets[:-1], dtype=np.int64)[:, None]
    is_one = first >= 0
    begin = _of_tokens(store.of_tokens[CHAR_START], offsets, first)
    end = _of_tokens(store.of_tokens[CHAR_END], offsets, last)
    is_one &= end > begin  # a passage of nothing but white space is none
    with np.errstate(invalid="ignore"):
        scores = np.where(is_one, starts + ends, -np.inf)
    return _Spans(starts, ends, scores, begin, end, kept[:, -2:], np.asarray(store.of_rows[EXAMPLE], dtype=np.int64))


def _of_tokens(values: Any, offsets: Ints, tokens: Floats) -> Ints:
    return np.asarray(values)[offsets + np.maximum(tokens, 0).astype(np.int64)].astype(np.int64)


def best_answers(split: Split, outputs: Outputs) -> Answers:
    """Return the best answer of each question over its windows.

    Args:
        split: Of questions, with the windows of their contexts.
        outputs: (W, 4 n + 2), of `paratune.models.objectives.question_answering`.
    """
    assert split.samples.text_pairs is not None
    spans = _spans(split, outputs)
    num_questions = split.num_rows
    null_scores = np.full(num_questions, np.inf)
    np.minimum.at(null_scores, spans.examples, spans.null_logits.sum(axis=1))
    places, best = spans.scores.argmax(axis=1), spans.scores.max(axis=1)
    # By question, the best window first; of equals the earlier one.
    order = np.lexsort((-best, spans.examples))
    _, at = np.unique(spans.examples[order], return_index=True)
    chosen = order[at]
    texts, scores = [""] * num_questions, np.full(num_questions, _NO_SPAN)
    for example, window in enumerate(chosen.tolist()):
        place = places[window]
        if np.isfinite(best[window]):
            begin, end = spans.begins[window, place], spans.ends[window, place]
            texts[example] = split.samples.text_pairs[example][begin:end]
            scores[example] = best[window]
    return Answers(texts, scores, null_scores)


def nbest_lists(split: Split, outputs: Outputs, *, may_lack_answers: bool) -> list[list[dict[str, Any]]]:
    """Return the best answers of each question with different texts, the best first.

    Args:
        split: As for `best_answers`.
        outputs: As for `best_answers`.
        may_lack_answers: Put "no answer", the empty text, among them.

    Returns:
        (N,) lists of at most `num_best` (and one) answers, each with text, probability (softmax of the scores over the
        list), start_logit and end_logit: what run_squad writes.
    """
    assert split.samples.text_pairs is not None
    spans = _spans(split, outputs)
    num_best = spans.scores.shape[1]
    order = np.argsort(spans.examples, kind="stable")
    bounds = np.searchsorted(spans.examples[order], np.arange(split.num_rows + 1))
    lists = []
    for example, context in enumerate(split.samples.text_pairs):
        windows = order[bounds[example] : bounds[example + 1]]
        found = _different(spans, windows, context, num_best)
        if may_lack_answers:
            start, end = spans.null_logits[windows[spans.null_logits[windows].sum(axis=1).argmin()]].tolist()
            found.append({"text": "", "start_logit": start, "end_logit": end})
        lists.append(_with_probabilities(found))
    return lists


def _different(spans: _Spans, windows: Ints, context: str, num_best: int) -> list[dict[str, Any]]:
    """Return the best passages of different texts over the windows of a question."""
    scores = spans.scores[windows].ravel()
    found: dict[str, dict[str, Any]] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(found) == num_best or not np.isfinite(scores[place]):
            break
        window, number = windows[place // num_best], place % num_best
        text = context[spans.begins[window, number] : spans.ends[window, number]]
        logits = float(spans.start_logits[window, number]), float(spans.end_logits[window, number])
        found.setdefault(text, {"text": text, "start_logit": logits[0], "end_logit": logits[1]})
    return list(found.values())


def _with_probabilities(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not answers:
        return [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    scores = np.asarray([answer["start_logit"] + answer["end_logit"] for answer in answers])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    whole = [
        {"text": answer["text"], "probability": share, **answer} for answer, share in zip(answers, shares, strict=True)
    ]
    return sorted(whole, key=lambda answer: -answer["probability"])
