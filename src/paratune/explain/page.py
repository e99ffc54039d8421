"""Explanations as a report: a page, tables and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.explain.dataset import Correlation, Overview
from paratune.explain.explain import METHODS, RowExplanation
from paratune.explain.faithfulness import AS_CHANCE, MAX_P
from paratune.explain.figures import attention_map, curves
from paratune.explain.outputs import Bools, Floats
from paratune.records.constant import ConstantComparison
from paratune.reports.document import (
    MarkedText,
    MarkedWord,
    Notice,
    Part,
    Remarks,
    ReportDocument,
    ReportSection,
    signed,
)
from paratune.reports.output import write_page
from paratune.reports.page.document import made_by
from paratune.reports.tables.table import Table, TableCell, make_table, number_cell
from paratune.reports.text import shorten
from paratune.verdicts.scoring import rank_correlation

FULL_COLOUR = 10
"""An effect of so many smallest effects has the full colour, also where it is the largest one."""
_MOST_WORDS, _MOST_PARTS, _OVERVIEW_WORDS = 8, 20, 15


@dataclass(frozen=True, eq=False)
class Explained:
    """All that a report of explanations shows."""

    runs: tuple[str, ...]
    source: str
    rows: tuple[tuple[RowExplanation, ...], ...]
    """For each row, the explanation by each run."""
    overview: Overview | None = None
    not_better: tuple[ConstantComparison, ...] = ()
    """Of the runs whose model is not better than a constant answer."""

    def shown(self, number: int, method: str) -> tuple[Floats, Bools]:
        """Return the effects on a row, (W,): means over runs; and which of them hold, (W,).

        The order of the words holds in every run, and the effect has one sign in all runs and counts.
        """
        runs = self.rows[number]
        values = np.stack([explanation.effects[method] for explanation in runs])
        mean: Floats = values.mean(axis=0)
        holds = self.verdict(number, method) is None
        is_same = np.abs(np.sign(values).sum(axis=0)) == len(runs)
        return mean, holds & is_same & (np.abs(mean) >= runs[0].target.smallest)

    def verdict(self, number: int, method: str) -> str | None:
        """Return why the effects of a method do not hold in a run; None where they hold in all runs."""
        verdicts = (explanation.faithfulness.verdict(method) for explanation in self.rows[number])
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def strongest(self, number: int, method: str, count: int) -> list[tuple[str, float]]:
        """Return the words with the largest effects that hold, and these effects."""
        values, holds = self.shown(number, method)
        order = np.argsort(-np.abs(values) * holds, kind="stable")[: min(count, int(holds.sum()))]
        return [(self.rows[number][0].row.word_text(at), float(values[at])) for at in order.tolist()]

    def run_agreement(self, number: int, method: str) -> float | None:
        """Return the mean of Spearman's correlation of the effects over pairs of runs; None for one run."""
        values = [found.effects[method] for found in self.rows[number] if method in found.effects]
        known = [rho for a, b in combinations(values, 2) if (rho := rank_correlation(a, b)) is not None]
        return float(np.mean(known)) if known else None


def write_explanations(folder: Path, explained: Explained) -> tuple[Path, ...]:
    """Write the page and report.json; see `write_page`."""
    return write_page(folder, explanation_document(explained), "explanation", as_dict(explained))


def explanation_document(explained: Explained) -> ReportDocument:
    """Return the report of explanations: of each row the text, the verdict and the top words; the rest on request."""
    sections: list[ReportSection] = []
    for number, (first, *_) in enumerate(explained.rows):
        key, name = f"row-{first.row.row}", f"Row {first.row.row}"
        heading = f"{name}: {plain(first.predicted)}" if first.predicted else f"{name}: no answer"
        sections.append(ReportSection(key, heading, tuple(_row_parts(explained, number, key))))
        details = tuple(_details(explained, number, key))
        sections.append(ReportSection(f"{key}-details", f"{name}: details", details, is_short=False))
    if explained.overview is not None:
        sections.append(ReportSection("overview", "Over the data set", tuple(_overview_parts(explained.overview))))
    return ReportDocument(
        title="What drives the output",
        lead=(
            f"{counted(len(explained.rows), 'row')} of {explained.source}, explained by {', '.join(explained.runs)}.",
            "Words with a solid line raise the explained output, words with a dashed line lower it; the stronger the "
            "colour, the larger the effect. Effects are those of the model, not of the world.",
        ),
        sections=tuple(sections),
        footer=made_by(),
        notices=tuple(Notice(found.warning) for found in explained.not_better),
    )


def _row_parts(explained: Explained, number: int, key: str) -> Iterator[Part]:
    explanations = explained.rows[number]
    first, row = explanations[0], explanations[0].row
    yield (
        f"Explained: the {first.target.name}. It is {first.value:.4g}, and {first.hidden_value:.4g} with all words "
        f"replaced by {first.replacement}" + (f" (run {explained.runs[0]})." if len(explanations) > 1 else ".")
    )
    if row.num_unread_words:
        yield Notice(f"The model does not read the last {counted(row.num_unread_words, 'word')}: the text is too long.")
    main = next(iter(first.effects))
    yield _verdict(explained, number, main)
    yield marked_text(explained, number, main)
    if strongest := explained.strongest(number, main, _MOST_WORDS):
        lines = [(word, TableCell(signed(value), value)) for word, value in strongest]
        yield make_table(f"{key}-words", "Words with the largest effects", ("Word", "Effect"), lines, 1)


def _verdict(explained: Explained, number: int, method: str) -> Part:
    """Return whether the effects hold, in words; a warning where they do not."""
    first = explained.rows[number][0]
    found, name = first.faithfulness, METHODS[method].capitalize()
    compared = f"p = {found.p_value(method):.3f} against {found.num_orders - 1} other orders of the words"
    verdict = explained.verdict(number, method)
    if verdict is not None:
        reason = f"The effects {verdict if verdict == AS_CHANCE else f'are {verdict}'}"
        return Notice(f"{reason}: {name}, {compared}. The text has no colours.")
    count = int(explained.shown(number, method)[1].sum())
    smallest = f"an effect counts from {first.target.smallest:.2g}"
    if not count:
        return Notice(f"No word has an effect that counts: {name}, {smallest}. The text has no colours.")
    return f"The effects hold: {name}, {compared}. {count} of {len(first.row.words)} words count; {smallest}."


def marked_text(explained: Explained, number: int, method: str, *, is_closed: bool = False) -> MarkedText:
    """Return the texts of a row with the effects of their words, where they hold; text that is not read is last."""
    first = explained.rows[number][0]
    row, (values, holds) = first.row, explained.shown(number, method)
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
    return MarkedText(METHODS[method].capitalize(), tuple(marked), is_closed, FULL_COLOUR * first.target.smallest)


def _details(explained: Explained, number: int, key: str) -> Iterator[Part]:
    first = explained.rows[number][0]
    for method in list(first.effects)[1:]:
        if explained.strongest(number, method, 1):
            yield marked_text(explained, number, method, is_closed=True)
    yield _methods_table(f"{key}-methods", explained, number)
    for kind, members, effects in (
        ("sentence", first.row.sentences, first.sentences),
        ("paragraph", first.row.paragraphs, first.paragraphs),
    ):
        if len(effects) > 1:
            texts = [first.row.part_text(members == part) for part in np.unique(members)]
            yield _parts_table(f"{key}-{kind}s", kind, texts, effects, first.target.smallest)
    yield curves(f"{key}-curves", first)
    if first.attention is not None:
        yield attention_map(f"{key}-attention", first.row, first.attention)


def _parts_table(key: str, kind: str, texts: Sequence[str], effects: Floats, smallest: float) -> Table:
    """Return the effects of hiding parts; of many, the largest ones, in the order of the text."""
    chosen = np.sort(np.argsort(-np.abs(effects), kind="stable")[:_MOST_PARTS])
    lines = [
        (f"{at + 1}", shorten(" ".join(texts[at].split()), 80), TableCell(signed(effects[at]), float(effects[at])))
        for at in chosen.tolist()
        if abs(effects[at]) >= smallest
    ]
    note = (
        f"Effect: how much the output falls when the words of the {kind} are hidden together. "
        f"{len(lines)} of {len(effects)} are shown: effects from {smallest:.2g}, the {_MOST_PARTS} largest at most."
    )
    return make_table(key, f"Effect of each {kind}", (kind.capitalize(), "Text", "Effect"), lines, 2, notes=(note,))


def _methods_table(key: str, explained: Explained, number: int) -> Table:
    """Return completeness and faithfulness of the methods, and how far runs agree."""
    first = explained.rows[number][0]
    found = first.faithfulness
    lines: list[tuple[str | TableCell, ...]] = [
        (
            METHODS.get(method, "attention, last layer (not an explanation)"),
            (explained.verdict(number, method) or "holds") if method in first.effects else "n/a",
            number_cell(first.gap(method), "+.1e"),
            TableCell(signed(found.gain(method)), found.gain(method)),
            number_cell(found.p_value(method), ".3f"),
            number_cell(explained.run_agreement(number, method), ".2f"),
        )
        for method in found.methods
    ]
    notes = [
        "Gap of the sum: sum of the effects minus (output minus output with all words hidden); only integrated "
        "gradients and Shapley values promise 0.",
        f"Gain: mean of the insertion curve minus mean of the deletion curve. p: share of {found.num_orders} orders of "
        f"the words, this one included, with at least this gain; up to {MAX_P:g} the effects hold, if the gain is at "
        f"least {found.smallest:.2g}.",
    ]
    if len(explained.runs) > 1:
        outputs = ", ".join(f"{explanation.value:.3g}" for explanation in explained.rows[number])
        notes.append(f"Colours are mean effects of the runs; gap, gain and p are of the first. Outputs: {outputs}.")
    header = ("Method", "Verdict", "Gap of the sum", "Gain", "p", "Spearman's ρ of pairs of runs")
    shown = slice(None if len(explained.runs) > 1 else -1)
    title = "Completeness and faithfulness"
    return make_table(key, title, header[shown], [line[shown] for line in lines], 2, notes=notes)


def _overview_parts(overview: Overview) -> Iterator[Part]:
    yield f"Explained in all rows: the {overview.target}."
    shown = [effect for effect in overview.words if effect.counts]
    raising = [effect for effect in shown if effect.mean > 0][:_OVERVIEW_WORDS]
    lowering = [effect for effect in shown if effect.mean < 0][-_OVERVIEW_WORDS:]
    if shown:
        lines = [
            (
                effect.word,
                number_cell(effect.num_rows, "d"),
                TableCell(signed(effect.mean), effect.mean),
                TableCell(f"{signed(effect.low)} to {signed(effect.high)}", effect.low),
            )
            for effect in [*raising, *lowering]
        ]
        note = (
            f"Mean effects by {METHODS['integrated_gradients']}, of {overview.num_words} words in at least 5 rows; "
            f"only those from {overview.smallest:.2g} whose 95% interval (Bonferroni, all words) excludes 0."
        )
        header = ("Word", "Rows", "Mean effect", "Interval")
        yield make_table("overview-words", "Words that drive the output", header, lines, 1, notes=(note,))
    else:
        yield (
            f"No word of {overview.num_words} in at least 5 rows has a mean effect from {overview.smallest:.2g} whose "
            "interval excludes 0."
        )
    names = {
        "output": "output and length",
        "label": "label and length",
        "partial": "output and length, label held constant",
    }
    rows = [
        (names[key], number_cell(found.rho if found else None, "+.2f"), _interval(found))
        for key, found in overview.length.items()
    ]
    title = f"Length in words, {overview.num_rows} rows"
    yield make_table("overview-length", title, ("Spearman's ρ of", "ρ", "95% interval"), rows, 1)
    yield Remarks((length_sentence(overview),))


def _interval(found: Correlation | None) -> str:
    return "n/a" if found is None or found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"


def length_sentence(overview: Overview) -> str:
    """Return what the partial correlation means, in words."""
    partial = overview.length["partial"]
    if partial is None or partial.rho is None or partial.low is None or partial.high is None:
        return (
            "Whether the output follows the length beyond the label is unknown: there are no labels, or too few rows."
        )
    if partial.low <= 0 <= partial.high:
        return f"With the label held constant, a dependence of the output on the length {AS_CHANCE}."
    if not partial.counts:
        return "With the label held constant, the dependence of the output on the length is too small to count."
    way = "higher" if partial.low > 0 else "lower"
    return (
        f"Of texts with equal labels, longer ones get {way} outputs: the model has a length bias, or length carries "
        "quality that the label does not have."
    )


def as_dict(explained: Explained) -> dict[str, Any]:
    """Return explanations as JSON values."""
    overview = explained.overview
    return {
        "runs": list(explained.runs),
        "source": explained.source,
        "not_better": [found.model_dump() for found in explained.not_better],
        "rows": [_row_dict(explained, number) for number in range(len(explained.rows))],
        "overview": overview
        and asdict(overview) | {"words": [asdict(effect) | {"counts": effect.counts} for effect in overview.words]},
    }


def _row_dict(explained: Explained, number: int) -> dict[str, Any]:
    explanations = explained.rows[number]
    first, row = explanations[0], explanations[0].row
    shown = {method: explained.shown(number, method) for method in first.effects}
    return {
        "row": row.row,
        "prediction": first.predicted,
        "target": first.target.name,
        "smallest_effect": first.target.smallest,
        "output": [explanation.value for explanation in explanations],
        "output_hidden": [explanation.hidden_value for explanation in explanations],
        "replacement": first.replacement,
        "num_unread_words": row.num_unread_words,
        "num_passes": first.num_passes,
        "num_orders": first.faithfulness.num_orders,
        "methods": {method: _method_dict(explained, number, method) for method in first.faithfulness.methods},
        "sentences": first.sentences.tolist(),
        "paragraphs": first.paragraphs.tolist(),
        "words": [
            {
                "text": row.word_text(at),
                "text_index": word.text,
                "start": word.place.start,
                "end": word.place.end,
                "sentence": int(row.sentences[at]),
                "paragraph": int(row.paragraphs[at]),
                "effects": {method: float(values[at]) for method, (values, _) in shown.items()},
                "holds": {method: bool(holds[at]) for method, (_, holds) in shown.items()},
            }
            for at, word in enumerate(row.words)
        ],
    }


def _method_dict(explained: Explained, number: int, method: str) -> dict[str, Any]:
    first = explained.rows[number][0]
    found = first.faithfulness
    deletion, insertion = found.methods[method].tolist()
    values = {
        "gain": found.gain(method),
        "p_value": found.p_value(method),
        "deletion": deletion,
        "insertion": insertion,
    }
    if method not in first.effects:
        return values | {"holds": None}
    verdict = explained.verdict(number, method)
    return values | {
        "completeness_gap": first.gap(method),
        "holds": verdict is None,
        "verdict": verdict or "holds",
        "run_agreement": explained.run_agreement(number, method),
    }
