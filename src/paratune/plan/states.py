"""What bytes of weights, gradients and optimizer states are counted with; `plan.kinds` counts them.

`N` ranks that share states. Gradients are those at the end of a step's last backward pass, before the update. What
comes and goes besides (buffers of communication, gathered weights) is in `engines`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paratune.config.model_states import NumberBytes, adam_bytes, shard_count
from paratune.plan.profile import Parameter, Profile
from paratune.plan.setup import PredictionSetup

STEP_BYTES = 4
"""Of AdamW's count of steps, a float32 for each parameter."""


@dataclass(frozen=True)
class States:
    """In bytes, on the device and on the host."""

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
        """Return the same, all of it on the host."""
        return States(
            host_weights=self.weights + self.host_weights,
            host_gradients=self.gradients + self.host_gradients,
            host_optimizer=self.optimizer + self.host_optimizer,
        )


def numbers_of(profile: Profile) -> NumberBytes:
    """Return the sizes under paratune's policies: everything in the dtype of the weights, two moments."""
    return adam_bytes(profile.weight_bytes)


def sharded_numbers_of(profile: Profile, setup: PredictionSetup) -> NumberBytes:
    """Return the sizes of what FSDP2 shards: in fp32 also where passes read copies in 16 bits."""
    return adam_bytes(setup.state_bytes if setup.keeps_16_bits else profile.weight_bytes)


def ranks_that_differ(setup: PredictionSetup) -> range:
    """Return the ranks among which the fullest is; all others hold what one of these holds."""
    if setup.traits.has_uneven_shards:
        return range(setup.num_ranks)
    return range(setup.traits.ranks_per_replica if setup.traits.cuts_blocks else 1)


def whole(parameters: Iterable[Parameter], numbers: NumberBytes) -> States:
    """Return what a rank has that shares nothing."""
    parameters = tuple(parameters)
    trained = [each for each in parameters if each.is_trained and each.has_gradient]
    return States(
        weights=numbers.weight * count(parameters),
        gradients=numbers.gradient * count(trained),
        optimizer=numbers.optimizer * count(trained) + STEP_BYTES * len(trained),
    )


def shard_size(setup: PredictionSetup) -> int:
    """Return N: the ranks over which FSDP2 shards the states."""
    return shard_count(setup.traits, setup.num_ranks, setup.ranks_per_node)


def shard(parameter: Parameter, num_ranks: int, rank: int = 0) -> Parameter:
    """Return the chunk that a rank has of a parameter under FSDP2, as a parameter; the first rank's is the largest."""
    first, *others = parameter.shape or (1,)
    chunk = -(-first // num_ranks)
    return replace(parameter, shape=(max(0, min(chunk, first - rank * chunk)), *others))


def padded(parameter: Parameter, num_ranks: int) -> int:
    """Return the numbers of a parameter in equal chunks under FSDP2, all ranks' together."""
    return num_ranks * shard(parameter, num_ranks).numel


def optimizer_groups(parameters: Iterable[Parameter], *, with_unused: bool = False) -> Iterable[list[Parameter]]:
    """Yield the optimizer's groups: with and without weight decay."""
    trained = [each for each in parameters if each.is_trained and (each.has_gradient or with_unused)]
    for decays in (True, False):
        if group := [each for each in trained if each.decays is decays]:
            yield group


def count(parameters: Iterable[Parameter]) -> int:
    return sum(each.numel for each in parameters)
