"""Scores of answers, as the official script of SQuAD 2.0 (evaluate-v2.0.py) defines them; shares are per cent.

Floor 3, without torch. Dimension: `N` questions.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ENGLISH_ARTICLES = ("a", "an", "the")
NAMES = (
    *("exact", "f1", "has_answer_exact", "has_answer_f1", "no_answer_exact", "no_answer_f1"),
    *("best_exact", "best_f1"),
)
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
    """How good the best answer of each question is when no question is declared unanswerable."""

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
    """Compare the answer of each question with its gold answers.

    Args:
        predictions: (N,), an answer for each question.
        golds: (N,), the gold answers of each; none where there is no answer, and then the empty text is right.
        articles: Words that do not count.

    Source: get_raw_scores of evaluate-v2.0.py (Rajpurkar et al., Know What You Don't Know, ACL 2018).
    """
    exact, f1 = np.zeros(len(predictions)), np.zeros(len(predictions))
    for number, (predicted, texts) in enumerate(zip(predictions, golds, strict=True)):
        given = normalise(predicted, articles)
        wanted = [text for text in (normalise(gold, articles) for gold in texts) if text] or [""]
        exact[number] = float(given in wanted)
        f1[number] = max(_f1(text.split(), given.split()) for text in wanted)
    has_answer = np.asarray([bool(texts) for texts in golds], dtype=np.bool_)
    return RawScores(exact, f1, has_answer, np.asarray([not text for text in predictions], dtype=np.bool_))


def _f1(gold: list[str], given: list[str]) -> float:
    if not gold or not given:
        return float(gold == given)
    num_same = sum((Counter(gold) & Counter(given)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(given), num_same / len(gold)
    return 2 * precision * recall / (precision + recall)


def with_threshold(scores: Floats, raw: RawScores, null_odds: Floats, threshold: float) -> Floats:
    """Return the scores when questions whose null odds are above the threshold are declared unanswerable, (N,)."""
    return np.where(null_odds > threshold, (~raw.has_answer).astype(np.float64), scores)


def best_threshold(scores: Floats, raw: RawScores, null_odds: Floats) -> tuple[float, float]:
    """Return the best mean score that a threshold of the null odds gives, in per cent, and that threshold.

    As in the official script, the threshold is 0 when it is best to answer nothing at all.

    Source: find_best_thresh of evaluate-v2.0.py.
    """
    totals, odds = _running_gains(scores, raw, null_odds)
    place = int(np.argmax(totals))
    num_without = int(np.count_nonzero(~raw.has_answer))
    if totals[place] <= 0:
        return 100.0 * num_without / len(scores), 0.0
    return 100.0 * (num_without + float(totals[place])) / len(scores), float(odds[place])


def chosen_threshold(raw: RawScores, null_odds: Floats) -> float:
    """Return the threshold with the best F1; one below all odds when it is best to answer nothing.

    Questions of equal odds are answered together or not at all, and equal odds are common in bf16. The official script
    looks at totals in the middle of them too, which no threshold gives.
    """
    totals, odds = _running_gains(raw.f1, raw, null_odds)
    is_last_of_equals = np.append(odds[1:] > odds[:-1], True)
    totals, odds = totals[is_last_of_equals], odds[is_last_of_equals]
    place = int(np.argmax(totals))
    return float(odds[place]) if totals[place] > 0 else float(np.nextafter(odds[0], -np.inf))


def _running_gains(scores: Floats, raw: RawScores, null_odds: Floats) -> tuple[Floats, Floats]:
    """Return, in the order of the odds, what answering up to each question gains over answering none, and the odds."""
    order = np.argsort(null_odds, kind="stable")
    gains = np.where(raw.has_answer, scores, np.where(raw.is_empty, 0.0, -1.0))[order]
    return np.cumsum(gains), null_odds[order]


def squad_scores(raw: RawScores, null_odds: Floats | None, threshold: float) -> dict[str, float | None]:
    """Score the answers of a whole split.

    Args:
        raw: Of `raw_scores`, for the best answers that are not empty.
        null_odds: (N,): how much more the model thinks of "no answer" than of its best answer; None where every
            question has an answer, and none is declared unanswerable.
        threshold: Odds above which a question is declared unanswerable.

    Returns:
        A value for each of `NAMES`, in per cent; None for a share of no questions, and for best_exact and best_f1
        without odds.

    Source: evaluate-v2.0.py, with `null_odds` as its --na-prob-file and `threshold` as its --na-prob-thresh.
    """
    exact, f1 = raw.exact, raw.f1
    found: dict[str, Any] = dict.fromkeys(NAMES)
    if null_odds is not None:
        found["best_exact"], _ = best_threshold(raw.exact, raw, null_odds)
        found["best_f1"], _ = best_threshold(raw.f1, raw, null_odds)
        exact, f1 = (with_threshold(scores, raw, null_odds, threshold) for scores in (exact, f1))
    everything = np.ones(len(exact), dtype=np.bool_)
    for prefix, wanted in (("", everything), ("has_answer_", raw.has_answer), ("no_answer_", ~raw.has_answer)):
        for name, scores in (("exact", exact), ("f1", f1)):
            found[prefix + name] = 100.0 * float(scores[wanted].mean()) if wanted.any() else None
    return found
