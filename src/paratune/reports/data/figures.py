"""The figures of a data set: labels, lengths of texts, and their correlations.

`N` rows of all splits together, `C` classes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.units import format_share
from paratune.reports.data.word_cloud import MAX_WORDS, count_words, most_frequent, place_words
from paratune.reports.figures.canvas import WIDTH, Draw, Drawing, Hovers, Key
from paratune.reports.figures.plots import (
    Bars,
    Interval,
    Points,
    bars,
    forest,
    heat_map,
    height_of_rows,
    histogram,
    panels,
    points,
    run_style,
)
from paratune.reports.text import shorten

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MAX_GROUPS = 12
"""Figures by group are left out when `data.figures.by` has more values than this."""
_MAX_BARS = 40
_MAX_POINTS = 2000
_MAX_NUMERIC = 14


@dataclass(frozen=True)
class DataView:
    """The rows of all splits, column by column."""

    splits: Mapping[str, int]
    """Rows of each split, in the order of the rows."""
    labels: Floats | Ints
    """(N,): targets, or class ids."""
    label: str
    """Name of the label column."""
    classes: Sequence[str]
    """Names of the classes; none for numbers."""
    words: Ints
    """(N,): white-space separated words of the text, and of the second text of a pair."""
    tokens: Ints
    """(N,): tokens before truncation."""
    max_length: int
    groups: Sequence[str] | None
    """(N,): values of `by`."""
    by: str | None
    numeric: Mapping[str, Floats]
    """(N,) each: columns of numbers, NaN where there is none."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Texts of each column for a word cloud, the empty ones left out."""
    min_texts: int = 100
    stop_words: Sequence[str] = ()

    @property
    def num_rows(self) -> int:
        return len(self.labels)


def data_drawings(view: DataView) -> Iterator[Drawing]:
    """Yield the figures of a data set in the order of the page."""
    if view.classes:
        yield _class_balance(view)
    else:
        yield _score_distribution(view)
    yield _lengths(view)
    yield _length_by_class(view) if view.classes else _length_by_score(view)
    yield _correlations(view)
    if view.groups is not None:
        yield _classes_by_group(view) if view.classes else _scores_by_group(view)
    names = _file_names(list(view.texts))
    for column, texts in view.texts.items():
        yield _word_cloud(view, f"words_{names[column]}", column, texts)


def _layers(view: DataView, count: Callable[[slice], Any]) -> tuple[list[Bars], tuple[Key, ...]]:
    """Return the bars of each split, whose values `count` returns for its rows; and their legend, if several."""
    ends = np.cumsum(list(view.splits.values())).tolist()
    rows = [slice(end - size, end) for end, size in zip(ends, view.splits.values(), strict=True)]
    layers = [Bars(count(part), run_style(number)[0]) for number, part in enumerate(rows)]
    return layers, _areas(list(view.splits))


def _areas(names: Sequence[str]) -> tuple[Key, ...]:
    keys = tuple(Key(shorten(name, 30), run_style(number)[0], is_area=True) for number, name in enumerate(names))
    return keys if len(keys) > 1 else ()


def _edges(values: Any, num_bins: int) -> Any:
    """Return the edges of bins, (bins + 1,): one for each value in the middle if there are at most `num_bins`."""
    distinct = np.unique(values)
    if len(distinct) > num_bins:
        return np.histogram_bin_edges(values, bins=num_bins)
    step = float(np.diff(distinct).min()) if len(distinct) > 1 else 1.0
    return np.arange(distinct[0] - step / 2, distinct[-1] + step, step)


def _score_distribution(view: DataView) -> Drawing:
    edges = _edges(view.labels, _MAX_BARS)
    layers, legend = _layers(view, lambda rows: np.histogram(view.labels[rows], bins=edges)[0])
    mean, sd = view.labels.mean(), view.labels.std(ddof=1) if view.num_rows > 1 else 0.0
    draw = histogram(edges, layers, marks={float(mean): ""}, xlabel=shorten(view.label, 60), ylabel="Rows")
    caption = f"{view.num_rows:,} rows; mean {mean:.3g} (dashed), standard deviation {sd:.3g}."
    return Drawing("score_distribution", f"Distribution of {view.label}", caption, draw, 3.2, legend=legend)


def _class_balance(view: DataView) -> Drawing:
    size = len(view.classes)
    layers, legend = _layers(view, lambda rows: np.bincount(view.labels[rows], minlength=size))
    share = format_share(float(np.bincount(view.labels).max()) / view.num_rows)
    caption = f"{view.num_rows:,} rows; the commonest class has {share} of them."
    draw = bars(view.classes, layers, stacked=True, xlabel="Rows")
    return Drawing("class_balance", "Rows of each class", caption, draw, height_of_rows(size), legend=legend)


def _lengths(view: DataView) -> Drawing:
    def panel(values: Ints, name: str, marks: Mapping[float, str]) -> Draw:
        edges = np.histogram_bin_edges(values, bins=30)
        layers, _ = _layers(view, lambda rows: np.histogram(values[rows], bins=edges)[0])
        marks = {float(np.median(values)): "", **marks}
        return histogram(edges, layers, marks=marks, xlabel=f"{name} of a sample", ylabel="Rows")

    limit = {float(view.max_length): "data.max_length"}
    draw = panels(panel(view.words, "Words", {}), panel(view.tokens, "Tokens", limit))
    cut = format_share(float((view.tokens > view.max_length).mean()))
    caption = (
        f"Dashed: median ({np.median(view.words):,.0f} words, {np.median(view.tokens):,.0f} tokens), and "
        f"data.max_length, {view.max_length} tokens; {cut} of the samples are longer and are truncated."
    )
    title, legend = "Lengths in words and tokens", _areas(list(view.splits))
    return Drawing("lengths", title, caption, draw, 3.1, whole=True, legend=legend)


def _length_by_score(view: DataView) -> Drawing:
    groups = _groups(view)
    stride = max(1, -(-view.num_rows // _MAX_POINTS))
    series = [
        Points(view.words[rows[::stride]], view.labels[rows[::stride]], run_style(number)[0], size=3.4, alpha=0.45)
        for number, rows in enumerate(groups.values())
    ]
    correlation = _correlation(view.words.astype(np.float64), view.labels.astype(np.float64))
    caption = "" if correlation is None else f"Pearson correlation of words and {view.label}: {correlation:.2f}."
    if view.num_rows > _MAX_POINTS:
        caption += f" About {_MAX_POINTS:,} of {view.num_rows:,} rows are drawn, evenly spaced."
    names = [f"{view.by} {name}" for name in groups] if view.groups is not None else []
    draw = points(series, xlabel="Words of a sample", ylabel=shorten(view.label, 60), xlim=(0, None))
    title = f"Length against {view.label}"
    return Drawing("length_by_score", title, caption.strip(), draw, 3.6, legend=_areas(names))


def _length_by_class(view: DataView) -> Drawing:
    values = {name: view.words[view.labels == number] for number, name in enumerate(view.classes)}
    return _quartiles("length_by_class", "Length by class", "Words of a sample", values)


def _scores_by_group(view: DataView) -> Drawing:
    values = {name: view.labels[rows] for name, rows in _groups(view).items()}
    return _quartiles("scores_by_type", f"{view.label} by {view.by}", shorten(view.label, 60), values)


def _quartiles(key: str, title: str, label: str, groups: Mapping[str, Any]) -> Drawing:
    """Draw the median and the quartiles of each group."""
    names = [f"{shorten(name, 24)} ({len(values):,})" for name, values in groups.items()]
    rows = {}
    for at, values in enumerate(groups.values()):
        if not len(values):
            rows[at] = Interval(None)
            continue
        low, middle, high = np.percentile(values, [25, 50, 75])
        inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
        text = f"{names[at]}: median {middle:g}, quartiles {low:g} and {high:g}"
        rows[at] = Interval(middle, low, high, text=text, whiskers=(inside.min(), inside.max()))
    draw = forest(names, rows, from_zero=False, xlabel=label)
    caption = "Points: median; thick: quartiles; thin: values up to 1.5 times their distance. In brackets: rows."
    return Drawing(key, title, caption, draw, height_of_rows(len(names)))


def _classes_by_group(view: DataView) -> Drawing:
    groups, size = _groups(view), len(view.classes)
    shares = np.array([np.bincount(view.labels[rows], minlength=size) / len(rows) for rows in groups.values()])
    layers = [Bars(100 * shares[:, number], run_style(number)[0]) for number in range(size)]
    names = [f"{shorten(name, 24)} ({len(rows):,})" for name, rows in groups.items()]
    draw = bars(names, layers, stacked=True, xlabel="Share of the rows (%)", xlim=(0, 100))
    title, height = f"Classes by {view.by}", height_of_rows(len(groups))
    return Drawing("classes_by_type", title, "In brackets: rows.", draw, height, legend=_areas(view.classes))


def _correlations(view: DataView) -> Drawing:
    title = "Correlation of the numeric columns"
    columns = {**view.numeric, "words": view.words.astype(np.float64), "tokens": view.tokens.astype(np.float64)}
    if not view.classes:
        columns = {view.label: view.labels.astype(np.float64)} | {
            name: values for name, values in columns.items() if name != view.label
        }
    reasons = {name: why for name, values in columns.items() if (why := _why_not_correlated(values))}
    shown = {name: values for name, values in columns.items() if name not in reasons}
    left_out = "; ".join(f"{name} ({why})" for name, why in reasons.items())
    beyond = list(shown)[_MAX_NUMERIC:]
    shown = dict(list(shown.items())[:_MAX_NUMERIC])
    caption = "Pearson's r over the rows in which both are known."
    if left_out:
        caption += f" Left out: {left_out}."
    if beyond:
        caption += f" Not shown beyond {_MAX_NUMERIC} columns: {', '.join(beyond)}."
    if not view.numeric and view.classes:
        note = "the data have no column of numbers"
        return _without("correlations", title, f"No correlations: {note}.")
    values = [[_correlation(first, second) for second in shown.values()] for first in shown.values()]
    return Drawing("correlations", title, caption, heat_map(list(shown), values), 1.4 + 0.42 * len(shown))


def _word_cloud(view: DataView, name: str, column: str, texts: Sequence[str]) -> Drawing:
    title = f"Words of {column}"
    share = format_share(1 - len(texts) / view.num_rows)
    if len(texts) < view.min_texts:
        note = (
            f"No word cloud of {column}: {len(texts):,} of {view.num_rows:,} rows have a text ({share} are empty), and "
            f"fewer than {view.min_texts} are too few (data.figures.min_texts)."
        )
        return _without(name, title, note)
    counts = count_words(texts, view.stop_words)
    if not counts:
        return _without(name, title, f"No word cloud of {column}: its texts hold no word that is not a stop word.")
    height = 4.0
    placed = place_words(counts, width=72 * WIDTH, height=72 * height)

    def draw(figure: Any, hovers: Hovers) -> None:
        for number, placed_word in enumerate(placed):
            place = placed_word.x / (72 * WIDTH), placed_word.y / (72 * height)
            style = {"fontsize": placed_word.size, "color": run_style(number)[0], "ha": "left", "va": "baseline"}
            figure.text(*place, placed_word.word, **style)

    few = min(MAX_WORDS, len(counts))
    commonest = ", ".join(f"{word} {count:,}" for word, count in most_frequent(counts)[:5])
    caption = (
        f"{len(placed)} of the {few} commonest words of {len(texts):,} texts ({share} of the rows are empty), stop "
        f"words and words under three letters left out; area by count. The first: {commonest}."
    )
    return Drawing(name, title, caption, draw, height, whole=True)


def _without(name: str, title: str, note: str) -> Drawing:
    """Return a figure without data, which has the reason."""
    return Drawing(name, title, "", lambda axes, hovers: None, 0.0, note=note)


def _groups(view: DataView) -> dict[str, Ints]:
    """Return the rows of each value of `by`, sorted by value; all rows when there is none."""
    if view.groups is None:
        return {"all": np.arange(view.num_rows)}
    values = np.asarray(view.groups, dtype=object)
    return {str(name): np.flatnonzero(values == name) for name in sorted(set(view.groups))}


def _why_not_correlated(values: Floats) -> str | None:
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return "empty"
    if len(known) < 3:
        return f"{len(known)} values"
    return "constant" if np.ptp(known) == 0 else None


def _correlation(first: Floats, second: Floats) -> float | None:
    """Return Pearson's r over the rows in which both values are known; None where it is undefined."""
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < 3 or np.ptp(first[both]) == 0 or np.ptp(second[both]) == 0:
        return None
    return float(np.corrcoef(first[both], second[both])[0, 1])


def _file_names(columns: Sequence[str]) -> dict[str, str]:
    """Return names of columns for use in file names, numbered where they would be equal."""
    file_names: dict[str, str] = {}
    for column in columns:
        plain = "".join(letter if letter.isalnum() else "_" for letter in column)[:60]
        numbered = (plain if number == 1 else f"{plain}_{number}" for number in itertools.count(1))
        taken = {name.lower() for name in file_names.values()}  # some file systems ignore case
        file_names[column] = next(name for name in numbered if name.lower() not in taken)
    return file_names
