"""`paratune.plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.api.configuration import Configuration, load
from paratune.api.plan_options import PlanOptions, plan_request
from paratune.api.process import process_as_before, respect_quota, several
from paratune.base.imports import collector_off_for_imports
from paratune.config.load import allow_code
from paratune.config.own_code import CLASS_KEY, HEAD_KEY, RECIPE_KEY, named_code
from paratune.config.permission import REMOTE_CODE, is_allowed
from paratune.console import Display, set_up_logging, stdout_for_results

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.planning.enumerate import Impossible, PlanRequest, Remedy
    from paratune.planning.job import PlannedJob
    from paratune.planning.machine import Machine
    from paratune.planning.predict import Prediction
    from paratune.planning.table import Plan

_MAX_NOTES = 4
"""Maximum number of notes about single options."""


def plan(
    config: Configuration,
    overrides: Mapping[str, Any] | None = None,
    *,
    devices: int | Sequence[int] | None = None,
    device: str | Sequence[str] | None = None,
    network: float | None = None,
    nodes: int | Sequence[int] | None = None,
    strategies: str | Sequence[str] | None = None,
    precision: str | Sequence[str] | None = None,
    max_length: int | None = None,
    rows: int | None = None,
    price: float | None = None,
    measured: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    run_code: bool = False,
) -> "Plan":
    """Predict memory and time for each option of running a configuration, and whether it fits.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.

    Args:
        config: A YAML file, or the same sections as a mapping, which needs a `run.name`.
        overrides: Values by dotted key that replace those of `config`.
        devices: Numbers of devices; default: 1, 2, 4 and 8.
        device: Such as a100-40gb or h100-80gb, or several to compare; default: the machine of `measured`, or this one.
        network: Gbit/s between nodes, all adapters of a node together; default: 100, with wide intervals.
        nodes: Numbers of nodes; default: as few as the devices need, with 8 devices per node.
        strategies: Such as `["ddp", "zero3", "pipeline:4"]`, where a value sets the first option; or `"all"`.
        precision: Precisions; default: that of `config`, else bf16 or fp16 where the device has them.
        max_length: Plan without the data, with this number of tokens in every row.
        rows: With `max_length`: number of rows of the training set.
        price: Price of a device-hour, in any currency: adds the cost of runs.
        measured: Folders of runs and matrices on the machine, to which it is fitted. A CPU, or a GPU that is not
            listed, has times only with a run; 20 steps are enough.
        run_code: Import the code that the configuration names; without it, the plan goes on without this code.

    Returns:
        The plan: `fits`, `recommended`, `predictions`, and `table()`, a DataFrame with a row for each possible option.
        A notebook shows the output of the command.

    Raises:
        ParatuneError: The configuration, an option, the model or the data is invalid.

    >>> paratune.plan("my.yaml", devices=1, device="a100-40gb").fits
    True
    """
    lists = {"devices": devices, "device": device, "nodes": nodes, "strategies": strategies, "precision": precision}
    # As on the command line.
    texts = {name: None if value is None else ",".join(map(str, several(value))) for name, value in lists.items()}
    options = PlanOptions(network=network, max_length=max_length, rows=rows, price=price, **texts)
    plan_request(options)
    with process_as_before():
        set_up_logging(speaks=True)
        respect_quota()
        with stdout_for_results():
            return make_plan(load(config, overrides), options, tuple(map(Path, several(measured))), run_code=run_code)


def make_plan(
    loaded: "LoadedConfig",
    options: PlanOptions,
    measured: Sequence[Path] = (),
    *,
    run_code: bool = False,
    with_remedies: bool = True,
) -> "Plan":
    """Return the plan of a loaded configuration.

    Args:
        measured: Folders of runs and matrices.
        with_remedies: Plan other settings too, where an option does not fit; else there is a prediction an option.

    Raises:
        ParatuneError: An option, the model, the data, a strategy or a run is invalid.
    """
    with collector_off_for_imports():
        from paratune.api.plan_inputs import make_job, planned_machine, read_runs
        from paratune.config.optional_sections import refuse_baseline
        from paratune.hardware import AMX_ADVICE
        from paratune.planning.enumerate import ALL, list_options, remedied, usual_precision
        from paratune.planning.predict import JobPredictor
        from paratune.planning.table import Plan, needs_remedies, plan_advice, recommended

    if run_code:
        allow_code(loaded)
    refuse_baseline(loaded.config.baseline, "paratune plan predicts")
    request, runs, on_cpu = plan_request(options), read_runs(measured), loaded.config.device == "cpu"
    kinds = [None] if options.device is None else [name.strip() for name in options.device.split(",")]
    pairs = [planned_machine(replace(options, device=kind), runs, on_cpu=on_cpu) for kind in dict.fromkeys(kinds)]
    machines, figures = [machine for machine, _ in pairs], [figure for _, own in pairs for figure in own]
    job = make_job(loaded, max_length=options.max_length, rows=options.rows)
    predictions: list[Prediction] = []
    impossible: list[Impossible] = []
    reasons: dict[str, list[str]] = {}
    for machine in machines:
        asked = request
        if not asked.precisions:
            precision, why = usual_precision(loaded, machine, getattr(job.hf_config, "model_type", None))
            asked = replace(asked, precisions=(precision,))
            if why:
                reasons.setdefault(why, []).append(f"{precision} on {machine.name}")
        planned: list[Prediction] = []
        tries: list[tuple[Remedy | None, LoadedConfig, PlanRequest]] = [(None, loaded, asked)]
        for remedy, changed, tried in tries:  # which get longer after the first one, if nothing fits
            if run_code:
                allow_code(changed)
            changed_job = replace(job, config=changed.config)
            possible, rejected = list_options(changed_job, changed, machine, tried)
            impossible += rejected if remedy is None else []
            predictor = JobPredictor(changed_job, machine)
            with Display(speaks=True).bar("plan", len(possible)) as bar:
                for number, option in enumerate(possible):
                    bar.update(number, option.name)
                    option = replace(option, remedy=remedy)
                    for prediction in predictor.candidates(option) if with_remedies else [predictor.predict(option)]:
                        if all(prediction.trains != other.trains for other in planned):
                            planned.append(prediction)
            if remedy is None and with_remedies and needs_remedies(planned):
                tries += remedied(loaded, asked, asked.precisions[0])
        predictions += planned
    heading, about = _heading(loaded, job, machines)
    for figure in figures:
        heading.append(f"Measured: {figure['measured']}. Planned: {figure['step_s']['after']:.3g} s after the fit.")
    return Plan(
        heading=tuple(heading),
        predictions=tuple(predictions),
        impossible=tuple(dict.fromkeys(impossible)),
        advice=tuple(plan_advice(predictions, all_tried=request.strategies == (ALL,))),
        notes=(
            *(f"Planned in {', '.join(names)}: {why}." for why, names in reasons.items()),
            *[AMX_ADVICE] * any(each.has_amx and loaded.config.precision == "fp32" for each in machines),
            *_notes(loaded, job, predictions),
        ),
        recommended=recommended(predictions)[0],
        about=about | ({"measured": figures} if figures else {}),
    )


def _heading(
    loaded: "LoadedConfig", job: "PlannedJob", machines: Sequence["Machine"]
) -> tuple[list[str], dict[str, Any]]:
    """Return the model, the data and the machines as lines, and as plain data."""
    from paratune.base.units import format_bytes

    lengths, config = job.lengths, job.config
    rows = "rows" if job.num_samples is None else f"{job.num_samples:,} rows"
    if job.sequences.longest > 1:
        rows += f" of {job.sequences.mean:.3g} sequences"
    data = f"{rows} of {lengths.mean:.0f} tokens on average, the longest {lengths.longest}"
    if lengths.is_assumed:
        data = f"{rows}, each with {lengths.longest} tokens (--max-length)"
    layout = "packed" if job.entry is not None and config.batch.layout in ("auto", "packed") else "padded"
    lines = [f"{loaded.source}: {config.model.name}, {config.task.kind}; {data}; {layout} batches"]
    for machine in machines:
        speed = "intervals are wide without a measured run"
        if machine.constants is None:
            speed = "its speed is unknown"
        elif machine.constants.joint:
            speed = "fitted to what was measured"
        whose = "a device" if machine.is_cuda else "for all processes"
        lines.append(f"{machine.name}: {format_bytes(machine.memory_bytes)} {whose}; {speed}")
    about = {
        "config": str(loaded.source),
        "model": config.model.name,
        "task": config.task.kind,
        "data": {
            "num_samples": job.num_samples,
            "mean_length": lengths.mean,
            "longest": lengths.longest,
            "sequences_per_sample": job.sequences.mean,
            "is_assumed": lengths.is_assumed,
        },
    }
    plain = [
        {"name": each.name, "memory_bytes": each.memory_bytes, "price_per_hour": each.price_per_hour}
        for each in machines
    ]
    return lines, about | ({"machine": plain[0]} if len(plain) == 1 else {"machines": plain})


def _notes(loaded: "LoadedConfig", job: "PlannedJob", predictions: Sequence[Any]) -> list[str]:
    planned = ("data.train", HEAD_KEY, CLASS_KEY, RECIPE_KEY, REMOTE_CODE)
    code = [item for item in named_code(loaded.values) if item.key.startswith(planned) and not is_allowed(item.name)]
    single = list(dict.fromkeys(f"{one.option.name}: {note}" for one in predictions for note in one.notes))
    if len(single) > _MAX_NOTES:
        single[_MAX_NOTES:] = [f"... and {len(single) - _MAX_NOTES} more like these (--json has all)"]
    notes = [*(f"not imported without --run-code: {item}" for item in code), *single]
    notes += dict.fromkeys(f"no time: {prediction.why_no_time}" for prediction in predictions if prediction.why_no_time)
    if job.why_padded is not None and job.config.batch.layout in ("auto", "packed"):
        notes.append(f"batches are padded: {job.why_padded}")
    if any(prediction.figures["epoch_s"] is not None for prediction in predictions):
        notes.append("Times are of training steps, without start-up, evaluations and checkpoints.")
    return notes
