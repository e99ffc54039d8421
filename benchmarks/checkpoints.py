"""Seconds, bytes and memory of both ways to write a checkpoint: rank 0 gathers, or each rank writes its own shards.

    python benchmarks/checkpoints.py
    python benchmarks/checkpoints.py --ranks 2 --repeats 1 --width 64        # a short run

Processes with gloo share a model under `zero3`, in fp32, with AdamW's moments after one update. Each repeat writes the
checkpoint in all ways, one after the other in the same processes, and loads it again. The third writer is PyTorch's
(`torch.distributed.checkpoint` with `HuggingFaceStorageWriter`), which has no hashes and no manifest. Memory is the
most anonymous memory (RssAnon, every 5 ms) of rank 0 above that before the call. Cells are medians, with the smallest
and the largest value.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from machine import machine_lines
from torch import nn

from paratune import checkpoint
from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies.fsdp import ZERO3
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.strategies.protocol import gather_texts

CPU = torch.device("cpu")
MIB = 2**20
WRITERS = ("gathered", "sharded", "torch")


def main() -> None:
    """Measure all writers for each number of ranks and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=768, help="of the 12 blocks; 768 are 108 million weights, 413 MiB")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; a temporary folder by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("\n".join(machine_lines()))
    print("\n| ranks | writer | MiB | write, s | anonymous MiB, write | load, s | anonymous MiB, load |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for num_ranks in options.ranks:
        place = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=options.folder))
        arguments = (num_ranks, options.width, options.repeats, str(place))
        torch.multiprocessing.spawn(one_rank, arguments, nprocs=num_ranks)
        for writer, rows in json.loads((place / "rows.json").read_text()).items():
            cells = [
                _cell([row[name] for row in rows if name in row])
                for name in ("write_s", "write_mib", "load_s", "load_mib")
            ]
            print(f"| {num_ranks} | {writer} | {rows[0]['mib']:.0f} | {' | '.join(cells)} |", flush=True)
        shutil.rmtree(place)


def one_rank(rank: int, num_ranks: int, width: int, repeats: int, folder: str) -> None:
    """Write and load in each way; rank 0 writes the rows."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ[RENDEZVOUS_VARIABLE] = f"{folder}/rendezvous"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place = Path(folder)
    open_process_group(Place(rank, rank, num_ranks), CPU)
    strategy: Any = ZERO3(device=CPU, precision=POLICIES["fp32"], rank=rank, world_size=num_ranks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40 * width, width), *(_block(width) for _ in range(12)))
    strategy.prepare(model, list(model)[1:], OptimizerFactory(Train(), 10))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    strategy._optimizer.step()
    strategy._optimizer.zero_grad()
    rows: dict[str, list[dict[str, float]]] = {writer: [] for writer in WRITERS}
    for _ in range(repeats):
        for writer in WRITERS:
            rows[writer].append(_measure(writer, strategy, rank, place / writer))
    if rank == 0:
        (place / "rows.json").write_text(json.dumps(rows))
    close_process_group()


def _block(width: int) -> nn.Module:
    """Return as many weights as a layer of BERT has."""
    wide = [nn.Linear(width, 4 * width), nn.Linear(4 * width, width)]
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4)), *wide)


def _measure(writer: str, strategy: Any, rank: int, folder: Path) -> dict[str, float]:
    def wait() -> None:
        strategy.reduce(torch.zeros(1), "sum")

    def gather(value: Any) -> list[Any]:
        return [json.loads(text) for text in gather_texts(strategy.reduce, json.dumps(value))]

    def write() -> None:
        state = strategy.state()
        if writer == "gathered":
            checkpoint.save(folder, state.tensors(), {}, step=1, is_writer=rank == 0)
        elif writer == "sharded":
            checkpoint.save_sharded(folder, state.pieces(), {}, step=1, rank=rank, gather=gather)
        else:
            from torch.distributed.checkpoint import save
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

            save(dict(state.local()), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))

    def load() -> None:
        if rank == 0:
            checkpoint.verify(folder)
        wait()
        reader = checkpoint.CheckpointReader(folder)
        strategy.state().load(reader.read, reader.keys())

    row: dict[str, float] = {}
    for name, act in {"write": write, **({} if writer == "torch" else {"load": load})}.items():
        wait()
        with _most_anonymous() as most:
            began = time.perf_counter()
            act()
            wait()
            row[f"{name}_s"] = time.perf_counter() - began
        row[f"{name}_mib"] = most() / MIB
    row["mib"] = sum(path.stat().st_size for path in folder.iterdir()) / MIB
    wait()
    if rank == 0:
        shutil.rmtree(folder)
    wait()
    return row


@contextmanager
def _most_anonymous() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most anonymous bytes in the block, above those at its begin."""
    begin, end = _anonymous(), threading.Event()
    values = [begin]

    def watch() -> None:
        while not end.wait(0.005):
            values.append(_anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(values) - begin
    finally:
        end.set()
        thread.join()


def _anonymous() -> int:
    return int(Path("/proc/self/status").read_text().partition("\nRssAnon:")[2].split()[0]) * 1024


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "n/a"


if __name__ == "__main__":
    main()
