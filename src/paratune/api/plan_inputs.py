"""The inputs of a plan: the job as training has it, and the planned machine, fitted to runs on it (`--measured`)."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.api.plan_options import PlanOptions
from paratune.api.tokenizing import tokenizing_of
from paratune.base.text import plain
from paratune.config.load import load_values
from paratune.config.own_code import importable_parts
from paratune.config.permission import is_allowed
from paratune.errors import ConfigError, DataError, option_error
from paratune.records import SUMMARY_FILE
from paratune.records.finished import RunRecord, read_record
from paratune.records.sweep import RUNS_FOLDER, SWEEP_FILE

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.config.sections import Config
    from paratune.planning.job import PlannedJob
    from paratune.planning.machine import Machine
    from paratune.planning.time import MeasuredStep


log = logging.getLogger(__name__)
_LONGEST = 512
"""Tokens of a row where neither the configuration, the model nor the data gives a number."""


def make_job(
    loaded: "LoadedConfig",
    *,
    max_length: int | None = None,
    rows: int | None = None,
    tokens_per_sample: float | None = None,
) -> "PlannedJob":
    """Return the job of a configuration.

    Args:
        max_length: Number of tokens of every row, instead of the data.
        rows: With `max_length`: number of rows of the training split; None if unknown.
        tokens_per_sample: Mean computed tokens of a sample as a run had them, instead of the data.

    Raises:
        ParatuneError: The model or the data cannot be read.
    """
    from paratune.models.config import load_config, num_positions, override, published_config
    from paratune.models.load import kept_dtype
    from paratune.planning.job import PlannedJob, assumed_lengths, find_packing, lengths_of_rows

    config, read = loaded.config, importable_parts(loaded.config)
    try:
        hf_config = load_config(read.model)
    except ConfigError as error:
        if read.model.from_scratch and read.model.tokenizer is not None:
            hf_config = load_config(read.model.model_copy(update={"tokenizer": None}))
            # The tokenizer may not be made yet.
            log.info("planned with the vocabulary of %s: %s", read.model.name, error)
        else:  # the known configuration of a published model
            hf_config = published_config(read.model.name, error)
            override(hf_config, read.model)
    recipe = getattr(config.task, "recipe", None)
    is_read = read.data.train == config.data.train and (recipe is None or is_allowed(recipe))
    if max_length is None and not is_read:  # without its code, every row has the longest possible text
        max_length = config.data.max_length or num_positions(hf_config) or _LONGEST
    num_samples: int | None
    samples = None
    if tokens_per_sample is not None:
        longest, num_samples = num_positions(hf_config) or tokens_per_sample, None
        num_sequences = max(_assumed_sequences(config) or 1, math.ceil(tokens_per_sample / longest))
        lengths = assumed_lengths(max(1, round(tokens_per_sample / num_sequences)))
        sequences = assumed_lengths(num_sequences)
    elif max_length is not None:
        limit = num_positions(hf_config)
        if limit is not None and limit < max_length:
            message = f"--max-length {max_length} is more than the positions of {config.model.name}: {limit}"
            facts: dict[str, Any] = {"value": max_length, "name": config.model.name, "limit": limit}
            raise ConfigError(message, code="data.max_length_unfit", option="--max-length", **facts)
        lengths, num_samples = assumed_lengths(max_length), rows
        if (assumed := _assumed_sequences(config)) is None:
            message = "--max-length: only the data has the number of windows or choices of each sample; plan with it"
            raise ConfigError(f"{message}, without --max-length", code="plan.not_traced", option="--max-length")
        sequences = assumed_lengths(assumed)
    else:  # from the cache of tokens, or the split is tokenized
        from paratune.tasks import make_recipe

        try:
            with tokenizing_of(read) as tokenizing:
                data = read.data.model_copy(update={"validation": None, "test": None})
                store = make_recipe(read.task).load_splits(data, tokenizing)["train"].store
        except (ConfigError, DataError) as error:
            raise type(error)(f"{error}; or plan without data: --max-length TOKENS", code=error.code) from error
        lengths, sequences = lengths_of_rows(store.sequence_lengths), lengths_of_rows(store.num_sequences)
        num_samples, samples = sequences.num_rows, lengths_of_rows(store.lengths)
    entry, why_padded = find_packing(hf_config, config.task, config.model)
    kept = kept_dtype(config.model, hf_config)
    return PlannedJob(config, hf_config, lengths, num_samples, entry, why_padded, sequences, samples, kept)


def _assumed_sequences(config: "Config") -> int | None:
    """Return the sequences of each sample, where no data is read; None if only the data has this number."""
    from paratune.config.sections import named_columns

    if config.task.kind == "embedding":
        return 1 + sum(column is not None for column in (config.data.columns.text_pair, config.data.columns.negative))
    choices = config.data.columns.choices
    if getattr(config.task, "windows", None) not in (None, "joined", "documents"):
        return None
    if config.task.kind != "multiple_choice":
        return 1
    # One column has lists of choices.
    return None if isinstance(choices, str) else len(named_columns(choices))


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Return the records of finished runs; a matrix stands for its finished runs with measured steps.

    Raises:
        CheckpointError: A folder is not a run, or the run is not finished.
        ConfigError: A matrix has no finished run with measured steps.
    """
    runs = []
    for folder in folders:
        if not (folder / SWEEP_FILE).is_file():
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


def planned_machine(
    options: PlanOptions, runs: Sequence[RunRecord], *, on_cpu: bool
) -> tuple["Machine", list[dict[str, Any]]]:
    """Return the machine that is planned: the named one, that of the measured runs, or this one.

    Its constants explain the measured steps of the runs, which are returned as plain data.

    Raises:
        ConfigError: There is no such machine, another one was measured, `--network` changes nothing, or a measured
            step cannot be predicted.
    """
    from paratune.planning.constants import NETWORK_SHARE, Bounded, assumed_cpu_constants, assumed_gpu_constants
    from paratune.planning.machine import find_machine, this_machine
    from paratune.planning.time import refit

    ran_on = [machine_of_run(run) for run in runs]
    if options.device is not None:
        machine = find_machine(options.device)
    else:
        machine = ran_on[0] if ran_on else this_machine(on_cpu=on_cpu)
    others = [other.kind for other in ran_on if other.kind != machine.kind]
    if others:
        devices = [machine.kind, others[0]]
        message = f"--measured: the plan is for {devices[0]}, and {devices[1]} was measured; give the measurements of"
        raise ConfigError(f"{message} one device, or --device", code="plan.measured", devices=devices)
    constants = machine.constants
    if constants is None and runs:
        constants = assumed_gpu_constants() if machine.is_cuda else assumed_cpu_constants()
    if options.network is not None:
        if constants is None:
            reason = f"it changes only times of a listed device (--device) or of --measured runs, not of {machine.name}"
            raise option_error("--network", options.network, reason, code="cli.no_effect")
        constants = constants.replaced({"network": Bounded(*NETWORK_SHARE).times(options.network * 1e9 / 8)})
    machine = replace(machine, constants=constants, price_per_hour=options.price)
    if not runs or constants is None:
        return machine, []
    measured = [_measured_steps(run, machine) for run in runs]
    steps = [step for _, own in measured for step in own]
    constants, before_s, after_s = refit(constants, steps)
    figures = {
        id(step): {"before": before, "after": after, "measured": step.seconds}
        for step, before, after in zip(steps, before_s, after_s, strict=True)
    }
    about = [{"measured": text, "step_s": figures[id(own[0])]} for text, own in measured]
    return replace(machine, constants=constants), about


def _measured_steps(run: RunRecord, machine: "Machine") -> tuple[str, list["MeasuredStep"]]:
    """Return the mean step of a run, after it the phases in which its ranks do not wait for each other, and a text.

    Raises:
        ConfigError: The run has no measured steps, or its step cannot be predicted.
    """
    from paratune.planning.enumerate import PlanRequest, list_options
    from paratune.planning.predict import JobPredictor
    from paratune.planning.time import MeasuredStep, step_time
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
    num_ranks, strategies = (int(record.world_size or 1),), (str(loaded.config.strategy.kind),)
    request = PlanRequest(num_ranks=num_ranks, nodes=(len(record.hardware),), strategies=strategies)
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
    way = f"{option.name} x {setup.num_ranks}, {setup.precision.name}, micro-batch {setup.micro_batch_size}"
    way += f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    return f"{whole_s:.3g} s a step by {run.name} ({way})", [MeasuredStep(case, whole_s), *parts]


def _impossible(name: str, reason: str) -> ConfigError:
    return ConfigError(f"--measured {name}: {reason}", code="plan.measured", option="--measured", value=name)
