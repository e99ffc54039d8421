"""Finds the largest micro-batch that fits in memory by trials; all ranks try the same sizes and agree on each result.

The trials do not change the training: model and strategy are made again afterwards, so weights, optimizer states and
random numbers are the same as without trials. docs/howto/memory.md describes why the other ranks never wait for a rank
that runs out of memory.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from paratune import hardware
from paratune.base.units import format_bytes
from paratune.batch import Batch, BatchModel
from paratune.config.traits import Traits
from paratune.engine.memory import free_memory, is_out_of_memory, peak_memory
from paratune.engine.recorder import check_loss_scale
from paratune.precision import Precision
from paratune.strategies.protocol import Strategy, loss_scale_of

CPU_SHARE = 0.8
"""The share of the available memory of a host that is used; the rest avoids swapping and the OOM killer."""
GPU_SHARE = 0.9
"""The share of a GPU's memory that a prediction may use; fragmentation takes the rest."""


@dataclass(frozen=True)
class ProbedSize:
    """The result of one size on the rank with the least memory to spare."""

    size: int
    fits: bool
    needs_bytes: int | None
    """Peak memory of the process: measured, or predicted from smaller sizes; None if memory ran out."""
    available_bytes: int | None
    """The memory that the process may use or, for a prediction, `Meter.usable_share` of it."""


@dataclass(frozen=True)
class FittingSize:
    """The largest micro-batch that fits."""

    size: int
    reason: str
    """Why this size was chosen, with the numbers."""
    probes: tuple[ProbedSize, ...]


class RanOutInCollective(Exception):
    """A rank ran out of memory while others wait for it; its process must end so that the others end too."""

    def __init__(self, size: int, smaller: int | None) -> None:
        super().__init__(f"{size} samples")
        self.size = size
        self.smaller = smaller
        """The largest size that fitted, if any."""


class Meter(Protocol):
    """Measures a process's memory on a device."""

    usable_share: float
    """The share of `available` that a prediction may use."""

    def begin(self) -> None:
        """Start a new measurement of the peak."""
        ...

    def peak(self) -> int | None: ...

    def now(self) -> int | None: ...

    def available(self) -> int | None:
        """Return how much memory the process may use in total."""
        ...


class DeviceMeter:
    """PyTorch's allocator on a GPU, or resident memory on a host that several processes share. See `Meter`."""

    def __init__(self, device: torch.device, num_local_processes: int) -> None:
        self._device = device
        self.usable_share = GPU_SHARE if device.type == "cuda" else 1.0
        # On a host, this is memory before the first probe: the division among processes accounts for the other ranks.
        self._host_available = 0
        if device.type != "cuda":
            free = hardware.available_memory_bytes()
            self._host_available = (self.now() or 0) + int(CPU_SHARE * free / num_local_processes)

    def begin(self) -> None:
        free_memory(self._device)

    def peak(self) -> int | None:
        return peak_memory(self._device)

    def now(self) -> int | None:
        is_gpu = self._device.type == "cuda"
        return torch.cuda.memory_allocated(self._device) if is_gpu else hardware.resident_memory_bytes()

    def available(self) -> int:
        if self._device.type != "cuda":
            return self._host_available
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)


def search(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest candidate that fits, with few trials: by doubling until one does not fit, then by bisection.

    `candidates` are ascending; all candidates below one that fits also fit. `fits` is called at most once for each.
    """
    low, high, index = -1, len(candidates), 0
    while index < high:
        if not fits(candidates[index]):
            high = index
            break
        low = index
        doubled = [at for at in range(index + 1, high) if candidates[at] >= 2 * candidates[index]]
        index = doubled[0] if doubled else max(len(candidates) - 1, index + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(candidates[middle]) else (low, middle)
    return candidates[low] if low >= 0 else None


@dataclass
class Prober:
    """Tries sizes on a prepared strategy that is discarded afterwards."""

    strategy: Strategy
    traits: Traits
    model: BatchModel
    precision: Precision
    device: torch.device
    longest: Callable[[int], Batch]
    """Makes a batch of the given number of longest samples."""
    share: int
    """Samples of a rank per optimizer step."""
    meter: Meter

    def __post_init__(self) -> None:
        self._points: list[tuple[int, int]] = []
        """Sizes that this rank has run, and their peaks."""
        self._idle: int | None = None
        self._fitted: int | None = None
        self._most_micro_batches = 2
        self._per_sample: float | None = None
        """Bytes per sample according to earlier probes; None before them."""
        self.probes: list[ProbedSize] = []

    def warm_up(self) -> None:
        """Run one step with the smallest batches, so that optimizer states exist. Collective."""
        num_micro_batches = min(self.share, self.traits.num_micro_batches)
        norm = self._run_together(1, num_micro_batches)
        # In fp16 the first steps may be skipped, and then an optimizer may have no states yet; each skipped step halves
        # the scale.
        while (scale := loss_scale_of(self.strategy)) is not None and not bool(torch.isfinite(norm)):
            check_loss_scale(float(scale))
            norm = self._run_together(1, num_micro_batches)
        self.meter.begin()
        self._idle = self.meter.now()

    def fits(self, size: int) -> bool:
        """Try a size on all ranks. Collective.

        Raises:
            RanOutInCollective: This rank ran out of memory in a pass with collectives.
        """
        is_alone = self.traits.backward_is_local
        needs, available = self._predicted(size), self.meter.available()
        limit = None if available is None else int(self.meter.usable_share * available)
        # A GPU raises an error when it is full, which is exact, but only safe if no other rank waits in the pass. On a
        # host, and in passes with collectives, a size is run only if the prediction fits.
        needs_prediction = self.device.type != "cuda" or not is_alone
        is_tried = not needs_prediction or needs is None or limit is None or needs <= limit
        if not self._agree(size, is_tried, needs, limit).fits:
            return False
        self.meter.begin()
        ran = self._run_alone(size) if is_alone else self._run_shared(size)
        peak = self.meter.peak() if ran else None
        if peak is not None:
            self._points.append((size, peak))
        probe = self._agree(size, ran, peak, available)
        self._fitted = size if probe.fits else self._fitted
        return probe.fits

    def begin(self, most_micro_batches: int) -> None:
        """Start a series of trials with at most this number of micro-batches per step.

        From the second micro-batch of a step on, gradients use memory next to the activations: with sharding those of
        the whole model.
        """
        self._per_sample = self._slope()
        self._points, self._most_micro_batches = [], most_micro_batches

    def _predicted(self, size: int) -> int | None:
        """Return the peak predicted from smaller sizes: a constant plus the same amount for each sample."""
        slope = self._slope()
        if slope is None:
            return None
        large, high = self._points[-1]
        return high if size < large else high + math.ceil(slope * (size - large))

    def _slope(self) -> float | None:
        """Return the bytes of a further sample; None before the first run."""
        if not self._points:
            return None
        if len(self._points) == 1 and self._per_sample is not None:
            return self._per_sample
        before = self._points[-2] if len(self._points) > 1 else (0, self._idle or 0)
        (small, low), (large, high) = before, self._points[-1]
        return max(0, high - low) / (large - small)

    def _run_shared(self, size: int) -> bool:
        try:
            # The schedule of a pipeline keeps activations of several micro-batches, so all of them are run.
            num_micro = self.share // size
            if self.traits.ranks_per_replica == 1:
                num_micro = min(self._most_micro_batches, num_micro)
            self._run_together(size, num_micro)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise RanOutInCollective(size, self._fitted) from error
        return True

    def _run_together(self, size: int, num_micro_batches: int) -> Tensor:
        batch = self.longest(size).to(self.device)
        self.strategy.forward_backward([batch] * num_micro_batches, lambda _phase: nullcontext())
        return self.strategy.optimizer_step(None)

    def _run_alone(self, size: int) -> bool:
        """Run the model without the strategy and so without collectives; return whether it fits."""
        module = self.model
        assert isinstance(module, nn.Module)
        module.train()
        fits = True
        try:
            batch = self.longest(size).to(self.device)
            for _ in range(min(self._most_micro_batches, self.share // size)):
                with self.precision.autocast(self.device):
                    outputs: Tensor = self.model(batch)
                loss = self.model.loss_sum(outputs, batch) / batch.loss_denominator
                loss.backward()  # type: ignore[no-untyped-call]
                del outputs, loss
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        module.zero_grad(set_to_none=True)
        return fits

    def _agree(self, size: int, fits: bool, needs: int | None, available: int | None) -> ProbedSize:
        """Return the result of the rank with the least memory to spare; the same on all ranks. Collective."""
        own = [float(fits), *(-1.0 if value is None else value for value in (needs, available))]
        ranks = self.strategy.reduce(torch.tensor([own]).double(), "concat").tolist()
        tightest = min(ranks, key=lambda rank: (rank[0], -rank[1] / rank[2] if rank[2] > 0 else 0.0))
        needs_bytes, available_bytes = (None if value < 0 else int(value) for value in tightest[1:])
        probe = ProbedSize(size, bool(tightest[0]), needs_bytes, available_bytes)
        self.probes = [other for other in self.probes if other.size != size] + [probe]
        return probe


def find_micro_batch_size(prober: Prober, candidates: Sequence[int]) -> FittingSize | None:
    """Return the largest size that fits on every rank, the same on all ranks; None if no size fits. Collective.

    `candidates` are ascending.

    Raises:
        RanOutInCollective: This rank ran out of memory in a pass with collectives.
    """
    devices = [prober.device] if prober.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        prober.warm_up()
        size = _search_size(prober, candidates)
    if size is None:
        return None
    return FittingSize(size, explain(size, prober.probes, prober.share), tuple(prober.probes))


def _search_size(prober: Prober, candidates: Sequence[int]) -> int | None:
    """Return the largest size that fits: a rank's whole share as one micro-batch, or the largest part of it.

    A larger micro-batch needs more memory, except that the whole share needs no memory for accumulated gradients. So
    the first search is without accumulation, and the second, among the sizes that fitted, with accumulation.
    """
    if prober.traits.ranks_per_replica > 1:
        return search(candidates, prober.fits)
    prober.begin(most_micro_batches=1)
    largest = search(candidates, prober.fits)
    if largest is None or largest == prober.share:
        return largest
    prober.begin(most_micro_batches=2)
    return search([size for size in candidates if size <= largest], prober.fits)


def explain(size: int, probes: Sequence[ProbedSize], share: int) -> str:
    """Return the reason for a size: its memory, and the memory of the next larger size that was tried."""
    chosen = next(probe for probe in probes if probe.size == size)
    fits = f"{size} fits ({format_bytes(chosen.needs_bytes)} of {format_bytes(chosen.available_bytes)})"
    if size == share:
        return f"{fits} and is all of a rank's share"
    failed = min((probe for probe in probes if not probe.fits), key=lambda probe: probe.size, default=None)
    if failed is None:
        return f"{fits}, larger ones were not tried"
    if failed.needs_bytes is None:
        return f"{fits}, {failed.size} does not: it ran out of memory"
    available = format_bytes(failed.available_bytes)
    return f"{fits}, {failed.size} does not: it would need {format_bytes(failed.needs_bytes)} of {available}"
