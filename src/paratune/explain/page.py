"""Explanations as a report: a page with coloured texts, tables and attention, and JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.explain.effects import AS_CHANCE
from paratune.explain.explain import METHODS, RowExplanation
from paratune.explain.outputs import Bools, Floats
from paratune.explain.rows import TokenRow
from paratune.records.constant import ConstantComparison
from paratune.reports.document import MarkedText, MarkedWord, Notice, Part, ReportDocument, ReportSection, signed
from paratune.reports.figures.canvas import Drawing
from paratune.reports.output import write_page
from paratune.reports.page.document import made_by
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.reports.text import shorten

FULL_COLOUR = 10
"""An effect of so many smallest effects has the full colour, also where it is the largest one."""
_MOST_WORDS, _MOST_SENTENCES = 8, 20
_MAX_MATRIX = 40
"""Words of a heat map; of longer texts it has sentences."""


@dataclass(frozen=True, eq=False)
class Explained:
    """All that a report of explanations shows."""

    model: str
    source: str
    rows: tuple[RowExplanation, ...]
    not_better: ConstantComparison | None = None
    """The comparison with a constant answer, if the model is not better."""


def write_explanations(folder: Path, explained: Explained) -> tuple[Path, ...]:
    """Write the page and report.json; see `write_page`."""
    return write_page(folder, explanation_document(explained), "explanation", as_dict(explained))


def explanation_document(explained: Explained) -> ReportDocument:
    """Return the report of explanations: of each row the text, the verdict and the top words; the rest on request."""
    sections: list[ReportSection] = []
    for found in explained.rows:
        key, name = f"row-{found.row.row}", f"Row {found.row.row}"
        sections.append(ReportSection(key, f"{name}: {plain(found.predicted)}", tuple(_row_parts(found, key))))
        details = tuple(_details(found, key))
        sections.append(ReportSection(f"{key}-details", f"{name}: details", details, is_short=False))
    return ReportDocument(
        title="What drives the output",
        lead=(
            f"{counted(len(explained.rows), 'row')} of {explained.source}, explained by {explained.model}.",
            "Words with a solid line raise the explained output, words with a dashed line lower it; the stronger the "
            "colour, the larger the effect. Effects are those of the model, not of the world.",
        ),
        sections=tuple(sections),
        footer=made_by(),
        notices=() if explained.not_better is None else (Notice(explained.not_better.warning),),
    )


def _row_parts(found: RowExplanation, key: str) -> Iterator[Part]:
    yield (
        f"Explained: the {found.target.name}. It is {found.value:.4g}, and {found.hidden_value:.4g} with all words "
        f"replaced by {found.replacement}."
    )
    if found.row.num_unread_words:
        unread = counted(found.row.num_unread_words, "word")
        yield Notice(f"The model does not read the last {unread}: the text is too long.")
    main = next(iter(found.effects))
    yield _verdict(found, main)
    yield marked_text(found, main)
    if strongest := found.strongest(main, _MOST_WORDS):
        lines = [(word, TableCell(signed(value), value)) for word, value in strongest]
        yield make_table(f"{key}-words", "Words with the largest effects", ("Word", "Effect"), lines, 1)


def _verdict(found: RowExplanation, method: str) -> Part:
    """Return whether the effects hold, in words; a warning where they do not."""
    measured, name = found.faithfulness, METHODS[method].capitalize()
    compared = f"p = {measured.p_value(method):.3f} against {measured.num_orders - 1} other orders of the words"
    verdict = measured.verdict(method)
    if verdict is not None:
        reason = f"The effects {verdict if verdict == AS_CHANCE else f'are {verdict}'}"
        return Notice(f"{reason}: {name}, {compared}. The text has no colours.")
    count = int(found.holds(method).sum())
    smallest = f"an effect counts from {found.target.smallest:.2g}"
    if not count:
        return Notice(f"No word has an effect that counts: {name}, {smallest}. The text has no colours.")
    return f"The effects hold: {name}, {compared}. {count} of {len(found.row.words)} words count; {smallest}."


def marked_text(found: RowExplanation, method: str, *, is_closed: bool = False) -> MarkedText:
    """Return the texts of a row with the effects of their words, where they hold; text that is not read is last."""
    words = marked_words(found.row, found.effects[method], found.holds(method))
    return MarkedText(METHODS[method].capitalize(), words, is_closed, FULL_COLOUR * found.target.smallest)


def marked_words(row: TokenRow, values: Floats, holds: Bools) -> tuple[MarkedWord, ...]:
    """Return the words of a row with their effects, (W,), where they hold, (W,)."""
    marked: list[MarkedWord] = []
    ends = [0] * len(row.texts)
    for at, word in enumerate(row.words):
        gap = row.texts[word.text][ends[word.text] : word.place.start]
        before = "\n" if "\n" in gap else " " if gap else ""
        if word.text == 1 and ends[1] == 0:
            before = "\n\n"
        marked.append(MarkedWord(before, row.word_text(at), float(values[at]) if holds[at] else None))
        ends[word.text] = word.place.end
    for text, end in zip(row.texts, ends, strict=True):
        if rest := " ".join(text[end:].split()):
            marked.append(MarkedWord("\n", f"[not read: {rest}]", None))
    return tuple(marked)


def _details(found: RowExplanation, key: str) -> Iterator[Part]:
    for method in list(found.effects)[1:]:
        yield _verdict(found, method)
        if found.holds(method).any():
            yield marked_text(found, method, is_closed=True)
    if len(found.sentences) > 1:
        yield _sentences_table(f"{key}-sentences", found)
    if found.attention is not None:
        yield attention_map(f"{key}-attention", found.row, found.attention)


def _sentences_table(key: str, found: RowExplanation) -> Table:
    """Return the effects of hiding sentences; of many, the largest ones, in the order of the text."""
    effects, smallest = found.sentences, found.target.smallest
    chosen = np.sort(np.argsort(-np.abs(effects), kind="stable")[:_MOST_SENTENCES])
    lines = [
        (f"{at + 1}", shorten(" ".join(found.row.part_text(found.row.sentences == at).split()), 80),
         TableCell(signed(effects[at]), float(effects[at])))
        for at in chosen.tolist() if abs(effects[at]) >= smallest
    ]  # fmt: skip
    note = (
        f"Effect: how much the output falls when the words of the sentence are hidden together. {len(lines)} of "
        f"{len(effects)} are shown: effects from {smallest:.2g}, the {_MOST_SENTENCES} largest at most."
    )
    return make_table(key, "Effect of each sentence", ("Sentence", "Text", "Effect"), lines, 2, notes=(note,))


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


def as_dict(explained: Explained) -> dict[str, Any]:
    """Return explanations as JSON values."""
    return {
        "model": explained.model,
        "source": explained.source,
        "not_better": explained.not_better and explained.not_better.model_dump(),
        "rows": [row_dict(found) for found in explained.rows],
    }


def row_dict(found: RowExplanation) -> dict[str, Any]:
    """Return the explanation of a row as JSON values."""
    row, measured = found.row, found.faithfulness
    holds = {method: found.holds(method) for method in found.effects}
    return {
        "row": row.row,
        "prediction": found.predicted,
        "target": found.target.name,
        "smallest_effect": found.target.smallest,
        "output": found.value,
        "output_hidden": found.hidden_value,
        "replacement": found.replacement,
        "num_unread_words": row.num_unread_words,
        "num_orders": measured.num_orders,
        "methods": {
            method: {
                "verdict": measured.verdict(method) or "holds",
                "holds": measured.verdict(method) is None,
                "gain": gain,
                "p_value": measured.p_value(method),
                "completeness_gap": found.gap(method),
            }
            for method, gain in measured.gains.items()
        },
        "sentences": found.sentences.tolist(),
        "words": [
            {
                "text": row.word_text(at),
                "text_index": word.text,
                "start": word.place.start,
                "end": word.place.end,
                "sentence": int(row.sentences[at]),
                "effects": {method: float(values[at]) for method, values in found.effects.items()},
                "holds": {method: bool(values[at]) for method, values in holds.items()},
            }
            for at, word in enumerate(row.words)
        ],
    }
