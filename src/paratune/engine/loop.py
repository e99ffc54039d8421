"""The training loop: get batch, forward and backward, optimizer, log; between steps evaluate and save.

The loop has no branch on the strategy or the task.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn, Protocol

import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.engine.evaluate import Interrupted
from paratune.engine.memory import is_out_of_memory
from paratune.engine.noise import NoiseMeter
from paratune.engine.optim import OptimizerFactory, seed_step
from paratune.engine.phases import PhaseClock
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.stop import StopRequest
from paratune.errors import NotFiniteError, Stopped
from paratune.strategies.protocol import Strategy

Reason = Literal["scheduled", "signal"]
PARTS = ("startup", "tokenize", "evaluate", "checkpoint", "total")
"""Parts of a run whose time is in `Progress`; the event log has the time of steps."""


@dataclass
class Progress:
    """State of the loop from which a run is resumed; saved with every checkpoint."""

    step: int = 0
    evaluated_step: int = 0
    best: dict[str, Any] | None = None
    """step, metric and value of the best evaluation."""
    num_without_gain: int = 0
    """Evaluations since the best one."""
    is_stopped_early: bool = False
    num_interruptions: int = 0
    """Times that the run was resumed."""
    num_lost_events: int = 0
    """Damaged lines of event logs that were deleted when the run was resumed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of `PARTS` in this session and earlier ones; `total` counts only earlier ones (see `total_s`)."""
    saved_step: int = 0
    began: float = field(default_factory=time.perf_counter, init=False, compare=False)
    """Start of this session on the clock of this process; not saved."""

    def __post_init__(self) -> None:
        self.seconds = {**dict.fromkeys(PARTS, 0.0), **self.seconds}

    def total_s(self) -> float:
        """Return the seconds of all sessions so far, without the time that a session lost after its last checkpoint."""
        return self.seconds["total"] + time.perf_counter() - self.began

    def as_dict(self) -> dict[str, Any]:
        """Return the values for a checkpoint, with the seconds up to now."""
        values = asdict(self)
        del values["began"]
        return {**values, "seconds": {**self.seconds, "total": self.total_s()}}


class Keeper(Protocol):
    """Evaluates and saves for the loop; see `paratune.engine.keeper`."""

    def evaluate(self, progress: Progress) -> None:
        """Evaluate, and record in `progress` the best evaluation and whether to stop early."""
        ...

    def save(self, progress: Progress, reason: Reason) -> None:
        """Write a checkpoint."""
        ...


@dataclass(frozen=True)
class Loop:
    """Everything that the training loop uses; `paratune.training` builds it."""

    strategy: Strategy
    optimizer: OptimizerFactory
    batches: Iterator[Sequence[Batch]]
    """Micro-batches of this rank, step by step, from the step at which training begins."""
    keeper: Keeper
    recorder: Recorder
    clock: PhaseClock
    stop: StopRequest
    device: torch.device
    seed: int
    num_steps: int
    steps_per_epoch: int
    max_grad_norm: float | None
    evaluation_due: Callable[[int], bool]
    checkpoint_due: Callable[[int], bool]
    noise: NoiseMeter
    profiler: StepProfiler
    saves_when_stopped: bool = True
    """Whether a signal causes a checkpoint; a probe, which has only a few steps, starts again instead."""
    shrink: Callable[[int, BaseException], bool] = lambda step, error: False
    """Called if memory runs out in the gradients of a step (counted from 1). If it returns True, `batches` repeats that
    step with smaller micro-batches; otherwise the error is raised."""


def run(loop: Loop, progress: Progress) -> None:
    """Train until the last step, or until evaluations no longer improve (early stopping).

    Raises:
        Stopped: A signal came; a checkpoint was written.
        NotFiniteError: The loss or the gradient norm is not a number.
    """
    try:
        _run(loop, progress)
    finally:
        loop.profiler.stop(loop.recorder, progress.step)


def _run(loop: Loop, progress: Progress) -> None:
    loop.clock.restart()
    loop.recorder.resume()
    while True:
        _pause(loop, progress)
        if progress.step >= loop.num_steps or progress.is_stopped_early:
            if loop.stop.settle():
                save_and_stop(loop, progress)
            return
        if loop.profiler.begin_step(loop.recorder):
            loop.clock.restart()
        try:
            _step(loop, progress)
        except NotFiniteError:
            loop.recorder.flush()  # the steps before it; every rank raises, so the collective is complete
            raise
        if loop.stop.was_agreed(loop.strategy):
            save_and_stop(loop, progress)
        if loop.profiler.end_step():
            loop.recorder.pause()
            loop.profiler.stop(loop.recorder, progress.step)
            loop.clock.restart()
            loop.recorder.resume()


def _step(loop: Loop, progress: Progress) -> None:
    clock, strategy = loop.clock, loop.strategy
    loss, micro_batches = _gradients(loop, progress)
    with clock("optimizer"):
        learning_rate = loop.optimizer.set_learning_rate(progress.step)
        grad_norm = strategy.optimizer_step(loop.max_grad_norm)
    clock.end_step()
    progress.step += 1
    loop.recorder.step(
        step=progress.step,
        epoch=progress.step / loop.steps_per_epoch,
        learning_rate=learning_rate,
        loss=loss,
        grad_norm=grad_norm,
        micro_batches=micro_batches,
        noise=loop.noise.take(),
        profiled=loop.profiler.is_running,
    )


def _gradients(loop: Loop, progress: Progress) -> tuple[Tensor, Sequence[Batch]]:
    """Get the batch and run forward and backward; repeat with smaller micro-batches while memory runs out."""
    clock, strategy = loop.clock, loop.strategy
    while True:
        # In each attempt, so that the dropout masks of a repeated step do not depend on the failed attempt.
        seed_step(loop.seed, progress.step, strategy.layout.rank)
        try:
            with clock("get_batch"):
                micro_batches = [batch.to(loop.device, non_blocking=True) for batch in next(loop.batches)]
            with loop.noise.watching(progress.step + 1, micro_batches):
                return strategy.forward_backward(micro_batches, clock), micro_batches
        except Exception as error:
            if not is_out_of_memory(error) or not loop.shrink(progress.step + 1, error):
                raise
        # After the except block: until its end, the traceback of the error keeps the activations alive.
        micro_batches = []
        loop.optimizer.clear_gradients()
        if loop.device.type == "cuda":
            torch.cuda.empty_cache()
        clock.restart()


def _pause(loop: Loop, progress: Progress) -> None:
    """Evaluate and save if due after this step; a resumed run first does here what was interrupted."""
    evaluate = loop.evaluation_due(progress.step) and progress.evaluated_step < progress.step
    save = loop.checkpoint_due(progress.step) and progress.saved_step < progress.step
    if not (evaluate or save):
        return
    loop.recorder.flush()
    loop.profiler.stop(loop.recorder, progress.step)
    try:
        if evaluate:
            loop.keeper.evaluate(progress)
        if save:
            loop.keeper.save(progress, "scheduled")
    except Interrupted:
        save_and_stop(loop, progress)
    loop.clock.restart()
    loop.recorder.resume()


def save_and_stop(loop: Loop, progress: Progress) -> NoReturn:
    """Stop the run after a signal, with a checkpoint of this step unless `saves_when_stopped` is False.

    Raises:
        Stopped: Always.
    """
    loop.recorder.flush()
    if not loop.saves_when_stopped:
        loop.recorder.add("stop", step=progress.step, signal=loop.stop.signal_name())
        raise Stopped(
            f"stopped by {loop.stop.signal_name()} after step {progress.step}; a probe saves nothing: start it again",
            code="stopped.signal",
            step=progress.step,
        )
    # An existing checkpoint of this step is complete; writing it again could only damage it.
    if progress.saved_step < progress.step:
        loop.keeper.save(progress, "signal")
    signal = loop.stop.signal_name()
    loop.recorder.add("stop", step=progress.step, signal=signal)
    is_trained = progress.step >= loop.num_steps or progress.is_stopped_early
    rest = "all steps are done: --resume evaluates and writes the model" if is_trained else "--resume continues from it"
    message = f"stopped by {signal} after step {progress.step}; a checkpoint was saved, {rest}"
    raise Stopped(message, code="stopped.signal", signal=signal, step=progress.step)
