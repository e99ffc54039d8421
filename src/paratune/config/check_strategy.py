"""Checks of a strategy against the other sections, and of the stages of a pipeline against the blocks of a model.

Floor 1.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from paratune.config.contradictions import no_effect
from paratune.config.differences import flatten
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.strategy_sections import DeepSpeedStrategy, PipelineStrategy, strategy_options
from paratune.config.traits import traits_of
from paratune.errors import ConfigError


def _memory_savers(config: Config) -> Iterator[Problem]:
    every = config.train.activation_checkpointing
    if every is not None and config.train.freeze_encoder:
        wanted = "with train.freeze_encoder: true, which keeps no activations of the blocks"
        yield no_effect("train.activation_checkpointing", every, wanted, ("train.freeze_encoder",))
    for key, value in strategy_options(config.strategy).items() if config.device == "cpu" else ():
        if "offload" in key and value is True:
            wanted = "with device: cpu, where states are in host memory anyhow"
            yield replace(no_effect(f"strategy.{key}", True, wanted, ("device",)), is_impossible=True)


def _strategy(config: Config) -> Iterator[Problem]:
    """What the traits of a strategy of this package exclude."""
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
    yield from excluded(config, traits.excludes) if traits else ()
    strategy = config.strategy
    if isinstance(strategy, PipelineStrategy):
        assert traits is not None
        yield from _pipeline(strategy, strategy.stages * traits.stages_per_rank)


def _pipeline(strategy: PipelineStrategy, num_stages: int) -> Iterator[Problem]:
    if strategy.chunks is not None and strategy.schedule != "interleaved":
        wanted = f"with strategy.schedule: {strategy.schedule}; only interleaved has several stages on a rank"
        yield no_effect("strategy.chunks", strategy.chunks, wanted, ("strategy.schedule",))
    if isinstance(strategy.balance, list) and len(strategy.balance) != num_stages:
        yield Problem(
            f"strategy.balance: {one_line(strategy.balance)} names {len(strategy.balance)} stages, and there are "
            f"{num_stages} (strategy.stages times the chunks of each rank)",
            ("strategy.balance", "strategy.stages"),
        )


def check_stages(stages: int, chunks: int, balance: str | list[int], num_blocks: int) -> None:
    """Hold the stages of a pipeline to the blocks that a model has to be cut at.

    Args:
        stages: Ranks of a pipeline.
        chunks: Stages on each of them.
        balance: As in the configuration.
        num_blocks: Repeated layers of the model.

    Raises:
        ConfigError: There are more stages than blocks, or not all blocks are dealt to stages.
    """
    if stages * chunks > num_blocks:
        each = "" if chunks == 1 else f" with {chunks} chunks each"
        most = num_blocks // chunks
        fewer = f"set strategy.stages to at most {most}, or " if most >= 2 else "set "
        raise ConfigError(
            f"strategy.stages: {stages}{each} cuts the model into {stages * chunks} parts, and it has {num_blocks} "
            f"block{'s' * (num_blocks != 1)}; {fewer}strategy.kind: ddp"
        )
    if isinstance(balance, list) and sum(balance) != num_blocks:
        raise ConfigError(
            f"strategy.balance: {balance} is {sum(balance)} blocks together, and the model has {num_blocks}"
        )


def excluded(config: Config, excludes: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the settings that a strategy cannot be combined with.

    Args:
        config: The whole of it.
        excludes: From the strategy's traits: "key=value", each with the reason.
    """
    kind = config.strategy.kind
    values = flatten(config.model_dump(mode="json", by_alias=True))
    for setting, reason in excludes.items():
        key, _, value = setting.partition("=")
        if key in values and one_line(values[key]) == value:
            message = f"{key}: {value} cannot be combined with strategy.kind: {kind}: {reason}"
            yield Problem(message, (key, "strategy.kind"), is_impossible=True)


def _deepspeed(config: Config) -> Iterator[Problem]:
    """Which options a stage of DeepSpeed has a use for."""
    strategy = config.strategy
    if not isinstance(strategy, DeepSpeedStrategy):
        return
    stage = f"strategy.stage: {strategy.stage}"
    wanted = {
        "offload_optimizer": (strategy.stage >= 1, f"with {stage}; use stage 1, 2 or 3"),
        "offload_parameters": (strategy.stage == 3, f"with {stage}; use stage 3"),
        "cpu_adam": (strategy.offload_optimizer, "without strategy.offload_optimizer: true"),
        "bucket_cap_mb": (strategy.stage >= 1, f"with {stage}; use stage 1, 2 or 3"),
        "param_persistence_threshold": (strategy.stage == 3, f"with {stage}; use stage 3"),
    }
    for name, (has_use, circumstances) in wanted.items():
        value = getattr(strategy, name)
        if value is not None and value is not False and not has_use:
            yield no_effect(f"strategy.{name}", value, circumstances, ("strategy.stage",))


STRATEGY_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (_memory_savers, _strategy, _deepspeed)
"""What `check` asks of a strategy."""
