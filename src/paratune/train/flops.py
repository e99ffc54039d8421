"""Model FLOPs per second and MFU of a run: the work that its real tokens need, over time and over the devices' peak."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune import records
from paratune.data.loader import TrainBatches
from paratune.hardware.devices import Device, find_device
from paratune.metrics.throughput import is_measured
from paratune.models.flops import ModelWork, count_work, without_data
from paratune.models.task_model import TaskModel

log = logging.getLogger(__name__)
_MOST_STEPS = 20_000
"""Measured steps whose lengths are added up; of more, so many that lie evenly among them."""
_MOST_LABEL_STEPS = 256
"""The same for the hidden tokens of a masked LM, which have to be drawn again."""


class WorkCount:
    """Counts a model's work when a run is done, from a copy without data that is made before it is sharded."""

    def __init__(self, model: TaskModel) -> None:
        self._model: TaskModel | None = None
        self._reason = ""
        try:
            self._model = without_data(model)
        except Exception as error:  # code that its owner did not mean to be copied
            self._reason = _refusal(error)

    def work(self) -> tuple[ModelWork | None, str | None]:
        """Return what the model needs, or why that is not known."""
        if self._model is None:
            return None, self._reason
        try:
            return count_work(self._model), None
        except Exception as error:  # whatever a model's own code comes to without data
            log.debug("FLOPs were not counted", exc_info=error)
            return None, _refusal(error)


def _refusal(error: Exception) -> str:
    line = (str(error) or type(error).__name__).splitlines()[0]
    return f"the model's FLOPs could not be counted: {line}"


def flops_record(
    count: WorkCount,
    folder: Path,
    batches: TrainBatches,
    *,
    tokens_per_s: float | None,
    precision: str,
    devices: Sequence[str],
    is_masked_lm: bool,
) -> dict[str, Any]:
    """Return `flops` of the summary (see docs/reference/records.md).

    Args:
        count: Of the run's model.
        folder: The run, whose events say which steps were measured.
        batches: Of any rank; they know the samples of each step.
        tokens_per_s: Real ones, over all ranks, of the measured steps.
        precision: As in the configuration.
        devices: Names of all ranks' devices.
        is_masked_lm: Whether tokens are hidden.
    """
    steps = [event["step"] for event in records.read_events(folder) if is_measured(event)]
    work, reason = count.work()
    peak, source, why = _peak(devices, precision)
    per_token = _per_token(work, batches, steps, is_masked_lm=is_masked_lm) if work is not None and steps else None
    per_s = None if per_token is None or tokens_per_s is None else per_token * tokens_per_s
    if per_s is not None and peak is not None and (change := _change(folder)):
        peak, source, why = None, None, change
    if reason is None and per_s is None:
        reason = "no step was measured"
    return {
        "model_flops_per_token": per_token,
        "model_flops_per_s": per_s,
        "peak_flops_per_s": peak,
        "peak_source": source,
        "mfu": None if per_s is None or peak is None else per_s / peak,
        "reason": "; ".join(one for one in (reason, why) if one) or None,
    }


def _per_token(work: ModelWork, batches: TrainBatches, steps: Sequence[int], *, is_masked_lm: bool) -> float:
    """Return the operations of the steps' samples over their tokens."""
    store = batches.collator.store
    lengths = np.concatenate([store.lengths[batches.indices(step - 1)] for step in _evenly(steps, _MOST_STEPS)])
    labels_per_token = 0.0
    if is_masked_lm:
        num_labels, num_tokens = 0.0, 0
        for step in _evenly(steps, _MOST_LABEL_STEPS):
            indices, epoch = batches.indices(step - 1), (step - 1) // batches.steps_per_epoch
            num_labels += batches.collator.loss_denominator(indices, epoch=epoch)
            num_tokens += int(store.lengths[indices].sum())
        labels_per_token = num_labels / num_tokens
    num_tokens = int(lengths.sum())
    return work.flops(lengths, labels_per_token * num_tokens) / num_tokens


def _evenly(steps: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the steps, from the first to the last."""
    if len(steps) <= most:
        return list(steps)
    return [steps[place] for place in np.linspace(0, len(steps) - 1, most).round().astype(int)]


def _peak(names: Sequence[str], precision: str) -> tuple[float | None, str | None, str | None]:
    """Return the sum of the devices' peaks and where it is from, or why it is not known."""
    found: dict[str, Device | None] = {name: find_device(name) for name in names}
    unlisted = [name for name, device in found.items() if device is None]
    if unlisted:
        return None, None, f"the peak of {', '.join(unlisted)} is not listed"
    listed = {name: device for name, device in found.items() if device is not None}
    peaks = {name: device.peak_flops_per_s(precision) for name, device in listed.items()}
    without = [name for name, peak in peaks.items() if peak is None]
    if without:
        return None, None, f"no peak in {precision} is listed of {', '.join(without)}"
    total = sum(peak for name in names if (peak := peaks[name]) is not None)
    return total, "; ".join(dict.fromkeys(device.source for device in listed.values())), None


def _change(folder: Path) -> str | None:
    """Say what of the devices' peak was not the same in all sessions of a run."""
    sessions = records.read_run(folder).get("sessions", [])
    courses: Mapping[str, list[Any]] = {
        "world size": [session["world_size"] for session in sessions],
        "precision": [session["config"].get("precision") for session in sessions],
        "devices": [_gpu_names(session) for session in sessions],
    }
    changed = [name for name, course in courses.items() if any(value != course[0] for value in course)]
    return f"sessions differed in {' and '.join(changed)}, so their peaks do" if changed else None


def _gpu_names(session: Mapping[str, Any]) -> list[Any]:
    return [session["device"], *(gpu["name"] for node in session["hardware"] for gpu in node["gpus"] or [])]
