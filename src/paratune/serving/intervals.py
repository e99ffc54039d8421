"""The interval of a predicted score, from the calibration of its run."""

import logging
from typing import Any

import numpy as np

from paratune.errors import ParatuneError
from paratune.feedback.feedback import KINDS, FeedbackOptions, ScoreCalibration, calibrate
from paratune.infer.trained import TrainedModel

log = logging.getLogger(__name__)
_UNKNOWN = ("feedback.no_validation", "feedback.too_few_rows")


def read_calibration(trained: TrainedModel) -> ScoreCalibration | None:
    """Return the calibration of a run for scores; None for other models, and for runs with too few predictions.

    Raises:
        CheckpointError: The saved predictions are damaged.
    """
    if trained.task.kind not in KINDS or trained.run is None:
        return None
    try:
        return calibrate(trained.run, trained, FeedbackOptions())
    except ParatuneError as error:
        if error.code not in _UNKNOWN:
            raise
        log.info("scores have no interval: %s", error)
        return None


def interval(calibration: ScoreCalibration, value: float) -> list[float] | list[str]:
    """Return the bounds of a score: numbers, or names of ordered classes."""
    low, high = calibration.interval(value)
    return [calibration.text(low), calibration.text(high)] if calibration.names else [low, high]


def describe(calibration: ScoreCalibration | None) -> dict[str, Any] | None:
    """Return the calibration as JSON values: wanted coverage, half-width, and the coverage of the test set."""
    if calibration is None:
        return None
    test = calibration.coverage
    return {
        "coverage": calibration.level,
        "half_width": float(np.float64(calibration.half)),
        "num_validation_rows": calibration.num_rows,
        "test": None if test is None else {"num_rows": test.num_rows, "share": test.share, "is_kept": test.is_kept},
    }
