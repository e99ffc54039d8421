"""Which ways of running a job there are: strategies, numbers of devices, precisions, micro-batches; and which are none.

What cannot be is named with its reason, which is that of the training, had it been started.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.candidates import strategy_section
from paratune.config.check import check
from paratune.config.feasibility.rules import why_not
from paratune.config.feasibility.target import Ranks, Target
from paratune.config.feasibility.words import PLAN, text
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import Traits, traits_of
from paratune.config.validate import validate
from paratune.errors import ConfigError
from paratune.models.batch_layout import BatchLayout
from paratune.plan.job import PlannedJob
from paratune.plan.machine import Machine
from paratune.plan.setup import PredictionSetup
from paratune.precision import POLICIES, Precision

USUAL = ("single", "ddp", "zero1", "zero2", "zero3", "pipeline")
"""Strategies that are planned when none are named, beside the configuration's own."""
ALL = (
    *USUAL,
    "hsdp",
    "zero2:cpu_offload=true",
    "zero3:cpu_offload=true",
    "deepspeed:1",
    "deepspeed:2",
    "deepspeed:3",
    "deepspeed:2:offload_optimizer=true",
    "deepspeed:3:offload_optimizer=true:offload_parameters=true",
)
"""What `--strategies all` means, beside the configuration's own."""


@dataclass(frozen=True)
class Asked:
    """What is varied; see the options of `paratune plan`."""

    num_ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    """As `candidates.strategy_section` reads them."""
    precisions: tuple[str, ...]
    micro_batch_sizes: tuple[int | None, ...] = (None,)
    """None for what the configuration says."""
    num_nodes: int = 1
    are_named: bool = True
    """Whether the strategies were named; if not, those are left out that come to the same as single."""


@dataclass(frozen=True, eq=False)
class JobOption:
    """A way of running the job that is possible as far as sizes go; whether it fits is not known yet."""

    name: str
    """The strategy with its options, as on a command line."""
    config: Config
    """Under which it would be trained."""
    setup: PredictionSetup
    sizes: ResolvedBatch
    layout: BatchLayout
    is_open: bool
    """Whether the micro-batch was left to paratune, and may be made smaller until it fits."""
    apart: tuple[str, ...] = ()
    """What else tells it from ways with its strategy and devices: precision or micro-batch, where several are asked."""


@dataclass(frozen=True)
class Impossible:
    """A way that there is not."""

    name: str
    precision: str
    num_ranks: int | None
    """None where the number does not matter."""
    reason: str
    codes: tuple[str, ...] = ()
    """Of the reasons, where these are rules of `config.feasibility`."""


def enumerate_options(
    job: PlannedJob, loaded: LoadedConfig, machine: Machine, asked: Asked, outside_traits: Callable[[str], Traits]
) -> tuple[list[JobOption], list[Impossible]]:
    """Return all ways that were asked for, and those among them that are none.

    Args:
        job: With its lengths.
        loaded: The configuration, with its overrides.
        machine: Decides on precisions and layouts.
        asked: What is varied.
        outside_traits: Gives the traits of a strategy from outside this package, by its kind.

    Raises:
        ConfigError: A strategy is called by a name, or has an option, that does not exist.
    """
    options: list[JobOption] = []
    impossible: list[Impossible] = []
    for each in _variants(loaded, asked, outside_traits):
        if isinstance(each, Impossible):
            impossible.append(each)
            continue
        for num_ranks in asked.num_ranks:
            if not asked.are_named and _is_as_single(each, num_ranks):
                continue
            try:
                option = _option(job, machine, each, num_ranks, asked.num_nodes)
            except ConfigError as error:  # the model does not take the layout of batches
                option = Impossible(each.name, each.config.precision, num_ranks, str(error))
            if isinstance(option, Impossible):
                impossible.append(option)
            elif all(option.setup != other.setup for other in options):
                options.append(option)
    return options, list(dict.fromkeys(impossible))


@dataclass(frozen=True, eq=False)
class _Variant:
    name: str
    config: Config
    traits: Traits
    apart: tuple[str, ...]


def _variants(
    loaded: LoadedConfig, asked: Asked, outside_traits: Callable[[str], Traits]
) -> Iterator[_Variant | Impossible]:
    for name in asked.strategies:
        section, problems = strategy_section(loaded, name)
        for precision in asked.precisions:
            for size in asked.micro_batch_sizes:
                values = _values(loaded.values, section, precision, size)
                values, findings = validate(values)
                problems = [*problems, *(each.message for each in findings.problems)]
                if problems:
                    raise ConfigError(
                        f"--strategies {name}: {'; '.join(problems)}",
                        code="strategy.candidates",
                        option="--strategies",
                        name=name,
                    )
                yield _variant(name, Config.model_validate(values), outside_traits, _apart(asked, precision, size))


def _apart(asked: Asked, precision: str, size: int | None) -> tuple[str, ...]:
    """Return what tells a way from others with its strategy and devices."""
    by_precision = [precision] if len(asked.precisions) > 1 else []
    by_size = [f"micro-batches of {size}"] if len(asked.micro_batch_sizes) > 1 else []
    return (*by_precision, *by_size)


def _values(given: Mapping[str, Any], strategy: dict[str, Any], precision: str, size: int | None) -> dict[str, Any]:
    values = deepcopy(dict(given))
    values.update(strategy=strategy, precision=precision)
    if size is not None:
        values["batch"]["micro_batch_size" if values["batch"]["per_device"] is None else "per_device"] = size
    return values


def _variant(
    name: str, config: Config, outside_traits: Callable[[str], Traits], apart: tuple[str, ...]
) -> _Variant | Impossible:
    kind = config.strategy.kind
    traits = traits_of(kind, strategy_options(config.strategy)) or outside_traits(kind)
    if problems := check(config):
        return Impossible(name, config.precision, None, "; ".join(problem.message for problem in problems))
    return _Variant(name, config, traits, apart)


def _is_as_single(variant: _Variant, num_ranks: int) -> bool:
    """Say whether a strategy comes to single in one process; and single, to nothing in several."""
    if variant.traits.max_world_size == 1:
        return num_ranks > 1
    return num_ranks == 1 and variant.traits.states_on == "device"


def _option(
    job: PlannedJob, machine: Machine, variant: _Variant, num_ranks: int, num_nodes: int
) -> JobOption | Impossible:
    """Return the way with so many ranks, or why there is none.

    Raises:
        ConfigError: The model does not take the layout of batches that is asked for.
    """
    config, traits = variant.config, variant.traits
    num_layers = getattr(job.hf_config, "num_hidden_layers", None)
    reasons = why_not(
        config,
        traits,
        _target(machine),
        Ranks(num_ranks, num_nodes),
        num_blocks=num_layers if isinstance(num_layers, int) else None,
    )
    if reasons:
        sentence, codes = "; ".join(text(each, PLAN) for each in reasons), tuple(each.code for each in reasons)
        return Impossible(variant.name, config.precision, num_ranks, sentence, codes)
    sizes = job.sizes(config.batch, traits, num_ranks)
    layout = job.layout(traits, is_cuda=machine.is_cuda)
    setup = PredictionSetup(
        strategy=config.strategy,
        traits=traits,
        precision=_precision(config),
        num_ranks=num_ranks,
        ranks_per_node=num_ranks // num_nodes,
        micro_batch_size=sizes.micro_batch_size,
        grad_accum_steps=sizes.grad_accum_steps,
        activation_checkpointing=config.train.activation_checkpointing,
        layout="packed" if layout.kind == "packed" else "padded",
        optimizer=config.train.optimizer,
    )
    is_open = config.batch.per_device is None and config.batch.micro_batch_size in (None, "auto")
    return JobOption(variant.name, config, setup, sizes, layout, is_open, variant.apart)


def _precision(config: Config) -> Precision:
    """Return the policy of a configuration, with the weights that its strategy's passes read."""
    return POLICIES[config.precision].with_weights(getattr(config.strategy, "param_dtype", "fp32"))


def resized(option: JobOption, micro_batch_size: int) -> JobOption:
    """Return the same step in micro-batches of at most so many samples."""
    sizes = option.sizes.at_most(micro_batch_size)
    setup = replace(option.setup, micro_batch_size=sizes.micro_batch_size, grad_accum_steps=sizes.grad_accum_steps)
    return replace(option, sizes=sizes, setup=setup)


def _target(machine: Machine) -> Target:
    """Return what the rules of feasibility ask of a machine."""
    if not machine.is_cuda:
        return Target(is_cpu=True, description=f"{machine.name} is a CPU")
    device = machine.device
    newer = () if device is None else ("tf32", "bf16")
    missing = {name for name in newer if device is not None and device.peak_flops_per_s(name) is None}
    return Target(False, f"{machine.name} is {'older' if missing else 'a GPU'}", frozenset(missing))


def own_name(loaded: LoadedConfig) -> str:
    """Return the configuration's own strategy as a command line names it; its options are taken over by that."""
    return str(loaded.config.strategy.kind)
