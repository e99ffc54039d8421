"""The figures of a data set: labels, lengths of texts, and their correlations.

`N` rows of all splits together, `C` classes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.units import format_share
from paratune.reports.data.word_cloud import MAX_WORDS, count_words, most_frequent, place_words
from paratune.reports.figures.canvas import INK, MUTED, RUN_COLOURS, WIDTH, Draw, Drawing
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


def _parts(view: DataView) -> list[tuple[str, slice]]:
    """Return the rows of each split."""
    ends = np.cumsum(list(view.splits.values())).tolist()
    return [(name, slice(end - count, end)) for (name, count), end in zip(view.splits.items(), ends, strict=True)]


def _stacked(axes: Any, places: Any, counts: Mapping[str, Any], width: float) -> None:
    """Draw stacked bars with a colour for each split, and a legend if there are several splits."""
    base = np.zeros(len(places))
    for number, (name, values) in enumerate(counts.items()):
        axes.bar(places, values, bottom=base, width=width, color=_colour(number), alpha=0.85, label=name)
        base += values
    if len(counts) > 1:
        axes.legend(frameon=False, fontsize=9.5)
    axes.grid(axis="y")


def _stacked_rows(axes: Any, names: Sequence[str], counts: Mapping[str, Any]) -> None:
    """Draw a stacked horizontal bar for each name, the first on top, and a legend if there are several parts."""
    base = np.zeros(len(names))
    for number, (name, values) in enumerate(counts.items()):
        axes.barh(np.arange(len(names)), values, left=base, height=0.7, color=_colour(number), alpha=0.85, label=name)
        base += values
    if len(counts) > 1:
        axes.legend(frameon=False, fontsize=9.5, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(axis="x")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _colour(number: int) -> str:
    return RUN_COLOURS[number % len(RUN_COLOURS)]


def _score_distribution(view: DataView) -> Drawing:
    values = np.unique(view.labels)
    if len(values) <= _MAX_BARS:
        places, width = values, 0.8 * (float(np.diff(values).min()) if len(values) > 1 else 1.0)
        counts = {name: (view.labels[rows, None] == values).sum(axis=0) for name, rows in _parts(view)}
    else:
        edges = np.histogram_bin_edges(view.labels, bins=_MAX_BARS)
        places, width = (edges[:-1] + edges[1:]) / 2, 0.94 * float(edges[1] - edges[0])
        counts = {name: np.histogram(view.labels[rows], bins=edges)[0] for name, rows in _parts(view)}

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        _stacked(axes, places, counts, width)
        axes.axvline(view.labels.mean(), color=INK, linewidth=0.9, dashes=(4, 3))
        axes.set(xlabel=shorten(view.label, 60), ylabel="Rows")

    mean, sd = view.labels.mean(), view.labels.std(ddof=1) if view.num_rows > 1 else 0.0
    caption = f"{view.num_rows:,} rows; mean {mean:.3g} (dashed), standard deviation {sd:.3g}."
    return Drawing("score_distribution", f"Distribution of {view.label}", caption, draw, 3.2)


def _class_balance(view: DataView) -> Drawing:
    size = len(view.classes)
    counts = {name: np.bincount(view.labels[rows], minlength=size) for name, rows in _parts(view)}
    totals = np.sum(list(counts.values()), axis=0)

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        _stacked_rows(axes, [shorten(name, 30) for name in view.classes], counts)
        axes.set_xlabel("Rows")

    share = format_share(float(totals.max()) / view.num_rows)
    caption = f"{view.num_rows:,} rows; the commonest class has {share} of them."
    return Drawing("class_balance", "Rows of each class", caption, draw, max(1.8, 1.1 + 0.28 * size))


def _lengths(view: DataView) -> Drawing:
    def draw(figure: Any, hovers: dict[str, str]) -> None:
        left, right = figure.subplots(1, 2)
        for axes, values, name in ((left, view.words, "Words"), (right, view.tokens, "Tokens")):
            edges = np.histogram_bin_edges(values, bins=30)
            counts = {part: np.histogram(values[rows], bins=edges)[0] for part, rows in _parts(view)}
            _stacked(axes, (edges[:-1] + edges[1:]) / 2, counts, 0.94 * float(edges[1] - edges[0]))
            axes.axvline(np.median(values), color=INK, linewidth=0.9, dashes=(4, 3))
            axes.set(xlabel=f"{name} of a sample", ylabel="Rows")
        right.axvline(view.max_length, color=MUTED, linewidth=1.2)

    cut = format_share(float((view.tokens > view.max_length).mean()))
    caption = (
        f"Dashed: median ({np.median(view.words):,.0f} words, {np.median(view.tokens):,.0f} tokens). The grey line is "
        f"data.max_length, {view.max_length} tokens; {cut} of the samples are longer and are truncated."
    )
    return Drawing("lengths", "Lengths in words and tokens", caption, draw, 3.1, whole=True)


def _length_by_score(view: DataView) -> Drawing:
    def draw(axes: Any, hovers: dict[str, str]) -> None:
        for number, (name, rows) in enumerate(_groups(view).items()):
            shown = rows[:: max(1, -(-view.num_rows // _MAX_POINTS))]
            axes.plot(
                view.words[shown], view.labels[shown], "o", markersize=3.4, markeredgewidth=0, alpha=0.45,
                color=_colour(number), label=shorten(name, 30),
            )  # fmt: skip
        if view.groups is not None:
            legend = axes.legend(title=view.by, frameon=False, fontsize=9.5)
            for handle in legend.legend_handles:
                handle.set_alpha(1)
        axes.set(xlabel="Words of a sample", ylabel=shorten(view.label, 60), xlim=(0, None))
        axes.grid(axis="y")

    correlation = _correlation(view.words.astype(np.float64), view.labels.astype(np.float64))
    caption = "" if correlation is None else f"Pearson correlation of words and {view.label}: {correlation:.2f}."
    if view.num_rows > _MAX_POINTS:
        caption += f" About {_MAX_POINTS:,} of {view.num_rows:,} rows are drawn, evenly spaced."
    return Drawing("length_by_score", f"Length against {view.label}", caption.strip(), draw, 3.6)


def _length_by_class(view: DataView) -> Drawing:
    values = [view.words[view.labels == number] for number in range(len(view.classes))]
    caption = "Words of a sample by class: median, quartiles, whiskers to 1.5 times their distance."
    draw = _boxes(values, view.classes, "Words of a sample", across=True)
    return Drawing("length_by_class", "Length by class", caption, draw, max(2.0, 1.1 + 0.34 * len(values)))


def _scores_by_group(view: DataView) -> Drawing:
    groups = _groups(view)
    names = [f"{shorten(name, 24)} ({len(rows):,})" for name, rows in groups.items()]
    draw = _boxes([view.labels[rows] for rows in groups.values()], names, shorten(view.label, 60))
    caption = "Median, quartiles, whiskers to 1.5 times their distance, and values beyond them. In brackets: rows."
    return Drawing("scores_by_type", f"{view.label} by {view.by}", caption, draw, 3.3)


def _classes_by_group(view: DataView) -> Drawing:
    groups, size = _groups(view), len(view.classes)
    shares = np.array([np.bincount(view.labels[rows], minlength=size) / len(rows) for rows in groups.values()])
    names = [f"{shorten(name, 24)} ({len(rows):,})" for name, rows in groups.items()]

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        counts = {shorten(name, 24): 100 * shares[:, number] for number, name in enumerate(view.classes)}
        _stacked_rows(axes, names, counts)
        axes.set(xlabel="Share of the rows (%)", xlim=(0, 100))

    height = max(2.0, 1.1 + 0.34 * len(groups), 0.5 + 0.22 * size)
    return Drawing("classes_by_type", f"Classes by {view.by}", "In brackets: rows.", draw, height)


def _boxes(values: Sequence[Any], names: Sequence[str], label: str, *, across: bool = False) -> Draw:
    def draw(axes: Any, hovers: dict[str, str]) -> None:
        line = {"color": INK, "linewidth": 0.9}
        boxes = axes.boxplot(
            values, orientation="horizontal" if across else "vertical", widths=0.55, patch_artist=True,
            medianprops={"color": INK, "linewidth": 1.6}, whiskerprops=line, capprops=line,
            boxprops={"edgecolor": INK, "linewidth": 0.9},
            flierprops={"marker": "o", "markersize": 2.6, "markeredgewidth": 0, "markerfacecolor": MUTED, "alpha": 0.6},
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set_facecolor("#9cc7e4")
        places, texts = range(1, len(names) + 1), [shorten(name, 30) for name in names]
        if across:
            axes.set_yticks(places, texts)
            axes.invert_yaxis()
            axes.set_xlabel(label)
        else:
            axes.set_xticks(places, texts)
            axes.set_ylabel(label)
        axes.grid(axis="x" if across else "y")

    return draw


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
    return Drawing("correlations", title, caption, _heat_map(shown), 1.4 + 0.42 * len(shown))


def _heat_map(columns: Mapping[str, Floats]) -> Draw:
    names = list(columns)

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        from matplotlib import colormaps
        from matplotlib.patches import Rectangle

        shades = colormaps["RdBu_r"]
        for row, first in enumerate(names):
            for column, second in enumerate(names):
                correlation = _correlation(columns[first], columns[second])
                colour = "#e6e6e6" if correlation is None else shades(0.5 + correlation / 2)
                # Not an image: the content policy of a page blocks images.
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
                text = "n/a" if correlation is None else f"{round(correlation, 2) + 0.0:.2f}".replace("-", "−")
                ink = "white" if correlation is not None and abs(correlation) > 0.65 else "#111111"
                axes.text(column, row, text, ha="center", va="center", fontsize=9.5, color=ink)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
        texts = [shorten(name, 22) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=35, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), texts)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)

    return draw


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

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        for number, placed_word in enumerate(placed):
            place = placed_word.x / (72 * WIDTH), placed_word.y / (72 * height)
            style = {"fontsize": placed_word.size, "color": _colour(number), "ha": "left", "va": "baseline"}
            figure.text(*place, placed_word.word, **style)

    few = min(MAX_WORDS, len(counts))
    commonest = ", ".join(f"{word} {count:,}" for word, count in most_frequent(counts)[:5])
    caption = (
        f"{len(placed)} of the {few} commonest words of {len(texts):,} texts ({share} of the rows are empty), stop "
        f"words and words under three letters left out; area by count. The first: {commonest}."
    )
    return Drawing(name, title, caption, draw, height, whole=True)


def _without(name: str, title: str, note: str) -> Drawing:
    """Return a figure that contains the reason why there is no data."""

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        import textwrap

        text = "\n".join(textwrap.wrap(note, 78))
        figure.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, fontsize=11)

    return Drawing(name, title, "", draw, 1.6, whole=True, note=note)


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
