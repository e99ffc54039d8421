"""Lists the options of a plan: combinations of strategy, number of devices, precision and micro-batch size.

An impossible combination is listed with the reason with which the training would refuse it.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.candidates import strategy_section
from paratune.config.check import check
from paratune.config.feasibility.rules import Ranks, Target, reasons_against
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import Traits, strategy_traits
from paratune.config.validate import validate
from paratune.errors import ConfigError
from paratune.models.batch_layout import BatchLayout
from paratune.planning.job import PlannedJob
from paratune.planning.machine import Machine
from paratune.planning.setup import PredictionSetup, optimizer_setup
from paratune.precision import POLICIES

DEFAULT_STRATEGIES = ("single", "ddp", "zero1", "zero2", "zero3", "pipeline")
"""Strategies that are planned if none are named, besides the one of the configuration."""
ALL_STRATEGIES = (
    *DEFAULT_STRATEGIES,
    "hsdp",
    "zero2:cpu_offload=true",
    "zero3:cpu_offload=true",
    "deepspeed:1",
    "deepspeed:2",
    "deepspeed:3",
    "deepspeed:2:offload_optimizer=true",
    "deepspeed:3:offload_optimizer=true:offload_parameters=true",
)
"""Strategies of `--strategies all`, besides the one of the configuration."""


@dataclass(frozen=True)
class PlanRequest:
    """The options that a plan varies; see the options of `paratune plan`."""

    num_ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    """As `candidates.strategy_section` reads them."""
    precisions: tuple[str, ...]
    micro_batch_sizes: tuple[int | None, ...] = (None,)
    """None stands for the size in the configuration."""
    nodes: tuple[int, ...] = ()
    """Numbers of nodes, each combined with each number of devices; empty for the smallest possible number."""
    are_named: bool = True
    """Whether the user named the strategies; if not, strategies that equal `single` on one device are left out."""


@dataclass(frozen=True, eq=False)
class JobOption:
    """A possible option; whether it fits is not checked yet."""

    name: str
    """The strategy with its options, as on a command line."""
    config: Config
    """The configuration of this option."""
    setup: PredictionSetup
    sizes: ResolvedBatch
    layout: BatchLayout
    is_open: bool
    """Whether paratune chooses the micro-batch size, and may reduce it until the option fits."""
    differences: tuple[str, ...] = ()
    """Precision or micro-batch, if the plan varies them: they distinguish options with equal strategy and devices."""


@dataclass(frozen=True)
class Impossible:
    """An impossible combination."""

    name: str
    precision: str
    num_ranks: int | None
    """None if it is impossible with any number."""
    reason: str
    codes: tuple[str, ...] = ()
    """Codes of the reasons that are rules of `config.feasibility`."""


def list_options(
    job: PlannedJob,
    loaded: LoadedConfig,
    machine: Machine,
    request: PlanRequest,
    outside_traits: Callable[[str], Traits],
) -> tuple[list[JobOption], list[Impossible]]:
    """Return the possible options of a plan, and the impossible ones.

    `machine` decides which precisions and layouts are possible; `outside_traits` returns the traits of a strategy from
    outside this package, by its kind.

    Raises:
        ConfigError: A strategy or an option of a strategy does not exist.
    """
    options: list[JobOption] = []
    impossible: list[Impossible] = []
    for variant in _variants(loaded, request, outside_traits):
        if isinstance(variant, Impossible):
            impossible.append(variant)
            continue
        for num_ranks in request.num_ranks:
            if not request.are_named and _equals_single(variant, num_ranks):
                continue
            for num_nodes in request.nodes or (min_nodes(num_ranks, machine.devices_per_node),):
                try:
                    option = _option(job, machine, variant, num_ranks, num_nodes)
                except ConfigError as error:  # the model does not take the layout of batches
                    option = Impossible(variant.name, variant.config.precision, num_ranks, str(error))
                if isinstance(option, Impossible):
                    impossible.append(option)
                elif all(option.setup != other.setup for other in options):
                    options.append(option)
    return options, list(dict.fromkeys(impossible))


def min_nodes(num_ranks: int, devices_per_node: int | None) -> int:
    """Return the smallest number of nodes with equal numbers of devices, `num_ranks` together."""
    if devices_per_node is None:
        return 1
    return next(num for num in range(-(-num_ranks // devices_per_node), num_ranks + 1) if num_ranks % num == 0)


@dataclass(frozen=True, eq=False)
class _Variant:
    name: str
    config: Config
    traits: Traits
    differences: tuple[str, ...]


def _variants(
    loaded: LoadedConfig, request: PlanRequest, outside_traits: Callable[[str], Traits]
) -> Iterator[_Variant | Impossible]:
    for name in request.strategies:
        section, problems = strategy_section(loaded, name)
        for precision, size in product(request.precisions, request.micro_batch_sizes):
            values, findings = validate(_values(loaded.values, section, precision, size))
            problems = [*problems, *(problem.message for problem in findings.problems)]
            if problems:
                text = f"--strategies {name}: {'; '.join(problems)}"
                raise ConfigError(text, code="strategy.candidates", option="--strategies", name=name)
            config = Config.model_validate(values)
            kind = config.strategy.kind
            try:
                traits = strategy_traits(kind, strategy_options(config.strategy)) or outside_traits(kind)
            except ConfigError as error:
                if error.code != "code.not_imported":
                    raise
                yield Impossible(name, precision, None, str(error))
                continue
            if conflicts := check(config):
                yield Impossible(name, precision, None, "; ".join(problem.message for problem in conflicts))
                continue
            differences = [precision] if len(request.precisions) > 1 else []
            differences += [f"micro-batches of {size}"] if len(request.micro_batch_sizes) > 1 else []
            yield _Variant(name, config, traits, tuple(differences))


def _values(given: Mapping[str, Any], strategy: dict[str, Any], precision: str, size: int | None) -> dict[str, Any]:
    values = deepcopy(dict(given))
    values.update(strategy=strategy, precision=precision)
    if size is not None:
        values["batch"]["micro_batch_size" if values["batch"]["per_device"] is None else "per_device"] = size
    return values


def _equals_single(variant: _Variant, num_ranks: int) -> bool:
    """Return whether an option is redundant: a strategy that equals `single` on one device, or `single` on several."""
    if variant.traits.max_world_size == 1:
        return num_ranks > 1
    return num_ranks == 1 and variant.traits.states_on == "device"


def _option(
    job: PlannedJob, machine: Machine, variant: _Variant, num_ranks: int, num_nodes: int
) -> JobOption | Impossible:
    """Return the option with a number of ranks, or the reason why it is impossible.

    Raises:
        ConfigError: The model does not support the requested `batch.layout`.
    """
    config, traits = variant.config, variant.traits
    num_layers = getattr(job.hf_config, "num_hidden_layers", None)
    reasons = reasons_against(
        config,
        traits,
        _target(machine),
        Ranks(num_ranks, num_nodes),
        num_blocks=num_layers if isinstance(num_layers, int) else None,
    )
    if reasons:
        sentence, codes = "; ".join(reason.message for reason in reasons), (reason.code for reason in reasons)
        return Impossible(variant.name, config.precision, num_ranks, sentence, tuple(codes))
    sizes = job.sizes(config.batch, traits, num_ranks)
    layout = job.layout(traits, is_cuda=machine.is_cuda)
    setup = PredictionSetup(
        strategy=config.strategy,
        traits=traits,
        # With the dtype of the weights in the passes of the strategy.
        precision=POLICIES[config.precision].with_weights(getattr(config.strategy, "param_dtype", "fp32")),
        num_ranks=num_ranks,
        ranks_per_node=num_ranks // num_nodes,
        micro_batch_size=sizes.micro_batch_size,
        grad_accum_steps=sizes.grad_accum_steps,
        activation_checkpointing=config.train.activation_checkpointing,
        layout="packed" if layout.kind == "packed" else "padded",
        **optimizer_setup(config.train),
    )
    is_open = config.batch.per_device is None and config.batch.micro_batch_size in (None, "auto")
    return JobOption(variant.name, config, setup, sizes, layout, is_open, variant.differences)


def resized(option: JobOption, micro_batch_size: int) -> JobOption:
    """Return the option with the same global batch in micro-batches of at most `micro_batch_size` samples."""
    sizes = option.sizes.at_most(micro_batch_size)
    setup = replace(option.setup, micro_batch_size=sizes.micro_batch_size, grad_accum_steps=sizes.grad_accum_steps)
    return replace(option, sizes=sizes, setup=setup)


def _target(machine: Machine) -> Target:
    """Return a machine as the rules of feasibility need it."""
    if not machine.is_cuda:
        return Target(is_cpu=True, description=f"{machine.name} is a CPU")
    device = machine.device
    missing = [name for name in ("tf32", "bf16") if device is not None and device.peak_flops_per_s(name) is None]
    return Target(False, f"{machine.name} is {'older' if missing else 'a GPU'}", frozenset(missing))
