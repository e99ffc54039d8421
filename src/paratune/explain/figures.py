"""The figures of an explanation: curves of faithfulness, and attention."""

from typing import Any

import numpy as np

from paratune.explain.explain import METHODS, RowExplanation
from paratune.explain.outputs import Floats
from paratune.explain.rows import TokenRow
from paratune.reports.figures.canvas import RULE, RUN_COLOURS, Drawing, Key
from paratune.reports.text import shorten

_MAX_MATRIX = 40


def curves(key: str, explanation: RowExplanation) -> Drawing:
    """Return the output while words are hidden and shown, for each method beside the range of other orders."""
    found = explanation.faithfulness
    styles = zip(METHODS, RUN_COLOURS, [(), (5, 2), (1.5, 1.5)], strict=False)
    lines = {method: (colour, dashes) for method, colour, dashes in styles if method in found.methods}

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        for at, (axes, name) in enumerate(zip(figure.subplots(1, 2, sharey=True), ("hidden", "visible"), strict=True)):
            others = found.others[:, at]
            axes.fill_between(100 * found.shares, others.min(axis=0), others.max(axis=0), color=RULE)
            for method, (colour, dashes) in lines.items():
                style = (0, dashes) if dashes else "-"
                axes.plot(100 * found.shares, found.methods[method][at], color=colour, linestyle=style, linewidth=1.6)
            axes.set_title(("deletion", "insertion")[at], fontsize=10.5)
            axes.set_xlabel(f"words {name}, %")
            axes.grid(axis="y")
        figure.axes[0].set_ylabel(shorten(explanation.target.name, 40))

    legend = [Key(METHODS[method], *style) for method, style in lines.items()]
    return Drawing(
        key,
        "Do the effects hold?",
        "Words are hidden (deletion) or shown (insertion), those with the highest effects first. A faithful order "
        "falls fast on the left and rises fast on the right. Grey: the range of other orders.",
        draw,
        2.6,
        whole=True,
        legend=(*legend, Key("other orders", RULE, is_area=True)),
    )


def attention_map(key: str, row: TokenRow, matrix: Floats) -> Drawing:
    """Return the attention between words, (W, W); of long texts between the sentences."""
    names, unit = [row.word_text(word) for word in range(len(row.words))], "words"
    if len(names) > _MAX_MATRIX:
        members = (np.unique(row.sentences)[:, None] == row.sentences[None, :])[:_MAX_MATRIX]
        matrix = (members / members.sum(axis=1, keepdims=True)) @ matrix @ members.T
        names, unit = [row.part_text(member) for member in members], "sentences"

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        axes.pcolormesh(matrix, cmap="Greys", vmin=0).set_gid("attention")
        axes.invert_yaxis()
        short = [shorten(name, 24) for name in names]
        size, places = 8.5 if len(names) <= 25 else 6.5, np.arange(len(names)) + 0.5
        labels = short if unit == "words" else [str(number + 1) for number in range(len(names))]
        axes.set_yticks(places, short, fontsize=size)
        axes.set_xticks(places, labels, rotation=90 if unit == "words" else 0, fontsize=size)
        axes.tick_params(length=0)

    return Drawing(
        key,
        "Attention of the last layer: not an explanation",
        f"From each of the {unit} (lines) to each of the {unit} (columns), mean over heads; darker is more, the "
        f"darkest is {matrix.max():.2g}. Where a model attends is not why it decides so (Jain and Wallace, 2019).",
        draw,
        min(7.0, 1.6 + 0.17 * len(names)),
    )
