"""`paratune data --figures`: the labels of a data set, lengths of its texts, correlations, and its most frequent words.

`N` rows of all splits together, `C` classes.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.units import format_share
from paratune.reports.document import ReportDocument, ReportSection
from paratune.reports.figures import plots
from paratune.reports.figures.canvas import FOLDER, WIDTH, Drawing, Hovers, Key, drawing_files
from paratune.reports.output import write_page
from paratune.reports.page.document import made_by
from paratune.reports.text import shorten

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MAX_GROUPS = 12  # figures by group are left out when `data.figures.by` has more values than this
_MAX_BARS = 40
_MAX_NUMERIC = 14
_MAX_WORDS = 100
_WORD = re.compile(r"[^\W\d_][^\W\d_'’-]*(?:['’-][^\W\d_]+)*")
_SMALLEST, _LARGEST = 7.5, 46.0
_MARGIN, _GAP = 8.0, 4.0  # sizes of the words of a cloud, and distances around all words and between two, in points


@dataclass(frozen=True)
class DataView:
    """The rows of all splits, column by column."""

    splits: Mapping[str, int]  # rows of each split, in the order of the rows
    labels: Floats | Ints  # (N,): targets, or class ids
    label: str  # name of the label column
    classes: Sequence[str]  # none for numbers
    words: Ints  # (N,): white-space separated words of the text, and of the second text of a pair
    tokens: Ints  # (N,): tokens before truncation
    max_length: int
    groups: Sequence[str] | None  # (N,): values of `by`
    by: str | None
    numeric: Mapping[str, Floats]  # (N,) each: columns of numbers, NaN where there is none
    texts: Mapping[str, Sequence[str]]  # of each column for a word cloud, the empty ones left out
    min_texts: int
    stop_words: Sequence[str]

    @property
    def rows_by_group(self) -> dict[str, Ints]:
        """The rows of each value of `by`, sorted by value; all rows when there is none."""
        values = np.asarray(["all"] * len(self.labels) if self.groups is None else self.groups, dtype=object)
        return {str(name): np.flatnonzero(values == name) for name in sorted(set(values))}


def data_drawings(view: DataView) -> Iterator[Drawing]:
    """Yield the figures of a data set in the order of the page."""
    yield _labels(view)
    yield _lengths(view)
    if view.classes:
        words = {name: view.words[view.labels == number] for number, name in enumerate(view.classes)}
        yield _quartiles("length_by_class", "Length by class", "Words of a sample", words)
    else:
        by_group = view.rows_by_group
        series = [
            plots.Points(view.words[rows], view.labels[rows], plots.run_style(number)[0], size=3.4, alpha=0.45)
            for number, rows in enumerate(by_group.values())
        ]
        ((_, correlation), _) = _correlations_of([view.words, view.labels])
        known = np.isfinite(correlation)
        caption = f"Pearson correlation of words and {view.label}: {correlation:.2f}." if known else ""
        num_drawn = sum(len(plots.thinned(rows)[0]) for rows in by_group.values())
        if num_drawn < len(view.labels):
            caption += f" {num_drawn:,} of {len(view.labels):,} rows are drawn, evenly spaced."
        legend = _areas([f"{view.by} {name}" for name in by_group] if view.groups is not None else [])
        draw = partial(plots.points, series, xlabel="Words of a sample", ylabel=shorten(view.label, 60), xlim=(0, None))
        yield Drawing("length_by_score", f"Length against {view.label}", caption.strip(), draw, 3.6, legend=legend)
    yield _correlations(view)
    if view.groups is not None and view.classes:
        groups, size = view.rows_by_group, len(view.classes)
        shares = np.array([np.bincount(view.labels[rows], minlength=size) / len(rows) for rows in groups.values()])
        layers = [plots.Bars(100 * shares[:, number], plots.run_style(number)[0]) for number in range(size)]
        names = [f"{shorten(name, 24)} ({len(rows):,})" for name, rows in groups.items()]
        draw = partial(plots.bars, names, layers, stacked=True, xlabel="Share of the rows (%)", xlim=(0, 100))
        title, height = f"Classes by {view.by}", plots.height_of_rows(len(groups))
        yield Drawing("classes_by_type", title, "In brackets: rows.", draw, height, legend=_areas(view.classes))
    elif view.groups is not None:
        scores = {name: view.labels[rows] for name, rows in view.rows_by_group.items()}
        yield _quartiles("scores_by_type", f"{view.label} by {view.by}", shorten(view.label, 60), scores)
    for number, (column, texts) in enumerate(view.texts.items(), start=1):
        plain = re.sub(r"\W", "_", column)[:60]  # may be that of another column
        yield _word_cloud(view, f"words{number if number > 1 else ''}_{plain}", column, texts)


def _layers(view: DataView, count: Callable[..., Any]) -> list[plots.Bars]:
    """Return the bars of each split, whose values `count` returns for its rows."""
    ends = np.cumsum(list(view.splits.values())).tolist()
    rows = [slice(end - size, end) for end, size in zip(ends, view.splits.values(), strict=True)]
    return [plots.Bars(count(part), plots.run_style(number)[0]) for number, part in enumerate(rows)]


def _areas(names: Iterable[str]) -> tuple[Key, ...]:
    keys = tuple(Key(shorten(name, 30), plots.run_style(number)[0], is_area=True) for number, name in enumerate(names))
    return keys if len(keys) > 1 else ()


def _labels(view: DataView) -> Drawing:
    legend = _areas(view.splits)
    if view.classes:
        size = len(view.classes)
        layers = _layers(view, lambda rows: np.bincount(view.labels[rows], minlength=size))
        share = format_share(float(np.bincount(view.labels).max()) / len(view.labels))
        caption = f"{len(view.labels):,} rows; the commonest class has {share} of them."
        draw = partial(plots.bars, view.classes, layers, stacked=True, xlabel="Rows")
        return Drawing("class_balance", "Rows of each class", caption, draw, plots.height_of_rows(size), legend=legend)
    distinct = np.unique(view.labels)
    step = float(np.diff(distinct).min()) if len(distinct) > 1 else 1.0
    if distinct[-1] - distinct[0] > _MAX_BARS * step:
        edges = np.histogram_bin_edges(view.labels, bins=_MAX_BARS)
    else:  # a bar for each value
        edges = np.arange(distinct[0] - step / 2, distinct[-1] + step, step)
    layers = _layers(view, lambda rows: np.histogram(view.labels[rows], bins=edges)[0])
    mean, sd = view.labels.mean(), view.labels.std(ddof=1) if len(view.labels) > 1 else 0.0
    label = shorten(view.label, 60)
    draw = partial(plots.histogram, edges, layers, marks={float(mean): ""}, xlabel=label, ylabel="Rows")
    caption = f"{len(view.labels):,} rows; mean {mean:.3g} (dashed), standard deviation {sd:.3g}."
    return Drawing("score_distribution", f"Distribution of {view.label}", caption, draw, 3.2, legend=legend)


def _lengths(view: DataView) -> Drawing:
    sides = []
    limit = {float(view.max_length): "data.max_length"}
    for values, name, own in ((view.words, "Words", {}), (view.tokens, "Tokens", limit)):
        edges = np.histogram_bin_edges(values, bins=30)
        layers = _layers(view, lambda rows, values=values, edges=edges: np.histogram(values[rows], bins=edges)[0])
        marks, label = {float(np.median(values)): "", **own}, f"{name} of a sample"
        sides.append(partial(plots.histogram, edges, layers, marks=marks, xlabel=label, ylabel="Rows"))
    draw = partial(plots.panels, sides)
    cut = format_share(float((view.tokens > view.max_length).mean()))
    caption = (
        f"Dashed: median ({np.median(view.words):,.0f} words, {np.median(view.tokens):,.0f} tokens), and "
        f"data.max_length, {view.max_length} tokens; {cut} of the samples are longer and are truncated."
    )
    legend = _areas(view.splits)
    return Drawing("lengths", "Lengths in words and tokens", caption, draw, 3.1, whole=True, legend=legend)


def _quartiles(key: str, title: str, label: str, groups: Mapping[str, Any]) -> Drawing:
    names = [f"{shorten(name, 24)} ({len(values):,})" for name, values in groups.items()]
    rows = {}
    for at, values in enumerate(groups.values()):
        if not len(values):
            rows[at] = plots.Interval(None)
            continue
        low, middle, high = np.percentile(values, [25, 50, 75])
        inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
        text = f"{names[at]}: median {middle:g}, quartiles {low:g} and {high:g}"
        rows[at] = plots.Interval(middle, low, high, text=text, whiskers=(inside.min(), inside.max()))
    draw = partial(plots.forest, names, rows, from_zero=False, xlabel=label)
    caption = "Points: median; thick: quartiles; thin: values up to 1.5 times their distance. In brackets: rows."
    return Drawing(key, title, caption, draw, plots.height_of_rows(len(names)))


def _correlations(view: DataView) -> Drawing:
    title = "Correlation of the numeric columns"
    if not view.numeric and view.classes:
        note = "No correlations: the data have no column of numbers."
        return Drawing("correlations", title, "", partial(plots.bars, [], []), 0.0, note=note)
    columns: dict[str, Any] = {} if view.classes else {view.label: view.labels}
    for name, values in (*view.numeric.items(), ("words", view.words), ("tokens", view.tokens)):
        columns.setdefault(name, values)
    varying = [name for name, values in columns.items() if len(np.unique(values[np.isfinite(values)])) > 1]
    caption = "Pearson's r over the rows in which both are known."
    if left_out := [name for name in columns if name not in varying]:
        caption += f" Left out, without two different values: {', '.join(left_out)}."
    if beyond := varying[_MAX_NUMERIC:]:
        caption += f" Not shown beyond {_MAX_NUMERIC} columns: {', '.join(beyond)}."
    shown = varying[:_MAX_NUMERIC]
    table = _correlations_of([columns[name] for name in shown])
    draw = partial(plots.heat_map, shown, [[None if np.isnan(r) else r for r in row] for row in table])
    return Drawing("correlations", title, caption, draw, 1.4 + 0.42 * len(shown))


def _correlations_of(columns: Sequence[Any]) -> Any:
    """Return Pearson's r of each two columns over the rows in which both are known; NaN with fewer than 3 rows."""
    import pandas as pd

    return pd.DataFrame(np.array(columns, dtype=np.float64).T).corr(min_periods=3).to_numpy().tolist()


def _word_cloud(view: DataView, name: str, column: str, texts: Sequence[str]) -> Drawing:
    title, height = f"Words of {column}", 4.0
    share = format_share(1 - len(texts) / len(view.labels))
    words = count_words(texts, view.stop_words)
    if len(texts) < view.min_texts or not words:
        note = (
            f"No word cloud of {column}: {len(texts):,} of {len(view.labels):,} rows have a text ({share} are empty). "
            f"It needs {view.min_texts} texts (data.figures.min_texts), and a word that is not a stop word."
        )
        return Drawing(name, title, "", partial(plots.bars, [], []), 0.0, note=note)
    placed = place_words(words, width=72 * WIDTH, height=72 * height)

    def draw(figure: Any, hovers: Hovers) -> None:
        for number, (word, x, y, size) in enumerate(placed):
            style = {"fontsize": size, "color": plots.run_style(number)[0], "ha": "left", "va": "baseline"}
            figure.text(x / (72 * WIDTH), y / (72 * height), word, **style)

    commonest = ", ".join(f"{word} {count:,}" for word, count in words[:5])
    caption = (
        f"{len(placed)} of the {min(_MAX_WORDS, len(words))} commonest words of {len(texts):,} texts ({share} of the "
        f"rows are empty), stop words and words under three letters left out; area by count. The first: {commonest}."
    )
    return Drawing(name, title, caption, draw, height, whole=True)


def count_words(texts: Iterable[str], stop_words: Collection[str]) -> list[tuple[str, int]]:
    """Return the words and their counts, the most frequent first and words of one count in alphabetical order.

    They are in lower case, without stop words and words of fewer than three letters. A word begins with a letter;
    apostrophes and hyphens inside it belong to it.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word.replace("’", "'") for word in _WORD.findall(text.lower()))
    left_out = {word.lower() for word in stop_words}
    # Lists of stop words have "it" and "not", and not "it's" and "don't".
    kept = [
        (word, count) for word, count in counts.items()
        if len(word) > 2 and not word.endswith("n't") and not left_out & {word, word.split("'")[0]}
    ]  # fmt: skip
    return sorted(kept, key=lambda item: (-item[1], item[0]))


def place_words(
    words: Sequence[tuple[str, int]], *, width: float, height: float
) -> list[tuple[str, float, float, float]]:
    """Return the words of `count_words` that fit in a picture of this size in points, at most 100: each word, its left
    end and its baseline from the lower left corner, and its size in points.

    Font sizes follow the square root of the counts. Each word is at the first place on an Archimedean spiral, from the
    middle outwards, where it touches no other word; a word without such a place is left out. Nothing is drawn by
    chance: the same words make the same cloud.
    """
    if not words:
        return []
    width, height = width - 2 * _MARGIN, height - 2 * _MARGIN
    largest = min(_LARGEST, 0.8 * width / max(_extent(words[0][0])[2], 0.1))
    # The points of the spiral are a little further apart than the stroke of a letter.
    angles = np.sqrt(np.arange(6000)) * 1.1
    radius = angles / angles[-1] * 0.75
    turns = np.stack([width * (0.5 + radius * np.cos(angles)), height * (0.5 + radius * np.sin(angles))], axis=1)
    placed: list[tuple[str, float, float, float]] = []
    taken: list[tuple[float, float, float, float]] = []
    for word, count in words[:_MAX_WORDS]:
        size = max(_SMALLEST, largest * (count / words[0][1]) ** 0.5)
        left, below, wide, high = (size * value for value in _extent(word))
        wide, high = wide + _GAP, high + _GAP
        x, y = (turns - np.array([wide / 2, high / 2])).T
        free = (x >= 0) & (y >= 0) & (x + wide <= width) & (y + high <= height)
        for x0, y0, x1, y1 in taken:
            free &= (x >= x1) | (x + wide <= x0) | (y >= y1) | (y + high <= y0)
        if free.any():
            at_x, at_y = float(x[free][0]), float(y[free][0])
            taken.append((at_x, at_y, at_x + wide, at_y + high))
            placed.append((word, _MARGIN + at_x - left, _MARGIN + at_y - below, size))
    return placed


def _extent(word: str) -> Sequence[float]:
    """Return left, bottom, width and height of a word at a font size of one point."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    box = TextPath((0, 0), word, size=100, prop=FontProperties(family="DejaVu Sans")).get_extents()
    return [value / 100 for value in (box.x0, box.y0, box.width, box.height)]


def write_figures(folder: Path, view: DataView, *, title: str, about: str) -> list[dict[str, Any]]:
    """Write each figure as SVG, the page, and report.json with a list of them; replace those of an earlier call.

    Returns:
        For each picture its name, title, caption, note (why there is nothing to see, or null) and file, or null.
    """
    drawings = tuple(data_drawings(view))
    files = drawing_files(drawings)
    listed: list[dict[str, Any]] = [
        {"name": drawing.key, "title": drawing.title, "caption": drawing.caption, "note": drawing.note,
         "file": file if (file := f"{FOLDER}/{drawing.key}.svg") in files else None}
        for drawing in drawings
    ]  # fmt: skip
    # All in one section: a page shows them side by side.
    document = ReportDocument(title, (about,), (ReportSection("data", "Figures", drawings),), made_by())
    write_page(folder, document, "data", {"title": title, "figures": listed}, files)
    return listed
