"""What the plan says of a run as it ran, written beside what was measured, so that the plan's errors are known.

It is computed at the end, when nothing is measured any more; of the run's own times nothing is used for it.
"""

import logging
import time
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.strategy_sections import strategy_options
from paratune.models.task_model import TaskModel
from paratune.plan.constants import Constants
from paratune.plan.enumerate import JobOption
from paratune.plan.job import PlannedJob
from paratune.plan.lengths import lengths_of_rows
from paratune.plan.machine import Machine, this_machine
from paratune.plan.predict import JobPredictor, Prediction
from paratune.plan.profiles import Profiles
from paratune.plan.setup import PredictionSetup
from paratune.processes.place import local_world_size
from paratune.train.prepare import Prepared, batch_layout_of

log = logging.getLogger(__name__)


def prediction_record(prepared: Prepared, model: TaskModel, sizes: ResolvedBatch) -> dict[str, Any]:
    """Return what is predicted, with `reason` where nothing is; never raises because a model cannot be traced.

    Args:
        prepared: What was loaded.
        model: That was trained; its weights are not looked at.
        sizes: With which training ended.
    """
    if not prepared.config.measure.plan:
        return {"reason": "measure.plan: false"}
    begin = time.perf_counter()
    try:
        machine = this_machine()
        if reason := _why_nothing(prepared, machine):
            return {"reason": reason}
        found = _predicted(prepared, model, sizes, machine)
    except Exception as error:  # whatever a model's own code raises on the meta device; the run itself is done
        log.info("no prediction of this run: %s: %s", type(error).__name__, error)
        return {"reason": f"{type(error).__name__}: {error}"}
    return {**_record(found, machine), "cost_s": time.perf_counter() - begin, "reason": found.why_no_time}


def _why_nothing(prepared: Prepared, machine: Machine) -> str | None:
    """Return why nothing could be predicted that was measured too."""
    if machine.is_cuda != (prepared.device.type == "cuda"):
        return f"device: {prepared.config.device} on a machine with a GPU, which predictions here are of"
    if not machine.is_cuda and machine.constants is None:
        return f"the speed of {machine.name} is unknown; measure it there: paratune plan --calibrate"
    return None


def _predicted(prepared: Prepared, model: TaskModel, sizes: ResolvedBatch, machine: Machine) -> Prediction:
    config, place = prepared.config, prepared.place
    train = prepared.splits["train"]
    job = PlannedJob(
        config=config,
        hf_config=model.hf.config,
        lengths=lengths_of_rows(train.store.lengths),
        num_samples=train.num_samples,
        entry=model.entry,
        why_padded=model.why_padded,
    )
    layout = batch_layout_of(prepared, model)
    setup = PredictionSetup(
        strategy=config.strategy,
        traits=prepared.traits,
        precision=prepared.precision,
        num_ranks=place.world_size,
        ranks_per_node=local_world_size(place),
        micro_batch_size=sizes.micro_batch_size,
        grad_accum_steps=sizes.grad_accum_steps,
        activation_checkpointing=config.train.activation_checkpointing,
        layout="packed" if layout.kind == "packed" else "padded",
        optimizer=config.train.optimizer,
    )
    name = ":".join([config.strategy.kind, *(f"{key}={value}" for key, value in _given(config.strategy).items())])
    option = JobOption(name, config, setup, sizes, layout, is_open=False)
    return JobPredictor(job, machine, Profiles(job, is_cuda=machine.is_cuda).of, searches=False).predict(option)


def _given(strategy: Any) -> dict[str, Any]:
    """Return the options of a strategy that are not its defaults."""
    fields = type(strategy).model_fields
    options = strategy_options(strategy)
    return {key: value for key, value in options.items() if key in fields and value != fields[key].default}


def _record(found: Prediction, machine: Machine) -> dict[str, Any]:
    span = found.step
    constants = machine.constants_for(found.setup.ranks_per_node) or Constants()
    return {
        "machine": machine.name,
        "is_calibrated": machine.is_calibrated,
        "step_s": None if span is None else span.as_list(),
        "terms_s": None if found.time is None else dict(found.time.terms),
        # What the terms hold, for `paratune plan --calibrate --score`, which makes these better.
        "factors": {name: constants[name].value for name in constants if name.startswith("factor.")},
        "bound": None if found.time is None else found.time.bound,
        "memory_bytes": found.memory.total,
        "memory_terms": dict(found.memory.terms),
    }
