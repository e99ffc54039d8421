"""`PhaseCallback`, which measures a Trainer of transformers and writes the record of its run."""

import os
import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from accelerate.state import GradientState
from filelock import FileLock
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from paratune.engine.loop import Progress
from paratune.engine.phases import make_clock
from paratune.errors import CheckpointError, ConfigError, LaunchError
from paratune.hf.hooks import time_loader, watch_backward
from paratune.hf.record import TrainerEvaluation, TrainerRun, read_evaluation
from paratune.hf.steps import BatchCounts, StepLog, TrainerPlace, TrainerStep
from paratune.records import EventLog
from paratune.records.run_folder import Mode, check_usable, folder_state, take_folder
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import raise_on_all_ranks


class PhaseCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the phases of each training step and writes a run folder for `paratune report`, `compare` and `watch`.

    `Trainer(..., callbacks=[PhaseCallback("runs/first")])` is all that a script needs. The training does not change.
    docs/howto/trainer_callback.md describes the phases and the values that are unknown.

    Args:
        folder: Run folder, which must not contain a run; its last part is the name of the run.
        overwrite: Delete the run that the folder contains, when the training starts.
        warmup_steps: First steps that are marked as warm-up and left out of rates and medians.
        log_every: Steps between two writes of the event log, at least 1.

    Raises:
        CheckpointError: The folder contains a run or other files, is in use, or cannot be written.
        ConfigError: `warmup_steps` or `log_every` is out of range. When the training starts: it is resumed from a
            checkpoint, or its device or its number of devices per process is not supported.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, warmup_steps: int = 5, log_every: int = 10
    ) -> None:
        for name, value, least in (("warmup_steps", warmup_steps, 0), ("log_every", log_every, 1)):
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"PhaseCallback: {name} is {value!r}; allowed: whole numbers from {least}",
                    code="hf.argument",
                    key=name,
                    value=value,
                )
        self._folder = Path(folder)
        self._mode: Mode = "overwrite" if overwrite else "new"
        self._warmup_steps, self._log_every = warmup_steps, log_every
        self._began = time.perf_counter()
        self._training: _Training | None = None
        _check_folder(self._folder, self._mode)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        _check_supported(args, state)
        mode = self._mode
        if self._training is not None and not self._training.is_finished:
            # The Trainer starts again, with `auto_find_batch_size` or after an error in a notebook.
            self._training.close()
            mode = "overwrite"
        place = TrainerPlace(args.process_index, args.local_process_index, args.world_size, args.device)
        lock = _take_folder(self._folder, mode, place)
        run = TrainerRun(self._folder, place, args, state, kwargs["model"], kwargs["train_dataloader"])
        run.write(warmup_steps=self._warmup_steps, log_every=self._log_every)
        self._training = _Training(run, lock, self._began, self._warmup_steps, self._log_every)
        self._training.begin(kwargs["train_dataloader"])

    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        self._current.begin_step()

    def on_substep_end(self, *_: Any, **kwargs: Any) -> None:
        self._current.enter("forward")

    def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        self._current.begin_update(kwargs["optimizer"])

    def on_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        self._current.step.skipped = bool(getattr(kwargs["optimizer"], "step_was_skipped", False))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._current.end_step(state)

    def on_log(self, *_: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if self._training is not None and logs and "grad_norm" in logs:
            self._training.steps.set_grad_norm(float(logs["grad_norm"]))

    def on_epoch_end(self, *_: Any, **kwargs: Any) -> None:
        self._current.drop_step()

    def on_prediction_step(self, *_: Any, **kwargs: Any) -> None:
        if self._training is not None and not self._training.is_finished:
            self._training.begins("evaluating")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        evaluation = read_evaluation(metrics or {}, kwargs.get("eval_dataloader"))
        if self._training is not None and evaluation is not None:
            self._training.add_evaluation(evaluation, state)

    def on_predict(self, *event: Any, **kwargs: Any) -> None:
        self.on_evaluate(*event, **kwargs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._current.add_checkpoint(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._current.finish(state)

    @property
    def _current(self) -> "_Training":
        assert self._training is not None, "on_train_begin is the first event"
        return self._training


class _Training:
    """One `train()` of a Trainer in this process: its clock, its event log, and the step in progress."""

    def __init__(self, run: TrainerRun, lock: FileLock | None, began: float, warmup_steps: int, log_every: int) -> None:
        self._run = run
        self._clock = make_clock(run.place.device)
        self._events = EventLog(run.folder, run.place.rank)
        # A training that fails calls nothing: its callback is deleted, or the process ends.
        self._release = weakref.finalize(self, _release, self._events, lock)
        self.steps = StepLog(self._events, run.place, self._clock, warmup_steps=warmup_steps, log_every=log_every)
        self._progress = Progress(seconds={"startup": time.perf_counter() - began})
        self._progress.began = began
        self._evaluations: list[tuple[int, TrainerEvaluation]] = []
        self._cost_s = 0.0
        self._doing = ""
        self._phase: AbstractContextManager[None] | None = None
        self._is_in_step = False
        self.step = TrainerStep()
        """The step in progress; its first batch is counted before it begins."""
        self._pause_began = time.perf_counter()
        self.is_finished = False

    def begin(self, loader: Any) -> None:
        """Install the hooks and start the clock."""
        self._end_loader = time_loader(loader, self._clock, self._add_batch)
        self._end_watch = watch_backward(self)
        self._events.add("sampler", **self._run.sampler_facts())
        self.begins("training")
        self._clock.restart()

    def begins(self, doing: str) -> None:
        """Write the activity from now on, if it changes."""
        if doing != self._doing:
            self._doing = doing
            self._events.add("begin", doing=doing)
            self._events.flush()

    def enter(self, phase: str) -> None:
        """End the current phase and begin another one."""
        self._leave()
        self._phase = self._clock(phase)
        self._phase.__enter__()

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None

    def _add_batch(self, batch: Any) -> None:
        begin = time.perf_counter()
        self.step.counts.add(batch)
        self._cost_s += time.perf_counter() - begin

    def begin_step(self) -> None:
        self._is_in_step = True
        self.step = TrainerStep(learning_rate=self.step.learning_rate, counts=self.step.counts)
        self.enter("forward")

    def before_backward(self, loss: Tensor) -> None:
        """End forward; `loss` is that of a micro-batch, divided by their number."""
        if self._is_in_step:
            self._leave()
            if loss.numel() == 1:
                own = loss.detach().reshape(())
                self.step.loss = own if self.step.loss is None else self.step.loss + own
            self.enter("backward")

    def after_backward(self) -> None:
        """End backward; after the last micro-batch the optimizer phase begins."""
        if self._is_in_step:
            self._leave()
            if GradientState().sync_gradients:
                self.enter("optimizer")

    def begin_update(self, optimizer: Any) -> None:
        """Read the learning rate and the loss scale before the update changes them."""
        self.step.learning_rate = float(optimizer.param_groups[0]["lr"])
        scaler = getattr(optimizer, "scaler", None)
        self.step.loss_scale = None if scaler is None else float(scaler.get_scale())

    def end_step(self, state: TrainerState) -> None:
        self._leave()
        begin = time.perf_counter()
        self.step.step, self.step.epoch = state.global_step, float(state.epoch or 0.0)
        self.steps.add(self.step)
        self.step, self._is_in_step = TrainerStep(learning_rate=self.step.learning_rate), False
        self._progress.step = state.global_step
        self._pause_began = time.perf_counter()
        self._cost_s += self._pause_began - begin

    def drop_step(self) -> None:
        """Forget a step that the Trainer ended before its update."""
        if self._is_in_step:
            self._leave()
            self.step.counts, self._is_in_step = BatchCounts(), False
            self._clock.restart()

    def add_evaluation(self, evaluation: TrainerEvaluation, state: TrainerState) -> None:
        """Write an evaluation; after the training, add its scores to the summary."""
        self._evaluations.append((state.global_step, evaluation))
        if self.is_finished:
            self._run.add_scores(evaluation, state)
            return
        self.steps.write()
        best = self._run.best_of(self._evaluations)
        is_best = best is not None and best["step"] == state.global_step and evaluation.split == "validation"
        self._progress.best = best
        self._progress.seconds["evaluate"] += evaluation.time_s or 0.0
        self._events.add("evaluation", **evaluation.event(state, is_best=is_best))
        self._continue()

    def add_checkpoint(self, step: int) -> None:
        """Write that the Trainer saved a checkpoint, since the step or the evaluation before it."""
        self.steps.write()
        seconds = time.perf_counter() - self._pause_began
        self._progress.seconds["checkpoint"] += seconds
        self._events.add("checkpoint", step=step, time_s=seconds, num_bytes=None, reason="scheduled")
        self._continue()

    def _continue(self) -> None:
        """Start the clock again after work that is not part of a step."""
        self.begins("training")
        self._events.flush()
        self._pause_began = time.perf_counter()
        self._clock.restart()

    def finish(self, state: TrainerState) -> None:
        """Write the last steps and the summary. Collective."""
        self.drop_step()
        self.steps.write()
        self._events.add("end", step=state.global_step)
        self._events.flush()
        cost_ms = 1000 * self._cost_s / self.steps.num_steps if self.steps.num_steps else None
        self._run.write_summary(self._progress, self._evaluations, cost_ms)
        self.is_finished = True
        self.close()

    def close(self) -> None:
        """Remove the hooks and release the folder; the training has ended or starts again."""
        self._is_in_step = False
        self._end_watch()
        self._end_loader()
        self._release()


def _release(events: EventLog, lock: FileLock | None) -> None:
    with suppress(CheckpointError):
        events.close()
    if lock is not None:
        lock.release()


def _check_folder(folder: Path, mode: Mode) -> None:
    state = folder_state(folder)
    if state == "foreign":
        raise CheckpointError(
            f"PhaseCallback: {folder} contains files but no run, or is a file; give another folder",
            code="run.folder_taken",
            folder=folder,
        )
    if state is not None and mode == "new":
        raise CheckpointError(
            f"PhaseCallback: {folder} already contains a run ({state}); give another folder, or overwrite=True to "
            "delete the run",
            code="run.exists",
            folder=folder,
        )
    check_usable(folder, mode)


def _check_supported(args: TrainingArguments, state: TrainerState) -> None:
    if args.device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"PhaseCallback: the device is {args.device.type}; allowed: cpu or cuda; remove the callback",
            code="hf.device",
            value=args.device.type,
        )
    if args.n_gpu > 1:
        raise ConfigError(
            f"PhaseCallback: this process uses {args.n_gpu} GPUs (DataParallel); allowed: 1; start one process for "
            "each GPU: torchrun --nproc-per-node N, or set CUDA_VISIBLE_DEVICES to one GPU",
            code="hf.data_parallel",
            value=args.n_gpu,
        )
    if state.global_step > 0:
        raise ConfigError(
            f"PhaseCallback: the Trainer resumes after step {state.global_step}; allowed: trainings from the first "
            "step; remove the callback, or train without resume_from_checkpoint",
            code="hf.resumed",
            value=state.global_step,
        )


def _take_folder(folder: Path, mode: Mode, place: TrainerPlace) -> FileLock | None:
    """Take the folder on rank 0, while the other ranks wait; return the lock on rank 0. Collective.

    Raises:
        CheckpointError: On rank 0: the folder cannot be used.
        LaunchError: On the other ranks in this case.
    """
    lock, error = None, None
    if place.rank == 0:
        try:
            _check_folder(folder, mode)
            lock = take_folder(folder, mode)
        except CheckpointError as problem:
            error = problem
    message = "PhaseCallback: rank 0 could not use the run folder; its message has the reason"
    raise_on_all_ranks(reduce_over_ranks, error, LaunchError(message, code="launch.rank_0_failed"))
    return lock
