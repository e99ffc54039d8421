"""Writes steps and other events of the training loop to the event log, without waiting for the device in a step.

The figures of an interval of `log_every` steps are copied from a GPU while its next steps run, and written with the
next interval. On a CPU they are written at once.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.engine.noise import NUM_PARTS, NoiseSample, noise_event
from paratune.engine.phases import PhaseClock, StepTimes
from paratune.engine.sampler import Sampler
from paratune.errors import NotFiniteError
from paratune.records import EventLog
from paratune.strategies.protocol import Strategy, loss_scale_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Step:
    step: int
    epoch: float
    learning_rate: float
    loss: Tensor
    grad_norm: Tensor
    num_samples: int
    num_tokens: int
    num_padded_tokens: int
    warmup: bool
    loss_scale: Tensor | float | None
    noise: NoiseSample | None
    profiled: bool

    def figures(self) -> list[Tensor | float]:
        """Return loss, norm and the parts of the noise scale, which are 0 in a step that was not sampled."""
        noise = [0.0] * NUM_PARTS if self.noise is None else self.noise.parts()
        return [self.loss, self.grad_norm, *noise, *([] if self.loss_scale is None else [self.loss_scale])]


class Figures:
    """Rows of numbers, of which those on a GPU are copied to the host without waiting."""

    def __init__(self, rows: Sequence[Sequence[Tensor | float]], device: torch.device) -> None:
        self._rows = rows
        tensors = [value.to(device, torch.float64) for row in rows for value in row if isinstance(value, Tensor)]
        self._numbers = torch.stack(tensors)
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            pinned = torch.empty(len(tensors), dtype=torch.float64, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    @property
    def is_on_host(self) -> bool:
        """Whether `wait` never waits."""
        return self._copied is None

    def wait(self) -> None:
        """Wait for the device to reach the copy."""
        if self._copied is not None:
            self._copied.synchronize()

    def read(self) -> list[list[float]]:
        """Return the rows, after `wait`."""
        copied = iter(self._numbers.tolist())
        return [[next(copied) if isinstance(value, Tensor) else value for value in row] for row in self._rows]


@dataclass(eq=False, repr=False)
class Recorder:
    """Collects steps and writes them every `log_every`; losses and norms stay on the device until then."""

    events: EventLog
    strategy: Strategy
    clock: PhaseClock
    warmup_steps: int
    """Warm-up steps that are left."""
    log_every: int
    peak_memory: Callable[[], int | None]
    on_log: Callable[[dict[str, Any]], None]
    on_step: Callable[[int], None] = lambda step: None
    sampler: Sampler | None = None
    cost_s: float = field(default=0.0, init=False)
    """Seconds that the host spent in the recorder, without its waits for steps of a GPU."""
    num_steps: int = field(default=0, init=False)
    _steps: list[_Step] = field(default_factory=list, init=False)
    _copied: tuple[list[_Step], Figures, int | None] | None = field(default=None, init=False)
    """An interval that is not written yet: steps, their figures, and the peak of memory in bytes."""
    _sampler_facts: dict[str, Any] | None = field(default=None, init=False)
    _has_overflowed: bool = field(default=False, init=False)

    def step(
        self,
        *,
        step: int,
        epoch: float,
        learning_rate: float,
        loss: Tensor,
        grad_norm: Tensor,
        micro_batches: Sequence[Batch],
        noise: NoiseSample | None = None,
        profiled: bool = False,
    ) -> None:
        """Add a step whose clock has ended; after `log_every` steps write them, or on a GPU those before them.

        Raises:
            NotFiniteError: A loss or gradient norm is not a finite number; the message has the step.
        """
        begin = time.perf_counter()
        entry = _Step(
            step=step,
            epoch=epoch,
            learning_rate=learning_rate,
            loss=loss,
            grad_norm=grad_norm,
            num_samples=sum(batch.num_samples for batch in micro_batches),
            num_tokens=sum(batch.num_tokens for batch in micro_batches),
            num_padded_tokens=sum(batch.num_padded_tokens for batch in micro_batches),
            warmup=self.warmup_steps > 0,
            loss_scale=loss_scale_of(self.strategy),
            noise=noise,
            profiled=profiled,
        )
        self._steps.append(entry)
        self.on_step(step)
        self.warmup_steps = max(0, self.warmup_steps - 1)
        if self.sampler is not None:
            self.sampler.next_step(step + 1, is_warmup=self.warmup_steps > 0)
        self.num_steps += 1
        if len(self._steps) >= self.log_every:
            self._copy()
        self.cost_s += time.perf_counter() - begin

    def resume(self, *, is_profiled: bool = False) -> None:
        """Start to sample the device: steps follow, at the start or after an evaluation, a checkpoint or a profile."""
        if self.sampler is not None:
            self.sampler.resume(is_profiled=is_profiled)

    def pause(self) -> None:
        """Stop to sample the device: the next work is not a step."""
        if self.sampler is not None:
            self.sampler.pause()

    def flush(self) -> None:
        """Write all steps, before work that is not a step, or at the end. Collective.

        Raises:
            NotFiniteError: A loss or gradient norm is not a finite number; the message has the step.
        """
        begin = time.perf_counter()
        self.pause()
        self._copy()
        self._write()
        self.cost_s += time.perf_counter() - begin

    def add(self, event: str, **values: Any) -> None:
        """Write an event that is not a step."""
        self.events.add(event, **values)
        self.events.flush()

    def _write_samples(self) -> None:
        if self.sampler is None:
            return
        samples, facts = self.sampler.take(), self.sampler.facts()
        if facts is not None and facts != self._sampler_facts:  # the first time, and when a counter failed
            self._sampler_facts = facts
            self.events.add("sampler", **facts)
        for sample in samples:
            self.events.add("sample", **sample)

    def _copy(self) -> None:
        """Copy the figures of new steps to the host, after writing the interval before; on a CPU, write these too."""
        self._write()
        self._write_samples()
        steps, self._steps = self._steps, []
        if not steps:
            return
        figures = Figures([entry.figures() for entry in steps], steps[0].loss.device)
        self._copied = steps, figures, self.peak_memory()
        if figures.is_on_host:
            self._write()

    def _write(self) -> None:
        """Write the interval whose figures are copied, with one reduction over ranks."""
        if self._copied is None:
            return
        (steps, figures, memory_bytes), self._copied = self._copied, None
        begin = time.perf_counter()
        figures.wait()  # for the device, which is busy with steps: no cost of the recorder
        self.cost_s -= time.perf_counter() - begin
        rows = figures.read()
        own = [[row[0], *row[2 : 2 + NUM_PARTS]] for row in rows]
        sums = self.strategy.reduce(torch.tensor(own, dtype=torch.float64), "sum").tolist()
        losses = [loss for loss, *_ in sums]
        norms = [row[1] for row in rows]
        scales = [row[-1] if entry.loss_scale is not None else None for entry, row in zip(steps, rows, strict=True)]
        for entry, times, (loss, *noise), norm, scale in zip(
            steps, self.clock.take(len(steps)), sums, norms, scales, strict=True
        ):
            values = {
                "step": entry.step,
                "epoch": round(entry.epoch, 6),
                "loss": loss,
                "grad_norm": norm,
                "learning_rate": entry.learning_rate,
                "data_rank": self.strategy.layout.data_rank,
                "num_samples": entry.num_samples,
                "num_tokens": entry.num_tokens,
                "num_padded_tokens": entry.num_padded_tokens,
                **time_values(times),
                **_pipeline(times),
                "memory_bytes": memory_bytes,
                "warmup": entry.warmup,
            }
            if scale is not None:
                values |= {"loss_scale": scale, "skipped": _is_skipped(entry, norm)}
                self._note_overflow(values)
            if entry.noise is not None:
                values["noise_scale"] = noise_event(noise, norm)
            if entry.profiled:
                values["profiled"] = True
            self.events.add("step", **values)
        self.events.flush()
        # After the events are written, so that the log of a run that fails here has the step with the bad value.
        later, self._steps = self._steps, []  # not written if one of these steps ends the run
        _check_finite(steps, losses, norms)
        _check_scales(scales, norms)
        self._steps = later
        self.on_log(values)

    def _note_overflow(self, values: dict[str, Any]) -> None:
        """Log the first skipped step, on rank 0."""
        if not values["skipped"] or self._has_overflowed:
            return
        self._has_overflowed = True
        if self.strategy.layout.rank == 0:
            log.info(
                "step %d: gradients overflowed in fp16 with a loss scale of %g; this step is skipped, and the next one "
                "has a smaller scale. This is usual in the first steps. The event log marks all such steps as "
                "`skipped`",
                values["step"],
                values["loss_scale"],
            )


def time_values(times: StepTimes) -> dict[str, Any]:
    """Return the times of a `step` event."""
    return {
        "phases_ms": {name: round(value, 4) for name, value in times.phases_ms.items()},
        "wall_ms": round(times.wall_ms, 4),
        "get_batch_host_ms": round(times.get_batch_host_ms, 4),
    }


def _pipeline(times: StepTimes) -> dict[str, float]:
    if times.schedule_ms is None or times.bubble_ms is None:
        return {}
    return {"schedule_ms": round(times.schedule_ms, 4), "bubble_ms": round(times.bubble_ms, 4)}


def _is_skipped(entry: _Step, norm: float) -> bool:
    """Return whether the strategy skipped the update and reduces the loss scale.

    A step with a finite norm is not skipped, even if its loss is not finite.
    """
    return entry.loss_scale is not None and not math.isfinite(norm)


def _check_finite(steps: Sequence[_Step], losses: Sequence[float], norms: Sequence[float]) -> None:
    for entry, loss, norm in zip(steps, losses, norms, strict=True):
        if not (math.isfinite(loss) and math.isfinite(norm)) and not _is_skipped(entry, norm):
            raise NotFiniteError(
                f"step {entry.step}: the loss is {loss}, the gradient norm {norm}, at learning rate "
                f"{entry.learning_rate:g}. This step is not saved. Try a smaller train.learning_rate, more warm-up, "
                "train.max_grad_norm: 1.0 or precision: fp32, and search for broken rows with: paratune data CONFIG",
                code="train.not_finite",
                step=entry.step,
                loss=loss,
                norm=norm,
                learning_rate=entry.learning_rate,
            )


def _check_scales(scales: Sequence[float | None], norms: Sequence[float]) -> None:
    for scale, norm in zip(scales, norms, strict=True):
        if scale is not None and not math.isfinite(norm):
            check_loss_scale(scale)


def check_loss_scale(scale: float) -> None:
    """Check the loss scale of a step whose gradients overflowed.

    Raises:
        NotFiniteError: The scale is 1 or less; a smaller scale does not help.
    """
    if scale <= 1:
        raise NotFiniteError(
            f"precision: fp16: the gradients are not finite even with a loss scale of {scale:g}: the forward pass "
            "overflows, or the weights have diverged. Use precision: bf16 or fp32 "
            "(docs/explanation/precision.md#fp16), or a smaller train.learning_rate",
            code="train.fp16_overflow",
            key="precision",
            scale=scale,
        )
