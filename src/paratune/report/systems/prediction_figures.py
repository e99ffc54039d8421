"""Predicted against actual, and the histogram of errors, a figure a configuration: of its first run."""

from collections.abc import Iterator
from dataclasses import replace

from paratune.report.canvas import Drawing
from paratune.report.pictures import Predictions, prediction_pictures, predictions_of
from paratune.report.systems.labels import drawn, sentences
from paratune.report.systems.model import Systems

MAX_FIGURES = 8


def prediction_drawings(systems: Systems) -> Iterator[Drawing]:
    """Yield the predictions of the regressions that have scores, all with the same axes.

    The caption of the first one gives the reasons why others have none.
    """
    members = [one for one in systems.measured if one.scored and one.scored[0].task == "regression"]
    few, said = drawn(systems, members, MAX_FIGURES)
    read: dict[str, Predictions] = {}
    for one in few:
        found = predictions_of(one.scored[0])
        if isinstance(found, str):
            said = sentences(said, found)
        else:
            read[one.label] = found
    runs = {one.label: one.scored[0].name for one in few}
    for label, picture in zip(read, prediction_pictures(read), strict=True):
        yield replace(picture, caption=sentences(picture.caption, f"Run: {runs[label]}.", said))
        said = ""
