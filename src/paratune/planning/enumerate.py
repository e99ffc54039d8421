"""Lists the options of a plan: combinations of strategy, number of devices, precision and micro-batch size.

An impossible combination is listed with the reason with which the training would refuse it.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

from paratune.config.batch_size import ResolvedBatch, resolve_batch
from paratune.config.candidates import strategy_section
from paratune.config.check import check
from paratune.config.feasibility import FP16_HOSTILE, Ranks, Target, reasons_against
from paratune.config.load import DEFAULT, LoadedConfig, load_values
from paratune.config.section import OwnOptimizer
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import group_size
from paratune.config.traits import Traits, strategy_traits
from paratune.config.validate import validate_as
from paratune.errors import ConfigError
from paratune.models.packed import BatchLayout, choose_batch_layout
from paratune.planning.job import PlannedJob
from paratune.planning.machine import Machine
from paratune.planning.states import PredictionSetup
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
ALL = "all"
"""In place of names: `ALL_STRATEGIES`."""
OWN_STRATEGY = "plans know the strategies of paratune only; measure it: paratune sweep MATRIX --probe"
_USUAL_RANKS = (1, 2, 4, 8)
_FASTER = 3
"""V100, T4 and RTX 2080 Ti multiply matrices in fp16 four to eight times as fast as in fp32, a P100 twice."""
_REMEDY_STRATEGIES = ("single", "ddp", "zero3")
DEVICES_PER_NODE = 8
"""Of a GPU; processes on a CPU share one node."""


@dataclass(frozen=True)
class PlanRequest:
    """The options that a plan varies; see the options of `paratune plan`."""

    num_ranks: tuple[int, ...] = ()
    """Empty for 1, 2, 4 and 8, on a CPU up to its number of cores."""
    strategies: tuple[str, ...] = ()
    """As `candidates.strategy_section` reads them; empty for the usual ones, or only `ALL`."""
    precisions: tuple[str, ...] = ()
    """Empty for that of the configuration."""
    nodes: tuple[int, ...] = ()
    """Numbers of nodes, each combined with each number of devices; empty for the smallest possible number."""


@dataclass(frozen=True)
class Remedy:
    """Settings that let a model fit, or fit with larger micro-batches."""

    name: str
    """Part of a label after "with"."""
    settings: tuple[str, ...]
    """Replace those of the configuration, as after `--set`."""
    strategies: tuple[str, ...] = ()
    """Planned with it, `{precision}` replaced; empty for those of the request."""
    changes: str = ""
    """How it trains another experiment; empty if it trains the same."""


_CHECKPOINTING, _LORA = "train.activation_checkpointing=1", "model.adapter={kind: lora}"
REMEDIES = (
    Remedy("smaller micro-batches", ()),
    Remedy("checkpointing", (_CHECKPOINTING,)),
    Remedy("shards", (_CHECKPOINTING,), ("zero3",)),
    Remedy("offload", (_CHECKPOINTING,), ("zero3:cpu_offload=true",)),
    Remedy("16-bit weights", (_CHECKPOINTING,), ("zero3:param_dtype={precision}",), "weights are rounded in passes"),
    Remedy("LoRA", (_CHECKPOINTING, _LORA), changes="only adapter and head are trained"),
    Remedy(
        "LoRA on nf4",
        (_CHECKPOINTING, _LORA, "model.quantize_base=nf4"),
        changes="only adapter and head are trained, beside weights in 4 bits",
    ),
)
"""In the order in which they are tried: the least cost of quality first, then of time. Each is planned with
micro-batches that paratune chooses, which train the same."""


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
    remedy: Remedy | None = None
    """Whose settings the configuration has."""

    @property
    def is_open(self) -> bool:
        """Whether paratune chooses the micro-batch size, and may reduce it until the option fits."""
        return self.config.batch.per_device is None and self.config.batch.micro_batch_size in (None, "auto")

    def resized(self, micro_batch_size: int) -> "JobOption":
        """Return the option with the same global batch in micro-batches of at most `micro_batch_size` samples."""
        sizes = self.sizes.at_most(micro_batch_size)
        setup = replace(self.setup, micro_batch_size=sizes.micro_batch_size, grad_accum_steps=sizes.grad_accum_steps)
        return replace(self, sizes=sizes, setup=setup)

    def reducing_each(self) -> "JobOption | None":
        """Return the option with `strategy.reduce_each_micro_step`; None if it has it, or cannot have it."""
        if getattr(self.config.strategy, "reduce_each_micro_step", True):
            return None
        changed = {"reduce_each_micro_step": True}
        config = self.config.model_copy(update={"strategy": self.config.strategy.model_copy(update=changed)})
        traits = replace(self.setup.traits, reduces_each_micro_step=True)
        setup = replace(self.setup, strategy=config.strategy, traits=traits)
        return replace(self, name=f"{self.name}:reduce_each_micro_step=true", config=config, setup=setup)


@dataclass(frozen=True)
class Impossible:
    """An impossible combination."""

    strategy: str
    """As `JobOption.name`."""
    precision: str
    num_ranks: int | None
    """None if it is impossible with any number."""
    reason: str
    codes: tuple[str, ...] = ()
    """Codes of the reasons that are rules of `config.feasibility`."""


def list_options(
    job: PlannedJob, loaded: LoadedConfig, machine: Machine, request: PlanRequest
) -> tuple[list[JobOption], list[Impossible]]:
    """Return the possible options of a plan, and the impossible ones.

    `machine` decides which precisions and layouts are possible.

    Raises:
        ConfigError: A strategy or an option of a strategy does not exist.
    """
    usual = [number for number in _USUAL_RANKS if machine.is_cuda or number <= max(1, machine.num_cores or 1)]
    are_named = bool(request.strategies) and request.strategies != (ALL,)
    options: list[JobOption] = []
    impossible: list[Impossible] = []
    for name, config in _configs(loaded, request):
        traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
        if traits is None:
            impossible.append(Impossible(name, config.precision, None, OWN_STRATEGY))
            continue
        if conflicts := check(config):
            reason = "; ".join(problem.message for problem in conflicts)
            impossible.append(Impossible(name, config.precision, None, reason))
            continue
        for num_ranks in request.num_ranks or usual:
            # As few nodes as have equal numbers of devices.
            least = -(-num_ranks // DEVICES_PER_NODE) if machine.is_cuda else 1
            fewest = next(number for number in range(least, num_ranks + 1) if num_ranks % number == 0)
            # `single` on several devices, or a strategy that equals it on one, is redundant.
            is_single = traits.max_world_size == 1
            is_redundant = is_single if num_ranks > 1 else not is_single and traits.states_on == "device"
            if is_redundant and not are_named:
                continue
            for num_nodes in request.nodes or (fewest,):
                try:
                    option = _option(job, machine, name, config, traits, num_ranks, num_nodes)
                except ConfigError as error:  # the model does not take the layout of batches
                    option = Impossible(name, config.precision, num_ranks, str(error))
                if isinstance(option, Impossible):
                    impossible.append(option)
                elif all(option.setup != other.setup for other in options):
                    options.append(option)
    return options, list(dict.fromkeys(impossible))


def usual_precision(loaded: LoadedConfig, machine: Machine, model_type: str | None) -> tuple[str, str]:
    """Return the precision to plan if the user names none, and why it is not that of the configuration.

    A precision that the configuration sets is planned, unless a listed device does not have it. Else this is bf16, or
    fp16 on devices without bf16 that are much faster in it than in fp32. The command of the plan that starts the
    training sets it; without a setting, training computes in fp32.
    """
    device, given = machine.device, loaded.config.precision
    is_set = loaded.origin.get("precision", DEFAULT) != DEFAULT
    if device is None or getattr(loaded.config.strategy, "param_dtype", "fp32") != "fp32":
        return given, ""
    if is_set and (given == "fp64" or device.peak_flops_per_s(given) is not None):
        return given, ""
    why = f"{machine.name} has no {given}" if is_set else f"{loaded.source.name} sets no precision"
    if device.peak_flops_per_s("bf16") is not None:
        return "bf16", why
    if (device.fp16 or 0.0) < _FASTER * (device.fp32 or 0.0):
        return "fp32", why if is_set else ""
    if model_type in FP16_HOSTILE:
        return "fp32", f"{why}, and models of the type {model_type} have been reported to overflow in fp16"
    return "fp16", why


def remedied(
    loaded: LoadedConfig, request: PlanRequest, precision: str
) -> Iterator[tuple[Remedy, LoadedConfig, PlanRequest]]:
    """Yield each remedy that may change something, with the configuration and the request with which it is planned."""
    names = request.strategies if request.strategies and request.strategies != (ALL,) else _REMEDY_STRATEGIES
    for remedy in REMEDIES:
        given = remedy.settings
        if loaded.config.model.adapter is not None:  # which stays as it is
            given = tuple(setting for setting in given if setting != _LORA)
        settings = [*given, *["batch.micro_batch_size=auto"] * (loaded.config.batch.per_device is None)]
        try:
            changed = replace(load_values(loaded.values, settings), source=loaded.source)
        except ConfigError:  # it excludes another setting
            continue
        own = tuple(name.format(precision=precision) for name in remedy.strategies)
        is_useless = own != remedy.strategies and precision not in ("bf16", "fp16")
        is_useless |= not remedy.settings and not isinstance(loaded.config.batch.micro_batch_size, int)
        is_useless |= given != remedy.settings and given == (_CHECKPOINTING,)
        if not is_useless:
            yield replace(remedy, settings=tuple(settings)), changed, replace(request, strategies=own or names)


def _configs(loaded: LoadedConfig, request: PlanRequest) -> Iterator[tuple[str, Config]]:
    """Yield the strategy's name and the configuration of each combination that does not depend on devices."""
    usual = ALL_STRATEGIES if request.strategies == (ALL,) else DEFAULT_STRATEGIES
    names = request.strategies if request.strategies and request.strategies != (ALL,) else None
    for name in names or dict.fromkeys([*usual, loaded.config.strategy.kind]):
        section, problems = strategy_section(loaded, name)
        for precision in request.precisions or (loaded.config.precision,):
            settings = deepcopy(loaded.values) | {"strategy": section, "precision": precision}
            values, findings = validate_as(Config, settings, "")
            problems = [*problems, *(problem.message for problem in findings.problems)]
            if problems:
                text = f"--strategies {name}: {'; '.join(problems)}"
                raise ConfigError(text, code="cli.invalid_value", option="--strategies", name=name)
            yield name, Config.model_validate(values)


def _option(
    job: PlannedJob, machine: Machine, name: str, config: Config, traits: Traits, num_ranks: int, num_nodes: int
) -> JobOption | Impossible:
    """Return the option with a number of ranks, or the reason why it is impossible.

    Raises:
        ConfigError: The model does not support the requested `batch.layout`.
    """
    num_layers = getattr(job.hf_config, "num_hidden_layers", None)
    num_blocks = num_layers if isinstance(num_layers, int) else None
    target = Target(is_cpu=True, description=f"{machine.name} is a CPU")
    if machine.is_cuda:
        peak = None if machine.device is None else machine.device.peak_flops_per_s
        missing = frozenset(name for name in ("tf32", "bf16") if peak is not None and peak(name) is None)
        target = Target(False, f"{machine.name} is {'older' if missing else 'a GPU'}", missing)
    reasons = reasons_against(config, traits, target, Ranks(num_ranks, num_nodes), num_blocks=num_blocks)
    if reasons:
        sentence, codes = "; ".join(reason.message for reason in reasons), (reason.code for reason in reasons)
        return Impossible(name, config.precision, num_ranks, sentence, tuple(codes))
    width = num_ranks // traits.ranks_per_replica
    sizes = resolve_batch(config.batch, traits, data_world_size=width, group_size=group_size(config.task))
    wanted, compiles, on_cpu = config.batch.layout, config.train.compile, not machine.is_cuda
    layout = choose_batch_layout(
        wanted, traits, entry=job.entry, why_padded=job.why_padded, on_cpu=on_cpu, compiles=compiles
    )
    setup = option_setup(config, traits, sizes, layout, num_ranks, num_ranks // num_nodes)
    return JobOption(name, config, setup, sizes, layout)


def option_setup(
    config: Config, traits: Traits, sizes: ResolvedBatch, layout: BatchLayout, num_ranks: int, ranks_per_node: int
) -> PredictionSetup:
    """Return the input of the predictions of a configuration."""
    own = config.train.optimizer if isinstance(config.train.optimizer, OwnOptimizer) else None
    return PredictionSetup(
        strategy=config.strategy,
        traits=traits,
        # With the dtype of the weights in the passes of the strategy.
        precision=POLICIES[config.precision].with_weights(getattr(config.strategy, "param_dtype", "fp32")),
        num_ranks=num_ranks,
        ranks_per_node=ranks_per_node,
        micro_batch_size=sizes.micro_batch_size,
        grad_accum_steps=sizes.grad_accum_steps,
        activation_checkpointing=config.train.activation_checkpointing,
        layout="packed" if layout.kind == "packed" else "padded",
        optimizer="adamw" if isinstance(config.train.optimizer, OwnOptimizer) else config.train.optimizer,
        own_state_bytes=None if own is None else own.state_bytes,
    )
