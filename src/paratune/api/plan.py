"""`paratune.plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from paratune.api.arguments import several
from paratune.api.configuration import Configuration, load
from paratune.api.plan_options import (
    ALL,
    PlanOptions,
    check_options,
    plan_request,
    planned_machine,
    planned_strategies,
)
from paratune.api.process import process_as_before
from paratune.api.threads import respect_quota
from paratune.base.imports import collector_off_for_imports
from paratune.config.load import allow_code
from paratune.config.own_code import CLASS_KEY, HEAD_KEY, RECIPE_KEY, named_code
from paratune.config.permission import REMOTE_CODE, is_allowed
from paratune.console import Display, set_up_logging, stdout_for_results

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.config.traits import Traits
    from paratune.planning.job import PlannedJob
    from paratune.planning.machine import Machine
    from paratune.planning.table import Plan

_MAX_NOTES = 4
"""Maximum number of notes about single options."""


def plan(
    config: Configuration,
    overrides: Mapping[str, Any] | None = None,
    *,
    devices: int | Sequence[int] | None = None,
    device: str | PathLike[str] | None = None,
    nodes: int | Sequence[int] | None = None,
    strategies: str | Sequence[str] | None = None,
    precision: str | Sequence[str] | None = None,
    max_length: int | None = None,
    rows: int | None = None,
    micro_batch_size: int | Sequence[int] | None = None,
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
        device: Such as a100-40gb or h100-80gb, or a YAML file with a description; default: the machine of `measured`,
            or this machine.
        nodes: Numbers of nodes; default: as few as the devices need, with 8 devices per node.
        strategies: Such as `["ddp", "zero3", "pipeline:4"]`, where a value sets the first option; or `"all"`.
        precision: Precisions; default: that of `config`.
        max_length: Plan without the data, with this number of tokens in every row.
        rows: With `max_length`: number of rows of the training set.
        micro_batch_size: Micro-batch sizes; default: that of `config`, or the largest that fits.
        price: Price of a device-hour, in any currency: adds the cost of runs.
        measured: Folders of runs on the machine, or figures such as "310 s an epoch on 1 x a100-40gb, fp16", to which
            the machine is fitted. A CPU, or a GPU that is not listed, has times only with a run; 20 steps are enough.
        run_code: Import the code that the configuration names; without it, the plan goes on without this code.

    Returns:
        The plan: `fits`, `recommended`, `predictions`, and `table()` with a row for each possible option. A notebook
        shows the output of the command.

    Raises:
        ParatuneError: The configuration, an option, the model or the data is invalid.
    """
    from paratune.config.baseline_sections import refuse_baseline

    options = PlanOptions(
        devices=_listed(devices),
        device=None if device is None else fspath(device),
        nodes=_listed(nodes),
        strategies=_listed(strategies),
        precision=_listed(precision),
        max_length=max_length,
        rows=rows,
        micro_batch_size=_listed(micro_batch_size),
        price=price,
    )
    check_options(options)
    with process_as_before():
        set_up_logging(speaks=True)
        respect_quota()
        loaded = load(config, overrides)
        if run_code:
            allow_code(loaded, strategies=planned_strategies(options) or ())
        refuse_baseline(loaded.config.baseline, "paratune plan predicts")
        with stdout_for_results():
            return make_plan(loaded, options, [fspath(text) for text in several(measured)])


def _listed(values: Any) -> str | None:
    """Return one value or several as on the command line."""
    return None if values is None else ",".join(map(str, several(values)))


def make_plan(loaded: "LoadedConfig", options: PlanOptions, measured: Sequence[str] = ()) -> "Plan":
    """Return the plan of a loaded configuration.

    Args:
        options: Checked by `check_options`.
        measured: Folders of runs, and figures (`planning.measured`).

    Raises:
        ParatuneError: The model, the data, a strategy, a run or a figure is invalid.
    """
    with collector_off_for_imports():
        from paratune.api.plan_job import make_job
        from paratune.api.plan_measured import fit_machine, read_runs
        from paratune.planning.advice import plan_advice, recommended
        from paratune.planning.enumerate import list_options
        from paratune.planning.measured import divide_measured
        from paratune.planning.predict import JobPredictor
        from paratune.planning.profiles import Profiles
        from paratune.planning.table import Plan

    figures, folders = divide_measured(measured)
    runs = read_runs(folders)
    machine = planned_machine(options, loaded, figures, runs)
    request = plan_request(options, loaded, machine)
    job = make_job(loaded, max_length=options.max_length, rows=options.rows)
    profile_of = Profiles(job, is_cuda=machine.is_cuda).of
    fitted = fit_machine(machine, figures, runs, loaded, job, profile_of)
    ways, impossible = list_options(job, loaded, machine, request, outside_traits)
    predictor = JobPredictor(job, fitted.machine, profile_of, memory_factor=fitted.memory_factor)
    with Display(speaks=True).bar("plan", len(ways)) as bar:
        predictions = []
        for number, way in enumerate(ways):
            bar.update(number, way.name)
            predictions.append(predictor.predict(way))
    heading, about = _heading(loaded, job, fitted.machine)
    best = recommended(predictions)
    return Plan(
        heading=(*heading, *fitted.lines),
        predictions=tuple(predictions),
        impossible=tuple(impossible),
        advice=tuple(plan_advice(predictions, all_tried=options.strategies == ALL)),
        notes=(*_not_imported(loaded), *fitted.notes, *_notes(job, predictions)),
        recommended=best,
        about=about | ({"measured": list(fitted.about)} if fitted.about else {}),
    )


def outside_traits(kind: str) -> "Traits":
    """Return the traits of a strategy from outside this package."""
    from paratune.strategies import strategy_class

    traits: Traits = strategy_class(kind).traits
    return traits


def _heading(loaded: "LoadedConfig", job: "PlannedJob", machine: "Machine") -> tuple[list[str], dict[str, Any]]:
    from paratune.base.units import format_bytes

    lengths, config = job.lengths, job.config
    rows = "rows" if job.num_samples is None else f"{job.num_samples:,} rows"
    if job.sequences.longest > 1:
        rows = f"{rows} of {job.sequences.mean:.3g} sequences, each"
    data = (
        f"{rows.removesuffix(', each')}, each with {lengths.longest} tokens (--max-length)"
        if lengths.is_assumed
        else f"{rows} of {lengths.mean:.0f} tokens on average, the longest {lengths.longest}"
    )
    layout = "packed" if job.entry is not None and config.batch.layout in ("auto", "packed") else "padded"
    speed = "its speed is unknown" if machine.constants is None else "intervals are wide without a measured run"
    if machine.constants is not None and machine.constants.joint:
        speed = "fitted to what was measured"
    lines = [
        f"{loaded.source}: {config.model.name}, {config.task.kind}; {data}; {layout} batches",
        f"{machine.name}: {format_bytes(machine.memory_bytes)} a device; {speed}"
        if machine.is_cuda
        else f"{machine.name}: {format_bytes(machine.memory_bytes)} for all processes; {speed}",
    ]
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
        "machine": {
            "name": machine.name,
            "memory_bytes": machine.memory_bytes,
            "price_per_hour": machine.price_per_hour,
        },
    }
    return lines, about


def _not_imported(loaded: "LoadedConfig") -> list[str]:
    """Return a note for code that a plan would import with --run-code."""
    planned = ("data.train", HEAD_KEY, CLASS_KEY, RECIPE_KEY, "strategy.kind", REMOTE_CODE)
    code = [item for item in named_code(loaded.values) if item.key.startswith(planned) and not is_allowed(item.name)]
    return [f"not imported without --run-code: {item}" for item in code]


def _notes(job: "PlannedJob", predictions: Sequence[Any]) -> list[str]:
    labels_by_note: dict[str, list[str]] = {}
    for prediction in predictions:
        for note in prediction.notes:
            labels_by_note.setdefault(note, []).append(prediction.label)
    notes = [f"{_some(labels)}: {note}" for note, labels in labels_by_note.items()]
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES:] = [f"... and {len(notes) - _MAX_NOTES} more like these (--json has all)"]
    notes += dict.fromkeys(f"no time: {prediction.why_no_time}" for prediction in predictions if prediction.why_no_time)
    if job.why_padded is not None and job.config.batch.layout in ("auto", "packed"):
        notes.append(f"batches are padded: {job.why_padded}")
    if any(prediction.epoch is not None for prediction in predictions):
        notes.append("Times are of training steps, without start-up, evaluations and checkpoints.")
    return notes


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:2]) + (f" and {len(labels) - 2} more" if len(labels) > 2 else "")
