"""Bytes of weights, gradients and optimizer states on a rank, counted as each strategy's engine lays them out.

`N` ranks that share states. Gradients are those at the end of a step's last backward pass, before the update. What
comes and goes besides (buffers of communication, gathered weights) is in `engines`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from paratune.config.deepspeed_limits import Limits, limits_of
from paratune.config.model_states import NumberBytes, adam_bytes, model_state_bytes, shard_count
from paratune.config.strategy_sections import DeepSpeedOptions, PipelineOptions, strategy_options
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


def states(profile: Profile, setup: PredictionSetup) -> States:
    """Return the states of the fullest rank; without buffers of the model (`profile.num_buffer_bytes`).

    Raises:
        ConfigError: A pipeline has fewer blocks than stages.
    """
    ranks = (states_of_rank(profile, setup, rank) for rank in ranks_that_differ(setup))
    return max(ranks, key=lambda each: (each.device, each.host))


def ranks_that_differ(setup: PredictionSetup) -> range:
    """Return the ranks among which the fullest is; all others hold what one of these holds."""
    if setup.traits.has_uneven_shards:
        return range(setup.num_ranks)
    return range(setup.traits.ranks_per_replica if setup.traits.cuts_blocks else 1)


def states_of_rank(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return the states of one rank.

    Args:
        profile: Of a micro-batch of any size.
        setup: The way of running it.
        rank: From 0; see `ranks_that_differ`.
    """
    count = _BY_KIND.get(setup.strategy.kind, _by_traits)
    return count(profile, setup, rank)


def _whole(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    return whole(profile.parameters, numbers_of(profile))


def whole(parameters: Iterable[Parameter], numbers: NumberBytes) -> States:
    """Return what a rank has that shares nothing."""
    parameters = tuple(parameters)
    trained = [each for each in parameters if each.is_trained and each.has_gradient]
    return States(
        weights=numbers.weight * _count(parameters),
        gradients=numbers.gradient * _count(trained),
        optimizer=numbers.optimizer * _count(trained) + STEP_BYTES * len(trained),
    )


def _ddp(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Gradients are views of DDP's buckets, which hold those that never come as well.

    Source: PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp, `Reducer::initialize_buckets`.
    """
    found, size = whole(profile.parameters, numbers_of(profile)), profile.weight_bytes
    return States(found.weights, size * profile.num_trained, found.optimizer)


def _zero1(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Each parameter's states are on one rank: the largest first, each on the rank that has least.

    Source: PyTorch 2.13, torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`.
    """
    numbers, held, mine = numbers_of(profile), [0] * setup.num_ranks, []
    for group in optimizer_groups(profile.parameters):
        for parameter in sorted(group, key=lambda each: each.numel, reverse=True):
            owner = held.index(min(held))
            held[owner] += parameter.numel
            mine += [parameter] if owner == rank else []
    of_ddp = _ddp(profile, setup, rank)
    return States(of_ddp.weights, of_ddp.gradients, whole(mine, numbers).optimizer)


def _fsdp(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Each dimension 0 is cut into N chunks, of which the last may be smaller, or empty.

    Weights are padded to equal chunks on all ranks; gradients are parts of the outputs of the reduce-scatters, which
    are padded too; moments are not.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`, and
        _fsdp_collectives.py, `foreach_reduce`.
    """
    num_ranks, numbers = shard_size(setup), sharded_numbers_of(profile, setup)
    padded = whole((shard(each, num_ranks) for each in profile.parameters), numbers)
    mine = whole((shard(each, num_ranks, rank % num_ranks) for each in profile.parameters), numbers)
    found = replace(padded, optimizer=mine.optimizer)
    return found.on_host() if setup.traits.states_on == "cpu" else found


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


def _pipeline(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    held, trained = stage_parameters(profile, setup, rank)
    found, numbers = whole(trained, numbers_of(profile)), numbers_of(profile)
    return States(numbers.weight * _count(held), found.gradients, found.optimizer)


def stage_parameters(profile: Profile, setup: PredictionSetup, rank: int) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters that a rank of a pipeline holds, and those among them that it trains.

    Those that no stage uses are of the last one.
    """
    strategy, division = setup.strategy, profile.division
    assert isinstance(strategy, PipelineOptions)
    assert division is not None, "the profile of a pipeline has a division"
    place = rank % strategy.stages
    spans = division.of_rank(place, strategy, setup.traits)
    used, holds = division.uses(spans), division.holds(spans)
    anywhere = frozenset().union(*division.used)
    is_last = place == strategy.stages - 1
    trained = [each for each in profile.parameters if each.name in used or (is_last and each.name not in anywhere)]
    held = [each for each in profile.parameters if each in trained or each.name in holds]
    return held, trained


def _deepspeed(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    strategy = setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    if strategy.stage == 0:
        return _whole(profile, setup, rank)
    if strategy.stage == 3:
        return _deepspeed_3(profile, setup, strategy)
    return _deepspeed_1_2(profile, setup, strategy, rank)


DEEPSPEED_START = 2
"""Numbers to a multiple of which DeepSpeed aligns each rank's part (`nccl_start_alignment_factor`)."""


def _deepspeed_1_2(profile: Profile, setup: PredictionSetup, strategy: DeepSpeedOptions, rank: int) -> States:
    """A flat tensor a group; a rank has the weights of all, and of its N-th part a copy, moments and gradients.

    Gradients are kept as they come, whole ones of all parameters that the part touches, and zeros to fill it. With the
    optimizer on the host, the host has the part's gradients flat, room for the largest one on its way, whole ones of
    the parameters that the part touches where stage 2 accumulates, and a buffer in which updated weights go back.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `__init__`, `get_flat_partition`,
        `initialize_optimizer_states`, `async_accumulate_grad_in_cpu_via_gpu`.
    """
    size, num_ranks = profile.weight_bytes, setup.num_ranks
    frozen = sum(each.numel for each in profile.parameters if not each.is_trained)
    weights, part, gradients, filled, num_groups = frozen, 0, 0, 0, 0
    for group in optimizer_groups(profile.parameters, with_unused=True):
        alignment = DEEPSPEED_START * num_ranks
        aligned = -(-_count(group) // alignment) * alignment
        weights, part, num_groups = weights + aligned, part + aligned // num_ranks, num_groups + 1
        touched, zeros = _touched(group, rank * aligned // num_ranks, (rank + 1) * aligned // num_ranks)
        gradients, filled = gradients + touched, filled + zeros
    gradients += filled
    full = setup.state_bytes if setup.keeps_16_bits else size
    found = States(size * weights, size * gradients, 3 * full * part + STEP_BYTES * num_groups)
    if not strategy.offload_optimizer:
        return found
    largest = max((each.numel for each in profile.parameters if each.is_trained), default=0)
    accumulated = gradients - filled if strategy.stage == 2 and setup.grad_accum_steps > 1 else 0
    host_gradients = full * part + size * (largest + accumulated)
    return States(found.weights, 0, 0, size * part, host_gradients, found.optimizer)


def _touched(group: Sequence[Parameter], begin: int, end: int) -> tuple[int, int]:
    """Return the numbers of all parameters of a flat group that reach into a part of it, and the zeros behind them."""
    at = found = 0
    for parameter in group:
        if at < end and at + parameter.numel > begin:
            found += parameter.numel
        at += parameter.numel
    return found, max(0, end - max(at, begin))


def _deepspeed_3(profile: Profile, setup: PredictionSetup, strategy: DeepSpeedOptions) -> States:
    """Each parameter flat in N equal parts, and the small ones whole besides.

    Of the parts that are trained there is a copy, though they are fp32 already: the test that would save it compares a
    `torch.device` with a string. With the optimizer on the host gradients are there twice, as they come and for the
    update.

    Source: DeepSpeed 0.19.8, runtime/zero/partition_parameters.py, `partition_numel`; stage3.py,
        `_create_fp32_partitions`, `grad_partitions_flat_buffer`, `initialize_optimizer_states`; parameter_offload.py,
        `mark_persistent_parameters`.
    """
    size, num_ranks = profile.weight_bytes, setup.num_ranks
    threshold = deepspeed_limits(profile, strategy).param_persistence_threshold
    parts = {each: -(-each.numel // num_ranks) for each in profile.parameters}
    persistent = sum(part * num_ranks for each, part in parts.items() if each.numel <= threshold)
    trained = sum(part for each, part in parts.items() if each.is_trained)
    num_groups = len(list(optimizer_groups(profile.parameters, with_unused=True)))
    weights, gradients = size * sum(parts.values()), size * trained
    full = setup.state_bytes if setup.keeps_16_bits else size
    optimizer = 3 * full * trained + STEP_BYTES * num_groups
    on_host = weights if strategy.offload_parameters else 0
    on_device = weights - on_host + size * persistent
    if strategy.offload_optimizer:
        return States(on_device, 0, 0, on_host, gradients + full * trained, optimizer)
    return States(on_device, gradients, optimizer, on_host)


def deepspeed_limits(profile: Profile, strategy: DeepSpeedOptions) -> Limits:
    """Return how much DeepSpeed sends, gathers and keeps at a time, as `strategies.deepspeed_setup` tells it."""
    largest = max((sum(block.sizes) for block in profile.blocks), default=0)
    return limits_of(strategy_options(strategy), element_size=profile.weight_bytes, largest_block=largest)


def _by_traits(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return what a strategy from outside has if it divides evenly what its traits say that it shards."""
    trained = [each for each in profile.parameters if each.is_trained and each.has_gradient]
    held = model_state_bytes(
        _count(profile.parameters),
        num_trained=_count(trained),
        shards=setup.traits.shards,
        num_shards=shard_size(setup),
        numbers=numbers_of(profile),
    )
    divided = States(held.weights, held.gradients, held.optimizer + STEP_BYTES * len(trained))
    return divided if setup.traits.states_on == "device" else divided.on_host()


def optimizer_groups(parameters: Iterable[Parameter], *, with_unused: bool = False) -> Iterable[list[Parameter]]:
    """Yield the optimizer's groups: with and without weight decay."""
    trained = [each for each in parameters if each.is_trained and (each.has_gradient or with_unused)]
    for decays in (True, False):
        if group := [each for each in trained if each.decays is decays]:
            yield group


def _count(parameters: Iterable[Parameter]) -> int:
    return sum(each.numel for each in parameters)


_BY_KIND: dict[str, Callable[[Profile, PredictionSetup, int], States]] = {
    "single": _whole,
    "ddp": _ddp,
    "zero1": _zero1,
    **dict.fromkeys(("zero2", "zero3", "hsdp"), _fsdp),
    "pipeline": _pipeline,
    "deepspeed": _deepspeed,
}
