"""Feedback as pages: one for each essay, and an overview of the class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.units import NOT_AVAILABLE, counted
from paratune.explain.page import FULL_COLOUR
from paratune.feedback.feedback import EssayFeedback, RemovedPart, ScoreCalibration
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
from paratune.reports.page.document import document_html, made_by
from paratune.reports.tables.table import Column, Table, TableCell, make_table
from paratune.reports.text import shorten

FOLDER = "essays"
FOR_A_PERSON = {True: "yes", False: "no", None: NOT_AVAILABLE}
_NUM_STRONGEST = 3
_LIMITS = (
    "The score is that of a model trained on the scores of examiners; it has no information about the writer.",
    "A part that raises or lowers the score is one on which the model relies. That is no proof that the part is good "
    "or bad, and changing it need not change the score of an examiner.",
)
_WIDE = "wider than two standard deviations of the training labels"


@dataclass(frozen=True, eq=False)
class ClassFeedback:
    """Feedback on all essays of a file."""

    run: str
    source: str
    calibration: ScoreCalibration
    essays: tuple[EssayFeedback, ...]

    def counting(self, essay: EssayFeedback) -> list[RemovedPart]:
        """Return the sentences with an effect that counts, the largest rise first."""
        parts = (part for part in essay.parts if abs(part.effect) >= self.calibration.smallest)
        return sorted(parts, key=lambda part: -part.effect)


def write_feedback(folder: Path, feedback: ClassFeedback) -> tuple[Path, ...]:
    """Write the overview, a page for each essay and report.json; see `write_page`."""
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
    """Return the page of an essay: score, coloured text and strongest sentences; the rest on request."""
    calibration = feedback.calibration
    notices = _warnings(calibration)
    if calibration.not_better is None and calibration.is_for_a_person(essay.interval):
        notices.append(Notice(f"A person should read this essay: its interval is {_WIDE}."))
    if essay.is_truncated:
        notices.append(Notice("The model does not read the end of this essay: it is too long."))
    sections = (
        ReportSection("score", "Score", tuple(_score_parts(calibration, essay))),
        ReportSection("parts", "What the score rests on", tuple(_removal_parts(feedback, essay))),
        ReportSection("limits", "Limits of this page", (Remarks(_LIMITS),), is_short=False),
    )
    return ReportDocument(
        title=essay_name(essay),
        lead=(essay.prompt or f"From {feedback.source}", f"Model: {feedback.run}."),
        sections=tuple(section for section in sections if section.parts),
        footer=made_by(),
        notices=tuple(notices),
    )


def _warnings(calibration: ScoreCalibration) -> list[Notice]:
    """Return why scores or intervals are not to be relied on."""
    notices = []
    if calibration.not_better is not None:
        notices.append(Notice(f"{calibration.not_better.warning} A person should read every essay."))
    if calibration.coverage is not None and not calibration.coverage.is_kept:
        notices.append(Notice(coverage_sentence(calibration)))
    return notices


def _score_parts(calibration: ScoreCalibration, essay: EssayFeedback) -> Iterator[Part]:
    is_rounded = bool(calibration.names) or calibration.scale.step is not None
    before = f" ({essay.predicted:.2f} before rounding)" if is_rounded else ""
    yield (
        f"The model gives {calibration.text(essay.predicted)}{before}. The interval is "
        f"{interval_text(calibration, essay)}: it is made to contain the examiner's score of "
        f"{calibration.level:.0%} of all essays of this kind. {coverage_sentence(calibration)}"
    )


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


def _removal_parts(feedback: ClassFeedback, essay: EssayFeedback) -> Iterator[Part]:
    smallest, counting = feedback.calibration.smallest, feedback.counting(essay)
    if not essay.parts:
        yield "The essay has one sentence; nothing can be removed from it."
    elif not counting:
        yield f"No sentence alone changes the score by {smallest:.2g}, the smallest effect that counts."
    else:
        yield (
            "Each sentence is removed once, and the rest is scored again. A solid line: the score is lower without the "
            "sentence, so it raises the score. A dashed line: the score is higher without it. No line: the effect is "
            f"below {smallest:.2g} and does not count. The interval of the score is "
            f"{2 * feedback.calibration.half:.2g} wide."
        )
    yield MarkedText("The essay", tuple(_marked(essay, counting)), full=FULL_COLOUR * smallest)
    if counting:
        yield "Sentences with the largest effects on the score:"
        raising = [part for part in counting if part.effect > 0][:_NUM_STRONGEST]
        yield _quoted([*raising, *[part for part in counting if part.effect < 0][-_NUM_STRONGEST:]])


def _marked(essay: EssayFeedback, counting: Sequence[RemovedPart]) -> Iterator[MarkedWord]:
    end = 0
    for part in essay.parts:
        gap = essay.text[end : part.place.start]
        before = "\n" if "\n" in gap else " " if gap else ""
        yield MarkedWord(before, part.text, part.effect if part in counting else None)
        end = part.place.end
    if not end:  # one sentence
        yield MarkedWord("", essay.text, None)


def _quoted(parts: Sequence[RemovedPart]) -> Remarks:
    return Remarks(
        tuple((f"effect {signed(part.effect)}", shorten(" ".join(part.text.split()), 240)) for part in parts)
    )


def class_document(feedback: ClassFeedback) -> ReportDocument:
    """Return the overview of the class."""
    calibration = feedback.calibration
    sections = (
        ReportSection("essays", "Essays", (_essays_table(feedback),)),
        ReportSection("coverage", "Intervals", tuple(_coverage_parts(calibration)), is_short=False),
        ReportSection("limits", "Limits of these pages", (Remarks(_LIMITS),), is_short=False),
    )
    return ReportDocument(
        title="Feedback on essays",
        lead=(f"{counted(len(feedback.essays), 'essay')} of {feedback.source}, scored by {feedback.run}.",),
        sections=sections,
        footer=made_by(),
        notices=tuple(_warnings(calibration)),
    )


def _essays_table(feedback: ClassFeedback) -> Table:
    calibration = feedback.calibration
    lines = []
    for essay in feedback.essays:
        lowering = [part for part in feedback.counting(essay) if part.effect < 0]
        lines.append(
            (
                TableCell(essay_name(essay), link=essay_file(essay)),
                TableCell(FOR_A_PERSON[calibration.is_for_a_person(essay.interval)]),
                TableCell(calibration.text(essay.predicted), essay.predicted),
                TableCell(interval_text(calibration, essay)),
                TableCell(shorten(lowering[-1].text, 60) if lowering else "none"),
            )
        )
    lowest = Column("Lowers the score most", is_text=True)
    header = ("Essay", "For a person", "Score", f"{calibration.level:.0%} interval", lowest)
    return make_table("essays-table", "Essays", header, lines, 1)


def _coverage_parts(calibration: ScoreCalibration) -> Iterator[Part]:
    yield (
        f"An interval is the score ± {calibration.half:.2f}, cut off at the limits of the scale. The half-width is "
        f"chosen on {calibration.num_rows} validation essays so that {calibration.level:.0%} of essays of the same "
        "kind are inside (split conformal prediction)."
    )
    yield coverage_sentence(calibration)
    spread = NOT_AVAILABLE if calibration.spread is None else f"{calibration.spread:.2f}"
    yield f"An essay is for a person where its interval is {_WIDE} ({spread})."


def as_dict(feedback: ClassFeedback) -> dict[str, Any]:
    """Return feedback as JSON values."""
    calibration = feedback.calibration
    coverage = calibration.coverage
    return {
        "run": feedback.run,
        "source": feedback.source,
        "not_better": calibration.not_better and calibration.not_better.model_dump(),
        "level": calibration.level,
        "half_width": calibration.half,
        "spread": calibration.spread,
        "smallest_effect": calibration.smallest,
        "num_calibrated": calibration.num_rows,
        "coverage": coverage and vars(coverage) | {"share": coverage.share, "is_kept": coverage.is_kept},
        "essays": [
            {
                "row": essay.row,
                "id": essay.id,
                "page": essay_file(essay),
                "predicted": essay.predicted,
                "score": calibration.text(essay.predicted),
                "low": essay.interval[0],
                "high": essay.interval[1],
                "for_a_person": calibration.is_for_a_person(essay.interval),
                "is_truncated": essay.is_truncated,
                "parts": [
                    {"start": part.place.start, "end": part.place.end, "effect": part.effect,
                     "counts": abs(part.effect) >= calibration.smallest}
                    for part in essay.parts
                ],
            }
            for essay in feedback.essays
        ],
    }  # fmt: skip
