"""Feedback as pages: one for each essay, and an overview of the class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.units import counted
from paratune.explain.faithfulness import AS_CHANCE
from paratune.feedback.feedback import EssayFeedback, Reference, ScoreCalibration
from paratune.feedback.human import SIGNALS, HumanRule, ShareSent
from paratune.feedback.removal import ROUNDING, RemovedPart
from paratune.reports.document import (
    MarkedText,
    MarkedWord,
    Notice,
    Part,
    QuotedTexts,
    Remarks,
    ReportDocument,
    ReportSection,
    shown_sections,
    signed,
)
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing
from paratune.reports.page.document import document_html, made_by
from paratune.reports.report_files import write_page
from paratune.reports.tables.table import Column, Table, TableCell, make_table, number_cell
from paratune.reports.text import shorten

FOLDER = "essays"
_NUM_STRONGEST = 3
_LIMITS = (
    "The score is that of a model trained on the scores of examiners; it has no information about the writer.",
    "A part that raises or lowers the score is one on which the model relies. That is no proof that the part is good "
    "or bad, and changing it need not change the score of an examiner.",
    "Lengths and repetitions are counted; a teacher decides whether they matter.",
)


@dataclass(frozen=True, eq=False)
class ClassFeedback:
    """Feedback on all essays of a file."""

    run: str
    source: str
    calibration: ScoreCalibration
    essays: tuple[EssayFeedback, ...]
    reference: Reference | None


def write_feedback(folder: Path, feedback: ClassFeedback) -> tuple[Path, ...]:
    """Write the overview, a page for each essay, figures and report.json; see `write_page`."""
    pages = {essay_file(essay): document_html(essay_document(feedback, essay)) for essay in feedback.essays}
    return write_page(folder, class_document(feedback), "feedback", as_dict(feedback), pages)


def essay_file(essay: EssayFeedback) -> str:
    """Return the name of the page of an essay."""
    return f"{FOLDER}/row-{essay.row}.html"


def essay_name(essay: EssayFeedback) -> str:
    """Return the name of an essay for readers."""
    return f"Essay {essay.id}" if essay.id is not None else f"Essay in row {essay.row}"


def interval_text(calibration: ScoreCalibration, essay: EssayFeedback) -> str:
    """Return the interval of an essay; of ordered classes with their names."""
    low, high = essay.interval
    if calibration.names:
        first, last = calibration.text(np.ceil(low - 1e-9)), calibration.text(np.floor(high + 1e-9))
        return first if first == last else f"{first} to {last}"
    return f"{low:.1f} to {high:.1f}"


def essay_document(feedback: ClassFeedback, essay: EssayFeedback) -> ReportDocument:
    """Return the page of an essay."""
    calibration = feedback.calibration
    notices = []
    if essay.is_sent:
        rule = calibration.rule
        signal = SIGNALS[rule.signal]
        notices.append(Notice(f"For a person: this essay is among the {rule.share:.0%} with the largest {signal}."))
    if essay.is_truncated:
        notices.append(Notice("The model does not read the end of this essay: it is too long."))
    sections = (
        ReportSection("score", "Score", tuple(_score_parts(calibration, essay))),
        ReportSection("parts", "What the score rests on", tuple(_removal_parts(calibration, essay))),
        ReportSection("counts", "What can be counted", tuple(_count_parts(essay))),
        ReportSection("similar", "Similar essays", tuple(_similar_parts(feedback, essay))),
        ReportSection("limits", "Limits of this page", (Remarks(_LIMITS),)),
    )
    return ReportDocument(
        title=essay_name(essay),
        lead=(essay.prompt or f"From {feedback.source}", f"Model: {feedback.run}."),
        sections=shown_sections(sections),
        footer=made_by(),
        notices=tuple(notices),
    )


def _score_parts(calibration: ScoreCalibration, essay: EssayFeedback) -> Iterator[Part]:
    is_rounded = bool(calibration.names) or calibration.scale.step is not None
    before = f" ({essay.predicted:.2f} before rounding)" if is_rounded else ""
    yield (
        f"The model gives {calibration.text(essay.predicted)}{before}. The interval is "
        f"{interval_text(calibration, essay)}: it is made to contain the examiner's score of "
        f"{calibration.level:.0%} of all essays of this kind."
    )
    yield coverage_sentence(calibration)


def coverage_sentence(calibration: ScoreCalibration) -> str:
    """Return a sentence about the coverage on the test set."""
    found = calibration.coverage
    if found is None:
        return "Whether it does is not known: the run has no test set."
    sentence = (
        f"In the test set, {found.num_inside} of {found.num_rows} scores are inside their intervals "
        f"({found.share:.0%}, 95% interval {found.low:.0%} to {found.high:.0%})"
    )
    return sentence + (
        "." if found.is_kept else f": fewer than promised (p = {found.p_value:.2g}). Read the intervals as too narrow."
    )


def _removal_parts(calibration: ScoreCalibration, essay: EssayFeedback) -> Iterator[Part]:
    sentences = essay.sentences
    if not sentences:
        yield "The essay has one sentence; nothing can be removed from it."
        return
    yield (
        "Each sentence is removed once, and the rest is scored again. A solid line: the score is lower without the "
        "sentence, so it raises the score. A dashed line: the score is higher without it."
    )
    yield MarkedText("The essay", tuple(_marked(essay.text, sentences)))
    if strongest := _strongest(sentences):
        yield "Sentences with the largest effects on the score:"
        yield _quoted(strongest)
    else:
        yield "No sentence alone changes the score."
    paragraphs = [part for part in essay.parts if part.kind == "paragraph"]
    if paragraphs:
        yield "Paragraphs:"
        yield _quoted(paragraphs)
    width = 2 * calibration.half
    yield f"For comparison: the interval of the score is {width:.2g} wide."


def _marked(text: str, sentences: Sequence[RemovedPart]) -> Iterator[MarkedWord]:
    end = 0
    for part in sentences:
        gap = text[end : part.place.start]
        yield MarkedWord("\n" if "\n" in gap else " " if gap else "", part.text, part.effect)
        end = part.place.end


def _strongest(parts: Sequence[RemovedPart]) -> list[RemovedPart]:
    """Return the parts that raise the score most, then those that lower it most."""
    ordered = sorted(parts, key=lambda part: -part.effect)
    raising = [part for part in ordered if part.effect > ROUNDING][:_NUM_STRONGEST]
    lowering = [part for part in ordered if part.effect < -ROUNDING][-_NUM_STRONGEST:]
    return [*raising, *lowering]


def _quoted(parts: Sequence[RemovedPart]) -> QuotedTexts:
    return QuotedTexts(
        tuple((f"effect {signed(part.effect)}", shorten(" ".join(part.text.split()), 240)) for part in parts)
    )


def _count_parts(essay: EssayFeedback) -> Iterator[Part]:
    facts = essay.facts
    lines = [
        ("Words", f"{facts.num_words}"),
        ("Sentences", f"{facts.num_sentences}"),
        ("Paragraphs", f"{facts.num_paragraphs}"),
        ("Words in a sentence, mean", f"{facts.words_per_sentence:.1f}"),
        ("Different words", f"{facts.different_words_share:.0%}"),
    ]
    yield make_table("counts-table", "Counts", ("Count", "Value"), lines, 1)
    if (usual := essay.usual) is not None:
        kind = "with the same question" if usual.same_prompt else "of the reference"
        low, middle, high = usual.quartiles
        yield (
            f"Half of {counted(usual.num_texts, 'essay')} {kind} have {low:.0f} to {high:.0f} words (median "
            f"{middle:.0f}); {usual.share_below:.0%} are shorter than this one."
        )
    if facts.repeated_phrases:
        phrases = (f"“{phrase}”: {count} times" for phrase, count in facts.repeated_phrases)
        yield "Phrases of three or more words that occur at least three times:"
        yield Remarks(tuple(phrases))
    else:
        yield "No phrase of three or more words occurs three times."


def _similar_parts(feedback: ClassFeedback, essay: EssayFeedback) -> Iterator[Part]:
    reference = feedback.reference
    if reference is None or not essay.neighbours:
        return
    yield f"Essays of {reference.source} that share most words with this one, with the score that examiners gave."
    rows = [
        (
            f"score {reference.labels[found.index]}, similarity {found.similarity:.2f}",
            shorten(" ".join(reference.texts[found.index].split()), 400),
        )
        for found in essay.neighbours
    ]
    yield QuotedTexts(tuple(rows))


def class_document(feedback: ClassFeedback) -> ReportDocument:
    """Return the overview of the class."""
    calibration = feedback.calibration
    rule = calibration.rule
    notices = []
    if calibration.coverage is not None and not calibration.coverage.is_kept:
        notices.append(Notice(coverage_sentence(calibration)))
    sections = (
        ReportSection("essays", "Essays", (_essays_table(feedback), *_scores_drawing(feedback))),
        ReportSection("coverage", "Intervals", tuple(_coverage_parts(calibration))),
        ReportSection("person", "Which essays a person should read", tuple(_rule_parts(rule))),
        ReportSection("limits", "Limits of these pages", (Remarks(_LIMITS),)),
    )
    num_sent = sum(essay.is_sent for essay in feedback.essays)
    sent = f"; {counted(num_sent, 'essay')} for a person" if rule.threshold is not None else ""
    return ReportDocument(
        title="Feedback",
        lead=(f"{counted(len(feedback.essays), 'essay')} of {feedback.source}, scored by {feedback.run}{sent}.",),
        sections=sections,
        footer=made_by(),
        notices=tuple(notices),
    )


def _essays_table(feedback: ClassFeedback) -> Table:
    calibration = feedback.calibration
    lines = []
    for essay in feedback.essays:
        strongest = _strongest(essay.sentences)
        low = strongest[-1] if strongest and strongest[-1].effect < 0 else None
        lines.append(
            (
                TableCell(essay_name(essay), link=essay_file(essay)),
                TableCell(calibration.text(essay.predicted), essay.predicted),
                TableCell(interval_text(calibration, essay)),
                number_cell(essay.facts.num_words, "d"),
                TableCell("yes" if essay.is_sent else "no"),
                TableCell(shorten(low.text, 60) if low else "n/a"),
            )
        )
    columns = (
        *(Column("Essay", is_text=True), Column("Score"), Column(f"{calibration.level:.0%} interval"), Column("Words")),
        *(Column("For a person", is_text=True), Column("Sentence that lowers the score most", is_text=True)),
    )
    return Table("essays-table", "Essays", columns, tuple(lines))


def _scores_drawing(feedback: ClassFeedback) -> list[Drawing]:
    calibration = feedback.calibration
    values = np.asarray([essay.predicted for essay in feedback.essays])
    if len(values) < 2:
        return []
    order = np.argsort(values, kind="stable")
    intervals = np.asarray([feedback.essays[at].interval for at in order])

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        places = np.arange(len(values))
        axes.vlines(places, intervals[:, 0], intervals[:, 1], color=MUTED, linewidth=max(0.4, 3 - len(values) / 60))
        axes.plot(places, values[order], "o", color=RUN_COLOURS[0], markersize=max(2.0, 5 - len(values) / 60))
        axes.set_xticks([])
        axes.set_xlabel("essays, by score")
        axes.set_ylabel("score" if not calibration.names else "class, from 0")
        axes.grid(axis="y")

    caption = f"Predicted scores before rounding (dots) and their {calibration.level:.0%} intervals (lines)."
    return [Drawing("scores", "Scores of the class", caption, draw, 2.6)]


def _coverage_parts(calibration: ScoreCalibration) -> Iterator[Part]:
    yield (
        f"An interval is the score ± {calibration.half:.2f}, cut off at the limits of the scale. The half-width is "
        f"chosen on {calibration.num_rows} validation essays so that {calibration.level:.0%} of essays of the same "
        "kind are inside (split conformal prediction)."
    )
    yield coverage_sentence(calibration)


def _rule_parts(rule: HumanRule) -> Iterator[Part]:
    known = "n/a" if rule.correlation is None else signed(round(rule.correlation, 2))
    yield (
        f"Essays are ordered by the {SIGNALS[rule.signal]}, the signal that follows the errors on the validation set "
        f"best (Spearman's ρ {known}). The agreement is Cohen's kappa with quadratic weights (QWK) of all scores with "
        "the examiners', when a person gives the examiner's score to the share that is sent."
    )
    for split, lines in rule.tables.items():
        yield _share_table(split, lines)
    if not rule.is_known:
        yield Notice("No signal grows with the errors on the validation set. No essay is marked.")
        return
    if not rule.beats_chance:
        yield Notice(
            f"This signal {AS_CHANCE}: sending essays by it gives no higher agreement than sending as many at random. "
            "The gain in the table comes from the person alone."
        )
    if rule.wanted is None:
        yield "No essay is marked for a person: --agreement was not given."
    elif rule.share is None:
        yield f"No share up to 50% reaches a QWK of {rule.wanted:g} on the validation set: no essay is marked."
    else:
        test = next((line for line in rule.tables.get("test", ()) if line.share == rule.share), None)
        there = "" if test is None or test.qwk is None else f"; on the test set this share reaches {test.qwk:.2f}"
        yield f"For a QWK of {rule.wanted:g}, {rule.share:.0%} are sent, chosen on the validation set{there}."


def _share_table(split: str, lines: Sequence[ShareSent]) -> Table:
    rows = [
        (
            f"{line.share:.0%}",
            number_cell(line.num_sent, "d"),
            number_cell(line.qwk, ".3f"),
            number_cell(line.qwk_kept, ".3f"),
            _random_cell(line),
        )
        for line in lines
    ]
    header = ("Share", "Essays", "QWK of all", "QWK of the model's", "QWK, random choice")
    note = "Share: part that a person reads. Random choice: mean and 95% range of 200 choices of as many essays."
    return make_table(f"shares-{split}", f"Share and agreement, {split} set", header, rows, 1, notes=(note,))


def _random_cell(line: ShareSent) -> TableCell:
    if line.random is None:
        return TableCell("n/a")
    mean, low, high = line.random
    return TableCell(f"{mean:.3f} [{low:.3f}, {high:.3f}]", mean)


def as_dict(feedback: ClassFeedback) -> dict[str, Any]:
    """Return feedback as JSON values."""
    calibration = feedback.calibration
    coverage, rule = calibration.coverage, calibration.rule
    tables = {
        split: [vars(line) | {"is_better": line.is_better} for line in lines] for split, lines in rule.tables.items()
    }
    return {
        "run": feedback.run,
        "source": feedback.source,
        "level": calibration.level,
        "half_width": calibration.half,
        "num_calibrated": calibration.num_rows,
        "coverage": coverage and vars(coverage) | {"share": coverage.share, "is_kept": coverage.is_kept},
        "rule": vars(rule) | {"tables": tables},
        "reference": None if feedback.reference is None else feedback.reference.source,
        "essays": [_essay_dict(feedback, essay) for essay in feedback.essays],
    }


def _essay_dict(feedback: ClassFeedback, essay: EssayFeedback) -> dict[str, Any]:
    usual = essay.usual
    labels = () if feedback.reference is None else feedback.reference.labels
    return {
        "row": essay.row,
        "id": essay.id,
        "page": essay_file(essay),
        "predicted": essay.predicted,
        "score": feedback.calibration.text(essay.predicted),
        "low": essay.interval[0],
        "high": essay.interval[1],
        "for_a_person": essay.is_sent,
        "is_truncated": essay.is_truncated,
        "facts": vars(essay.facts),
        "usual_words": None if usual is None else vars(usual),
        "parts": [
            {"kind": part.kind, "start": part.place.start, "end": part.place.end, "effect": part.effect}
            for part in essay.parts
        ],
        "similar": [{"label": labels[found.index], "similarity": found.similarity} for found in essay.neighbours],
    }
