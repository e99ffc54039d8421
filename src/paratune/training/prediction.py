"""Predicts time and memory of a finished run with the plan, so that the record shows the error of the plan.

The prediction is computed at the end, when nothing is measured any more, and uses no times of the run itself.
"""

import logging
import time
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.traits import TRAITS
from paratune.models.load import kept_dtype
from paratune.models.task_model import TaskModel
from paratune.planning.enumerate import OWN_STRATEGY, JobOption, option_setup
from paratune.planning.job import PlannedJob, lengths_of_rows
from paratune.planning.machine import Machine, this_machine
from paratune.planning.predict import JobPredictor, Prediction
from paratune.planning.time import REMEDY
from paratune.processes.place import local_world_size
from paratune.training.prepare import Prepared, run_batch_layout

log = logging.getLogger(__name__)


def prediction_record(prepared: Prepared, model: TaskModel, sizes: ResolvedBatch) -> dict[str, Any]:
    """Return the prediction, or only `reason` if there is none; never raise because a model cannot be traced.

    `sizes` are those at the end; of the model only the architecture is used.
    """
    if not prepared.config.measure.plan:
        return {"reason": "measure.plan: false"}
    begin = time.perf_counter()
    try:
        machine = this_machine()
        if reason := _unavailable_reason(prepared, machine):
            return {"reason": reason}
        prediction = _predict(prepared, model, sizes, machine)
    except Exception as error:  # a model's own code may raise anything on the meta device; the run itself is finished
        log.info("no prediction of this run: %s: %s", type(error).__name__, error)
        return {"reason": f"{type(error).__name__}: {error}"}
    return {**_record(prediction, machine), "cost_s": time.perf_counter() - begin, "reason": prediction.why_no_time}


def _unavailable_reason(prepared: Prepared, machine: Machine) -> str | None:
    """Return why the run's device cannot be predicted; None if it can."""
    if machine.is_cuda != (prepared.device.type == "cuda"):
        return f"device: {prepared.config.device}, but on a machine with a GPU only runs on the GPU are predicted"
    if not machine.is_cuda and machine.constants is None:
        return f"the speed of {machine.name} is unknown; {REMEDY}"
    if prepared.config.strategy.kind not in TRAITS:
        return OWN_STRATEGY
    return None


def _predict(prepared: Prepared, model: TaskModel, sizes: ResolvedBatch, machine: Machine) -> Prediction:
    config, place = prepared.config, prepared.place
    train = prepared.splits["train"]
    job = PlannedJob(
        config=config,
        hf_config=model.hf.config,
        lengths=lengths_of_rows(train.store.sequence_lengths),
        num_samples=train.num_samples,
        entry=model.entry,
        why_padded=model.why_padded,
        sequences=lengths_of_rows(train.store.num_sequences),
        samples=lengths_of_rows(train.store.lengths),
        stored_dtype=kept_dtype(config.model, model.hf.config),
    )
    layout = run_batch_layout(prepared, model)
    ranks = place.world_size, local_world_size(place)
    setup = option_setup(config, prepared.traits, sizes, layout, *ranks)
    option = JobOption(config.strategy.kind, config, setup, sizes, layout)
    return JobPredictor(job, machine, searches=False).predict(option)


def _record(prediction: Prediction, machine: Machine) -> dict[str, Any]:
    interval = prediction.figures["step_s"]
    return {
        "machine": machine.name,
        "step_s": None if interval is None else [interval.value, interval.low, interval.high],
        "terms_s": None if prediction.time is None else dict(prediction.time.terms),
        "memory_bytes": prediction.memory.total,
        "memory_terms": dict(prediction.memory.terms),
    }
