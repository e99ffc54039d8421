"""The work of each rank in the test of the memory at the start: a model is loaded from a folder and sharded."""

import gc
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.multiprocessing
from ranks import CPU
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

from paratune.config.sections import ModelOptions, Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.load import Head, load_model
from paratune.models.task_model import find_blocks
from paratune.planning.trace import Trace
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import deepspeed_setup, strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

KINDS: dict[str, dict[str, Any]] = {
    "zero3": {},
    "deepspeed": {"stage": 3, "param_persistence_threshold": 0},
    "pipeline": {},
}
STARTS = {"float32": False, "bfloat16": False, "new weights": True}
"""Folder of the model's file, or new weights of the same sizes (`model.from_scratch`)."""


def anonymous_bytes() -> int:
    """Return the memory of this process that is no part of a file."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


class _Trace(Trace):
    def hold(self, tensor: Tensor, *, is_base: bool = False) -> None:
        if not isinstance(tensor, DTensor):  # its own storage is not real; that of its shard is counted
            super().hold(tensor, is_base=is_base)


@contextmanager
def _sampled(peaks: list[int]) -> Iterator[None]:
    """Append the most anonymous memory during the block, read every two milliseconds."""
    done, most = threading.Event(), [anonymous_bytes()]

    def sample() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(max(most[0], anonymous_bytes()))


def _start(folder: Path, kind: str, rank: int, world_size: int, *, is_new: bool = False) -> dict[str, int]:
    """Return the most bytes until all weights are sharded; DeepSpeed makes the states of its optimizer after that."""
    peaks: list[int] = []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = ModelOptions(name=str(folder), from_scratch=is_new)
    head = Head("AutoModelForSequenceClassification", 2, ("no", "yes"))
    kind_options = KINDS[kind] | ({"stages": world_size} if kind == "pipeline" else {})
    strategy: Any = strategy_class(kind)(
        device=CPU, precision=POLICIES["fp32"], rank=rank, world_size=world_size, **kind_options
    )
    gc.collect()
    before = anonymous_bytes()
    with _sampled(peaks):
        model = load_model(options, "classification", head, tokenizer, POLICIES["fp32"], 1, keeps_stored=True)
    blocks, sizes = find_blocks(model.hf), [parameter.numel() * 4 for parameter in model.parameters()]
    largest = max(sum(parameter.numel() * 4 for parameter in block.parameters()) for block in blocks)
    stored = [
        parameter.untyped_storage() for parameter in model.parameters()
    ]  # parts of the file: they count as nothing
    trace = _Trace(1)
    for parameter in model.parameters():
        trace.hold(parameter, is_base=True)
    offset = trace.live_bytes

    def traced(shard: Any, *arguments: Any) -> None:
        with _sampled(peaks), trace, trace.recording():
            shard(*arguments)

    if kind == "deepspeed":
        with patch.object(deepspeed_setup, "_shard", partial(traced, deepspeed_setup._shard)):
            strategy.prepare(model, blocks, OptimizerFactory(Train(), 10))
    else:
        traced(strategy.prepare, model, blocks, OptimizerFactory(Train(), 10))
    weights = dict(strategy.state().tensors("model/")) if is_new and folder.name == "small" else {}
    strategy.close()
    if rank == 0 and weights:
        whole = load_model(options, "classification", head, tokenizer, POLICIES["fp32"], 1)
        for key, value in whole.named_parameters():
            assert torch.equal(weights[f"model/{key}"], value), (kind, key)  # type: ignore[arg-type]
    del stored
    live = trace.peak_bytes - offset
    return {"anonymous": max(peaks) - before, "live": live, "model": sum(sizes), "block": largest}


def one_rank(rank: int, world_size: int, folder: str, attempt: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    os.environ[RENDEZVOUS_VARIABLE] = str(Path(attempt) / "rendezvous")
    open_process_group(Place(rank, rank, world_size), CPU)
    for kind in KINDS:
        # Imports, and buffers of the connections; also the bits of the initial weights.
        _start(Path(folder) / "small", kind, rank, world_size, is_new=True)
    found = {
        f"{kind} {name}": _start(Path(folder) / ("float32" if is_new else name), kind, rank, world_size, is_new=is_new)
        for kind in KINDS
        for name, is_new in STARTS.items()
    }
    (Path(attempt) / f"{rank}.json").write_text(json.dumps(found))
    close_process_group()
