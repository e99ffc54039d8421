"""The work of each rank in the tests of planned states: a step, the next gradients, and a count of storages."""

import importlib.util
import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.multiprocessing
from ranks import CPU, Job, _batches, _model, _no_clock
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import find_blocks, freeze_encoder
from paratune.precision import POLICIES, Precision
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import fsdp, strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

FP32 = POLICIES["fp32"]
BF16 = {"param_dtype": "bf16"}


def precision_of(options: dict[str, Any]) -> Precision:
    """Return fp32, or bf16 with weights of 16 bits if the options ask for them."""
    name = options.get("param_dtype", "fp32")
    return POLICIES[name].with_weights(name)


def _jobs(world_size: int) -> list[Job]:
    """Return a job for each strategy: on two ranks with tied embeddings, on four with or without frozen weights."""
    pipelines: list[dict[str, Any]] = [{"stages": 2}, {"stages": 2, "schedule": "interleaved"}]
    if world_size == 4:
        pipelines = [{"stages": 2, "balance": [3, 1]}, {"stages": 4}]
    rows: list[tuple[str, dict[str, Any]]] = [("ddp", {}), ("zero1", {}), ("zero2", {}), ("zero3", {})]
    rows += [("hsdp", {"shard_size": 2})] if world_size == 4 else []
    rows += [("zero2", {"cpu_offload": True}), ("zero3", {"cpu_offload": True})]
    rows += [("hsdp", {"shard_size": 2, "cpu_offload": True})] if world_size == 4 else []
    rows += [("zero2", BF16), ("zero3", {**BF16, "cpu_offload": True})]
    rows += [("hsdp", {"shard_size": 2, **BF16})] if world_size == 4 else []
    rows += [("pipeline", options) for options in pipelines]
    if importlib.util.find_spec("deepspeed"):
        rows += [("deepspeed", {"stage": stage}) for stage in range(4)]
        rows += [("deepspeed", {"stage": 3, "param_persistence_threshold": 100})]
        rows += [("deepspeed", {"stage": stage, "offload_optimizer": True}) for stage in (1, 2, 3)]
        rows += [("deepspeed", {"stage": 3, "offload_optimizer": True, "offload_parameters": True})]
        rows += [("deepspeed", {"stage": stage, **BF16, "bucket_cap_mb": 1.0}) for stage in (1, 2, 3)]
        rows += [
            ("deepspeed", {"stage": s, **BF16, "bucket_cap_mb": 1.0, "offload_optimizer": True}) for s in (1, 2, 3)
        ]
        rows += [("deepspeed", {"stage": 3, **BF16, "bucket_cap_mb": 1.0, "offload_parameters": True})]
    jobs = []
    for kind, options in rows:
        task: Literal["mlm", "classification"] = "mlm" if world_size == 2 or kind == "pipeline" else "classification"
        # DeepSpeed's own modes keep no fp32 copy of frozen weights.
        both = task == "classification" and not (kind == "deepspeed" and "param_dtype" in options)
        for freeze in (False, True) if both else (False,):
            name = f"{kind} {json.dumps(options)} {task}{' head' * freeze} x{world_size}"
            jobs.append(Job(name, task=task, strategy=kind, options=options, accumulation=2, freeze=freeze))
    return jobs


# DeepSpeed counts parameters over all jobs and compares the counts of ranks, so later jobs must have fewer parameters.
JOBS = {size: _jobs(size) for size in (4, 2)}


def _held(job: Job, rank: int, world_size: int) -> dict[str, int]:
    """Return the bytes of each kind, including offloaded ones, which on a CPU are in the same memory as all others."""
    strategy: Any = strategy_class(job.strategy)(
        device=CPU, precision=precision_of(job.options), rank=rank, world_size=world_size, **job.options
    )
    model = _model(job)
    if job.freeze:
        freeze_encoder(model)
    factory = OptimizerFactory(Train(), 2)
    strategy.prepare(model, find_blocks(model), factory)
    batches = _batches(job, strategy)
    strategy.forward_backward(batches.step(0), _no_clock)
    strategy.optimizer_step(1.0)
    strategy.forward_backward(batches.step(1), _no_clock)
    if job.strategy == "deepspeed" and job.options["stage"] > 0:
        bytes_by_kind = _held_by_deepspeed(model, strategy._engine, job.options["stage"])
    else:
        optimizer = strategy._optimizer.optim if job.strategy == "zero1" else factory._optimizers[0]
        states = (value for state in optimizer.state.values() for value in state.values())
        gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
        bytes_by_kind = {
            "weights": _bytes(model.parameters()),
            "gradients": _bytes(gradients),
            "optimizer": _bytes(states),
        }
    strategy.close()
    return bytes_by_kind


def _held_by_deepspeed(model: Any, engine: Any, stage: int) -> dict[str, int]:
    zero, optimizer = engine.optimizer, engine.basic_optimizer
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    weights = list(model.parameters())
    if stage == 3:
        weights += [tensor.ds_tensor for tensor in model.parameters()]
        updated = zero.fp32_partitioned_groups_flat
        gradients = [zero.grad_partitions_flat_buffer]
    else:
        updated = zero.single_partition_of_fp32_groups
        gradients = [tensor for group in zero.averaged_gradients.values() for tensor in group or ()]
        if zero.cpu_offload:
            weights += zero.param_buffer_of_bit16_for_cpu_offload_groups
            gradients += [*zero.accumulated_grads_in_cpu.values(), zero.temp_grad_buffer_for_cpu_offload]
    gradients += [tensor.grad for tensor in updated if tensor.grad is not None]
    return {"weights": _bytes(weights), "gradients": _bytes(gradients), "optimizer": _bytes([*states, *updated])}


def _bytes(tensors: Iterable[Tensor]) -> int:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in local}.values())


def one_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    # Without an accelerator there is no pinned memory; the placement of shards is the same.
    fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)  # type: ignore[misc, assignment]
    for world_size, jobs in JOBS.items():
        if rank >= world_size:
            continue
        os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / f"rendezvous{world_size}")
        open_process_group(Place(rank, rank, world_size), CPU)
        bytes_by_job = {job.name: _held(job, rank, world_size) for job in jobs}
        (Path(folder) / f"{world_size}.{rank}.json").write_text(json.dumps(bytes_by_job))
        close_process_group()
