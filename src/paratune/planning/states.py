"""The input of all predictions, bytes of model states, and what describes an engine: for `planning.kinds`.

`N` ranks share states. Gradients are those at the end of the last backward pass of a step, before the update. The
memory that an engine needs besides (communication buffers, gathered weights) is that of the last micro-batch of a step,
which needs most, because the gradients of the others already exist.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from paratune.config.model_states import NumberBytes, compact_state_tensors, shard_count
from paratune.config.sections import OptimizerName
from paratune.config.strategy_sections import Strategy
from paratune.config.traits import Traits
from paratune.planning.profile import Parameter, Profile, Weights
from paratune.planning.trace import Delta, rounded
from paratune.precision import Precision

STEP_BYTES = 4
"""AdamW's step counter, a float32 for each parameter."""
GRADIENTS, GATHERED, COMMUNICATION = "gradients", "gathered_weights", "communication"


@dataclass(frozen=True)
class PredictionSetup:
    """The inputs that differ between the predictions of a plan; model, task and data are the same."""

    strategy: Strategy
    """With its options."""
    traits: Traits
    """Of that strategy with those options."""
    precision: Precision
    num_ranks: int
    ranks_per_node: int
    """Of `num_ranks`; equal on all nodes."""
    micro_batch_size: int
    """Rows of one micro-batch of a rank."""
    grad_accum_steps: int
    """Micro-batches of a rank in one optimizer step."""
    activation_checkpointing: int | None = None
    """As `train.activation_checkpointing`."""
    layout: Literal["packed", "padded"] = "packed"
    """Computed tokens: T tokens of joined rows, or B x S of padded rows."""
    optimizer: OptimizerName = "adamw"
    """As `train.optimizer`; an own optimizer counts as AdamW, with its own bytes of states."""
    own_state_bytes: int | None = None
    """Bytes of the states of an own optimizer for each trained number."""
    attention: str | None = None
    """transformers' name of it, such as eager or sdpa; the model's own choice where None."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a number of the weights that are updated, and of each moment."""
        return self.precision.param_dtype.itemsize

    @property
    def keeps_16_bits(self) -> bool:
        """Whether passes read copies of the weights in 16 bits, in which activations and gradients are then too."""
        return self.precision.pass_dtype is not None

    @property
    def num_nodes(self) -> int:
        return -(-self.num_ranks // self.ranks_per_node)

    @property
    def data_world_size(self) -> int:
        """Ranks that see different samples."""
        return self.num_ranks // self.traits.ranks_per_replica

    @property
    def num_reductions(self) -> int:
        """In how many micro-batches of a step gradients are reduced over the ranks that share them."""
        return self.grad_accum_steps if self.traits.reduces_each_micro_step else 1

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch_size * self.grad_accum_steps * self.data_world_size


@dataclass(frozen=True)
class States:
    """Bytes of states, on the device and on the host."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    host_weights: int = 0
    host_gradients: int = 0
    host_optimizer: int = 0

    @property
    def totals(self) -> tuple[int, int]:
        """All bytes on the device, and on the host."""
        on_host = self.host_weights + self.host_gradients + self.host_optimizer
        return self.weights + self.gradients + self.optimizer, on_host


def numbers_of(profile: Profile, setup: PredictionSetup, *, are_sharded: bool = False) -> NumberBytes:
    """Return the bytes per element of states in the dtype of the weights.

    Those of the optimizer are a mean over trained parameters. States that FSDP2 shards are in fp32, also if passes read
    copies in 16 bits.
    """
    size = setup.state_bytes if are_sharded else profile.weight_bytes
    trained = [parameter for parameter in profile.parameters if parameter.is_trained and parameter.has_gradient]
    sizes = [sum(state_tensors(parameter, size, setup)) for parameter in trained]
    return NumberBytes(size, size, sum(sizes) / max(1, count(trained)))


def state_tensors(parameter: Parameter, param_bytes: int, setup: PredictionSetup) -> tuple[int, ...]:
    """Return the bytes of each tensor that the optimizer keeps for a parameter, without its step count."""
    if setup.own_state_bytes is not None:
        return (setup.own_state_bytes * parameter.numel,) if setup.own_state_bytes else ()
    known = compact_state_tensors(setup.optimizer, parameter.shape, param_bytes=param_bytes)
    return 2 * (param_bytes * parameter.numel,) if known is None else known


def unsharded(parameters: Iterable[Parameter], numbers: NumberBytes) -> States:
    """Return the states of a rank without sharding."""
    parameters = tuple(parameters)
    trained = [parameter for parameter in parameters if parameter.is_trained and parameter.has_gradient]
    return States(
        weights=weight_bytes(parameters, numbers.weight),
        gradients=numbers.gradient * count(trained),
        optimizer=round(numbers.optimizer * count(trained)) + STEP_BYTES * len(trained),
    )


def shard_size(setup: PredictionSetup) -> int:
    """Return N: the ranks over which FSDP2 shards the states."""
    return shard_count(setup.traits, setup.num_ranks, setup.ranks_per_node)


def shard(parameter: Parameter, num_ranks: int, rank: int = 0) -> Parameter:
    """Return the shard of a parameter on a rank under FSDP2, as a parameter; that of rank 0 is the largest."""
    first, *others = parameter.shape or (1,)
    chunk = -(-first // num_ranks)
    return replace(parameter, shape=(max(0, min(chunk, first - rank * chunk)), *others))


@lru_cache(maxsize=4096)  # the time of a step is computed again for each bound of each constant
def padded_bytes(part: Weights, num_ranks: int, size: int, *, trained: bool = False) -> int:
    """Return the bytes of all parameters of a part, or of the trained ones, of all ranks together; see `weight_bytes`.

    Each parameter is padded to equal shards, as under FSDP2.
    """
    chosen = [parameter for parameter in part.parameters if parameter.is_trained or not trained]
    return num_ranks * weight_bytes((shard(parameter, num_ranks) for parameter in chosen), size)


def optimizer_groups(parameters: Iterable[Parameter], *, with_unused: bool = False) -> Iterable[list[Parameter]]:
    """Yield the optimizer's groups: for each factor of the learning rate, with and without weight decay."""
    trained = [
        parameter for parameter in parameters if parameter.is_trained and (parameter.has_gradient or with_unused)
    ]
    groups: dict[float, tuple[list[Parameter], list[Parameter]]] = {}
    for parameter in trained:
        with_decay, without = groups.setdefault(parameter.rate_factor, ([], []))
        is_bias = len(parameter.shape) < 2 or parameter.name.endswith(".bias")  # as in `engine.optim`
        (without if is_bias else with_decay).append(parameter)
    yield from (group for pair in groups.values() for group in pair if group)


def count(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)


def weight_bytes(parameters: Iterable[Parameter], size: int) -> int:
    """Return the bytes of weights of `size` bytes an element, except for those that stay in the bits of their file."""
    return sum((parameter.stored_bytes or size) * parameter.numel for parameter in parameters)


@dataclass(frozen=True)
class EngineMemory:
    """Memory that an engine needs on the device, by term (such as communication)."""

    always: Mapping[str, int] = field(default_factory=dict)
    """Bytes from the first forward pass to the update."""
    deltas: tuple[Delta, ...] = ()
    """Bytes that are allocated and freed during a pass."""
    at_step: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the update needs besides states and gradients."""
    keeps_casts: bool = True
    """Whether autograd keeps the copies of weights that autocast makes."""


@dataclass(frozen=True)
class EngineInputs:
    """The inputs from which the memory of an engine is computed, for one rank."""

    profile: Profile
    setup: PredictionSetup
    states: States
    """States of the rank."""
    rounding: int
    """Allocations are rounded up to a multiple of so many bytes."""

    @cached_property
    def ends(self) -> dict[int, int]:
        """Position at which the backward pass of each block ends; blocks without a backward pass are missing."""
        timeline = self.profile.timeline
        begins, inner_end = timeline.positions("backward"), timeline.positions("inner_end")
        return {number: begins.get(number - 1, inner_end.get(0, self.end)) for number in begins}

    @property
    def end(self) -> int:
        """Position at which the backward pass ends."""
        return len(self.profile.timeline.changes)

    def gradients(self, until: Mapping[int, int] | None = None, *, are_earlier: bool = False) -> Iterator[Delta]:
        """Yield the gradients as autograd allocates them, or those of earlier micro-batches, which are there before.

        Each is freed at the position `until` has for its parameter; None keeps all.
        """
        timeline = self.profile.timeline
        made = {change: 0 if are_earlier else at + 1 for at, change in enumerate(timeline.changes)}
        for number, parameter in timeline.gradients.items():
            size = rounded(timeline.sizes[number], self.rounding)
            yield Delta(made[number], GRADIENTS, size)
            if until is not None:
                yield Delta(until[parameter], GRADIENTS, -size)

    def copied_gradients(self, *, are_earlier: bool = False) -> tuple[Delta, ...]:
        """Return gradients that are freed as soon as they are complete, because they are added to others or copied."""
        return tuple(self.gradients(self.profile.timeline.positions("gradient"), are_earlier=are_earlier))

    @property
    def accumulates(self) -> bool:
        return self.setup.grad_accum_steps > 1
