"""The step `quality`: drops documents that are not running text; the reason is the first failed rule."""

import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from paratune.console import Display
from paratune.corpus.clean.settings import Quality
from paratune.corpus.clean.step import Document, drop, run_documents
from paratune.corpus.rows import DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import read_rows

FORMAT = 1  # version of the rows; increased when the same input gives other rows
SHORT_LINE = 30
"""Maximum number of characters of a short line."""
BULLETS = ("•", "-", "–", "*", "·")
ELLIPSES = ("...", "…")
ENDS = (".", "!", "?", ";", ":", "…", '"', "»", "”", "'", "’", ")")
"""Characters at the end of a line of running text."""
_STRIPPED = string.punctuation + "«»“”‘’…–—·•ºª"


class MeasuredText:
    """A text with its words and lines, which several measures use."""

    def __init__(self, text: str, options: Quality) -> None:
        self.text, self.options = text, options
        self.pieces = text.split()
        """Parts between white space."""

    @cached_property
    def words(self) -> list[str]:
        """Pieces that are not only punctuation."""
        return [piece for piece in self.pieces if not all(map(_is_punctuation, piece))]

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank."""
        return [line for line in self.text.split("\n") if line.strip()]

    @cached_property
    def stop_words(self) -> Counter[str]:
        """Number of occurrences of each stop word."""
        wanted = frozenset(self.options.stop_words)
        return Counter(word for piece in self.words if (word := piece.strip(_STRIPPED).lower()) in wanted)


@dataclass(frozen=True)
class QualityRule:
    """A measure with its limits."""

    reason: str
    measure: Callable[[MeasuredText], float]
    least: float | None = None
    most: float | None = None


def run_quality(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Run the step."""
    options = corpus.clean.quality
    settings = {**options.model_dump(), "format": FORMAT}
    return run_documents(folder, before, keep_running_text, options, settings, workers=workers, display=display)


def keep_running_text(options: Quality, path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that pass all rules, and drop the others with the first failed rule."""
    rules = quality_rules(options)
    for document in read_rows(path):
        problem = failed_rule(document["text"], options, rules)
        yield document if problem is None else drop(document, *problem)


def failed_rule(text: str, options: Quality, rules: Sequence[QualityRule]) -> tuple[str, str] | None:
    """Return the first failed rule, with the value and its limit; None if a text passes."""
    page = MeasuredText(text, options)
    if not page.words:
        return "empty", "no word"
    lower = text.lower()
    for phrase in options.forbidden:
        if phrase.lower() in lower:
            return "forbidden text", phrase
    for rule in rules:
        value = rule.measure(page)
        if rule.least is not None and value < rule.least:
            return rule.reason, f"{value:.4g}, at least {rule.least:g}"
        if rule.most is not None and value > rule.most:
            return rule.reason, f"{value:.4g}, at most {rule.most:g}"
    return None


def quality_rules(options: Quality) -> list[QualityRule]:
    """Return the rules of these options, the fastest first."""
    o = options
    rules = [
        QualityRule("words", num_words, o.min_words, o.max_words),
        QualityRule("word length", mean_word_length, o.min_word_length, o.max_word_length),
        QualityRule("hash signs", hashes_per_word, most=o.max_symbols),
        QualityRule("ellipses", ellipses_per_word, most=o.max_symbols),
        QualityRule("bullet lines", bullet_lines, most=o.max_bullet_lines),
        QualityRule("ellipsis lines", ellipsis_lines, most=o.max_ellipsis_lines),
        QualityRule("alphabetic words", alphabetic_words, o.min_alphabetic_words),
        QualityRule("letters", letters, o.min_letters),
        QualityRule("stop words", lambda page: len(page.stop_words), o.min_stop_words),
        QualityRule("stop word share", stop_word_share, o.min_stop_word_share),
        QualityRule("punctuated lines", punctuated_lines, o.min_punctuated_lines),
        QualityRule("short lines", short_lines, most=o.max_short_lines),
        QualityRule("lines per word", lines_per_word, most=o.max_lines_per_word),
        QualityRule("repeated lines", repeated_lines, most=o.max_repeated_lines),
        QualityRule("repeated line characters", repeated_line_characters, most=o.max_repeated_line_characters),
    ]
    for n, limit in enumerate(o.max_top_ngrams, start=2):
        rules.append(QualityRule(f"top {n}-gram", partial(top_ngram, n=n), most=limit))
    for n, limit in enumerate(o.max_repeated_ngrams, start=5):
        rules.append(QualityRule(f"repeated {n}-grams", partial(repeated_ngrams, n=n), most=limit))
    return [rule for rule in rules if rule.least is not None or rule.most is not None]


def num_words(page: MeasuredText) -> float:
    return len(page.words)


def mean_word_length(page: MeasuredText) -> float:
    """Return the mean length of a word, in characters."""
    return sum(map(len, page.words)) / len(page.words)


def hashes_per_word(page: MeasuredText) -> float:
    return page.text.count("#") / len(page.pieces)


def ellipses_per_word(page: MeasuredText) -> float:
    return sum(map(page.text.count, ELLIPSES)) / len(page.pieces)


def bullet_lines(page: MeasuredText) -> float:
    """Return the share of lines that begin with a bullet."""
    return sum(line.lstrip().startswith(BULLETS) for line in page.lines) / len(page.lines)


def ellipsis_lines(page: MeasuredText) -> float:
    """Return the share of lines that end with an ellipsis."""
    return sum(line.rstrip().endswith(ELLIPSES) for line in page.lines) / len(page.lines)


def alphabetic_words(page: MeasuredText) -> float:
    """Return the share of pieces with a letter."""
    return sum(any(map(str.isalpha, piece)) for piece in page.pieces) / len(page.pieces)


def letters(page: MeasuredText) -> float:
    """Return the share of letters among all characters that are not white space."""
    return sum(map(str.isalpha, page.text)) / sum(map(len, page.pieces))


def stop_word_share(page: MeasuredText) -> float:
    return page.stop_words.total() / len(page.words)


def punctuated_lines(page: MeasuredText) -> float:
    """Return the share of lines that end as running text does."""
    return sum(line.rstrip().endswith(ENDS) for line in page.lines) / len(page.lines)


def short_lines(page: MeasuredText) -> float:
    return sum(len(line) <= SHORT_LINE for line in page.lines) / len(page.lines)


def lines_per_word(page: MeasuredText) -> float:
    return page.text.count("\n") / len(page.pieces)


def repeated_lines(page: MeasuredText) -> float:
    """Return the share of lines that repeat an earlier line."""
    return 1 - len(set(page.lines)) / len(page.lines)


def repeated_line_characters(page: MeasuredText) -> float:
    """Return the share of characters in lines that repeat an earlier line."""
    once = sum(map(len, set(page.lines)))
    return (sum(map(len, page.lines)) - once) / len(page.text)


def top_ngram(page: MeasuredText, n: int) -> float:
    """Return the share of characters in the most frequent n-gram of pieces, 0 if no n-gram occurs twice."""
    counts = Counter(zip(*(page.pieces[k:] for k in range(n)), strict=False))
    ngram, count = counts.most_common(1)[0] if counts else ((), 0)
    # In a short text one n-gram is a large share without repetition.
    return 0.0 if count < 2 else (sum(map(len, ngram)) + n - 1) * count / len(page.text)


def repeated_ngrams(page: MeasuredText, n: int) -> float:
    """Return the share of characters in n-grams of pieces that repeat an earlier one, each character counted once."""
    seen: set[tuple[str, ...]] = set()
    pieces, position, num_characters = page.pieces, 0, 0
    while position <= len(pieces) - n:
        ngram = tuple(pieces[position : position + n])
        if ngram in seen:
            num_characters += sum(map(len, ngram))
            position += n
        else:
            seen.add(ngram)
            position += 1
    return num_characters / len(page.text)


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
