"""Pipeline parallelism with torch.distributed.pipelining, alone or with data parallelism between the pipelines.

Rank r has stage r % stages of replica r // stages; with the interleaved schedule also every stages-th stage after that.
All ranks of a replica read the same samples, so they send only hidden states and their gradients, and no masks.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.optim import Optimizer

from paratune.base.piece import Piece
from paratune.base.units import MIB
from paratune.batch import Batch
from paratune.config.feasibility import stage_reasons
from paratune.config.problems import refuse
from paratune.config.traits import TRAITS, Traits, strategy_traits
from paratune.errors import ConfigError
from paratune.precision import Precision, changed
from paratune.stages.balance import balance_blocks, spans_of_sizes
from paratune.stages.cut import BlockSpan, CutModel, probe_batch
from paratune.strategies import whole
from paratune.strategies.adam_preconditioner import make_preconditioner
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import UpdateStop, make_scaler, scale_of, spoil_gradient
from paratune.strategies.pipeline.parts import parts_of
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, Read, ReduceOp

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_BUCKET_BYTES = 25 * MIB
"""The size of the messages in which gradients are sent, as in DDP."""
_SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class PipelineStrategy:
    """See `protocol.Strategy`."""

    traits: ClassVar[Traits] = TRAITS["pipeline"]

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        stages: int,
        schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b",
        chunks: int | None = None,
        balance: str | list[int] = "estimated",
    ) -> None:
        replica, self._place = divmod(rank, stages)
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=replica, data_world_size=world_size // stages)
        self._device = device
        self._precision = precision
        self._scaler = make_scaler(precision)
        self._stop = UpdateStop()
        self._width = stages
        """Ranks of a pipeline; the interleaved schedule has several stages on each."""
        options = {"stages": stages, "schedule": schedule, "chunks": chunks}
        self._num_stages = stages * (strategy_traits("pipeline", options) or self.traits).stages_per_rank
        self._mine = range(self._place, self._num_stages, stages)
        self._schedule_kind = schedule
        self._balance = balance
        self._first_rank = replica * stages
        self._group = _my_group([range(at, at + stages) for at in range(0, world_size, stages)], rank)
        self._replicas = _my_group([range(at, world_size, stages) for at in range(stages)], rank)
        self._cut: CutModel
        self._model: Any
        self._optimizer: Optimizer
        self._spans: list[BlockSpan]
        self._used: list[set[str]]
        self._needed: list[set[str]]
        self._owners: dict[str, int]
        self._num_split: int
        """Number of trained weights that several stages use, on the same or on different ranks."""
        self._shared: list[tuple[dist.ProcessGroup, list[nn.Parameter]]]
        self._sent: list[tuple[torch.dtype, int]] = []
        """Dtype and width of the hidden states that each stage sends, without the last stage."""
        self._batches: Sequence[Batch] = ()
        self._phases: Phases
        self._schedule: tuple[tuple[int, ...], Any] | None = None
        """The last schedule and the shapes for which it was made; only one is kept, as it has buffers."""

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaler is None else self._scaler.last_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        self._model = model
        # Trial passes find the weights of each stage, and need the values of one block at a time.
        with whole.blocks_without_memory(model, blocks, self._precision, self.traits) as values:
            self._cut = CutModel(model, blocks, values)
            self._divide()
        parameters = dict(model.named_parameters())
        users = {
            name: [stage for stage, used in enumerate(self._used) if name in used] or [self._num_stages - 1]
            for name in parameters
        }
        self._num_split = sum(len(users[name]) > 1 for name, parameter in parameters.items() if parameter.requires_grad)
        # Only the owner of a weight writes it to checkpoints and adds it to the gradient norm.
        self._owners = {name: stages[0] % self._width for name, stages in users.items()}
        own = {name for name, stages in users.items() if set(stages) & set(self._mine)}
        needed = set().union(*(self._needed[stage] for stage in self._mine))
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        for name, parameter in parameters.items():
            if name not in own:
                parameter.requires_grad_(False)
                # Emptied and not deleted, so that names, tied weights and `state_dict` are those of the whole model.
                if name not in needed:
                    parameter.data = parameter.data.new_empty(0)
                    vars(parameter).pop("draw", None)
        self._own = {name: parameter for name, parameter in parameters.items() if name in own}
        self._shapes = shapes
        whole.place(model, self._device, self._precision, self.traits)
        self._shared = self._share(users, parameters)
        self._find_sent_dtypes()
        self._optimizer = make_optimizer(self._own.items())

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._model, True)
        self._batches, self._phases = micro_batches, phases
        losses: list[Tensor] = []
        # torch's schedule cuts its inputs into micro-batches along their first dimension. Ours are cut already, so it
        # gets their indices, with which `_run_one` finds the batch.
        indices = torch.arange(len(micro_batches))
        has_first, has_last = 0 in self._mine, self._num_stages - 1 in self._mine
        with phases("schedule"):
            self._schedule_for(micro_batches).step(
                *([indices] if has_first else []),
                target=indices if has_last else None,
                losses=losses if has_last else None,
                return_outputs=False,
                batch_index=indices,
            )
            # The last stages finish first. Their wait for the others is a part of the bubble; without this
            # synchronisation it would be measured in a later phase.
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._group)
        with phases("backward"):
            self._reduce_gradients()
        self._batches = ()
        total = torch.stack(losses).detach().sum() if losses else torch.zeros((), device=self._device)
        return total if self._scaler is None else total / self._scaler.scale

    def watch_gradients(self) -> GradientWatch:
        if self._num_split:
            raise NotImplementedError(
                f"{self._num_split} of the weights are shared by several stages, which have parts of their gradients"
            )
        scale, own, copies = scale_of(self._scaler), list(self._own.values()), self.layout.data_world_size
        preconditioner = make_preconditioner(self._optimizer, self._model, own, scale=scale, num_copies=copies)
        return GradientWatch(own, scale=scale, preconditioner=preconditioner)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        # A weight of several stages counts once.
        counted = [p.grad for name, p in self._own.items() if p.grad is not None and self._owners[name] == self._place]
        norm = nn.utils.get_total_norm(counted) if counted else torch.zeros((), device=self._device)
        square = norm.double().square()  # with a loss scale the square may overflow float32
        dist.all_reduce(square, group=self._group)
        norm = square.sqrt()
        guard = self._scaler or self._stop
        return whole.clip_and_step(self._optimizer, self._own.values(), max_grad_norm, guard, norm=norm)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        whole.set_training(self._model, False)
        last = self._num_stages - 1
        waits, outputs = [], []
        # As many parts as stages, so that all stages work at the same time.
        for part in parts_of(batch, self._width):
            received = None
            for stage in self._mine:
                if stage > 0:
                    dtype, width = self._sent[stage - 1]
                    received = torch.empty((*part.input_ids.shape, width), dtype=dtype, device=self._device)
                    dist.recv(received, src=self._rank_of(stage - 1), group=self._group)
                result = self._run(stage, part, received)
                if stage == last:
                    outputs.append(result)
                else:
                    sent = result.contiguous()
                    # `sent` is kept because its memory may not change before the send completes.
                    waits.append((dist.isend(sent, dst=self._rank_of(stage + 1), group=self._group), sent))
        for work, _ in waits:
            if work is not None:
                work.wait()
        return self._broadcast(torch.cat(outputs) if outputs else None, source=self._rank_of(last))

    def state(self) -> "PipelineState":
        rank = self.layout.rank
        local = whole.WholeState(self._model, self._optimizer, rank=rank, scaler=self._scaler)
        return PipelineState(local, self._optimizer, self._own, self._shapes, self._owners, rank)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return reduce_over_ranks(value, op)

    def close(self) -> None:
        self._schedule = None
        # A communicator of NCCL uses device memory, which the next strategy may need.
        for group in (self._group, self._replicas, *(group for group, _ in self._shared)):
            dist.destroy_process_group(group)
        del self._cut, self._model, self._optimizer, self._own

    def _rank_of(self, stage: int) -> int:
        return self._first_rank + stage % self._width

    def _divide(self) -> None:
        """Assign blocks to stages, in the same way on every rank, and find the weights of each stage."""
        num_blocks, num_stages = self._cut.num_blocks, self._num_stages
        refuse(stage_reasons(self._width, num_stages // self._width, self._balance, num_blocks))
        if isinstance(self._balance, list):
            self._spans = spans_of_sizes(self._balance)
            self._used, self._needed = self._cut.find_weights(self._spans)
            return
        costs = self._measured_costs() if self._balance == "measured" else [float(cost) for cost in self._cut.costs()]
        self._spans = balance_blocks(costs, num_stages) or []
        try:
            self._used, self._needed = self._cut.find_weights(self._spans)
        except ConfigError:
            spans = balance_blocks(costs, num_stages, self._cut.possible_cuts())
            if spans is None:
                raise
            self._spans = spans
            self._used, self._needed = self._cut.find_weights(spans)

    def _measured_costs(self) -> list[float]:
        """Return the seconds of forward and backward of each block on the first rank's device; medians of three."""
        costs = torch.zeros(self._cut.num_blocks, dtype=torch.float64)
        self._cut.costs()  # finds the arguments without which blocks can run
        if self.layout.rank == 0:
            inside, hidden = {weight for block in self._cut.blocks for weight in block.parameters()}, None
            outside = {*self._model.parameters(), *self._model.buffers()} - inside
            with changed(outside, lambda tensor: tensor.data.to(self._device)):
                for number, block in enumerate(self._cut.blocks):
                    with self._cut.values(block, self._device):
                        costs[number], hidden = self._timed(BlockSpan(number, number + 1), hidden)
                        self._model.zero_grad(set_to_none=True)
        return reduce_over_ranks(costs, "max").tolist()

    def _timed(self, span: BlockSpan, received: Tensor | None) -> tuple[float, Tensor]:
        batch, seconds = probe_batch(self._device), []
        for _ in range(4):
            leaf = None if received is None else received.detach().requires_grad_(True)
            begin = time.perf_counter()
            with self._precision.autocast(self._device):
                result = self._cut.run(span, batch, leaf)
            result.float().sum().backward()  # type: ignore[no-untyped-call]
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds[1:]), result.detach()

    def _share(
        self, users: dict[str, list[int]], parameters: dict[str, nn.Parameter]
    ) -> list[tuple[dist.ProcessGroup, list[nn.Parameter]]]:
        """Group the weights of several stages (tied embeddings) by the ranks of this replica that have them."""
        together: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for name, stages in users.items():
            places = tuple(sorted({stage % self._width for stage in stages}))
            if len(places) > 1:
                together[places].append(parameters[name])
        groups = []
        # Sorted, because `dist.new_group` is collective: all ranks must make the groups in the same order.
        for places in sorted(together):
            starts = range(0, self.layout.world_size, self._width)
            group = _my_group([[start + place for place in places] for start in starts], self.layout.rank)
            if group is not None:
                groups.append((group, [p for p in together[places] if p.requires_grad]))
        return groups

    @torch.no_grad()
    def _find_sent_dtypes(self) -> None:
        """Run a small batch through the stages to learn dtype and width of the hidden states in this precision."""
        batch = probe_batch(self._device)
        whole.set_training(self._model, False)
        for stage in range(self._num_stages - 1):
            dtype_and_width = torch.zeros(2, dtype=torch.int64, device=self._device)
            if stage in self._mine:
                received = None
                if stage > 0:
                    dtype, width = self._sent[stage - 1]
                    received = torch.zeros((*batch.input_ids.shape, width), dtype=dtype, device=self._device)
                hidden = self._run(stage, batch, received)
                dtype_and_width[0], dtype_and_width[1] = _DTYPES.index(hidden.dtype), hidden.shape[-1]
            dist.broadcast(dtype_and_width, src=self._rank_of(stage), group=self._group)
            self._sent.append((_DTYPES[int(dtype_and_width[0])], int(dtype_and_width[1])))
        whole.set_training(self._model, True)

    def _run(self, stage: int, batch: Batch, received: Tensor | None) -> Tensor:
        with self._precision.autocast(self._device):
            return self._cut.run(self._spans[stage], batch, received)

    def _run_one(self, stage: int, batch_index: Tensor, received: Tensor | None) -> Tensor:
        """Run a stage's forward pass of a micro-batch for the schedule; the last stage returns the scaled loss (1,)."""
        batch = self._batches[int(batch_index)]
        with self._phases("forward"):
            result = self._run(stage, batch, received)
            if stage < self._num_stages - 1:
                return result.contiguous()
            loss: Tensor = self._model.loss_sum(result, batch) / batch.loss_denominator * scale_of(self._scaler)
            if self._scaler is None and loss.requires_grad:
                spoil_gradient(loss)
            return loss.reshape(1)

    def _schedule_for(self, micro_batches: Sequence[Batch]) -> Any:
        """Return the schedule for the number and shape of these micro-batches: a stage's buffers have fixed shapes."""
        shape = tuple(micro_batches[0].input_ids.shape)
        assert all(tuple(batch.input_ids.shape) == shape for batch in micro_batches), (
            "micro-batches have different shapes, but traits.equal_shapes is set"
        )
        key = (len(micro_batches), *shape)
        if self._schedule is None or self._schedule[0] != key:
            stages = [self._stage(stage, shape) for stage in self._mine]
            self._schedule = (
                key,
                _SCHEDULES[self._schedule_kind](
                    stages if self._schedule_kind == "interleaved" else stages[0],
                    len(micro_batches),
                    loss_fn=lambda loss, _indices: loss.squeeze(0),
                    scale_grads=False,
                ),
            )
        return self._schedule[1]

    def _stage(self, stage: int, shape: tuple[int, ...]) -> PipelineStage:
        def sent_by(number: int) -> Tensor:
            dtype, width = self._sent[number]
            return torch.empty((*shape, width), dtype=dtype, device=self._device).requires_grad_(True)

        last = self._num_stages - 1
        timed = _TimedStage(
            _Runner(self, stage),
            stage,
            self._num_stages,
            self._device,
            input_args=sent_by(stage - 1) if stage > 0 else torch.zeros(1, dtype=torch.int64),
            # The last stage returns the loss and sends nothing, but PyTorch 2.11 checks it against this argument.
            output_args=sent_by(stage) if stage < last else self._loss_like(),
            group=self._group,
        )
        timed.strategy = self
        return timed

    def _loss_like(self) -> Tensor:
        dtype = torch.float64 if self._precision.param_dtype == torch.float64 else torch.float32
        return torch.zeros(1, dtype=dtype, device=self._device, requires_grad=True)

    def _reduce_gradients(self) -> None:
        """Sum the gradients of shared weights over their stages, then all gradients over the replicas."""
        for group, parameters in self._shared:
            _sum(parameters, group)
        if self.layout.data_world_size > 1:
            _sum(self._own.values(), self._replicas)

    def _broadcast(self, outputs: Tensor | None, *, source: int) -> Tensor:
        """Return the tensor of rank `source` on all ranks of the replica, with its dtype and shape."""
        header = torch.zeros(9, dtype=torch.int64, device=self._device)
        if outputs is not None:
            header[0], header[1] = _DTYPES.index(outputs.dtype), outputs.ndim
            header[2 : 2 + outputs.ndim] = torch.tensor(outputs.shape)
        dist.broadcast(header, src=source, group=self._group)
        code, ndim, *shape = header.tolist()
        if outputs is None:
            outputs = torch.empty(shape[:ndim], dtype=_DTYPES[code], device=self._device)
        outputs = outputs.contiguous()
        dist.broadcast(outputs, src=source, group=self._group)
        return outputs


class _Runner(nn.Module):
    """The module that torch's stage calls: it runs a stage of the model for a micro-batch."""

    def __init__(self, strategy: PipelineStrategy, stage: int) -> None:
        super().__init__()
        self._strategy = strategy
        self._stage = stage

    def forward(self, received: Tensor, *, batch_index: Tensor) -> Tensor:
        return self._strategy._run_one(self._stage, batch_index, received if self._stage > 0 else None)


class _TimedStage(PipelineStage):
    """A stage whose backward passes are timed."""

    strategy: PipelineStrategy

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        with self.strategy._phases("backward"):
            super().backward_one_chunk(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class PipelineState:
    """Weights and optimizer states, each from the rank that owns it (see `protocol.State`)."""

    local: whole.WholeState
    """Of the weights that this rank has."""
    optimizer: Optimizer
    own: dict[str, nn.Parameter]
    """The weights of this rank's stages by name."""
    shapes: dict[str, torch.Size]
    """Of all weights of the model."""
    owners: dict[str, int]
    rank: int

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        for name, owner in self.owners.items():
            if f"model/{name}".startswith(prefix):
                yield f"model/{name}", self._send_to_rank_0(self.own.get(name), owner, self.shapes[name])
        for name, buffer in self.local.buffers.items():
            if f"model/{name}".startswith(prefix):
                yield f"model/{name}", buffer.detach().cpu() if self.rank == 0 else None
        has_state = torch.tensor([float(p in self.optimizer.state) for p in map(self.own.get, self.owners)])
        has_state = reduce_over_ranks(has_state, "max")
        for (name, owner), owner_has_state in zip(self.owners.items(), has_state.tolist(), strict=True):
            for state_name in whole.OPTIMIZER_STATES if owner_has_state else ():
                key = f"optimizer/{name}/{state_name}"
                if not key.startswith(prefix):
                    continue
                states = self.optimizer.state.get(self.own[name], {}) if name in self.own else {}
                is_scalar = state_name == "step"
                shape = torch.Size() if is_scalar else self.shapes[name]
                dtype = torch.float32 if is_scalar else None
                yield key, self._send_to_rank_0(states.get(state_name), owner, shape, dtype)
        yield from self.local.tensors("strategy/") if "strategy/".startswith(prefix) else ()

    def pieces(self, prefix: str = "") -> Iterator[tuple[str, Piece, Tensor]]:
        for key, tensor in self.local.local():
            kind, _, rest = key.partition("/")
            name = rest.rpartition("/")[0] if kind == "optimizer" else rest
            if key.startswith(prefix) and self.owners.get(name, 0) == self.rank:
                yield key, Piece.whole(tensor.shape), tensor.detach().flatten()

    def load(self, read: Read, keys: Iterable[str]) -> None:
        mine = []
        for key in keys:
            kind, _, rest = key.partition("/")
            name = rest if kind == "model" else rest.rpartition("/")[0]
            if name in self.own or name not in self.owners:
                mine.append(key)
        self.local.load(read, mine)

    def _send_to_rank_0(
        self, value: Tensor | None, owner: int, shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor | None:
        weight = next(iter(self.own.values()))
        return whole.send_to_rank_0(
            value, owner=owner, rank=self.rank, shape=shape, dtype=dtype or weight.dtype, device=weight.device
        )


def _my_group(groups: Sequence[Sequence[int]], rank: int) -> Any:
    """Make process groups, and return the group of this rank. Collective."""
    mine = None
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if rank in ranks:
            mine = group
    return mine


def _sum(parameters: Iterable[nn.Parameter], group: Any) -> None:
    """Sum gradients over a group, bucket by bucket; this needs memory for one more bucket."""
    for bucket in _buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
        if len(bucket) == 1 and bucket[0].is_contiguous():
            dist.all_reduce(bucket[0], group=group)
            continue
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        sums = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, gradient_sum in zip(bucket, sums, strict=True):
            gradient.copy_(gradient_sum.view_as(gradient))


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the gradients in lists of at most `_BUCKET_BYTES`; a larger gradient is alone in its list."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and sum(earlier.nbytes for earlier in bucket) + gradient.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
