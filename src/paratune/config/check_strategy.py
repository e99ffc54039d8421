"""Checks a strategy against the other sections of a file; `feasibility` has the rules that need more than the file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paratune.config.contradictions import exclusive, no_effect, unused
from paratune.config.deepspeed_limits import STAGES
from paratune.config.feasibility.rules import excluded_settings
from paratune.config.feasibility.words import text
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.strategy_sections import DeepSpeedOptions, OutsideStrategy, PipelineOptions, strategy_options
from paratune.config.traits import strategy_traits


def _memory_savers(config: Config) -> Iterator[Problem]:
    if config.train.freeze_encoder:
        wanted = "with train.freeze_encoder: true, which keeps no activations of the blocks"
        yield from unused(config, "train.activation_checkpointing", wanted, "train.freeze_encoder")
    for key, value in strategy_options(config.strategy).items() if config.device == "cpu" else ():
        if "offload" in key and value is True:
            wanted = "with device: cpu, where all states are in host memory"
            yield replace(no_effect(f"strategy.{key}", True, wanted, "device"), is_impossible=True)


def _strategy(config: Config) -> Iterator[Problem]:
    """Check for settings that the strategy excludes, and the stages of a pipeline."""
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    for reason in excluded_settings(config, traits.excludes) if traits else ():
        yield Problem(text(reason), reason.keys, is_impossible=True, code=reason.code)
    strategy = config.strategy
    if isinstance(strategy, PipelineOptions):
        assert traits is not None
        yield from _pipeline(strategy, strategy.stages * traits.stages_per_rank)


def _pipeline(strategy: PipelineOptions, num_stages: int) -> Iterator[Problem]:
    if strategy.chunks is not None and strategy.schedule != "interleaved":
        wanted = f"with strategy.schedule: {strategy.schedule}; only interleaved has several stages on a rank"
        yield no_effect("strategy.chunks", strategy.chunks, wanted, "strategy.schedule")
    if isinstance(strategy.balance, list) and len(strategy.balance) != num_stages:
        message = (
            f"strategy.balance: {one_line(strategy.balance)} names {len(strategy.balance)} stages, and there are "
            f"{num_stages} (strategy.stages times the chunks of each rank)"
        )
        yield Problem(message, ("strategy.balance", "strategy.stages"), code="strategy.stages")


def _deepspeed(config: Config) -> Iterator[Problem]:
    """Check for options without effect at the stage of DeepSpeed."""
    strategy = config.strategy
    if not isinstance(strategy, DeepSpeedOptions):
        return
    stage = f"strategy.stage: {strategy.stage}"
    wanted = {
        "offload_optimizer": (strategy.stage >= 1, f"with {stage}; use stage 1, 2 or 3"),
        "offload_parameters": (strategy.stage == 3, f"with {stage}; use stage 3"),
        "cpu_adam": (strategy.offload_optimizer, "without strategy.offload_optimizer: true"),
        **{name: (strategy.stage in stages, f"with {stage}; use {_one_of(stages)}") for name, stages in STAGES.items()},
    }
    for name, (has_effect, circumstances) in wanted.items():
        if not has_effect:
            yield from unused(config, f"strategy.{name}", circumstances, "strategy.stage")
    sizes = ("strategy.reduce_bucket_size", "strategy.allgather_bucket_size")
    yield from exclusive(config, "strategy.bucket_cap_mb", *sizes)
    if strategy.allgather_bucket_size is not None and strategy.allgather_bucket_size % 2:
        message = (
            f"strategy.allgather_bucket_size: {strategy.allgather_bucket_size} is odd; DeepSpeed needs an even number"
        )
        yield Problem(message, ("strategy.allgather_bucket_size",), code="config.invalid_value")


def _one_of(stages: Sequence[int]) -> str:
    *first, last = map(str, stages)
    return f"stage {', '.join(first)} or {last}" if first else f"stage {last}"


def _param_dtype(config: Config) -> Iterator[Problem]:
    """Check that 16-bit weights have the dtype of `precision`: forward and backward compute in it."""
    name = strategy_options(config.strategy).get("param_dtype", "fp32")
    if isinstance(config.strategy, OutsideStrategy) or name == "fp32":
        return
    keys = ("strategy.param_dtype", "precision")
    if name != config.precision:
        message = (
            f"strategy.param_dtype: {name} needs precision: {name}, and it is {config.precision}; set precision: {name}"
            ", or leave strategy.param_dtype out"
        )
        yield Problem(message, keys, is_impossible=True, code="precision.conflict")
    if isinstance(config.strategy, DeepSpeedOptions) and config.strategy.stage == 0:
        message = (
            f"strategy.param_dtype: {name} cannot be combined with strategy.stage: 0, where DeepSpeed has another "
            "optimizer; use stage 1, 2 or 3"
        )
        yield Problem(
            message, ("strategy.param_dtype", "strategy.stage"), is_impossible=True, code="precision.conflict"
        )


STRATEGY_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _memory_savers,
    _strategy,
    _deepspeed,
    _param_dtype,
)
"""Checks of the strategy, for `config.check`."""
