"""Ranks as threads of one process, with a process group that blocks as NCCL does and records all operations.

Every operation blocks its rank until all ranks of the operation take part: there are no buffers, `isend` waits for its
`recv`, and only operations of one batch are in flight together. NCCL is at most as strict: each communicator runs its
operations in the order in which a rank issues them. So ranks that finish here finish with NCCL as well.

A batch uses the communicator of its group. A single send or receive uses a communicator of its two ranks, which PyTorch
creates at first use: a receive in a batch never matches a send outside a batch.

Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `pointToPoint`, without `device_id`.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.futures import Future
from torch.testing._internal.distributed import multi_threaded_pg as threaded

BACKEND = "recorded"
LIMIT_S = 300
"""Seconds to wait for threads that are blocked by something other than an operation."""


class Deadlock(Exception):
    """No rank can continue; the message contains the state of each rank."""


class Mismatch(Exception):
    """Ranks of a group do not call the same collective; the message contains the call of each rank."""


class _OtherRankFailed(Exception):
    """Ends the threads of ranks that would wait for a failed rank."""


@dataclass(frozen=True)
class Operation:
    """A collective, or a send or receive, of one rank."""

    kind: str
    ranks: tuple[int, ...]
    """Ranks of the group, as ranks of the world."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the rank's input tensors."""
    dtypes: tuple[torch.dtype, ...]
    reduce_op: str | None = None
    peer: int | None = None
    """The root of a broadcast, or the other rank of a send or receive, as a rank of the world."""

    @property
    def num_bytes(self) -> int:
        """Bytes of `shapes`."""
        return sum(torch.Size(s).numel() * d.itemsize for s, d in zip(self.shapes, self.dtypes, strict=True))


@dataclass(frozen=True)
class Recorded:
    """An operation with its place in the run."""

    part: str
    """The name that the rank's program passed to `World.part`."""
    operation: Operation
    batch: int | None
    """Number of the batch of a send or receive; None without a batch."""


@dataclass
class _Posted:
    """An operation that waits for other ranks."""

    rank: int
    operation: Operation
    inputs: list[Tensor]
    outputs: list[Tensor]
    channel: tuple[Any, ...]
    is_done: bool = False


@dataclass
class World:
    """The ranks of one run."""

    size: int
    recorded: list[list[Recorded]] = field(init=False)
    """Operations of each rank, in the order of its program."""

    def __post_init__(self) -> None:
        self.recorded = [[] for _ in range(self.size)]
        self._condition = threading.Condition()
        self._waiting: dict[int, list[_Posted]] = {}
        """The pending operations of each blocked rank."""
        self._open: dict[tuple[Any, ...], dict[int, _Posted]] = defaultdict(dict)
        self._sent: dict[tuple[Any, ...], list[_Posted]] = defaultdict(list)
        self._num_running = self.size
        self._failure: Exception | None = None
        self._batches: dict[int, list[_Posted]] = {}
        """The operations so far of each rank that is issuing a batch."""
        self._num_batches = [0] * self.size
        self._parts = [""] * self.size

    def part(self, rank: int, name: str) -> None:
        """Name the part of the program that a rank runs from now on."""
        self._parts[rank] = name

    def take_part(self, posted: _Posted) -> None:
        """Take part in an operation and block until it, or its batch, is complete."""
        rank = posted.rank
        batch = self._num_batches[rank] if rank in self._batches else None
        self.recorded[rank].append(Recorded(self._parts[rank], posted.operation, batch))
        if rank in self._batches:
            self._batches[rank].append(posted)
        else:
            self._block(rank, [posted])

    @contextmanager
    def batch(self, rank: int) -> Iterator[None]:
        """Issue the sends and receives of the block together."""
        self._num_batches[rank] += 1
        self._batches[rank] = []
        yield
        self._block(rank, self._batches.pop(rank))

    def _block(self, rank: int, together: list[_Posted]) -> None:
        with self._condition:
            self._raise_if_failed()
            for posted in together:
                self._post(posted)
            self._waiting[rank] = together
            self._condition.notify_all()
            self._fail_if_stuck()
            self._raise_if_failed()
            while not all(posted.is_done for posted in together):
                if not self._condition.wait(timeout=LIMIT_S):
                    self._fail(TimeoutError(f"rank {rank} was blocked for {LIMIT_S} s"))
                self._raise_if_failed()
            del self._waiting[rank]

    def _post(self, posted: _Posted) -> None:
        if posted.operation.kind in ("send", "recv"):
            self._post_between_two(posted)
            return
        together = self._open[posted.channel]
        together[posted.rank] = posted
        if len(together) < len(posted.operation.ranks):
            return
        del self._open[posted.channel]
        members = [together[rank] for rank in posted.operation.ranks]
        calls = {member.rank: _comparable(member.operation) for member in members}
        if len(set(calls.values())) > 1:
            self._fail(Mismatch("\n".join(f"rank {rank}: {call}" for rank, call in calls.items())))
            return
        _carry_out(members)
        for member in members:
            member.is_done = True

    def _post_between_two(self, posted: _Posted) -> None:
        is_send = posted.operation.kind == "send"
        line = self._sent[posted.channel]
        partners = [call for call in line if call.operation.kind != posted.operation.kind]
        if not partners:
            line.append(posted)
            return
        partner = partners[0]
        line.remove(partner)
        send, receive = (posted, partner) if is_send else (partner, posted)
        if _message(send.operation) != _message(receive.operation):
            self._fail(Mismatch(f"rank {send.rank}: {send.operation}\nrank {receive.rank}: {receive.operation}"))
            return
        with torch.no_grad():
            receive.outputs[0].detach().copy_(send.inputs[0])
        send.is_done = receive.is_done = True

    def _fail_if_stuck(self) -> None:
        if self._failure is not None:
            return
        if all(any(not call.is_done for call in posted) for posted in self._waiting.values()):
            if len(self._waiting) < self._num_running:
                return
            states = []
            for rank in range(self.size):
                pending = [call.operation for call in self._waiting.get(rank, ()) if not call.is_done]
                state = f"waits in {self._parts[rank]} for {pending}" if pending else "has finished"
                states.append(f"rank {rank}, after {len(self.recorded[rank])} operations: {state}")
            self._fail(Deadlock("\n".join(states)))

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._condition.notify_all()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise _OtherRankFailed

    def run(self, program: Callable[["World", int], Any]) -> list[Any]:
        """Run a program on every rank, with the process group of all ranks initialised.

        Returns:
            The return values of the program, rank by rank.

        Raises:
            Deadlock: No rank could continue.
            Mismatch: Ranks called different collectives.
            Exception: The exception of the first rank that failed.
        """
        results: list[Any] = [None] * self.size
        store = dist.HashStore()

        def one_rank(rank: int) -> None:
            try:
                # One rank runs at a time, until it blocks: parts of PyTorch do not support several threads.
                with self._condition, torch.autograd.set_multithreading_enabled(False):
                    dist.init_process_group(BACKEND, rank=rank, world_size=self.size, store=store)
                    results[rank] = program(self, rank)
            except _OtherRankFailed:
                pass
            except Exception as error:
                with self._condition:
                    self._fail(error)
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
                with self._condition:
                    self._num_running -= 1
                    if self._waiting:
                        self._fail_if_stuck()
                    self._condition.notify_all()

        # In a CUDA build without a GPU, the first fake mode creates an object that is lost with its thread and never
        # created again.
        with FakeTensorMode():
            pass
        with _thread_local_groups(self):
            threads = [threading.Thread(target=one_rank, args=(rank,), daemon=True) for rank in range(self.size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure
        return results


def _comparable(operation: Operation) -> tuple[Any, ...]:
    """Return the facts of an operation that must be equal on all ranks of a group."""
    return operation.kind, operation.shapes, operation.dtypes, operation.reduce_op, operation.peer


def _message(operation: Operation) -> tuple[Any, ...]:
    """Return the facts that a send and its receive share; PyTorch 2.11 receives a scalar in a tensor of one number."""
    return tuple(shape or (1,) for shape in operation.shapes), operation.dtypes


@torch.no_grad()
def _carry_out(members: list[_Posted]) -> None:
    """Apply the collective to the tensors of all ranks; members are in the order of the group."""
    operation = members[0].operation
    num_ranks = len(members)
    if operation.kind == "broadcast":
        root = members[operation.ranks.index(operation.peer)]  # type: ignore[arg-type]
        for member in members:
            for output, value in zip(member.outputs, root.inputs, strict=True):
                output.detach().copy_(value)
        return
    if operation.kind == "all_gather":
        values = [member.inputs[0].flatten() for member in members]
        for member in members:
            for output, value in zip(_chunks(member.outputs, num_ranks), values, strict=True):
                output.detach().copy_(value.view_as(output))
        return
    reduced = [_reduced([m.inputs[n] for m in members], operation.reduce_op) for n in range(len(members[0].inputs))]
    for place, member in enumerate(members):
        if operation.kind == "reduce_scatter":
            whole = torch.cat([value.flatten() for value in reduced])
            member.outputs[0].detach().copy_(whole.chunk(num_ranks)[place].view_as(member.outputs[0]))
            continue
        for output, value in zip(member.outputs, reduced, strict=True):
            output.detach().copy_(value)


def _chunks(outputs: list[Tensor], num_ranks: int) -> list[Tensor]:
    """Return the outputs of an all-gather rank by rank; a flat output is split."""
    return list(outputs[0].view(-1).chunk(num_ranks)) if len(outputs) == 1 and num_ranks > 1 else outputs


def _reduced(values: list[Tensor], reduce_op: str | None) -> Tensor:
    stacked = torch.stack([value.detach() for value in values])
    if reduce_op == "MAX":
        return stacked.amax(0)
    if reduce_op == "MIN":
        return stacked.amin(0)
    assert reduce_op in ("SUM", "AVG", None), reduce_op
    return stacked.mean(0) if reduce_op == "AVG" else stacked.sum(0).to(stacked.dtype)


def _done(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return _create_work_from_future(future)


class RecordedGroup(dist.ProcessGroup):
    """The process group of one rank. PyTorch calls its methods by these names."""

    def __init__(self, world: World, group_rank: int, ranks: tuple[int, ...], name: str) -> None:
        super().__init__(group_rank, len(ranks))
        self._world = world
        self._ranks = ranks
        self._rank = ranks[group_rank]
        self._name = name
        self._num_calls = 0

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def size(self) -> int:
        return len(self._ranks)

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._collective("all_reduce", tensors, tensors, reduce_op=_name_of(opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._collective("broadcast", tensors, tensors, peer=self._ranks[opts.rootRank if opts else 0])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        return self._collective("all_gather", inputs, outputs[0])

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        return self._collective("all_gather", [value], [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            work = self.all_gather_single(output, value, opts)
        return work

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        return self._collective("reduce_scatter", inputs[0], outputs, reduce_op=_name_of(opts))

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> Any:
        return self._collective("reduce_scatter", [value], [output], reduce_op=_name_of(opts))

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, value in zip(outputs, inputs, strict=True):
            work = self.reduce_scatter_single(output, value, opts)
        return work

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    """Before PyTorch 2.13."""

    def barrier(self, opts: Any = None) -> Any:
        return self._collective("barrier", [], [])

    def send(self, tensors: list[Tensor], group_rank: int, tag: int) -> Any:
        return self._between_two("send", tensors, group_rank)

    def recv(self, tensors: list[Tensor], group_rank: int, tag: int) -> Any:
        return self._between_two("recv", tensors, group_rank)

    def _collective(self, kind: str, inputs: list[Tensor], outputs: list[Tensor], **options: Any) -> Any:
        self._num_calls += 1
        operation = Operation(kind, self._ranks, _shapes(inputs), tuple(tensor.dtype for tensor in inputs), **options)
        channel = (self._name, self._ranks, self._num_calls)
        self._world.take_part(_Posted(self._rank, operation, inputs, outputs, channel))
        return _done([outputs])

    def _between_two(self, kind: str, tensors: list[Tensor], group_rank: int) -> Any:
        peer = self._ranks[group_rank]
        operation = Operation(kind, self._ranks, _shapes(tensors), tuple(tensor.dtype for tensor in tensors), peer=peer)
        ends = (self._rank, peer) if kind == "send" else (peer, self._rank)
        over = "group" if self._rank in self._world._batches else "pair"
        self._world.take_part(_Posted(self._rank, operation, tensors, tensors, (self._name, self._ranks, over, *ends)))
        return _done(tensors)


def _shapes(tensors: list[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _name_of(opts: Any) -> str:
    return "SUM" if opts is None else str(getattr(opts.reduceOp, "op", opts.reduceOp)).rpartition(".")[2]


_current: list[World] = []


def _make_group(common: Any, options: Any) -> RecordedGroup:
    ranks = tuple(common.global_ranks_in_group) or tuple(range(common.group_size))
    return RecordedGroup(_current[-1], common.group_rank, ranks, common.group_id)


dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu"])


@contextmanager
def _thread_local_groups(world: World) -> Iterator[None]:
    """Give each thread its own process groups of `world`."""
    batched = dist.batch_isend_irecv

    def batch_isend_irecv(operations: list[Any]) -> Any:
        with world.batch(dist.get_rank()):
            return batched(operations)

    with ExitStack() as stack:
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        stack.callback(torch._C._distributed_c10d._set_thread_isolation_mode, False)
        if not hasattr(threaded.ThreadLocalWorld, "comms"):  # PyTorch 2.11 reads them in any case
            stack.enter_context(mock.patch.object(threaded.ThreadLocalWorld, "comms", [], create=True))
        threaded._install_threaded_pg()
        stack.callback(threaded._uninstall_threaded_pg)
        _current.append(world)
        stack.callback(_current.pop)
        stack.enter_context(mock.patch.object(dist, "batch_isend_irecv", batch_isend_irecv))
        yield
