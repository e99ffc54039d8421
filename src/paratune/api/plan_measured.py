"""`paratune plan --measured`: fits the planned machine to runs on it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.text import plain
from paratune.config.load import load_values
from paratune.errors import ConfigError
from paratune.records import SUMMARY_FILE
from paratune.records.finished import RunRecord, read_record
from paratune.records.sweep import RUNS_FOLDER, holds_sweep

if TYPE_CHECKING:
    from paratune.planning.machine import Machine
    from paratune.planning.refit import MeasuredStep


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Return the records of finished runs; a matrix stands for its finished runs with measured steps.

    Raises:
        CheckpointError: A folder is not a run, or the run is not finished.
        ConfigError: A matrix has no finished run with measured steps.
    """
    runs = []
    for folder in folders:
        if not holds_sweep(folder):
            runs.append(read_record(folder, plain(folder)))
            continue
        summaries = sorted((folder / RUNS_FOLDER).glob(f"*/{SUMMARY_FILE}"))
        finished = [read_record(path.parent, plain(path.parent)) for path in summaries]
        if not (timed := [run for run in finished if _mean_step(run) is not None]):  # without baselines
            reason = "no finished run in it has measured steps; train one (paratune sweep MATRIX --probe: 20 steps)"
            raise _impossible(plain(folder), reason)
        runs += timed
    return runs


def _mean_step(run: RunRecord) -> tuple[float, float] | None:
    """Return the seconds of a mean step, and the computed tokens of a mean sample; None without measured steps."""
    from paratune.reports.measures import step_ms

    whole_ms, throughput = step_ms(run), run.summary.throughput
    if not whole_ms or not throughput.padded_tokens_per_s or not throughput.samples_per_s:
        return None
    return whole_ms / 1000, throughput.padded_tokens_per_s / throughput.samples_per_s


def machine_of_run(run: RunRecord) -> "Machine":
    """Return the machine on which a run was trained.

    Raises:
        ConfigError: The record does not have it, or only a part of it.
    """
    from paratune.planning.machine import machine_of_node

    if not run.run.hardware:
        raise _impossible(run.name, "its record has no machine; train it again")
    node = run.run.hardware[0]
    try:
        return machine_of_node({**node, "gpus": []} if run.run.device == "cpu" else node)
    except (KeyError, TypeError, AttributeError) as error:
        raise _impossible(run.name, f"hardware in its run.json is incomplete: {error}; train it again") from error


def fit_machine(machine: "Machine", runs: Sequence[RunRecord]) -> tuple["Machine", list[dict[str, Any]]]:
    """Return the machine whose constants explain the measured steps of runs on it, and these steps as plain data.

    Raises:
        ConfigError: What was measured cannot be predicted.
    """
    from paratune.planning.refit import refit
    from paratune.planning.uncalibrated import assumed_cpu_constants, assumed_gpu_constants

    if not runs:
        return machine, []
    constants = machine.constants or (assumed_gpu_constants() if machine.is_cuda else assumed_cpu_constants())
    machine = replace(machine, constants=constants)
    measured = [_measured_steps(run, machine) for run in runs]
    steps = [step for _, own in measured for step in own]
    fitted = refit(constants, steps)
    figures = {
        id(step): {"before": before, "after": after, "measured": step.seconds}
        for step, before, after in zip(steps, fitted.before_s, fitted.after_s, strict=True)
    }
    about = [{"measured": text, "step_s": figures[id(own[0])]} for text, own in measured]
    return replace(machine, constants=fitted.constants), about


def _measured_steps(run: RunRecord, machine: "Machine") -> tuple[str, list["MeasuredStep"]]:
    """Return the mean step of a run, after it the phases in which its ranks do not wait for each other, and a text.

    Raises:
        ConfigError: The run has no measured steps, or its step cannot be predicted.
    """
    from paratune.api.plan_job import make_job
    from paratune.planning.enumerate import PlanRequest, list_options
    from paratune.planning.predict import JobPredictor
    from paratune.planning.refit import MeasuredStep
    from paratune.planning.time import step_time
    from paratune.reports.measures import step_part_ms

    record, mean_step = run.run, _mean_step(run)
    if mean_step is None:
        raise _impossible(run.name, "it has no measured steps; train at least 20, or use a longer run")
    whole_s, tokens_per_sample = mean_step
    # It may have been reduced in the run.
    micro_batch_size = (record.batch.changes or [record.batch.model_dump()])[-1].get("micro_batch_size")
    if not micro_batch_size:
        raise _impossible(run.name, "batch in its run.json has no micro_batch_size")
    try:
        loaded = load_values(record.config)
        key = "micro_batch_size" if loaded.config.batch.per_device is None else "per_device"
        loaded = load_values(record.config, [f"batch.{key}={micro_batch_size}"])
        # The data may be elsewhere: the record has the mean number of computed tokens.
        job = make_job(loaded, tokens_per_sample=tokens_per_sample)
    except ConfigError as error:
        raise _impossible(run.name, f"its configuration cannot be planned: {error}") from error
    request = PlanRequest(
        num_ranks=(int(record.world_size or 1),),
        nodes=(len(record.hardware),),
        strategies=(str(loaded.config.strategy.kind),),
    )
    options, impossible = list_options(job, loaded, machine, request)
    if not options:
        raise _impossible(run.name, "; ".join(rejected.reason for rejected in impossible))
    option = options[0]
    case = JobPredictor(job, machine).step_case(option)
    case = replace(case, num_threads=1 if machine.is_cuda else int(record.num_threads or 1))
    time, why_no_time = step_time(case)
    if time is None:
        raise _impossible(run.name, str(why_no_time))
    setup = option.setup
    own = [phase for phase in ("forward", "backward", "optimizer") if phase in setup.traits.own_phases]
    phases = [(name, (step_part_ms(run, name) or 0.0) / 1000) for name in own]
    parts = [MeasuredStep(case, seconds, (name,)) for name, seconds in phases if seconds > 0]
    accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    way = (
        f"{option.name} x {setup.num_ranks}, {setup.precision.name}, micro-batch {setup.micro_batch_size}{accumulated}"
    )
    return f"{whole_s:.3g} s a step by {run.name} ({way})", [MeasuredStep(case, whole_s), *parts]


def _impossible(name: str, reason: str) -> ConfigError:
    return ConfigError(f"--measured {name}: {reason}", code="plan.measured_impossible", option="--measured", value=name)
