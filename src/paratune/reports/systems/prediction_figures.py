"""Predicted against actual values, and the histogram of errors, for the first run of each configuration."""

from collections.abc import Iterator
from dataclasses import replace

from paratune.reports.figures.canvas import Drawing
from paratune.reports.run.figures import Predictions, prediction_figures, read_predictions
from paratune.reports.systems.labels import drawn_configurations, join_sentences
from paratune.reports.systems.model import Systems

MAX_FIGURES = 8


def prediction_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the predictions of the regressions, all with the same axes.

    The caption of the first one gives the reasons why others have none.
    """
    members = [member for member in systems.measured if member.scored and member.scored[0].task == "regression"]
    drawn, remark = drawn_configurations(systems, members, MAX_FIGURES)
    known: dict[str, Predictions] = {}
    for member in drawn:
        predictions = read_predictions(member.scored[0])
        if isinstance(predictions, str):
            remark = join_sentences(remark, predictions)
        else:
            known[member.label] = predictions
    runs = {member.label: member.scored[0].name for member in drawn}
    for label, picture in zip(known, prediction_figures(known), strict=True):
        yield replace(picture, caption=join_sentences(picture.caption, f"Run: {runs[label]}.", remark))
        remark = ""
