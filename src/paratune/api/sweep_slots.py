"""Runs of a matrix side by side: which share of the machine they get, and which of them are the longest."""

import os
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from paratune.api.plan_inputs import make_job, planned_machine
from paratune.api.plan_options import PlanOptions, plan_request
from paratune.base.units import parse_count
from paratune.config.plain import flatten
from paratune.console import Display
from paratune.errors import ConfigError, ParatuneError, option_error
from paratune.hardware import usable_cores
from paratune.processes.slots import VISIBLE, Slots
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import gpus_here
from paratune.sweeps.matrix import MOST_SLOTS

Parallel = int | Literal["auto"]
"""Most runs at a time; `auto`: one on each GPU, or on each set of four cores."""
IRRELEVANT = ("run.", "train.learning_rate", "train.schedule", "train.warmup", "train.weight_decay")
"""Prefixes of settings that change neither memory nor time."""


def read_parallel(text: str) -> Parallel:
    """Read the value of `--parallel`; `ConfigError` where it is neither `auto` nor a number of runs."""
    if text == "auto":
        return "auto"
    if (number := parse_count(text)) is not None and 1 <= number <= MOST_SLOTS:
        return number
    allowed = f"allowed: auto, or a number of runs from 1 to {MOST_SLOTS}"
    raise option_error("--parallel", text, allowed, code="cli.invalid_value")


def slots_here(cells: Sequence[Cell], parallel: Parallel) -> Slots:
    """Divide this machine for these runs.

    Raises:
        ConfigError: Runs name their GPUs themselves, or PyTorch does not report the GPUs of this machine.
    """
    if parallel == 1:
        return Slots(1, 0, ())
    if given := [cell.name for cell in cells if VISIBLE in cell.record.environment]:
        message = f"env sets {VISIBLE} ({given[0]}), which --parallel sets for each run; leave one of them out"
        raise ConfigError(message, code="cli.conflict", options=("--parallel", f"env.{VISIBLE}"))
    has_affinity = hasattr(os, "sched_getaffinity")  # elsewhere the numbers of cores only count their threads
    affinity = sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1)
    cores = affinity[: max(1, int(usable_cores() or 1))]
    gpus = gpus_here() if any(cell.config.device != "cpu" for cell in cells) else ()
    if gpus is None:  # unknown is not none: all runs would be trained on the first GPU
        reason = "PyTorch did not report the GPUs of this machine; use --parallel 1, or device: cpu"
        raise option_error("--parallel", parallel, reason, code="cli.conflict")
    return Slots(None if parallel == "auto" else parallel, len(gpus), cores)


def uses_gpus(cell: Cell) -> bool:
    """Return whether a run is trained on GPUs: they are the default where there are any."""
    return cell.config.device != "cpu" and bool(gpus_here())


def time_key(cell: Cell) -> str:
    """Return a text that is equal for runs with the same time and memory: they may differ in seed or learning rate."""
    assert cell.loaded is not None
    values = {name: value for name, value in flatten(cell.loaded.values).items() if not name.startswith(IRRELEVANT)}
    return repr((cell.record.num_processes, cell.record.num_nodes, sorted(values.items(), key=lambda item: item[0])))


def expected_work(todo: Sequence[Cell], cells: Sequence[Cell]) -> dict[str, float]:
    """Return how long each run of `todo` is expected to take, by its name; 0.0 where nothing is known.

    Mean seconds of the finished runs in `cells` with the same work, else of a plan for this machine. The plan of a
    machine whose speed is unknown has operations; runs with both give their scale, and without one only their order
    counts.
    """
    took: dict[str, list[float]] = {}
    for cell in cells:
        if cell.record.state == "finished" and cell.loaded is not None and (seconds := cell.record.took_s) is not None:
            took.setdefault(time_key(cell), []).append(seconds)
    keys = {cell.name: time_key(cell) for cell in todo}
    if len(set(keys.values())) < 2:
        return {}
    means = {key: fmean(seconds) for key, seconds in took.items()}
    planned: dict[str, float] = {}
    if not means.keys() >= set(keys.values()):
        one_of_each = {time_key(cell): cell for cell in cells if cell.loaded is not None}
        wanted = {key: one_of_each[key] for key in dict.fromkeys([*keys.values(), *means])}
        with Display(speaks=True).bar("expected times", len(wanted)) as bar:
            for number, (key, cell) in enumerate(wanted.items()):
                bar.update(number, cell.name)
                planned[key] = _planned_work(cell)
    ratios = [mean / planned[key] for key, mean in means.items() if planned.get(key)]
    scale = fmean(ratios) if ratios else 1.0
    return {name: means[key] if key in means else scale * planned[key] for name, key in keys.items()}


def _planned_work(cell: Cell) -> float:
    """Return the seconds of all steps of a run, or their operations where the speed of this machine is unknown."""
    # Not at the top: `--dry-run` would wait for torch.
    from paratune.planning.enumerate import list_options
    from paratune.planning.predict import JobPredictor
    from paratune.planning.time import step_time

    assert cell.loaded is not None
    devices, nodes = str(cell.record.num_processes), cell.record.num_nodes
    options = PlanOptions(
        devices=devices, nodes=None if nodes is None else str(nodes), strategies=str(cell.config.strategy.kind)
    )
    try:
        job = make_job(cell.loaded)
        machine, _ = planned_machine(options, (), on_cpu=cell.config.device == "cpu")
        (option, *_), _ = list_options(job, cell.loaded, machine, plan_request(options))
        case = JobPredictor(job, machine, searches=False).step_case(option)
    except (ParatuneError, ValueError):  # it is not planned, such as a fitted baseline; the run itself reports errors
        return 0.0
    seconds, _ = step_time(case)
    kernels = (*case.profile.forward.kernels, *case.profile.backward.kernels)
    operations = sum(kernel.flops for kernel in kernels) * case.setup.grad_accum_steps * case.setup.num_ranks
    step = operations if seconds is None else seconds.total.value
    return step * (job.num_steps(case.setup.global_batch_size) or 0)
