"""The step `quality`: drops documents that are not running text; the reason is the first failed rule."""

import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

from paratune.corpus.clean.step import Document, drop, run_documents
from paratune.corpus.settings import Quality
from paratune.corpus.shard import DroppedRow, read_rows

FORMAT = 1  # version of the rows; increased when the same input gives other rows
SHORT_LINE = 30
"""Maximum number of characters of a short line."""
TOP_SIZES, REPEATED_SIZES = range(2, 5), range(5, 11)
"""Numbers of words of the n-grams of `Quality.max_top_ngrams` and `Quality.max_repeated_ngrams`."""
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
        return [piece for piece in self.pieces if not all(unicodedata.category(sign)[0] in "PS" for sign in piece)]

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank."""
        return [line for line in self.text.split("\n") if line.strip()]

    def share_of_lines(self, is_counted: Callable[[str], bool]) -> float:
        return sum(map(is_counted, self.lines)) / len(self.lines)

    @cached_property
    def stop_words(self) -> Counter[str]:
        """Number of occurrences of each stop word."""
        wanted = frozenset(self.options.stop_words)
        return Counter(word for piece in self.words if (word := piece.strip(_STRIPPED).lower()) in wanted)


QualityRule = tuple[str, float | None, float | None, Callable[[MeasuredText], float]]
"""Reason, smallest and largest value, and measure."""


def keep_running_text(options: Quality, path: Path) -> Iterator[Document | DroppedRow]:
    """Yield the documents of a table that pass all rules, and drop the others with the first failed rule."""
    rules = quality_rules(options)
    for document in read_rows(path):
        problem = failed_rule(document["text"], options, rules)
        yield document if problem is None else drop(document, *problem)


run_quality = partial(run_documents, keep_running_text, FORMAT, ())
"""Runs the step."""


def failed_rule(text: str, options: Quality, rules: Sequence[QualityRule]) -> tuple[str, str] | None:
    """Return the first failed rule, with the value and its limit; None if a text passes."""
    page = MeasuredText(text, options)
    if not page.words:
        return "empty", "no word"
    lower = text.lower()
    for phrase in options.forbidden:
        if phrase.lower() in lower:
            return "forbidden text", phrase
    for reason, least, most, measure in rules:
        value = measure(page)
        if least is not None and value < least:
            return reason, f"{value:.4g}, at least {least:g}"
        if most is not None and value > most:
            return reason, f"{value:.4g}, at most {most:g}"
    return None


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


def _ends_in(ends: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda line: line.rstrip().endswith(ends)


MEASURES: dict[str, Callable[[MeasuredText], float]] = {
    "words": lambda page: len(page.words),
    "word_length": lambda page: sum(map(len, page.words)) / len(page.words),
    "bullet_lines": lambda page: page.share_of_lines(lambda line: line.lstrip().startswith(BULLETS)),
    "ellipsis_lines": lambda page: page.share_of_lines(_ends_in(ELLIPSES)),
    "alphabetic_words": lambda page: sum(any(map(str.isalpha, piece)) for piece in page.pieces) / len(page.pieces),
    "letters": lambda page: sum(map(str.isalpha, page.text)) / sum(map(len, page.pieces)),
    "stop_words": lambda page: len(page.stop_words),
    "stop_word_share": lambda page: page.stop_words.total() / len(page.words),
    "punctuated_lines": lambda page: page.share_of_lines(_ends_in(ENDS)),
    "short_lines": lambda page: page.share_of_lines(lambda line: len(line) <= SHORT_LINE),
    "lines_per_word": lambda page: page.text.count("\n") / len(page.pieces),
    "repeated_lines": lambda page: 1 - len(set(page.lines)) / len(page.lines),
    "repeated_line_characters": lambda page: (
        (sum(map(len, page.lines)) - sum(map(len, set(page.lines)))) / len(page.text)
    ),
}
"""Measure of each rule, whose limits are `min_NAME` and `max_NAME` of `Quality`; the fastest first."""


def quality_rules(options: Quality) -> list[QualityRule]:
    """Return the rules with a limit in these options, the fastest first; `Quality` describes their measures."""
    rules: list[QualityRule] = [
        (name.replace("_", " "), getattr(options, f"min_{name}", None), getattr(options, f"max_{name}", None), measure)
        for name, measure in MEASURES.items()
    ]
    rules[2:2] = [
        ("hash signs", None, options.max_symbols, lambda page: page.text.count("#") / len(page.pieces)),
        ("ellipses", None, options.max_symbols, lambda page: sum(map(page.text.count, ELLIPSES)) / len(page.pieces)),
    ]
    for n, most in zip(TOP_SIZES, options.max_top_ngrams, strict=True):
        rules.append((f"top {n}-gram", None, most, partial(top_ngram, n=n)))
    for n, most in zip(REPEATED_SIZES, options.max_repeated_ngrams, strict=True):
        rules.append((f"repeated {n}-grams", None, most, partial(repeated_ngrams, n=n)))
    return [rule for rule in rules if rule[1:3] != (None, None)]
