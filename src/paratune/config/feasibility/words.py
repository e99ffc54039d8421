"""Messages of the reasons why a run is not possible, and the errors that contain them.

Commands use different words for a few things: `paratune plan` starts no process, and a matrix has `nproc:`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.config.feasibility.reason import Reason
from paratune.config.plain import one_line
from paratune.errors import ConfigError, DataError, Fault, LaunchError, MissingDependency, ParatuneError

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Surface:
    """Words that differ between commands."""

    verbs: tuple[str, str] = ("was started", "were started")
    """Verb for one process, and for several."""
    ranks_option: str = "--nproc {}"
    """Option that sets the number of processes."""
    may_change_strategy: bool = True
    """Whether messages suggest another strategy; not where the user named the strategy on the command line."""
    group_advice: str = "set strategy.shard_size to half of the processes or less, or start the run on several nodes"


TRAIN = Surface()
SWEEP = Surface(ranks_option="nproc: {}")
PLAN = Surface(
    verbs=("is requested", "are requested"),
    may_change_strategy=False,
    group_advice="give --nodes 2 or more, or a smaller group: --strategies hsdp:2",
)
CERTIFY = Surface(may_change_strategy=False)


def text(reason: Reason, surface: Surface = TRAIN) -> str:
    """Return the message of a reason: where, what was found, what is allowed, what to do."""
    words, facts, key = _WORDS[reason.code], reason.facts, reason.keys[0]
    if not isinstance(words, str):
        return words(facts, surface, key)
    return words.format(**{**facts, "key": key, "nearest": _either(facts.get("nearest", ())), "surface": surface})


def error(reasons: Sequence[Reason], surface: Surface = TRAIN, *, source: object = None) -> ParatuneError:
    """Return the error that lists all reasons. The first reason decides its class, and so the exit code.

    Args:
        source: File of the configuration; in the message where there are several reasons.
    """
    first, *others = reasons
    kind = _ERRORS.get(first.code, ConfigError)
    faults = [Fault(reason.code, text(reason, surface), {"keys": reason.keys, **reason.facts}) for reason in reasons]
    if not others:
        return kind(faults[0].message, code=first.code, **dict[str, Any](faults[0].facts))
    heading = f"{len(faults)} problems" if source is None else f"{source}: {len(faults)} problems"
    return kind(heading, code=first.code, faults=faults)


def refuse(reasons: Iterable[Reason], surface: Surface = TRAIN, *, source: object = None) -> None:
    """Raise all reasons as one error; do nothing where there are none.

    Raises:
        ParatuneError: A ConfigError, or of the class that `error` gives.
    """
    if listed := [*reasons]:
        raise error(listed, surface, source=source)


_ERRORS: Mapping[str, type[ParatuneError]] = {
    "dependency.missing": MissingDependency,
    "device.too_few_gpus": LaunchError,
    "data.too_few_rows": DataError,
}
"""Classes of the errors that are not a ConfigError, by code."""


def _count_started(facts: Facts, surface: Surface) -> str:
    count = facts["world_size"]
    return f"{count} {surface.verbs[count != 1]}"


def _either(sizes: Iterable[int]) -> str:
    return " or ".join(str(size) for size in sizes)


def _too_few_ranks(facts: Facts, surface: Surface, key: str) -> str:
    least, kind = facts["min"], "single" if facts["world_size"] == 1 else "ddp"
    other = f", or set strategy.kind: {kind}" if surface.may_change_strategy else ""
    return (
        f"strategy.kind: {facts['kind']} needs {least} processes or more, and {_count_started(facts, surface)}; "
        f"start them with {surface.ranks_option.format(least)}{other}"
    )


def _ranks_not_multiple(facts: Facts, surface: Surface, key: str) -> str:
    multiple = facts["multiple"]
    below = facts["world_size"] // multiple * multiple
    return (
        f"strategy.kind: {facts['kind']} needs a multiple of {multiple} processes, and "
        f"{_count_started(facts, surface)}; the nearest: {below} or {below + multiple}"
    )


def _too_many_ranks(facts: Facts, surface: Surface, key: str) -> str:
    other = "set strategy.kind: ddp, or " if surface.may_change_strategy else ""
    return (
        f"strategy.kind: {facts['kind']} runs in {facts['max']} process, and {_count_started(facts, surface)}; "
        f"{other}start one"
    )


def _not_a_divisor(facts: Facts, surface: Surface, key: str) -> str:
    num_ranks = facts["data_world_size"]
    owner = "one rank" if num_ranks == 1 else f"each of {num_ranks} ranks"
    return (
        f"batch.micro_batch_size is {facts['micro_batch_size']}, which does not divide the {facts['share']} samples "
        f"that {owner} takes of batch.global: {facts['global_batch_size']}; the nearest that do: "
        f"{_either(facts['nearest'])}"
    )


def _too_few_micro_batches(facts: Facts, surface: Surface, key: str) -> str:
    num, stages = facts["num_micro_batches"], facts["min"]
    advice = {
        "batch.grad_accum_steps": "{} or more",
        "batch.micro_batch_size": "at most {}",
        "batch.global": "at least {}",
    }[key].format(facts["limit"])
    return (
        f"batch: a step has {num} micro-batch{'es' * (num > 1)}, and a pipeline of {stages} stages needs at least "
        f"{stages}, better {4 * stages}; set {key} to {advice}"
    )


def _micro_batches_not_multiple(facts: Facts, surface: Surface, key: str) -> str:
    advice = (
        f"set {key} to {_either(facts['nearest'])}"
        if facts["nearest"]
        else f"set batch.global so that each replica's share of it, now {facts['share']}, is such a multiple"
    )
    return (
        f"batch: a step has {facts['num_micro_batches']} micro-batches, and this schedule needs a multiple of "
        f"{facts['multiple']}; {advice}"
    )


def _too_many_stages(facts: Facts, surface: Surface, key: str) -> str:
    stages, chunks, num_blocks = facts["stages"], facts["chunks"], facts["num_blocks"]
    per_rank = "" if chunks == 1 else f" with {chunks} chunks each"
    most = num_blocks // chunks
    fewer = f"set strategy.stages to at most {most}, or " if most >= 2 else "set "
    return (
        f"strategy.stages: {stages}{per_rank} divides the model into {stages * chunks} parts, and it has {num_blocks} "
        f"block{'s' * (num_blocks != 1)}; {fewer}strategy.kind: ddp"
    )


def _extra_missing(facts: Facts, surface: Surface, key: str) -> str:
    given = f"{key}: {facts['value']}" if facts["value"] else key
    return f"{given} needs the extra {facts['extra']}: pip install 'paratune[{facts['extra']}]'"


def _needs_accelerator(facts: Facts, surface: Surface, key: str) -> str:
    given = ", ".join(f"{name}: {one_line(value)}" for name, value in facts["given"].items())
    return (
        f"{given} moves states from the memory of an accelerator to that of the host, and {facts['description']}; "
        "leave it out, or start on a machine with a GPU"
    )


def _precision_needs_gpu(facts: Facts, surface: Surface, key: str) -> str:
    slow = ""
    if facts["precision"] == "fp16":
        slow = " (4 to 300 times slower than fp32 on a CPU: docs/explanation/precision.md#on-a-cpu)"
    return f"precision: {facts['precision']} is for GPUs{slow}, and {facts['description']}; use precision: fp32"


def _needs_newer_gpu(facts: Facts, surface: Surface, key: str) -> str:
    other = ", or fp16" * (facts["precision"] == "bf16")
    return (
        f"precision: {facts['precision']} needs a GPU of compute capability 8.0 or newer, and {facts['description']}; "
        f"use precision: fp32{other}"
    )


_WORDS: Mapping[str, str | Callable[[Facts, Surface, str], str]] = {
    "strategy.excluded": "{key}: {value} cannot be combined with strategy.kind: {kind}: {why}",
    "strategy.too_few_ranks": _too_few_ranks,
    "strategy.ranks_not_multiple": _ranks_not_multiple,
    "strategy.too_many_ranks": _too_many_ranks,
    "strategy.single_group": (
        "strategy.kind: {kind} has one group on one machine, which is zero3; {surface.group_advice}"
    ),
    "ranks.uneven_nodes": "{world_size} processes cannot be spread evenly over {num_nodes} nodes",
    "batch.too_large": "{key}: a step has {global_batch_size} samples; at most {max} are possible",
    "batch.uneven_share": (
        "batch.global is {global_batch_size}, which {data_world_size} ranks cannot share evenly; the nearest sizes "
        "that they can: {nearest}"
    ),
    "batch.micro_batch_not_divisor": _not_a_divisor,
    "batch.group": (
        "{key}: a step has {global_batch_size} samples on {data_world_size} ranks, in micro-batches that do not "
        "consist of whole groups of {group_size} samples (task.group_size); set {key} to {nearest}"
    ),
    "batch.too_few_micro_batches": _too_few_micro_batches,
    "batch.micro_batches_not_multiple": _micro_batches_not_multiple,
    "strategy.too_many_stages": _too_many_stages,
    "strategy.balance_mismatch": lambda facts, surface, key: (
        f"strategy.balance: {facts['balance']} is {sum(facts['balance'])} blocks together, and the model has "
        f"{facts['num_blocks']}"
    ),
    "dependency.missing": _extra_missing,
    "device.no_gpu": "device: cuda, but PyTorch sees no GPU here (paratune doctor gives the reason); set device: cpu",
    "device.is_gpu": "device: cpu, and {description}; set device: auto",
    "device.too_few_gpus": lambda facts, surface, key: (
        f"{surface.ranks_option.format(facts['num_processes'])} needs as many GPUs on a machine, and there "
        f"{'is 1' if facts['num_devices'] == 1 else 'are {}'.format(facts['num_devices'])}"
    ),
    "strategy.needs_accelerator": _needs_accelerator,
    "train.order_of_sums_on_cpu": (
        "train.deterministic: false has an effect only on a GPU, and {description}; leave it out, or start on a "
        "machine with a GPU"
    ),
    "precision.needs_gpu": _precision_needs_gpu,
    "precision.needs_newer_gpu": _needs_newer_gpu,
    "precision.tf32_disabled": (
        "precision: tf32 has no effect while the environment has NVIDIA_TF32_OVERRIDE=0; unset it, or use fp32"
    ),
    "data.too_few_rows": (
        "data.train: {num_samples} samples are too few for {world_size} processes; start at most {most}"
    ),
}
"""Messages by code: a text with facts in braces, or a function where parts depend on facts or on the command."""
CODES = frozenset(_WORDS)
"""Codes of all reasons."""
