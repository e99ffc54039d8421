"""Turns the row outputs of windows into the best answer of each question, and writes the answers of a split.

Dimensions: `W` windows, `N` questions, `n` answers of a window.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.data.labels import first_rows
from paratune.data.load import Split
from paratune.data.sequences import CHAR_END, CHAR_START, EXAMPLE
from paratune.metrics.squad import RawScores, with_threshold
from paratune.records import write_json
from paratune.records.predictions import write_predictions
from paratune.tasks.protocol import Outputs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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


@dataclass(frozen=True, eq=False)
class _Spans:
    """The answers in the row outputs, by window; places without an answer have the score -inf."""

    start_logits: Floats
    """(W, n)."""
    end_logits: Floats
    """(W, n)."""
    scores: Floats
    """(W, n): the sum of both."""
    begins: Ints
    """(W, n): first characters in the context."""
    ends: Ints
    """(W, n): characters after the last ones."""
    null_logits: Floats
    """(W, 2): logits of the token for "no answer", as first and as last token."""
    examples: Ints
    """(W,): index of the question."""


def _spans(split: Split, outputs: Outputs) -> _Spans:
    store, row_outputs = split.store, np.asarray(outputs, dtype=np.float64)
    num_best = (row_outputs.shape[1] - 2) // 4
    starts, ends, first, last = (row_outputs[:, number * num_best : (number + 1) * num_best] for number in range(4))
    offsets = np.asarray(store.offsets[:-1], dtype=np.int64)[:, None]
    is_answer = first >= 0
    begin = _values_at(store.token_values[CHAR_START], offsets, first)
    end = _values_at(store.token_values[CHAR_END], offsets, last)
    is_answer &= end > begin  # a passage of only white space is no answer
    with np.errstate(invalid="ignore"):
        scores = np.where(is_answer, starts + ends, -np.inf)
    return _Spans(
        starts, ends, scores, begin, end, row_outputs[:, -2:], np.asarray(store.row_values[EXAMPLE], dtype=np.int64)
    )


def _values_at(values: Any, offsets: Ints, tokens: Floats) -> Ints:
    return np.asarray(values)[offsets + np.maximum(tokens, 0).astype(np.int64)].astype(np.int64)


def best_answers(split: Split, outputs: Outputs) -> Answers:
    """Return the best answer of each question over its windows.

    `outputs` are (W, 4 n + 2), row outputs of `paratune.models.objectives.question_answering`.
    """
    assert split.samples.text_pairs is not None
    spans = _spans(split, outputs)
    num_questions = split.num_rows
    null_scores = np.full(num_questions, np.inf)
    np.minimum.at(null_scores, spans.examples, spans.null_logits.sum(axis=1))
    places, best = spans.scores.argmax(axis=1), spans.scores.max(axis=1)
    # Sorted by question, the best window first; of equal windows the earlier one.
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
    """Return the best answers of each question with different texts, the best first; outputs as for `best_answers`.

    Returns:
        (N,) lists of at most `num_best` answers (plus "no answer", the empty text, with `may_lack_answers`), each with
        text, probability (softmax of the scores over the list), start_logit and end_logit: the format of run_squad.
    """
    assert split.samples.text_pairs is not None
    spans = _spans(split, outputs)
    num_best = spans.scores.shape[1]
    order = np.argsort(spans.examples, kind="stable")
    bounds = np.searchsorted(spans.examples[order], np.arange(split.num_rows + 1))
    lists: list[list[dict[str, Any]]] = []
    for example, context in enumerate(split.samples.text_pairs):
        windows = order[bounds[example] : bounds[example + 1]]
        answers = _different(spans, windows, context, num_best)
        if may_lack_answers:
            start, end = spans.null_logits[windows[spans.null_logits[windows].sum(axis=1).argmin()]].tolist()
            answers.append({"text": "", "start_logit": start, "end_logit": end})
        if not answers:
            lists.append([{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}])
            continue
        scores = np.asarray([answer["start_logit"] + answer["end_logit"] for answer in answers])
        weights = np.exp(scores - scores.max())
        shares = (weights / weights.sum()).tolist()
        whole: list[dict[str, Any]] = [
            {"text": answer["text"], "probability": share, **answer}
            for answer, share in zip(answers, shares, strict=True)
        ]
        lists.append(sorted(whole, key=lambda answer: -answer["probability"]))
    return lists


def _different(spans: _Spans, windows: Ints, context: str, num_best: int) -> list[dict[str, Any]]:
    """Return the best passages of different texts over the windows of a question."""
    scores = spans.scores[windows].ravel()
    answers: dict[str, dict[str, Any]] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(answers) == num_best or not np.isfinite(scores[place]):
            break
        window, number = windows[place // num_best], place % num_best
        text = context[spans.begins[window, number] : spans.ends[window, number]]
        logits = float(spans.start_logits[window, number]), float(spans.end_logits[window, number])
        answers.setdefault(text, {"text": text, "start_logit": logits[0], "end_logit": logits[1]})
    return list(answers.values())


def write_answers(
    folder: Path,
    split: Split,
    outputs: Outputs,
    answers: Answers,
    raw: RawScores | None,
    chosen: Sequence[str],
    threshold: float | None,
) -> None:
    """Write the files of a split of questions: a table, and SQuAD's layouts (predictions, n-best lists, null odds).

    `raw` are the scores of the best answers, None without gold answers. `chosen`, (N,), are the predicted answers: the
    empty text where the null odds are above `threshold`, which is None where every question is answered.
    """
    ids, golds = question_ids(split), split.samples.answers
    columns: dict[str, Any] = {}
    if golds is not None:
        columns["label"] = [gold[0].text if gold else "" for gold in golds]
    columns["prediction"] = chosen
    if raw is not None:
        for name, scores in (("exact", raw.exact), ("f1", raw.f1)):
            columns[name] = scores if threshold is None else with_threshold(scores, raw, answers.null_odds, threshold)
    if threshold is not None:
        columns["null_odds"] = answers.null_odds
    samples = split.samples
    write_predictions(folder, split.name, rows=samples.rows, ids=ids, columns=columns, sources=samples.sources,
        clusters=samples.clusters,
    )  # fmt: skip
    write_json(folder / f"predictions.{split.name}.json", dict(zip(ids, chosen, strict=True)))
    lists = nbest_lists(split, outputs, may_lack_answers=threshold is not None)
    write_json(folder / f"nbest_{split.name}.json", dict(zip(ids, lists, strict=True)))
    if threshold is not None:
        odds = answers.null_odds.tolist()
        write_json(folder / f"null_odds_{split.name}.json", dict(zip(ids, odds, strict=True)))


def question_ids(split: Split) -> list[str]:
    """Return the ids of the questions; without ids, their rows, with the file name where there are several files."""
    samples = split.samples
    if samples.ids is not None:
        return samples.ids
    rows = [str(row) for row in samples.rows.tolist()]
    sources = samples.sources
    return rows if sources is None else [f"{source}:{row}" for source, row in zip(sources, rows, strict=True)]


def why_no_ids(split: Split) -> str | None:
    """Return why the ids of a split do not identify its questions; None where they do."""
    ids = split.samples.ids
    if ids is None:
        return None
    if absent := [row for row, name in zip(split.samples.rows.tolist(), ids, strict=True) if not name.strip()]:
        return f"{split.source} has no id in {first_rows(absent)}"
    if len(set(ids)) == len(ids):
        return None
    return f"{split.source} has the same id twice ({Counter(ids).most_common(1)[0][0]})"
