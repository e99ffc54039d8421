"""Measures two processes on this machine: rate of collectives, mutual slowdown, overlap of collectives and computing.

It has not been run on CUDA (NCCL, two GPUs).
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import AdamW

from paratune.base.scratch import scratch_folder
from paratune.errors import LaunchError
from paratune.planning.clock import Call, CallClock, CallSeconds, EventClock, HostCallClock, measure
from paratune.planning.constants import BoundedConstant

NUM_RANKS = 2
_TIMEOUT_S = 300
REPEATS = 7
_SHARDS = 50
"""Number of sharded tensors in the measured update."""


@dataclass(frozen=True)
class LinkSizes:
    """Sizes of the measured collectives and operations."""

    large: int
    """Elements of the large all-reduce in float32, which measures bandwidth; that of `small` measures latency."""
    width: int
    """Width of the square matrices that are multiplied."""
    numbers: int
    """Elements of the tensor that is added."""
    calls: int
    """Collectives between two readings of the clock."""
    small: int = 1 << 8

    @property
    def large_text(self) -> str:
        return f"{4 * self.large >> 20} MiB"


ON_CPU = LinkSizes(large=1 << 22, width=768, numbers=1 << 20, calls=1)
"""16 MiB, near DDP's bucket."""
ON_GPU = LinkSizes(large=1 << 26, width=4096, numbers=1 << 25, calls=8)
"""256 MiB take 0.6 ms over 450 GB/s, several times the launch of a collective."""


def link_figures(device: torch.device, num_threads: int) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the constants of two ranks on this machine, each with `num_threads` on a CPU, or on one of two GPUs.

    Raises:
        LaunchError: The processes did not start, did not connect, or did not end in time.
    """
    context = multiprocessing.get_context("spawn")
    with scratch_folder() as folder:
        options = (device.type, num_threads, str(folder))
        processes = [context.Process(target=_run_rank, args=(rank, *options), daemon=True) for rank in range(NUM_RANKS)]
        for process in processes:
            process.start()
        _wait_for_processes(processes)
        values = json.loads((folder / "found.json").read_text("utf-8"))
    times = {name: CallSeconds(*fastest_and_median) for name, fastest_and_median in values.items()}
    yield from figures_of(times, ON_GPU if device.type == "cuda" else ON_CPU)


def figures_of(times: dict[str, CallSeconds], sizes: LinkSizes) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the constants from the times of `_measure_collectives`: small, large, alone, together, beside, ..."""
    small, large = times["small"], times["large"]
    # With two ranks an all-reduce moves n bytes in each direction, in two steps.
    seconds = max(large.fastest_s - small.fastest_s, 0.1 * large.fastest_s)
    rate, latency = 4 * sizes.large / seconds, small.fastest_s / 2
    slower = 1 + large.spread
    for name in ("gather", "scatter"):
        # Each rank sends its half of the bytes.
        half = 2 * sizes.large / max(times[name].fastest_s - small.fastest_s / 2, 0.1 * times[name].fastest_s)
        spread, source = max(1.2, 1 + times[name].spread), _source(sizes.large_text, times[name], name)
        yield f"link.{name}", BoundedConstant.around(half, spread, 1.2, source)
    shard = times["shards"].fastest_s / _SHARDS
    source = f"measured: AdamW on {_SHARDS} small shards, median {times['shards'].spread:.0%} slower"
    yield "adamw.shard", BoundedConstant.around(shard, 1.3, 1.3 * (1 + times["shards"].spread), source)
    yield "link", BoundedConstant.around(rate, max(1.2, slower), 1.2, _source(sizes.large_text, large))
    spread = max(1.5, 1 + small.spread)
    yield "link.latency", BoundedConstant.around(latency, 1.5, spread, _source("1 KiB", small))
    ratio = max(1.0, times["together"].fastest_s / times["alone"].fastest_s)
    source = f"measured: products and sums by both, {ratio:.2f} of the time of one alone"
    yield "together", BoundedConstant(ratio, max(1.0, ratio / 1.1), ratio * 1.1, source)
    shorter = min(large.fastest_s, times["together"].fastest_s)
    saved = large.fastest_s + times["together"].fastest_s - times["beside"].fastest_s
    overlap = min(1.0, max(0.0, saved / shorter))
    source = "measured: an all-reduce at the same time as products and sums"
    yield "overlap", BoundedConstant(overlap, max(0.0, overlap - 0.25), min(1.0, overlap + 0.25), source)


def _source(size: str, measured: CallSeconds, collective: str = "all-reduce") -> str:
    return f"measured: {collective} of {size} by 2 processes, fastest of {REPEATS}, median {measured.spread:.0%} slower"


def _wait_for_processes(processes: list[Any]) -> None:
    """Wait until all processes have ended.

    Raises:
        LaunchError: A process failed or did not end in time.
    """
    try:
        for process in processes:
            process.join(_TIMEOUT_S)
        codes = [process.exitcode for process in processes]
        if any(codes) or None in codes:
            remedy = "`paratune doctor` shows whether processes of this machine can find each other"
            text = f"the two processes that measure the link between ranks ended with {codes}; {remedy}"
            raise LaunchError(text, code="launch.process_died", exit_codes=codes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()


def _run_rank(rank: int, kind: str, num_threads: int, folder: str) -> None:
    """Run one of the processes; rank 0 writes the measured times."""
    if sys.platform == "linux" and Path("/sys/class/net/lo").exists():  # gloo fails if the host name does not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(num_threads)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=(Path(folder) / "rendezvous").as_uri(),
        rank=rank,
        world_size=NUM_RANKS,
        timeout=timedelta(seconds=_TIMEOUT_S),
        device_id=device if kind == "cuda" else None,
    )
    try:
        times = _measure_collectives(rank, device)
        if rank == 0:
            written = {name: (seconds.fastest_s, seconds.median_s) for name, seconds in times.items()}
            (Path(folder) / "found.json").write_text(json.dumps(written), "utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _measure_collectives(rank: int, device: torch.device) -> dict[str, CallSeconds]:
    """Measure all-reduces of two sizes, computing by rank 0 alone, by both, and beside an all-reduce."""
    on_cuda = device.type == "cuda"
    sizes = ON_GPU if on_cuda else ON_CPU
    small, large = (torch.ones(size, device=device) for size in (sizes.small, sizes.large))
    a, x = torch.randn(sizes.width, sizes.width, device=device), torch.randn(sizes.numbers, device=device)
    clock: CallClock = EventClock(device, align=lambda: dist.all_reduce(small)) if on_cuda else HostCallClock()

    def compute() -> None:
        for _ in range(8):
            torch.mm(a, a)
            x.add(x)

    def beside() -> None:
        work = dist.all_reduce(large, async_op=True)
        compute()
        assert work is not None
        work.wait()

    # All ranks must make the same number of calls; by their own clocks they would choose different numbers.
    measure_on_all_ranks = partial(measure_fixed, clock=clock)
    all_gather = _collective("all_gather_single", "all_gather_into_tensor")
    reduce_scatter = _collective("reduce_scatter_single", "reduce_scatter_tensor")
    half = torch.ones(sizes.large // NUM_RANKS, device=device)
    times = {
        "small": measure_on_all_ranks(lambda: dist.all_reduce(small), 20),
        "large": measure_on_all_ranks(lambda: dist.all_reduce(large), sizes.calls),
        "gather": measure_on_all_ranks(lambda: all_gather(large, half), sizes.calls),
        "scatter": measure_on_all_ranks(lambda: reduce_scatter(half, large), sizes.calls),
        "shards": _measure_update(device),
    }
    dist.barrier()
    if rank == 0:
        times["alone"] = measure(compute, EventClock(device) if on_cuda else clock, repeats=REPEATS)
    dist.barrier()
    times["together"] = measure_on_all_ranks(compute, 2)
    dist.barrier()
    times["beside"] = measure_on_all_ranks(beside, 1)
    return times


def _collective(name: str, old_name: str) -> Callable[..., Any]:
    """Return a collective by its name since PyTorch 2.13, which warns about the old name."""
    collective: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, old_name)
    return collective


def _measure_update(device: torch.device) -> CallSeconds:
    """Time clipping and update of many small tensors, sharded over the ranks as under FSDP2.

    With the host's clock: the host takes longer than the device.
    """
    mesh = init_device_mesh(device.type, (NUM_RANKS,))
    whole = [torch.randn(64, device=device) for _ in range(_SHARDS)]
    weights = [nn.Parameter(distribute_tensor(tensor, mesh, [Shard(0)])) for tensor in whole]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = AdamW(weights, fused=True)

    def call() -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        torch._foreach_div_(gradients, torch.clamp(norm, min=1.0))
        optimizer.step()
        norm.full_tensor()  # type: ignore[attr-defined]
        if device.type == "cuda":
            torch.cuda.synchronize()

    return measure_fixed(call, 1, HostCallClock())


def measure_fixed(call: Call, calls: int, clock: CallClock, after_barrier: Call | None = None) -> CallSeconds:
    """Time a call that all ranks make together, the same number of times on each rank, after a barrier."""
    call()
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        if after_barrier is not None:
            after_barrier()
        times.append(clock.device_s(call, calls) / calls)
    return CallSeconds.of_times(times)
