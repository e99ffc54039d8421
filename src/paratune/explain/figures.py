"""The figures of an explanation: strongest words, sentences and paragraphs, curves, attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paratune.explain.explain import METHODS, RowExplanation
from paratune.explain.outputs import Floats
from paratune.reports.document import signed
from paratune.reports.figures.canvas import MUTED, RULE, RUN_COLOURS, Drawing, Key
from paratune.reports.text import shorten

RAISES, LOWERS = RUN_COLOURS[0], RUN_COLOURS[1]
_BARS = (Key("raises the output", RAISES, is_area=True), Key("lowers it", LOWERS, is_area=True))
_MAX_BARS, _MAX_MATRIX = 20, 40


def bars(key: str, title: str, caption: str, names: Sequence[str], values: Floats) -> Drawing:
    """Return horizontal bars of effects, from the top down; bars to the right raise the output."""

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        places = np.arange(len(values))
        colours = [RAISES if value >= 0 else LOWERS for value in values]
        axes.barh(places, values, color=colours, height=0.72)
        axes.set_yticks(places, [shorten(name, 46) for name in names])
        axes.invert_yaxis()
        axes.axvline(0, color=MUTED, linewidth=0.8)
        room = float(np.abs(values).max(initial=0.0)) or 1.0
        axes.set_xlim(-1.28 * room, 1.28 * room)
        for place, value in zip(places, values, strict=True):
            side = "left" if value >= 0 else "right"
            axes.annotate(
                signed(float(value)), (value, place), xytext=(3 if value >= 0 else -3, 0), textcoords="offset points",
                ha=side, va="center", fontsize=8.5,
            )  # fmt: skip
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)

    return Drawing(key, title, caption, draw, 0.6 + 0.26 * len(values), legend=_BARS)


def strongest_words(key: str, explanation: RowExplanation, method: str, values: Floats) -> Drawing:
    """Return the words with the largest effects, in the order of the text."""
    chosen = np.sort(np.argsort(-np.abs(values), kind="stable")[:_MAX_BARS])
    names = [explanation.row.word_text(word) for word in chosen.tolist()]
    shown = f"The {len(chosen)} of {len(values)} words with" if len(chosen) < len(values) else "The words by"
    caption = f"{shown} the largest effects, in the order of the text, by {METHODS[method]}."
    return bars(key, "Strongest words", caption, names, values[chosen])


def removed_parts(key: str, kind: str, texts: Sequence[str], values: Floats) -> Drawing:
    """Return the effect of each sentence or paragraph; of many, the largest ones, in the order of the text."""
    chosen = np.sort(np.argsort(-np.abs(values), kind="stable")[:_MAX_BARS])
    names = [f"{index + 1}: {texts[index]}" for index in chosen.tolist()]
    few = f" The {len(chosen)} largest of {len(values)} are shown." if len(chosen) < len(values) else ""
    caption = f"How much the output falls when the words of a {kind} are hidden together.{few}"
    return bars(key, f"Effect of each {kind}", caption, names, values[chosen])


def curves(key: str, explanation: RowExplanation) -> Drawing:
    """Return the output while words are hidden and shown, for each method beside the range of random orders."""
    found = explanation.faithfulness
    dashes: dict[str, tuple[float, ...]] = dict(zip(METHODS, [(), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2)], strict=True))
    shown = [method for method in METHODS if method in found.methods]
    colours = {method: RUN_COLOURS[number] for number, method in enumerate(METHODS)}

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        for axes, name in zip(figure.subplots(1, 2, sharey=True), ("deletion", "insertion"), strict=True):
            random = np.stack([getattr(order, name) for order in found.random])
            axes.fill_between(100 * found.shares, random.min(axis=0), random.max(axis=0), color=RULE)
            for method in shown:
                line = "-" if not dashes[method] else (0, dashes[method])
                values = getattr(found.methods[method], name)
                axes.plot(100 * found.shares, values, color=colours[method], linestyle=line, linewidth=1.6)
            verb = "hidden" if name == "deletion" else "visible"
            axes.set_title(name, fontsize=10.5)
            axes.set_xlabel(f"words {verb}, %")
            axes.grid(axis="y")
        figure.axes[0].set_ylabel(shorten(explanation.target.name, 40))

    legend = [Key(METHODS[method], colours[method], dashes[method]) for method in shown]
    return Drawing(
        key,
        "Do the effects hold?",
        "Words are hidden (deletion) or shown (insertion), those with the highest effects first. A faithful order "
        "falls fast on the left and rises fast on the right. Grey: the range of 19 random orders.",
        draw,
        2.6,
        whole=True,
        legend=(*legend, Key("random orders", RULE, is_area=True)),
    )


def attention_map(key: str, explanation: RowExplanation) -> Drawing | None:
    """Return the attention of the last layer between words, of long texts between the sentences; None if unknown."""
    if explanation.attention is None:
        return None
    matrix, row = explanation.attention.matrix, explanation.row
    names, unit = [row.word_text(word) for word in range(len(row.words))], "words"
    if len(names) > _MAX_MATRIX:
        members = np.unique(row.sentences)[:, None] == row.sentences[None, :]
        members = members[:_MAX_MATRIX]
        matrix = (members / members.sum(axis=1, keepdims=True)) @ matrix @ members.T
        names, unit = [row.part_text(member) for member in members], "sentences"

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        image = axes.pcolormesh(matrix, cmap="Greys", vmin=0)
        image.set_gid("attention")
        axes.invert_yaxis()
        short = [shorten(name, 24) for name in names]
        size = 8.5 if len(names) <= 25 else 6.5
        axes.set_yticks(np.arange(len(names)) + 0.5, short, fontsize=size)
        labels = short if unit == "words" else [str(number + 1) for number in range(len(names))]
        axes.set_xticks(np.arange(len(names)) + 0.5, labels, rotation=90 if unit == "words" else 0, fontsize=size)
        axes.tick_params(length=0)

    return Drawing(
        key,
        "Attention of the last layer: not an explanation",
        f"From each of the {unit} (lines) to each of the {unit} (columns), mean over heads; darker is more, the "
        f"darkest is {matrix.max():.2g}. Where a model attends is not why it decides so (Jain and Wallace, 2019).",
        draw,
        min(7.0, 1.6 + 0.17 * len(names)),
    )
