"""Explanations as a report: a page, figures, tables and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from paratune.reports.figures.canvas import drawing_files
from paratune.reports.output import MARKER, json_text, write_files
from paratune.reports.page.document import document_html, made_by
from paratune.reports.report_files import PAGE
from paratune.reports.tables.table import Column, Table, TableCell
from paratune.reports.text import GENERATOR

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
    """Write the page, the figures (SVG, PNG) and report.json, all or none.

    Raises:
        CheckpointError: The folder cannot be written to, or holds files of these names that are not a report's.
    """
    document = explanation_document(explained)
    files: dict[str, str | bytes] = {PAGE: document_html(document), **drawing_files(document.drawings)}
    names = [str(folder / name) for name in (*files, MARKER)]
    parts = {"generator": GENERATOR, "kind": "explanation", "files": names, **as_dict(explained)}
    return write_files(folder, {**files, MARKER: json_text(parts)})


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
        p = found.p_value(method)
        lines.append(
            (
                TableCell(ORDER_NAMES[method]),
                TableCell("n/a" if gap is None else f"{gap:+.1e}", gap),
                TableCell(signed(curves_of_method.gain), curves_of_method.gain),
                TableCell(f"{p:.2f}", p),
                TableCell(verdict or "n/a", better=holds if verdict else None),
            )
        )
    random = [order.gain for order in found.random]
    return Table(
        key,
        "Completeness and faithfulness",
        (
            Column("Method", "method", is_text=True),
            Column("Gap of the sum", "completeness_gap"),
            Column("Gain", "gain"),
            Column("p", "p_value"),
            Column("Verdict", "verdict", is_text=True),
        ),
        tuple(lines),
        notes=(
            "Gap of the sum: sum of the effects minus (output minus output with all words hidden); only integrated "
            "gradients and Shapley values promise 0.",
            f"Gain: mean of the insertion curve minus mean of the deletion curve; random orders have {min(random):.3g} "
            f"to {max(random):.3g}. p: share of {NUM_RANDOM} random orders and this one with at least this gain; up to "
            f"{MAX_P:g} the effects hold.",
        ),
    )


def _agreement_table(key: str, explanation: RowExplanation) -> Table:
    lines = tuple(
        (TableCell(METHODS[a]), TableCell(METHODS[b]), TableCell("n/a" if value is None else f"{value:.2f}", value))
        for (a, b), value in explanation.agreement.items()
    )
    columns = (
        Column("Method", "method", is_text=True),
        Column("and", "other_method", is_text=True),
        Column("Spearman's ρ", "rho"),
    )
    return Table(key, "Agreement of methods", columns, lines, is_closed=True)


def _runs_table(key: str, explained: Explained, number: int) -> Table:
    agreement = explained.agreements[number]
    lines = []
    for method, value in agreement.correlations.items():
        share = float(agreement.same_sign[method].mean())
        lines.append(
            (
                TableCell(METHODS[method]),
                TableCell("n/a" if value is None else f"{value:.2f}", value),
                TableCell(f"{share:.0%}", share),
            )
        )
    values = ", ".join(f"{explanation.value:.3g}" for explanation in explained.rows[number])
    return Table(
        key,
        f"Agreement of {len(explained.runs)} runs",
        (
            Column("Method", "method", is_text=True),
            Column("Mean Spearman's ρ", "rho"),
            Column("Words with the same sign", "same_sign_share"),
        ),
        tuple(lines),
        notes=(
            f"Outputs of the runs: {values}. Colours are mean effects; words whose effect has different signs are not "
            "coloured.",
        ),
    )


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
    lines = tuple(
        (
            TableCell(effect.word),
            TableCell(str(effect.num_rows), effect.num_rows),
            TableCell(signed(effect.mean), effect.mean, interval=(effect.low, effect.high)),
            TableCell(f"{signed(effect.low)} to {signed(effect.high)}", effect.low),
        )
        for effect in shown
    )
    columns = (
        Column("Word", "word", is_text=True),
        Column("Rows", "num_rows"),
        Column("Mean effect", "mean_effect"),
        Column("Interval", "low"),
    )
    return Table("overview-word-effects", "Mean effects of words", columns, lines, is_closed=True)


def _length_table(overview: Overview) -> Table:
    bias = overview.length
    lines = []
    for name, found in (
        ("output and length", bias.output),
        ("label and length", bias.label),
        ("output and length, label held constant", bias.partial),
    ):
        value = None if found is None else found.value
        lines.append(
            (
                TableCell(name),
                TableCell("n/a" if value is None else f"{value:+.2f}", value),
                TableCell(_interval(found)),
            )
        )
    columns = (Column("Spearman's ρ of", "pair", is_text=True), Column("ρ", "rho"), Column("95% interval", "interval"))
    return Table("overview-length", f"Length in words, {bias.num_rows} rows", columns, tuple(lines))


def _interval(found: Correlation | None) -> str:
    return "n/a" if found is None or found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"


def length_sentence(overview: Overview) -> str:
    """Return what the partial correlation tells."""
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
    found = first.faithfulness
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
        "methods": {
            method: {
                "details": first.effects[method].details if method in first.effects else None,
                "completeness_gap": first.gap(method)
                if method in first.effects and first.effects[method].is_complete
                else None,
                "gain": curves_of_method.gain,
                "p_value": found.p_value(method),
                "holds": found.holds(method) if method in first.effects else None,
                "deletion": curves_of_method.deletion.tolist(),
                "insertion": curves_of_method.insertion.tolist(),
            }
            for method, curves_of_method in found.methods.items()
        },
        "random_gains": [order.gain for order in found.random],
        "agreement": [{"methods": list(pair), "rho": value} for pair, value in first.agreement.items()],
        "run_agreement": dict(explained.agreements[number].correlations) if explained.agreements else None,
        "sentences": first.sentences.tolist(),
        "paragraphs": first.paragraphs.tolist(),
        "attention": None
        if attention is None
        else {"last": attention.last.tolist(), "rollout": attention.rollout.tolist()},
        "words": words,
    }


def _overview_dict(overview: Overview) -> dict[str, Any]:
    def correlation(found: Correlation | None) -> dict[str, Any] | None:
        return None if found is None else {"rho": found.value, "low": found.low, "high": found.high}

    bias = overview.length
    return {
        "target": overview.target,
        "num_rows": bias.num_rows,
        "length": {
            "output": correlation(bias.output),
            "label": correlation(bias.label),
            "partial": correlation(bias.partial),
        },
        "words": [
            {
                "word": effect.word,
                "num_rows": effect.num_rows,
                "mean": effect.mean,
                "low": effect.low,
                "high": effect.high,
                "holds": effect.differs_from_0,
            }
            for effect in overview.words
        ],
    }
