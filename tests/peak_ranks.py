"""The work of each rank in the tests of `planning.memory`: a step, with a trace of every storage.

The trace covers the time from the start of the step to the last gradient: storages that operators allocate, and those
that FSDP2 resizes. It does not see memory that a collective allocates in C++.
"""

import gc
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from ranks import CPU, _no_clock
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from transformers import AutoModelForSequenceClassification, BertConfig

from paratune.batch import Batch
from paratune.config import strategy_sections as sections
from paratune.config.sections import Train
from paratune.config.traits import strategy_traits
from paratune.engine.optim import OptimizerFactory
from paratune.models.dropout import use_cheap_dropout
from paratune.models.task_model import TaskModel, find_blocks
from paratune.planning.states import PredictionSetup
from paratune.planning.trace import Trace
from paratune.precision import POLICIES, Precision
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import fsdp, strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

BF16 = {"param_dtype": "bf16"}
ROWS, LENGTH = 8, 64
SECTIONS: dict[str, Any] = {
    "ddp": sections.DDPOptions,
    "zero1": sections.Zero1Options,
    "zero2": sections.Zero2Options,
    "zero3": sections.Zero3Options,
    "hsdp": sections.HSDPOptions,
    "pipeline": sections.PipelineOptions,
    "deepspeed": sections.DeepSpeedOptions,
}


@dataclass(frozen=True)
class Case:
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    tolerance: float = 0.002
    world_size: int = 2

    @property
    def name(self) -> str:
        return f"{self.kind} {json.dumps(self.options)} x{self.micro_batches}, {self.world_size} ranks"

    @property
    def precision(self) -> Precision:
        name = self.options.get("param_dtype", "fp32")
        return POLICIES[name].with_weights(name)

    @property
    def setup(self) -> PredictionSetup:
        traits = strategy_traits(self.kind, self.options)
        assert traits is not None
        strategy = SECTIONS[self.kind](kind=self.kind, **self.options)
        return PredictionSetup(
            strategy, traits, self.precision, self.world_size, self.world_size, ROWS, self.micro_batches
        )


CASES = [Case(kind, {}, number) for kind in ("ddp", "zero2", "zero3") for number in (1, 2)]
CASES += [Case("zero1", {}, number) for number in (1, 2)]
CASES += [Case("hsdp", {"shard_size": 2}, number, world_size=4) for number in (1, 2)]
CASES += [Case("zero3", {}, number, world_size=4) for number in (1, 2)]
OFFLOADED = {"cpu_offload": True}
CASES += [Case(kind, OFFLOADED, number) for kind in ("zero2", "zero3") for number in (1, 2)]
CASES += [Case(kind, BF16, number, 0.03) for kind in ("zero2", "zero3") for number in (1, 2)]
CASES += [Case("hsdp", {"shard_size": 2, **BF16}, 2, 0.03, world_size=4)]
CASES += [Case("zero3", {**OFFLOADED, **BF16}, number, 0.03) for number in (1, 2)]
# The peak of gradients is that of shards, for any number of micro-batches.
EACH = {"reduce_each_micro_step": True}
CASES += [Case(kind, options, 4) for kind in ("zero2", "zero3") for options in ({}, EACH)]
CASES += [Case("hsdp", {"shard_size": 2, **EACH}, 4, world_size=4)]
CASES += [Case("zero3", {**OFFLOADED, **EACH}, 4), Case("zero3", {**BF16, **EACH}, 4, 0.03)]
# Messages on their way are counted by their largest number.
CASES += [Case("pipeline", {"stages": 2, "schedule": s}, 4, 0.03) for s in ("1f1b", "gpipe", "interleaved")]
if importlib.util.find_spec("deepspeed"):
    CASES += [
        Case("deepspeed", {"stage": stage, "bucket_cap_mb": 1.0}, number) for stage in range(4) for number in (1, 2)
    ]
    CASES += [
        Case("deepspeed", {"stage": stage, "offload_optimizer": True, "bucket_cap_mb": 1.0}, number)
        for stage in (1, 2, 3)
        for number in (1, 2)
    ]
    HALF: dict[str, Any] = {**BF16, "bucket_cap_mb": 1.0}
    CASES += [Case("deepspeed", {"stage": s, **HALF}, number, 0.03) for s in (1, 2) for number in (1, 2)]
    CASES += [Case("deepspeed", {"stage": 3, **HALF}, number) for number in (1, 2)]
    CASES += [Case("deepspeed", {"stage": s, **HALF, "offload_optimizer": True}, 2, 0.03) for s in (1, 2)]
    CASES += [Case("deepspeed", {"stage": 3, **HALF, "offload_optimizer": True}, 2)]
    # DeepSpeed's own limits: buckets of 5e8 numbers, which here are reserved addresses without memory.
    CASES += [Case("deepspeed", {"stage": s, **BF16}, 1, 0.03) for s in (1, 2, 3)]
    LARGE = {"max_live_parameters": 10**9, "max_reuse_distance": 10**9, "prefetch_bucket_size": 5 * 10**7}
    CASES += [Case("deepspeed", {"stage": 3, **HALF, **LARGE}, number) for number in (1, 2)]
    # Stage 3 with limits below and above the model of 1.1e6 weights; with the default threshold only embeddings of this
    # small model are gathered. All weights in one collective need most before the last of them is used.
    THREE = {"stage": 3, "bucket_cap_mb": 1.0, "param_persistence_threshold": 2000}
    LIMITS: list[dict[str, int]] = [
        *({}, {"max_live_parameters": 0}, {"max_live_parameters": 600_000}, {"max_live_parameters": 10**7}),
        {"max_live_parameters": 600_000, "max_reuse_distance": 0, "prefetch_bucket_size": 50_000},
        {"max_reuse_distance": 10**6, "prefetch_bucket_size": 0},
    ]
    CASES += [Case("deepspeed", {**THREE, **limits}) for limits in LIMITS]
    CASES += [Case("deepspeed", {**THREE, "max_live_parameters": 10**7, "prefetch_bucket_size": 10**6})]
    CASES += [Case("deepspeed", {**THREE, **BF16, **limits}) for limits in LIMITS[:3]]
    # One rank gathers nothing.
    CASES += [
        Case("deepspeed", {**THREE, **limits}, number, world_size=1) for number in (1, 2) for limits in LIMITS[:1]
    ]
WORLD_SIZES = (4, 2, 1)


def config() -> BertConfig:
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    return BertConfig(vocab_size=2000, max_position_embeddings=LENGTH, num_labels=2, pad_token_id=0, **sizes)


def _batch(num: int) -> Batch:
    shape = (ROWS, LENGTH)
    return Batch(
        input_ids=torch.randint(5, 2000, shape),
        row_weight=torch.ones(ROWS),
        index=torch.arange(ROWS),
        num_samples=ROWS,
        num_tokens=ROWS * LENGTH,
        num_padded_tokens=ROWS * LENGTH,
        loss_denominator=float(ROWS * num),
        attention_mask=torch.ones(shape, dtype=torch.long),
        token_type_ids=torch.zeros(shape, dtype=torch.long),
        max_seqlen=LENGTH,
        labels=torch.zeros(ROWS, dtype=torch.long),
    )


def _alive() -> dict[int, Tensor]:
    """Return one tensor of each existing storage."""
    gc.collect()
    tensors = {}
    for tensor in [tensor for tensor in gc.get_objects() if issubclass(type(tensor), Tensor)]:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if type(local) in (Tensor, torch.nn.Parameter) and local.device == CPU:
            tensors[local.untyped_storage()._cdata] = local
    return tensors


@contextmanager
def _resizing(trace: Trace) -> Iterator[None]:
    """Let a trace record the resizing of storages, which is not an operator."""
    plain: Callable[..., Any] = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        before, number = trace._alive.get(storage._cdata, (0, -1))
        trace._alive[storage._cdata] = size, number
        trace.live_bytes += size - before
        trace.peak_bytes = max(trace.peak_bytes, trace.live_bytes)
        return plain(storage, size)

    torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain  # type: ignore[method-assign]


def _measured(case: Case, rank: int) -> int:
    before = sum(tensor.untyped_storage().nbytes() for tensor in _alive().values())
    torch.manual_seed(0)
    strategy: Any = strategy_class(case.kind)(
        device=CPU, precision=case.precision, rank=rank, world_size=case.world_size, **case.options
    )
    model = TaskModel(AutoModelForSequenceClassification.from_config(config()), "classification")
    use_cheap_dropout(model)
    strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(), 10))
    batches = [_batch(case.micro_batches) for _ in range(case.micro_batches)]
    for _ in range(2):
        strategy.forward_backward(batches, _no_clock)
        strategy.optimizer_step(1.0)
    trace = Trace(1)
    for tensor in _alive().values():
        trace.hold(tensor, is_base=True)
    with _resizing(trace), trace, trace.recording():
        strategy.forward_backward(batches, _no_clock)
        strategy.optimizer_step(1.0)
    strategy.close()
    return trace.peak_bytes - before


def one_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # `_alive` reads all objects of the collector, twice in each case: not those of the imports
    # Without an accelerator there is no pinned memory; the placement of shards is the same.
    fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)  # type: ignore[misc, assignment]
    for world_size in WORLD_SIZES:
        if rank >= world_size:
            continue
        os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / f"rendezvous{world_size}")
        open_process_group(Place(rank, rank, world_size), CPU)
        peaks = {case.name: _measured(case, rank) for case in CASES if case.world_size == world_size}
        (Path(folder) / f"{world_size}.{rank}.json").write_text(json.dumps(peaks))
        close_process_group()
