"""Which words and lengths drive an output over a data set.

Dimensions: `N` rows, `W` words.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paratune.data.load import Split
from paratune.explain.effects import integrated_gradients
from paratune.explain.explain import ExplainOptions, predict_targets
from paratune.explain.outputs import Floats, RowOutput
from paratune.explain.parts import words
from paratune.explain.rows import read_rows
from paratune.infer.trained import TrainedModel
from paratune.verdicts.scoring import rank_correlation

OVERVIEW_STEPS = 20
MIN_ROWS = 5
"""Rows that must contain a word before its mean effect is shown."""
SMALLEST_CORRELATION = 0.1
"""Smallest correlation that counts: "small" of Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988."""


@dataclass(frozen=True)
class WordEffect:
    """The effect of a word over the rows that contain it."""

    word: str
    num_rows: int
    mean: float
    """Mean over rows of the mean effect in a row."""
    low: float
    high: float
    """95% interval for all shown words together (Bonferroni)."""

    smallest: float
    """Smallest mean effect that counts."""

    @property
    def counts(self) -> bool:
        """Whether the interval excludes 0, and the effect is large enough."""
        return (self.low > 0 or self.high < 0) and abs(self.mean) >= self.smallest


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation with a 95% interval (Fisher's z; Fieller's factor 1.06)."""

    rho: float | None
    low: float | None
    high: float | None

    @property
    def counts(self) -> bool:
        """Whether the correlation is large enough."""
        return self.rho is not None and abs(self.rho) >= SMALLEST_CORRELATION


@dataclass(frozen=True)
class Overview:
    """Words and lengths that drive an output."""

    target: str
    smallest: float
    """Smallest mean effect that counts."""
    num_rows: int
    num_words: int
    """Different words in at least `MIN_ROWS` rows."""
    words: tuple[WordEffect, ...]
    """By mean effect, the highest first."""
    length: Mapping[str, Correlation | None]
    """`output`: of the output and the number of words; `label`: of the label and it; `partial`: of the output and it,
    with the label held constant. The last two are None without labels."""


def make_overview(
    trained: TrainedModel, split: Split, options: ExplainOptions, on_row: Callable[[int, int], None]
) -> Overview:
    """Return which words and lengths drive the output of a model; integrated gradients with 20 steps.

    Of a classification, the output of one class is explained in all rows: `options.target`, else the last class.

    Args:
        trained: The model, prepared by `outputs.prepare`.
        on_row: Called with the number of rows done, and of all rows.
    """
    if trained.task.kind in ("classification", "multi_label") and options.target is None:
        options = replace(options, target=trained.names[-1])
    targets, windows, _ = predict_targets(trained, split, options)
    effects: dict[str, list[float]] = defaultdict(list)
    outputs = []
    rows = read_rows(trained, split, windows)
    for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
        output = RowOutput(trained, row, target, options.batch_size)
        outputs.append(float(output.values(np.ones((1, len(row.words)), dtype=np.bool_))[0]))
        by_word: dict[str, list[float]] = defaultdict(list)
        if row.words:
            values = integrated_gradients(output, OVERVIEW_STEPS, OVERVIEW_STEPS)
            for word, value in enumerate(values.tolist()):
                by_word[row.word_text(word).lower()].append(value)
        for text, own in by_word.items():
            effects[text].append(float(np.mean(own)))
        on_row(number + 1, len(rows))
    lengths = np.asarray([sum(len(words(text)) for text in row.texts) for row in rows], dtype=np.float64)
    target = targets[0]
    frequent = {word: np.asarray(values) for word, values in effects.items() if len(values) >= MIN_ROWS}
    return Overview(
        target=target.name if trained.task.kind != "qa" else "log-probability of the answer",
        smallest=target.smallest,
        num_rows=len(rows),
        num_words=len(frequent),
        words=word_effects(frequent, target.smallest),
        length=length_bias(np.asarray(outputs), lengths, _numeric_labels(trained, split.labels, target.index)),
    )


def word_effects(values: dict[str, Floats], smallest: float) -> tuple[WordEffect, ...]:
    """Return the mean effect of each word with an interval of Student's t, by mean, the highest first.

    Args:
        values: For each word, its effects in at least two rows.
        smallest: Smallest mean effect that counts.
    """
    from scipy.stats import t

    shown = []
    for word, effects in values.items():
        count = len(effects)
        error = effects.std(ddof=1) / np.sqrt(count)
        half = float(t.ppf(1 - 0.025 / len(values), count - 1) * error)
        mean = float(effects.mean())
        shown.append(WordEffect(word, count, mean, mean - half, mean + half, smallest))
    return tuple(sorted(shown, key=lambda effect: (-effect.mean, effect.word)))


def _numeric_labels(trained: TrainedModel, labels: Any, index: int) -> Floats | None:
    if labels is None or trained.task.kind == "qa":
        return None
    if trained.task.kind == "classification":
        return np.asarray(labels == index, dtype=np.float64)
    return np.asarray(labels[:, index] if labels.ndim == 2 else labels, dtype=np.float64)


def length_bias(outputs: Floats, lengths: Floats, labels: Floats | None) -> dict[str, Correlation | None]:
    """Return `Overview.length` from outputs, (N,), numbers of words, (N,), and labels, (N,).

    The partial correlation is (r_ol - r_oy r_ly) / sqrt((1 - r_oy²)(1 - r_ly²)) of Spearman's correlations of output
    o, length l and label y.
    """
    plain, count = rank_correlation(outputs, lengths), len(outputs)
    found: dict[str, Correlation | None] = {"output": _with_interval(plain, count, 0), "label": None, "partial": None}
    if labels is None:
        return found
    with_label, label_length = rank_correlation(outputs, labels), rank_correlation(labels, lengths)
    partial = None
    if plain is not None and with_label is not None and label_length is not None:
        rest = (1 - with_label**2) * (1 - label_length**2)
        partial = None if rest <= 0 else (plain - with_label * label_length) / rest**0.5
    return found | {"label": _with_interval(label_length, count, 0), "partial": _with_interval(partial, count, 1)}


def _with_interval(value: float | None, count: int, num_constant: int) -> Correlation:
    """Return a correlation of `count` rows with its interval; None where there are too few rows."""
    free = count - 3 - num_constant
    if value is None or free < 1 or abs(value) >= 1:
        return Correlation(value, None, None)
    half = 1.959964 * (1.06 / free) ** 0.5
    return Correlation(value, float(np.tanh(np.arctanh(value) - half)), float(np.tanh(np.arctanh(value) + half)))
