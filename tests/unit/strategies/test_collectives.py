"""Ranks 0 to N - 1 of every strategy meet in the same collectives, under the rule by which NCCL blocks.

`thread_ranks` runs them in one process and raises where ranks differ in the order, kind, shape, dtype, reduction or
group of what they call, or where none can continue. Here are the runs that must come through, with the losses that one
process has, and seeded violations that must not.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded_training import Record, Training, record
from thread_ranks import Deadlock, Mismatch, World

from paratune.batch import Batch
from paratune.strategies.protocol import Phases


def _sharded(size: int, **settings: Any) -> list[Training]:
    """Return a training of every strategy that runs the whole model in each process."""
    shards = [Training("hsdp", {"shard_size": shard}, size, **settings) for shard in (2, 4) if size > shard]
    return [*(Training(kind, {}, size, **settings) for kind in ("ddp", "zero1", "zero2", "zero3")), *shards]


def _pipelines(size: int) -> list[Training]:
    """Return pipelines of 2 and 4 stages of every schedule; those with fewer stages than ranks are replicated."""
    trainings = []
    for stages in (2, 4):
        for schedule in ("gpipe", "1f1b", "interleaved") if size % stages == 0 else ():
            layers = 2 * stages if schedule == "interleaved" else stages
            options = {"stages": stages, "schedule": schedule}
            trainings.append(Training("pipeline", options, size, num_layers=layers, num_micro_steps=2 * stages))
    return trainings


TRAININGS = [
    *_sharded(2),
    *_sharded(2, task="mlm", precision="fp16"),
    *_sharded(2, precision="bf16", freeze=True),
    *_sharded(4),
    Training("zero3", has_unused=True),
    Training("hsdp", {"shard_size": 2, "reduce_each_micro_step": True}, 4, has_unused=True, num_micro_steps=3),
    *(
        Training(kind, {"find_unused_parameters": True, "bucket_cap_mb": 0.01}, has_unused=True)
        for kind in ("ddp", "zero1")
    ),
    *_pipelines(2),
    *_pipelines(4),
    Training("pipeline", {"stages": 2}, 4, task="mlm", precision="fp16", num_micro_steps=3),
]
MANY = [*_sharded(4, task="mlm"), *_sharded(8), *_pipelines(8), *_sharded(16, task="mlm")]
RTOL = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}
"""Sums in another order, and under autocast products of other shapes, each rounded to 8 or 11 bits."""


_records: dict[str, Record] = {}


def _recorded(training: Training) -> Record:
    """Return the record of a training, which is run once."""
    if repr(training) not in _records:
        _records[repr(training)] = record(training)
    return _records[repr(training)]


def _alone(training: Training) -> list[float]:
    num_replicas = training.size // training.options.get("stages", 1)
    whole = replace(
        training, kind="single", options={}, size=1, num_micro_steps=num_replicas * training.num_micro_steps
    )
    (losses,) = record(whole).losses
    return losses


every_training = pytest.mark.parametrize(
    "training",
    [
        *(pytest.param(training, id=training.name) for training in TRAININGS),
        *(pytest.param(training, id=training.name, marks=pytest.mark.slow) for training in MANY),
    ],
)


@every_training
def test_all_ranks_call_the_same_collectives_and_train_like_one_process(training: Training):
    recorded = _recorded(training)
    alone = _alone(training)
    for losses in recorded.losses:
        assert losses == recorded.losses[0]
        assert losses == pytest.approx(alone, rel=RTOL[training.precision])
    assert len(set(alone)) == 2


Calls = Counter[tuple[str, tuple[int, ...], str | None]]


def _calls(recorded: Record, part: str, rank: int = 0) -> Calls:
    operations = [call.operation for call in recorded.of_part(part, rank)]
    return Counter((call.kind, call.ranks, call.reduce_op) for call in operations)


@pytest.mark.parametrize("size", [2, 4])
def test_a_step_calls_the_collectives_of_its_strategy(size: int):
    everyone = tuple(range(size))
    # DDP compares its buckets once more after the first step: their parameters, and their sizes.
    whole = Counter({("all_reduce", everyone, "SUM"): 1, ("broadcast", everyone, None): 2})
    # 2 blocks, and one unit of embeddings and head; ZeRO-3 gathers each for 2 micro-batches, forward and backward.
    zero2 = Counter({("all_gather", everyone, None): 3, ("reduce_scatter", everyone, "AVG"): 3})
    zero3 = Counter({("all_gather", everyone, None): 2 * 2 * 3, ("reduce_scatter", everyone, "AVG"): 3})
    expected = {"ddp": whole, "zero1": whole, "zero2": zero2, "zero3": zero3}
    for training in _sharded(size):
        recorded = _recorded(training)
        for rank in range(size):
            calls = _calls(recorded, "step 1", rank)
            if training.kind != "hsdp":
                assert calls == expected[training.kind], training.name
                continue
            shard, replicate = ((0, 1), (2, 3))[rank // 2], (rank % 2, rank % 2 + 2)
            within = {("all_gather", shard, None): 2 * 2 * 3, ("reduce_scatter", shard, "AVG"): 3}
            assert calls == Counter({**within, ("all_reduce", replicate, "AVG"): 3})


def test_1f1b_batches_sends_and_receives_between_two_stages():
    (training,) = [pipeline for pipeline in _pipelines(4) if pipeline.options == {"stages": 4, "schedule": "1f1b"}]
    recorded = _recorded(training)
    # Stage 1 of 4, 8 micro-batches: 3 forward passes before the first backward pass; then each send of one pass is in
    # a batch with the receive of the other. 8 - 3 + 1 pairs with the next stage, 8 - 3 with the one before.
    batches = defaultdict(set)
    for call in recorded.of_part("step 1", rank=1):
        batches[call.batch].add((call.operation.kind, call.operation.peer))
    assert list(batches.values()).count({("send", 2), ("recv", 2)}) == 6
    assert list(batches.values()).count({("send", 0), ("recv", 0)}) == 5


def _skip_filler(strategy: Any, rank: int) -> None:
    """Leave out the all-reduce of gradients on a rank that has no sample in a step."""
    forward_backward = strategy.forward_backward

    def run(micro_batches: Sequence[Batch], phases: Phases) -> torch.Tensor:
        if any(batch.num_samples for batch in micro_batches):
            return forward_backward(micro_batches, phases)
        with strategy._ddp.no_sync():
            return forward_backward(micro_batches, phases)

    strategy.forward_backward = run


def _reduce_in_bf16(strategy: Any, rank: int) -> None:
    """Reduce gradients in another dtype on one rank."""
    if rank == 1:
        strategy._precision = replace(strategy._precision, reduce_dtype=torch.bfloat16)


def _other_schedule(strategy: Any, rank: int) -> None:
    """Follow another schedule on one stage."""
    if rank == 1:
        strategy._schedule_kind = "gpipe"


def _other_groups(strategy: Any, rank: int) -> None:
    """Use another mesh on half of the ranks."""
    if rank >= 2:
        strategy._mesh_shape = (1, 4)


@pytest.mark.parametrize(
    ("training", "change"),
    [
        (Training("ddp"), _skip_filler),
        (Training("zero3"), _reduce_in_bf16),
        (Training("pipeline", {"stages": 2}, num_micro_steps=4), _other_schedule),
        (Training("hsdp", {"shard_size": 2}, 4), _other_groups),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else value.name,
)
def test_ranks_with_different_collectives_are_detected(training: Training, change: Callable[[Any, int], None]):
    with pytest.raises((Mismatch, Deadlock)) as caught:
        record(replace(training, change=change))
    for rank in range(2):
        assert f"rank {rank}" in str(caught.value)


def _tensor(value: float = 0.0, *, size: int = 2) -> torch.Tensor:
    return torch.full((size,), value)


def _send_first(world: World, rank: int) -> None:
    """Both ranks send before they receive, one operation at a time."""
    dist.isend(_tensor(), 1 - rank)
    dist.irecv(_tensor(), 1 - rank)


def _send_in_a_batch_only(world: World, rank: int) -> None:
    """The first rank sends in a batch what the second receives by itself."""
    if rank == 0:
        operations = [dist.P2POp(dist.isend, _tensor(), 1), dist.P2POp(dist.irecv, _tensor(), 1)]
        dist.batch_isend_irecv(operations)
    else:
        dist.recv(_tensor(), 0)
        dist.send(_tensor(), 0)


def _two_groups_in_another_order(world: World, rank: int) -> None:
    """Two ranks meet in two groups, each rank in an order of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(_tensor(), group=group)


def _once_more(world: World, rank: int) -> None:
    """One rank calls a collective more often."""
    for _ in range(1 + rank):
        dist.all_reduce(_tensor())


@pytest.mark.parametrize(
    "program", [_send_first, _send_in_a_batch_only, _two_groups_in_another_order, _once_more], ids=lambda f: f.__name__
)
def test_a_deadlock_is_detected_with_the_states_of_the_ranks(program: Callable[[World, int], None]):
    world = World(2)
    with pytest.raises(Deadlock) as caught:
        world.run(program)
    lines = str(caught.value).splitlines()
    assert [line.partition(",")[0] for line in lines] == ["rank 0", "rank 1"]
    assert ("has finished" in lines[0]) == (program is _once_more)


def _meet_with(**settings: Any) -> Callable[[World, int], None]:
    def program(world: World, rank: int) -> None:
        differ = settings if rank == 1 else {}
        tensor = _tensor(size=differ.get("size", 2)).to(differ.get("dtype", torch.float32))
        if differ.get("kind") == "broadcast":
            dist.broadcast(tensor, 0)
        else:
            dist.all_reduce(tensor, op=differ.get("op", dist.ReduceOp.SUM))

    return program


@pytest.mark.parametrize(
    "differs", [{"size": 3}, {"dtype": torch.float64}, {"op": dist.ReduceOp.MAX}, {"kind": "broadcast"}], ids=list
)
def test_calls_that_differ_in_one_argument_are_detected(differs: dict[str, Any]):
    with pytest.raises(Mismatch):
        World(2).run(_meet_with(**differs))


def test_programs_whose_ranks_agree_pass():
    World(2).run(_meet_with())

    def exchange(world: World, rank: int) -> list[float]:
        received = _tensor()
        peer = 1 - rank
        sent = dist.P2POp(dist.isend, _tensor(1.0 + rank), peer)
        dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, peer)])
        parts = [_tensor(), _tensor()]
        dist.all_gather(parts, received)
        scattered = torch.empty(1)
        dist.reduce_scatter(scattered, [received[:1] * 10, received[:1] * 100], op=dist.ReduceOp.AVG)
        dist.broadcast(received, 1)
        return [*torch.cat(parts).tolist(), *scattered.tolist(), *received.tolist()]

    # Rank 0 receives 2, rank 1 receives 1. The means are (20 + 10) / 2 and (200 + 100) / 2; rank 1 broadcasts its 1.
    assert World(2).run(exchange) == [[2.0, 2.0, 1.0, 1.0, 15.0, 1.0, 1.0], [2.0, 2.0, 1.0, 1.0, 150.0, 1.0, 1.0]]
