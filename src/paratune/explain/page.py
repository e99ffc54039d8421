"""Explanations as a report: a page, figures, tables and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.explain.dataset import Correlation, Overview, WordEffect
from paratune.explain.explain import METHODS, RowExplanation, RunAgreement
from paratune.explain.faithfulness import AS_CHANCE, MAX_P, NUM_RANDOM
from paratune.explain.figures import attention_map, bars, curves, removed_parts, strongest_words
from paratune.explain.outputs import Bools, Floats
from paratune.explain.rows import TokenRow
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
from paratune.reports.page.document import made_by
from paratune.reports.report_files import write_page
from paratune.reports.tables.table import Column, Table, TableCell, make_table, number_cell

ORDER_NAMES = METHODS | {
    "attention_last": "attention, last layer (not an explanation)",
    "attention_rollout": "attention, rollout (not an explanation)",
}
_SHOWN_WORDS = 15


@dataclass(frozen=True, eq=False)
class Explained:
    """All that a report of explanations shows."""

    runs: tuple[str, ...]
    source: str
    rows: tuple[tuple[RowExplanation, ...], ...]
    """For each row, the explanation by each run."""
    agreements: tuple[RunAgreement, ...]
    """Of each row; empty for one run."""
    overview: Overview | None

    def shown(self, number: int, method: str) -> tuple[Floats, Bools]:
        """Return the effects that are shown of a row, (W,): means over runs; and which of them hold, (W,)."""
        first = self.rows[number][0]
        holds = all(explanation.faithfulness.holds(method) for explanation in self.rows[number])
        if not self.agreements:
            return first.effects[method].values, np.full(len(first.row.words), holds)
        agreement = self.agreements[number]
        return agreement.means[method], agreement.same_sign[method] & holds


def write_explanations(folder: Path, explained: Explained) -> tuple[Path, ...]:
    """Write the page, the figures and report.json; see `write_page`."""
    return write_page(folder, explanation_document(explained), "explanation", as_dict(explained))


def explanation_document(explained: Explained) -> ReportDocument:
    """Return the report of explanations."""
    first = explained.rows[0][0] if explained.rows else None
    replaced = "" if first is None else f" Hidden words are replaced by {first.replacement}."
    sections = [_row_section(explained, number) for number in range(len(explained.rows))]
    if explained.overview is not None:
        sections.append(_overview_section(explained.overview))
    return ReportDocument(
        title="What drives the output",
        lead=(
            f"{counted(len(explained.rows), 'row')} of {explained.source}, explained by {', '.join(explained.runs)}.",
            "Words with a solid line raise the explained output, words with a dashed line lower it; the stronger the "
            f"colour, the larger the effect. Effects are those of the model, not of the world.{replaced}",
        ),
        sections=tuple(sections),
        footer=made_by(),
    )


def _row_section(explained: Explained, number: int) -> ReportSection:
    explanations = explained.rows[number]
    first = explanations[0]
    key = f"row-{first.row.row}"
    heading = f"Row {first.row.row}: {plain(first.predicted)}" if first.predicted else f"Row {first.row.row}: no answer"
    return ReportSection(key, heading, tuple(_row_parts(explained, number, key)))


def _row_parts(explained: Explained, number: int, key: str) -> Iterator[Part]:
    explanations = explained.rows[number]
    first, row = explanations[0], explanations[0].row
    yield (
        f"Explained: the {first.target.name}. It is {first.value:.4g}, and {first.hidden_value:.4g} with all words "
        "hidden" + (f" (run {explained.runs[0]})." if len(explanations) > 1 else ".")
    )
    if row.num_unread_words:
        yield Notice(f"The model does not read the last {counted(row.num_unread_words, 'word')}: the text is too long.")
    main, *others = first.effects
    values, holds = explained.shown(number, main)
    if not holds.any():
        yield Notice(
            f"These effects {AS_CHANCE}: hiding words in the order of {METHODS[main]} does not change the output more "
            "than random orders do, or the runs disagree on every word. The text has no colours."
        )
    yield marked_text(METHODS[main].capitalize(), row, values, holds)
    for method in others:
        yield marked_text(METHODS[method].capitalize(), row, *explained.shown(number, method), is_closed=True)
    yield strongest_words(f"{key}-words", first, main, values)
    for kind, members, effects in (
        ("sentence", row.sentences, first.sentences),
        ("paragraph", row.paragraphs, first.paragraphs),
    ):
        if len(effects) > 1:
            texts = [row.part_text(members == part) for part in np.unique(members)]
            yield removed_parts(f"{key}-{kind}s", kind, texts, effects)
    yield _methods_table(f"{key}-methods", first)
    yield curves(f"{key}-curves", first)
    if len(first.effects) > 1:
        yield _agreement_table(f"{key}-agreement", first)
    if explained.agreements:
        yield _runs_table(f"{key}-runs", explained, number)
    if (drawing := attention_map(f"{key}-attention", first)) is not None:
        yield drawing


def marked_text(title: str, row: TokenRow, values: Floats, holds: Bools, *, is_closed: bool = False) -> MarkedText:
    """Return the texts of a row with the effects of their words, where they hold; text that is not read is last."""
    marked: list[MarkedWord] = []
    ends = [0] * len(row.texts)
    for number, word in enumerate(row.words):
        text = row.texts[word.text]
        gap = text[ends[word.text] : word.place.start]
        before = "\n" if "\n" in gap else " " if gap else ""
        if word.text == 1 and ends[1] == 0:
            before = "\n\n"
        effect = float(values[number]) if holds[number] else None
        marked.append(MarkedWord(before, row.word_text(number), effect))
        ends[word.text] = word.place.end
    for text, end in zip(row.texts, ends, strict=True):
        if rest := " ".join(text[end:].split()):
            marked.append(MarkedWord("\n", f"[not read: {rest}]", None))
    return MarkedText(title, tuple(marked), is_closed)


def _methods_table(key: str, explanation: RowExplanation) -> Table:
    lines = []
    found = explanation.faithfulness
    for method, curves_of_method in found.methods.items():
        effects = explanation.effects.get(method)
        gap = None if effects is None or not effects.is_complete else explanation.gap(method)
        holds = found.holds(method)
        verdict = "" if effects is None else "holds" if holds else AS_CHANCE
        lines.append(
            (
                TableCell(ORDER_NAMES[method]),
                number_cell(gap, "+.1e"),
                TableCell(signed(curves_of_method.gain), curves_of_method.gain),
                number_cell(found.p_value(method), ".2f"),
                TableCell(verdict or "n/a", better=holds if verdict else None),
            )
        )
    random = [order.gain for order in found.random]
    columns = (
        *(Column("Method", is_text=True), Column("Gap of the sum"), Column("Gain"), Column("p")),
        Column("Verdict", is_text=True),
    )
    notes = (
        "Gap of the sum: sum of the effects minus (output minus output with all words hidden); only integrated "
        "gradients and Shapley values promise 0.",
        f"Gain: mean of the insertion curve minus mean of the deletion curve; random orders have {min(random):.3g} "
        f"to {max(random):.3g}. p: share of {NUM_RANDOM} random orders and this one with at least this gain; up to "
        f"{MAX_P:g} the effects hold.",
    )
    return Table(key, "Completeness and faithfulness", columns, tuple(lines), notes)


def _agreement_table(key: str, explanation: RowExplanation) -> Table:
    lines = [(METHODS[a], METHODS[b], number_cell(rho, ".2f")) for (a, b), rho in explanation.agreement.items()]
    return make_table(key, "Agreement of methods", ("Method", "and", "Spearman's ρ"), lines, 2, is_closed=True)


def _runs_table(key: str, explained: Explained, number: int) -> Table:
    agreement = explained.agreements[number]
    lines = [
        (METHODS[method], number_cell(rho, ".2f"), number_cell(float(agreement.same_sign[method].mean()), ".0%"))
        for method, rho in agreement.correlations.items()
    ]
    values = ", ".join(f"{explanation.value:.3g}" for explanation in explained.rows[number])
    note = (
        f"Outputs of the runs: {values}. Colours are mean effects; words whose effect has different signs are not "
        "coloured."
    )
    header = ("Method", "Mean Spearman's ρ", "Words with the same sign")
    return make_table(key, f"Agreement of {len(explained.runs)} runs", header, lines, 1, notes=(note,))


def _overview_section(overview: Overview) -> ReportSection:
    shown = [effect for effect in overview.words if effect.differs_from_0]
    raising = [effect for effect in shown if effect.mean > 0][:_SHOWN_WORDS]
    lowering = [effect for effect in shown[::-1] if effect.mean < 0][:_SHOWN_WORDS]
    shown = [*raising, *lowering[::-1]]
    parts: list[Part] = [f"Explained in all rows: the {overview.target}."]
    if shown:
        caption = (
            f"Words with the largest mean effects by {METHODS['integrated_gradients']}, of {overview.num_words} words "
            "in at least 5 rows; only words whose 95% interval, corrected for the number of words, excludes 0."
        )
        names = [f"{effect.word} ({effect.num_rows})" for effect in shown]
        values = np.asarray([effect.mean for effect in shown])
        parts += [bars("overview-words", "Words that drive the output", caption, names, values), _words_table(shown)]
    else:
        parts.append(f"No word of {overview.num_words} in at least 5 rows has an effect whose interval excludes 0.")
    parts += [_length_table(overview), Remarks((length_sentence(overview),))]
    return ReportSection("overview", "Over the data set", tuple(parts))


def _words_table(shown: Sequence[WordEffect]) -> Table:
    lines = [
        (
            effect.word,
            number_cell(effect.num_rows, "d"),
            TableCell(signed(effect.mean), effect.mean),
            TableCell(f"{signed(effect.low)} to {signed(effect.high)}", effect.low),
        )
        for effect in shown
    ]
    header = ("Word", "Rows", "Mean effect", "Interval")
    return make_table("overview-word-effects", "Mean effects of words", header, lines, 1, is_closed=True)


def _length_table(overview: Overview) -> Table:
    bias = overview.length
    lines = [
        (name, number_cell(found.rho if found else None, "+.2f"), _interval(found))
        for name, found in (
            ("output and length", bias.output),
            ("label and length", bias.label),
            ("output and length, label held constant", bias.partial),
        )
    ]
    header = ("Spearman's ρ of", "ρ", "95% interval")
    return make_table("overview-length", f"Length in words, {bias.num_rows} rows", header, lines, 1)


def _interval(found: Correlation | None) -> str:
    return "n/a" if found is None or found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"


def length_sentence(overview: Overview) -> str:
    """Return what the partial correlation means, in words."""
    partial = overview.length.partial
    if partial is None or partial.low is None or partial.high is None:
        return (
            "Whether the output follows the length beyond the label is unknown: there are no labels, or too few rows."
        )
    if partial.low <= 0 <= partial.high:
        return f"With the label held constant, a dependence of the output on the length {AS_CHANCE}."
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
        "rows": [_row_dict(explained, number) for number in range(len(explained.rows))],
        "overview": None if overview is None else _overview_dict(overview),
    }


def _row_dict(explained: Explained, number: int) -> dict[str, Any]:
    explanations = explained.rows[number]
    first, row = explanations[0], explanations[0].row
    shown = {method: explained.shown(number, method) for method in first.effects}
    words = [
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
    ]
    attention = first.attention
    return {
        "row": row.row,
        "prediction": first.predicted,
        "target": first.target.name,
        "output": [explanation.value for explanation in explanations],
        "output_hidden": [explanation.hidden_value for explanation in explanations],
        "replacement": first.replacement,
        "num_unread_words": row.num_unread_words,
        "num_passes": first.num_passes,
        "methods": {method: _method_dict(first, method) for method in first.faithfulness.methods},
        "random_gains": [order.gain for order in first.faithfulness.random],
        "agreement": [{"methods": list(pair), "rho": value} for pair, value in first.agreement.items()],
        "run_agreement": dict(explained.agreements[number].correlations) if explained.agreements else None,
        "sentences": first.sentences.tolist(),
        "paragraphs": first.paragraphs.tolist(),
        "attention": None
        if attention is None
        else {"last": attention.last.tolist(), "rollout": attention.rollout.tolist()},
        "words": words,
    }


def _method_dict(explanation: RowExplanation, method: str) -> dict[str, Any]:
    effects, found = explanation.effects.get(method), explanation.faithfulness
    return {
        "details": effects and effects.details,
        "completeness_gap": explanation.gap(method) if effects and effects.is_complete else None,
        "gain": found.methods[method].gain,
        "p_value": found.p_value(method),
        "holds": effects and found.holds(method),
        "deletion": found.methods[method].deletion.tolist(),
        "insertion": found.methods[method].insertion.tolist(),
    }


def _overview_dict(overview: Overview) -> dict[str, Any]:
    length = asdict(overview.length)
    return {
        "target": overview.target,
        "num_rows": length.pop("num_rows"),
        "length": length,
        "words": [vars(effect) | {"holds": effect.differs_from_0} for effect in overview.words],
    }
