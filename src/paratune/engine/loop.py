"""The training loop: get batch, forward and backward, optimizer, log; between steps evaluate and save.

Nothing here knows which strategy, task or device it runs.
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
"""What `Progress` keeps the time of, besides the steps, which have their own."""


@dataclass
class Progress:
    """What the loop has to know to go on after an interruption; saved with every checkpoint."""

    step: int = 0
    """Optimizer steps taken."""
    evaluated_step: int = 0
    """Step of the last evaluation that was completed."""
    best: dict[str, Any] | None = None
    """step, metric and value of the best evaluation."""
    num_without_gain: int = 0
    """Evaluations since the best one."""
    is_stopped_early: bool = False
    num_interruptions: int = 0
    """Times that the run was gone on with."""
    num_lost_events: int = 0
    """Damaged lines of event logs that were deleted when the run was resumed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of this session and those before it in start-up, tokenization, evaluations and checkpoints; in total, of
    those before it (see `total_s`)."""
    saved_step: int = 0
    """Step of the last checkpoint."""
    began: float = field(default_factory=time.perf_counter, init=False, compare=False)
    """When this session did; of no use to another process, and not saved."""

    def __post_init__(self) -> None:
        self.seconds = {**dict.fromkeys(PARTS, 0.0), **self.seconds}

    def total_s(self) -> float:
        """Return the seconds of all sessions so far; what one lost after its last checkpoint is not in it."""
        return self.seconds["total"] + time.perf_counter() - self.began

    def as_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds, with the seconds up to now."""
        values = asdict(self)
        del values["began"]
        return {**values, "seconds": {**self.seconds, "total": self.total_s()}}


class Keeper(Protocol):
    """Evaluates and saves for the loop; see `paratune.engine.keeper`."""

    def evaluate(self, progress: Progress) -> None:
        """Evaluate, and note in `progress` whether it was the best, and whether to stop early."""
        ...

    def save(self, progress: Progress, reason: Reason) -> None:
        """Write a checkpoint."""
        ...


@dataclass(frozen=True)
class Loop:
    """All that a training needs, put together by `paratune.train`."""

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
    """Whether a signal is answered with a checkpoint; a run of a few steps, which is only to be timed, begins anew."""
    shrink: Callable[[int, BaseException], bool] = lambda step, error: False
    """Called when memory ran out in the gradients of a step (counted from 1): whether `batches` now gives that step
    again, in smaller micro-batches."""


def run(loop: Loop, progress: Progress) -> None:
    """Train until the last step, or until evaluations stop getting better.

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
            loop.recorder.flush()  # the steps that led to it; all ranks come here alike
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
    """Get the batch and run forward and backward; where memory runs out, again as often as it can be made smaller."""
    clock, strategy = loop.clock, loop.strategy
    while True:
        seed_step(loop.seed, progress.step, strategy.layout.rank)
        try:
            with clock("get_batch"):
                micro_batches = [batch.to(loop.device, non_blocking=True) for batch in next(loop.batches)]
            with loop.noise.watching(progress.step + 1, micro_batches):
                return strategy.forward_backward(micro_batches, clock), micro_batches
        except Exception as error:
            if not is_out_of_memory(error) or not loop.shrink(progress.step + 1, error):
                raise
        # Here, where the error is gone: its traceback held the activations.
        micro_batches = []
        loop.optimizer.clear_gradients()
        if loop.device.type == "cuda":
            torch.cuda.empty_cache()
        clock.restart()


def _pause(loop: Loop, progress: Progress) -> None:
    """Evaluate and save if this step is one for it; a resumed run does here what it was interrupted in."""
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
    """End the run in good order after a signal, with a checkpoint of this step, if it saves any.

    Raises:
        Stopped: Always.
    """
    loop.recorder.flush()
    if not loop.saves_when_stopped:
        loop.recorder.add("stop", step=progress.step, signal=loop.stop.said())
        raise Stopped(
            f"stopped by {loop.stop.said()} after step {progress.step}; a probe saves nothing: start it again",
            code="stopped.signal",
            step=progress.step,
        )
    # A checkpoint of this step that is there already holds all of it; writing it again could only lose it.
    if progress.saved_step < progress.step:
        loop.keeper.save(progress, "signal")
    signal = loop.stop.said()
    loop.recorder.add("stop", step=progress.step, signal=signal)
    is_trained = progress.step >= loop.num_steps or progress.is_stopped_early
    rest = "all steps are done: --resume evaluates and writes the model" if is_trained else "--resume continues from it"
    raise Stopped(
        f"stopped by {signal} after step {progress.step}; a checkpoint was saved, {rest}",
        code="stopped.signal",
        signal=signal,
        step=progress.step,
    )
