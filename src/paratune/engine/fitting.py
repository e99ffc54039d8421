"""Find the largest micro-batch that fits into memory, by trying; all ranks try the same sizes and agree on each.

What is tried on is thrown away: model and strategy are made anew for the training, which therefore begins with the
weights, the optimizer states and the random numbers that it would have begun with otherwise. docs/howto/memory.md says
how a rank that runs out alone cannot leave the others waiting.
"""

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from paratune import hardware
from paratune.base.units import format_bytes
from paratune.batch import Batch, BatchModel
from paratune.config.traits import Traits
from paratune.engine.memory import is_out_of_memory
from paratune.engine.recorder import check_loss_scale
from paratune.precision import Precision
from paratune.strategies.protocol import Strategy, loss_scale_of

CPU_SHARE = 0.8
"""Of the memory that is available on a host: what is left keeps it out of swap and away from the OOM killer."""
GPU_SHARE = 0.9
"""Of a GPU's memory, that a prediction may count on: fragments take the rest."""


@dataclass(frozen=True)
class ProbedSize:
    """What came of one size, on the rank that was worst off."""

    size: int
    fits: bool
    needs_bytes: int | None
    """Peak of the process: measured, or predicted from the smaller sizes; None when it ran out."""
    room_bytes: int | None
    """What the process may have altogether, or what a prediction may count on of it."""


@dataclass(frozen=True)
class FittingSize:
    """The largest micro-batch that fits."""

    size: int
    reason: str
    """Why it is this one, with the numbers."""
    probes: tuple[ProbedSize, ...]


class RanOutInCollective(Exception):
    """A rank ran out of memory where others wait for it; it has to end, so that they end."""

    def __init__(self, size: int, smaller: int | None) -> None:
        super().__init__(f"{size} samples")
        self.size = size
        self.smaller = smaller
        """The largest size that fitted, if any did."""


class Meter(Protocol):
    """Measures a process's memory on a device."""

    counted_on: float
    """Share of `room` that a prediction may count on."""

    def begin(self) -> None:
        """Measure the peak from here on."""
        ...

    def peak(self) -> int | None: ...

    def now(self) -> int | None: ...

    def room(self) -> int | None:
        """Return how much memory the process may have altogether."""
        ...


class GpuMeter:
    """PyTorch's allocator on a GPU. See `Meter`."""

    counted_on = GPU_SHARE

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def now(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def room(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)


class HostMeter:
    """Resident memory on a host that `num_processes` of the run share. See `Meter`."""

    counted_on = 1.0

    def __init__(self, num_processes: int) -> None:
        self._room = (self.now() or 0) + int(CPU_SHARE * hardware.available_memory_bytes() / num_processes)

    def begin(self) -> None:
        gc.collect()
        hardware.reset_peak_memory()

    def peak(self) -> int | None:
        return hardware.peak_memory_bytes()

    def now(self) -> int | None:
        return hardware.resident_memory_bytes()

    def room(self) -> int:
        # As it was before the first probe: what other ranks take meanwhile is theirs by this very division.
        return self._room


def make_meter(device: torch.device, num_local_processes: int) -> Meter:
    """Return the meter of `device`.

    Args:
        device: Where the model computes.
        num_local_processes: Processes of the run on this machine.
    """
    return GpuMeter(device) if device.type == "cuda" else HostMeter(num_local_processes)


def search(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest candidate that fits, asking few: by doubling until one does not fit, then by bisection.

    Args:
        candidates: Ascending, at least one; each that is smaller than one that fits, fits.
        fits: Asked at most once for each.
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
    """Tries sizes on a prepared strategy that is thrown away afterwards."""

    strategy: Strategy
    traits: Traits
    """Of the strategy, under its options."""
    model: BatchModel
    """The one that the strategy was prepared with."""
    precision: Precision
    device: torch.device
    worst: Callable[[int], Batch]
    """Makes a batch of so many of the longest samples."""
    share: int
    """Samples of a rank per optimizer step."""
    meter: Meter

    def __post_init__(self) -> None:
        self._points: list[tuple[int, int]] = []
        """Sizes that ran here, and their peaks."""
        self._idle: int | None = None
        self._fitted: int | None = None
        self._most_micro_batches = 2
        self._per_sample: float | None = None
        """Bytes of a sample, as far as earlier probes tell."""
        self.probes: list[ProbedSize] = []

    def warm_up(self) -> None:
        """Take one step with the smallest batches, so that optimizer states exist from here on. Collective."""
        num_micro_batches = min(self.share, self.traits.num_micro_batches)
        norm = self._run_together(1, num_micro_batches)
        # In fp16 the first steps may be left out, and then LAMB has no states yet; each one halves the scale.
        while (scale := loss_scale_of(self.strategy)) is not None and not bool(torch.isfinite(norm)):
            check_loss_scale(float(scale))
            norm = self._run_together(1, num_micro_batches)
        self.meter.begin()
        self._idle = self.meter.now()

    def fits(self, size: int) -> bool:
        """Try a size on all ranks. Collective.

        Raises:
            RanOutInCollective: This rank ran out in a pass that it shares with others.
        """
        is_alone = self.traits.backward_is_local
        needs, room = self._predicted(size), self.meter.room()
        limit = None if room is None else int(self.meter.counted_on * room)
        # A GPU says itself that it is full, and where nobody waits that is the exact answer. A host is never asked for
        # more than it has, and other ranks are never left waiting in a pass that one cannot finish.
        is_guarded = self.device.type != "cuda" or not is_alone
        wanted = not is_guarded or needs is None or limit is None or needs <= limit
        if not self._agree(size, wanted, needs, limit).fits:
            return False
        self.meter.begin()
        ran = self._run_alone(size) if is_alone else self._run_shared(size)
        peak = self.meter.peak() if ran else None
        if peak is not None:
            self._points.append((size, peak))
        probe = self._agree(size, ran, peak, room)
        self._fitted = size if probe.fits else self._fitted
        return probe.fits

    def begin(self, most_micro_batches: int) -> None:
        """Try sizes with at most so many micro-batches per step from here on.

        From the second micro-batch of a step on there are gradients beside the activations: under sharding those of the
        whole model.
        """
        self._per_sample = self._slope()
        self._points, self._most_micro_batches = [], most_micro_batches

    def _predicted(self, size: int) -> int | None:
        """Return the peak that the sizes before let expect: memory is a constant and so much for each sample."""
        slope = self._slope()
        if slope is None:
            return None
        large, high = self._points[-1]
        return high if size < large else high + math.ceil(slope * (size - large))

    def _slope(self) -> float | None:
        """Return the bytes that each further sample takes; None before anything ran."""
        if not self._points:
            return None
        if len(self._points) == 1 and self._per_sample is not None:
            return self._per_sample
        before = self._points[-2] if len(self._points) > 1 else (0, self._idle or 0)
        (small, low), (large, high) = before, self._points[-1]
        return max(0, high - low) / (large - small)

    def _run_shared(self, size: int) -> bool:
        try:
            # A schedule holds the activations of as many micro-batches as it wants: all that there will be.
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
        batch = self.worst(size).to(self.device)
        self.strategy.forward_backward([batch] * num_micro_batches, _unclocked)
        return self.strategy.optimizer_step(None)

    def _run_alone(self, size: int) -> bool:
        """Run the model itself, without the strategy, which would meet the other ranks; return whether it fits."""
        module = self.model
        assert isinstance(module, nn.Module)
        module.train()
        fits = True
        try:
            batch = self.worst(size).to(self.device)
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

    def _agree(self, size: int, fits: bool, needs: int | None, room: int | None) -> ProbedSize:
        """Return what holds on the rank that is worst off; all ranks get the same. Collective."""
        own = torch.tensor([[float(fits), -1.0 if needs is None else needs, -1.0 if room is None else room]]).double()
        ranks = self.strategy.reduce(own, "concat").tolist()
        worst = min(ranks, key=lambda rank: (rank[0], -rank[1] / rank[2] if rank[2] > 0 else 0.0))
        needs_bytes, room_bytes = (None if value < 0 else int(value) for value in worst[1:])
        probe = ProbedSize(size, bool(worst[0]), needs_bytes, room_bytes)
        self.probes = [other for other in self.probes if other.size != size] + [probe]
        return probe


def find_micro_batch_size(prober: Prober, candidates: Sequence[int]) -> FittingSize | None:
    """Return the largest size that fits on every rank, the same on all of them; None when none does. Collective.

    Args:
        prober: Not warmed up yet.
        candidates: Ascending sizes.

    Raises:
        RanOutInCollective: This rank ran out in a pass that it shares with others.
    """
    devices = [prober.device] if prober.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        prober.warm_up()
        size = _search_both_ways(prober, candidates)
    if size is None:
        return None
    return FittingSize(size, explain(size, prober.probes, prober.share), tuple(prober.probes))


def _search_both_ways(prober: Prober, candidates: Sequence[int]) -> int | None:
    """Return the largest size that fits: a rank's whole share as one micro-batch, or the largest part of it.

    Memory grows with the micro-batch, but for the step to the whole share, which needs no accumulated gradients. A part
    fits beside accumulated gradients only if it fits without them.
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
    """Return why it is this size: what it needs, and what the next one that was tried would need."""
    chosen = next(probe for probe in probes if probe.size == size)
    fits = f"{size} fits ({format_bytes(chosen.needs_bytes)} of {format_bytes(chosen.room_bytes)})"
    if size == share:
        return f"{fits} and is all of a rank's share"
    failed = min((probe for probe in probes if not probe.fits), key=lambda probe: probe.size, default=None)
    if failed is None:
        return f"{fits}, larger ones were not tried"
    if failed.needs_bytes is None:
        return f"{fits}, {failed.size} does not: it ran out of memory"
    room = format_bytes(failed.room_bytes)
    return f"{fits}, {failed.size} does not: it would need {format_bytes(failed.needs_bytes)}, and {room} can be had"


def _unclocked(phase: str) -> AbstractContextManager[None]:
    return nullcontext()
