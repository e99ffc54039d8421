"""Computes model FLOP/s and MFU of a run: the FLOPs of its real tokens per second, and as a share of the peak."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune import records
from paratune.data.loader import TrainBatches
from paratune.hardware.devices import Device, find_device
from paratune.metrics.throughput import is_measured
from paratune.models.flops import ModelWork, copy_on_meta_device, count_work
from paratune.models.task_model import TaskModel

log = logging.getLogger(__name__)
_MAX_STEPS = 20_000
"""Largest number of measured steps whose lengths are summed; of more steps, evenly spaced ones are used."""
_MAX_LABEL_STEPS = 256
"""The same for the masked tokens of a masked LM, whose masks have to be computed again."""


class WorkCount:
    """Counts a model's FLOPs after the run, with a copy without data that is made before the model is sharded."""

    def __init__(self, model: TaskModel) -> None:
        self._model: TaskModel | None = None
        self._reason = ""
        try:
            self._model = copy_on_meta_device(model)
        except Exception as error:  # a model's own code may not support a copy
            self._reason = _failure_text(error)

    def work(self) -> tuple[ModelWork | None, str | None]:
        """Return the model's work, or None and the reason."""
        if self._model is None:
            return None, self._reason
        try:
            return count_work(self._model), None
        except Exception as error:  # a model's own code may raise anything without data
            log.debug("FLOPs were not counted", exc_info=error)
            return None, _failure_text(error)


def _failure_text(error: Exception) -> str:
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
    """Return `flops` of the summary (see docs/reference/records.md). `batches` may be those of any rank.

    `tokens_per_s` counts real tokens over all ranks.
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
        "reason": "; ".join(text for text in (reason, why) if text) or None,
    }


def _per_token(work: ModelWork, batches: TrainBatches, steps: Sequence[int], *, is_masked_lm: bool) -> float:
    """Return the FLOPs of the steps' samples divided by their tokens."""
    store = batches.collator.store
    lengths = np.concatenate(
        [store.sequence_lengths_at(batches.indices(step - 1)) for step in _evenly(steps, _MAX_STEPS)]
    )
    labels_per_token = 0.0
    if is_masked_lm:
        num_labels, num_tokens = 0.0, 0
        for step in _evenly(steps, _MAX_LABEL_STEPS):
            indices, epoch = batches.indices(step - 1), (step - 1) // batches.steps_per_epoch
            num_labels += batches.collator.loss_denominator(indices, epoch=epoch)
            num_tokens += int(store.lengths[indices].sum())
        labels_per_token = num_labels / num_tokens
    num_tokens = int(lengths.sum())
    return work.flops(lengths, labels_per_token * num_tokens) / num_tokens


def _evenly(steps: Sequence[int], count: int) -> list[int]:
    """Return at most `count` evenly spaced steps, from the first to the last."""
    if len(steps) <= count:
        return list(steps)
    return [steps[index] for index in np.linspace(0, len(steps) - 1, count).round().astype(int)]


def _peak(names: Sequence[str], precision: str) -> tuple[float | None, str | None, str | None]:
    """Return the sum of the devices' peaks, its source, and None; or None, None and the reason."""
    devices: dict[str, Device | None] = {name: find_device(name) for name in names}
    listed = {name: device for name, device in devices.items() if device is not None}
    if unlisted := [name for name in devices if name not in listed]:
        return None, None, f"the peak of {', '.join(unlisted)} is not listed"
    peaks = {name: device.peak_flops_per_s(precision) for name, device in listed.items()}
    if without := [name for name, peak in peaks.items() if peak is None]:
        return None, None, f"no peak of {', '.join(without)} in {precision} is listed"
    total = sum(peak for name in names if (peak := peaks[name]) is not None)
    return total, "; ".join(dict.fromkeys(device.source for device in listed.values())), None


def _change(folder: Path) -> str | None:
    """Return which settings of the devices' peak differ between sessions of a run; None if none does."""
    sessions = records.read_json(folder / records.RUN_FILE).get("sessions", [])
    session_values: Mapping[str, list[Any]] = {
        "world size": [session["world_size"] for session in sessions],
        "precision": [session["config"].get("precision") for session in sessions],
        "devices": [_gpu_names(session) for session in sessions],
    }
    changed = [name for name, values in session_values.items() if any(value != values[0] for value in values)]
    return f"sessions have different {' and '.join(changed)} and therefore different peaks" if changed else None


def _gpu_names(session: Mapping[str, Any]) -> list[Any]:
    return [session["device"], *(gpu["name"] for node in session["hardware"] for gpu in node["gpus"] or [])]
