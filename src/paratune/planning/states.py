"""Bytes of weights, gradients and optimizer states: the common parts, which the modules of `planning.kinds` use.

`N` ranks share states. Gradients are those at the end of the last backward pass of a step, before the update. Transient
memory (communication buffers, gathered weights) is in `engines`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from paratune.config.model_states import NumberBytes, adam_bytes, compact_state_tensors, shard_count
from paratune.planning.profile import Parameter, Profile, Weights
from paratune.planning.setup import PredictionSetup

STEP_BYTES = 4
"""AdamW's step counter, a float32 for each parameter."""


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
    def device(self) -> int:
        return self.weights + self.gradients + self.optimizer

    @property
    def host(self) -> int:
        return self.host_weights + self.host_gradients + self.host_optimizer

    def on_host(self) -> "States":
        """Return the states, all of them on the host."""
        return States(
            host_weights=self.weights + self.host_weights,
            host_gradients=self.gradients + self.host_gradients,
            host_optimizer=self.optimizer + self.host_optimizer,
        )


def numbers_of(profile: Profile, setup: PredictionSetup) -> NumberBytes:
    """Return the bytes per element without 16-bit weights: all states in the dtype of the weights, two moments."""
    return _with_own_states(adam_bytes(profile.weight_bytes), profile, setup)


def _with_own_states(numbers: NumberBytes, profile: Profile, setup: PredictionSetup) -> NumberBytes:
    """Return the bytes with those of the states of another optimizer than AdamW, as a mean over trained parameters."""
    if setup.own_state_bytes is not None:
        return replace(numbers, optimizer=setup.own_state_bytes)
    trained = [parameter for parameter in profile.parameters if parameter.is_trained and parameter.has_gradient]
    tensors = [compact_state_tensors(setup.optimizer, p.shape, param_bytes=numbers.weight) for p in trained]
    known = [sum(sizes) for sizes in tensors if sizes is not None]
    return replace(numbers, optimizer=sum(known) / count(trained)) if known else numbers


def state_tensors(parameter: Parameter, param_bytes: int, setup: PredictionSetup) -> tuple[int, ...]:
    """Return the bytes of each tensor that the optimizer keeps for a parameter, without its step count."""
    if setup.own_state_bytes is not None:
        return (setup.own_state_bytes * parameter.numel,) if setup.own_state_bytes else ()
    known = compact_state_tensors(setup.optimizer, parameter.shape, param_bytes=param_bytes)
    return 2 * (param_bytes * parameter.numel,) if known is None else known


def sharded_numbers_of(profile: Profile, setup: PredictionSetup) -> NumberBytes:
    """Return the bytes per element of the states that FSDP2 shards: fp32, also if passes read copies in 16 bits."""
    param_bytes = setup.state_bytes if setup.keeps_16_bits else profile.weight_bytes
    return _with_own_states(adam_bytes(param_bytes), profile, setup)


def distinct_ranks(setup: PredictionSetup) -> range:
    """Return the ranks whose states differ; every other rank has the same states as one of these."""
    if setup.traits.has_uneven_shards:
        return range(setup.num_ranks)
    return range(setup.traits.ranks_per_replica if setup.traits.cuts_blocks else 1)


def unsharded(parameters: Iterable[Parameter], numbers: NumberBytes) -> States:
    """Return the states of a rank without sharding."""
    parameters = tuple(parameters)
    trained = [parameter for parameter in parameters if parameter.is_trained and parameter.has_gradient]
    return States(
        weights=numbers.weight * count(parameters),
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


def padded(parameter: Parameter, num_ranks: int) -> int:
    """Return the elements of a parameter padded to equal shards under FSDP2, of all ranks together."""
    return num_ranks * shard(parameter, num_ranks).numel


@lru_cache(maxsize=4096)  # the time of a step is computed again for each bound of each constant
def padded_sum(part: Weights, num_ranks: int, *, trained: bool = False) -> int:
    """Return the elements of all parameters of a part, or of the trained ones, padded as by `padded`."""
    return sum(padded(parameter, num_ranks) for parameter in part.parameters if parameter.is_trained or not trained)


def optimizer_groups(parameters: Iterable[Parameter], *, with_unused: bool = False) -> Iterable[list[Parameter]]:
    """Yield the optimizer's groups: for each factor of the learning rate, with and without weight decay."""
    trained = [
        parameter for parameter in parameters if parameter.is_trained and (parameter.has_gradient or with_unused)
    ]
    for factor in dict.fromkeys(parameter.rate_factor for parameter in trained):
        for decays in (True, False):
            if group := [
                parameter for parameter in trained if (parameter.decays, parameter.rate_factor) == (decays, factor)
            ]:
                yield group


def count(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)
