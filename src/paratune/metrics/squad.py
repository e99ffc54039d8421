"""Scores of answers by the definitions of the official script of SQuAD 2.0 (evaluate-v2.0.py), in per cent.

Imports no torch. Dimension: `N` questions.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import no_scores

ENGLISH_ARTICLES = ("a", "an", "the")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def normalise(text: str, articles: Sequence[str] = ENGLISH_ARTICLES) -> str:
    """Return the text in lower case, without ASCII punctuation, articles and superfluous white space, in this order."""
    bare = text.lower().translate(_PUNCTUATION)
    if articles:
        words = "|".join(re.escape(article.lower()) for article in articles)
        bare = re.sub(rf"\b({words})\b", " ", bare)
    return " ".join(bare.split())


@dataclass(frozen=True, eq=False)
class RawScores:
    """Scores of the best answer of each question, where no question is predicted to be unanswerable."""

    exact: Floats
    """(N,): 1 where it equals one of the gold answers after `normalise`, else 0."""
    f1: Floats
    """(N,): the largest F1 of shared words over the gold answers."""
    has_answer: Bools
    """(N,): whether there is a gold answer."""
    is_empty: Bools
    """(N,): whether the answer is the empty text."""


def raw_scores(
    predictions: Sequence[str], golds: Sequence[Sequence[str]], articles: Sequence[str] = ENGLISH_ARTICLES
) -> RawScores:
    """Return the scores of the answer of each question, (N,), against its gold answers; without any, "" is correct.

    `articles` are words that are ignored.

    Source: get_raw_scores of evaluate-v2.0.py (Rajpurkar et al., Know What You Don't Know, ACL 2018).
    """
    exact, f1 = np.zeros(len(predictions)), np.zeros(len(predictions))
    for number, (predicted, texts) in enumerate(zip(predictions, golds, strict=True)):
        predicted_text = normalise(predicted, articles)
        gold_texts = [text for text in (normalise(gold, articles) for gold in texts) if text] or [""]
        exact[number] = float(predicted_text in gold_texts)
        f1[number] = max(_f1(text.split(), predicted_text.split()) for text in gold_texts)
    has_answer = np.asarray([bool(texts) for texts in golds], dtype=np.bool_)
    return RawScores(exact, f1, has_answer, np.asarray([not text for text in predictions], dtype=np.bool_))


def _f1(gold: list[str], predicted: list[str]) -> float:
    if not gold or not predicted:
        return float(gold == predicted)
    num_same = sum((Counter(gold) & Counter(predicted)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(gold)
    return 2 * precision * recall / (precision + recall)


def with_threshold(scores: Floats, raw: RawScores, null_odds: Floats, threshold: float) -> Floats:
    """Return the scores, (N,), where questions with null odds above the threshold get "no answer"."""
    return np.where(null_odds > threshold, (~raw.has_answer).astype(np.float64), scores)


def best_threshold(scores: Floats, raw: RawScores, null_odds: Floats) -> tuple[float, float]:
    """Return the best mean score over all thresholds of the null odds, in per cent, and its threshold.

    As in the official script, the threshold is 0 where "no answer" for every question is best.

    Source: find_best_thresh of evaluate-v2.0.py.
    """
    totals, odds = _running_gains(scores, raw, null_odds)
    place = int(np.argmax(totals))
    num_without = int(np.count_nonzero(~raw.has_answer))
    if totals[place] <= 0:
        return 100.0 * num_without / len(scores), 0.0
    return 100.0 * (num_without + float(totals[place])) / len(scores), float(odds[place])


def chosen_threshold(raw: RawScores, null_odds: Floats) -> float:
    """Return the threshold with the best F1; below all odds where "no answer" for every question is best.

    A threshold treats questions with equal odds alike, and equal odds are common in bf16. The official script also
    considers totals between such questions, which no threshold can give.
    """
    totals, odds = _running_gains(raw.f1, raw, null_odds)
    is_last_of_equals = np.append(odds[1:] > odds[:-1], True)
    totals, odds = totals[is_last_of_equals], odds[is_last_of_equals]
    place = int(np.argmax(totals))
    return float(odds[place]) if totals[place] > 0 else float(np.nextafter(odds[0], -np.inf))


def _running_gains(scores: Floats, raw: RawScores, null_odds: Floats) -> tuple[Floats, Floats]:
    """Return, for questions sorted by odds, the gain of answering all up to each over answering none, and the odds."""
    order = np.argsort(null_odds, kind="stable")
    gains = np.where(raw.has_answer, scores, np.where(raw.is_empty, 0.0, -1.0))[order]
    return np.cumsum(gains), null_odds[order]


def squad_scores(raw: RawScores, null_odds: Floats | None, threshold: float) -> dict[str, float | None]:
    """Return the scores of the answers of a whole split.

    Args:
        raw: From `raw_scores`, for the best answers that are not empty.
        null_odds: (N,): score of "no answer" minus score of the best answer; None where every question has an answer,
            and "no answer" is never predicted.
        threshold: Odds above which "no answer" is predicted.

    Returns:
        A value for each metric, in per cent; None for groups without questions, and for best_exact and best_f1
        without odds.

    Source: evaluate-v2.0.py, with `null_odds` as its --na-prob-file and `threshold` as its --na-prob-thresh.
    """
    exact, f1 = raw.exact, raw.f1
    scores_by_name: dict[str, float | None] = no_scores("qa")
    if null_odds is not None:
        scores_by_name["best_exact"], _ = best_threshold(raw.exact, raw, null_odds)
        scores_by_name["best_f1"], _ = best_threshold(raw.f1, raw, null_odds)
        exact, f1 = (with_threshold(scores, raw, null_odds, threshold) for scores in (exact, f1))
    everything = np.ones(len(exact), dtype=np.bool_)
    for prefix, wanted in (("", everything), ("has_answer_", raw.has_answer), ("no_answer_", ~raw.has_answer)):
        for name, scores in (("exact", exact), ("f1", f1)):
            scores_by_name[prefix + name] = 100.0 * float(scores[wanted].mean()) if wanted.any() else None
    return scores_by_name
