"""`PhaseCallback`, which measures a Trainer of transformers and writes the record of its run."""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.state import GradientState
from filelock import FileLock
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerState, TrainingArguments

from paratune import records
from paratune.engine.loop import Progress
from paratune.engine.memory import peak_memory
from paratune.engine.phases import PhaseClock, make_clock
from paratune.engine.recorder import time_values
from paratune.errors import CheckpointError, ConfigError
from paratune.hf.record import NOT_MEASURED, TrainerRun, read_evaluation
from paratune.records.run_folder import Mode, check_usable, folder_state, take_folder
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import on_rank_0

LOG_EVERY = 10
"""Steps between two writes of the event log."""


class PhaseCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the phases of each training step and writes a run folder for `paratune report`, `compare` and `watch`.

    `Trainer(..., callbacks=[PhaseCallback("runs/first")])` is all that a script needs. The training does not change.
    docs/howto/trainer_callback.md describes the phases and the values that are unknown.

    Args:
        folder: Run folder, which must not contain a run; its last part is the name of the run.
        overwrite: Delete the run that the folder contains, when the training starts.
        warmup_steps: First steps that are marked as warm-up and left out of rates and medians.

    Raises:
        CheckpointError: The folder contains a run or other files, is in use, or cannot be written.
        ConfigError: `warmup_steps` is negative. When the training starts: it is resumed from a checkpoint, or its
            device or its number of devices per process is not supported.

    >>> from paratune.hf import PhaseCallback
    >>> callback = PhaseCallback("runs/trainer")  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, folder: str | os.PathLike[str], *, overwrite: bool = False, warmup_steps: int = 5) -> None:
        if warmup_steps < 0:
            message = f"PhaseCallback: warmup_steps is {warmup_steps!r}; allowed: whole numbers from 0"
            raise ConfigError(message, code="hf.argument", key="warmup_steps", value=warmup_steps)
        self._folder = Path(folder)
        self._overwrites, self._warmup_steps = overwrite, warmup_steps
        self._began = time.perf_counter()
        self._is_training, self._is_in_step = False, False
        self._run: TrainerRun | None = None
        if not overwrite and folder_state(self._folder) in ("finished", "unfinished"):
            message = (
                f"PhaseCallback: {folder} already contains a run; give another folder, or overwrite=True to delete it"
            )
            raise CheckpointError(message, code="run.exists", folder=self._folder)
        check_usable(self._folder, "overwrite" if overwrite else "new")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.device.type not in ("cpu", "cuda") or args.n_gpu > 1 or state.global_step:
            message = (
                "PhaseCallback measures a CPU or one CUDA device in each process, from the first step; found: "
                f"{args.device.type}, {args.n_gpu} GPUs in this process, step {state.global_step}; start one process "
                "for each GPU (torchrun --nproc-per-node N), train without resume_from_checkpoint, or remove the "
                "callback"
            )
            facts = {"device": args.device.type, "n_gpu": args.n_gpu, "step": state.global_step}
            raise ConfigError(message, code="hf.unsupported", **facts)
        mode: Mode = "overwrite" if self._overwrites or self._is_training else "new"
        if self._is_training:
            # The Trainer starts again, with `auto_find_batch_size` or after an error in a notebook.
            self._close()
        lock = on_rank_0(args.process_index, reduce_over_ranks, lambda: take_folder(self._folder, mode))
        run = TrainerRun(self._folder, args, state, kwargs["model"], kwargs["train_dataloader"])
        run.write(warmup_steps=self._warmup_steps)
        self._run = run
        self._clock = make_clock(args.device)
        self._events = records.EventLog(run.folder, args.process_index)
        # A training that fails calls nothing: its callback is deleted, or the process ends.
        self._release = weakref.finalize(self, _release, self._events, lock)
        self._progress = Progress(seconds={"startup": time.perf_counter() - self._began})
        self._progress.began = self._began
        self._phase: AbstractContextManager[None] | None = None
        # The first batch of a step is counted before the step begins.
        self._step = _Step()
        # Steps that are not written yet: losses and counts stay on the device until then.
        self._ended: list[_Step] = []
        self._pause_began = time.perf_counter()
        self._end_loader = _time_loader(run.loader, self._clock, lambda batch: self._step.add_batch(batch))
        self._end_watch = _watch_backward(self)
        self._is_training = True
        unknown = dict.fromkeys(("kind", "interval_s", "energy_source"))
        device = str(args.device)
        self._events.add("sampler", **unknown, name=device, is_energy_here=False, reason=NOT_MEASURED)
        self._continue()

    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        self._is_in_step = True
        self._enter("forward")

    on_substep_end = on_step_begin

    def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        # Before the update changes both of them.
        optimizer = kwargs["optimizer"]
        self._step.learning_rate = float(optimizer.param_groups[0]["lr"])
        scaler = getattr(optimizer, "scaler", None)
        self._step.loss_scale = None if scaler is None else float(scaler.get_scale())

    def on_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        self._step.skipped = bool(getattr(kwargs["optimizer"], "step_was_skipped", False))

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """End the step, after writing earlier steps if there are `LOG_EVERY`. Collective.

        The newest step stays in memory, because the Trainer logs its gradient norm after the step.
        """
        self._enter(None)
        if len(self._ended) >= LOG_EVERY:
            self._write_steps()
        self._clock.end_step()
        self._step.step, self._step.epoch = state.global_step, round(float(state.epoch or 0.0), 6)
        self._ended.append(self._step)
        self._step, self._is_in_step = _Step(), False
        self._progress.step = state.global_step
        self._pause_began = time.perf_counter()

    def on_log(self, *_: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if self._is_training and self._ended and logs and "grad_norm" in logs:
            self._ended[-1].grad_norm = float(logs["grad_norm"])

    def on_epoch_end(self, *_: Any, **kwargs: Any) -> None:
        """Drop a step that ended before its update: a callback ended the epoch, or an iterable data set its rows.

        Its batches are not those of the next step.
        """
        if self._is_in_step:
            self._enter(None)
            self._step, self._is_in_step = _Step(), False
            self._clock.restart()

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write an evaluation; after the training, add its scores to the summary."""
        evaluation = read_evaluation(kwargs.get("metrics") or {}, kwargs.get("eval_dataloader"), state)
        if self._run is None or evaluation is None:
            return
        if not self._is_training:
            if args.process_index == 0:
                summary = records.read_json(self._folder / records.SUMMARY_FILE)
                summary["scores"][evaluation["split"]] = evaluation["scores"]
                records.write_json(self._folder / records.SUMMARY_FILE, summary)
            return
        self._write_steps()
        self._progress.seconds["evaluate"] += evaluation["time_s"]
        self._events.add("evaluation", **evaluation)
        self._continue()

    on_predict = on_evaluate

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write that the Trainer saved a checkpoint, since the step or the evaluation before it."""
        self._write_steps()
        seconds = time.perf_counter() - self._pause_began
        self._progress.seconds["checkpoint"] += seconds
        self._events.add("checkpoint", step=state.global_step, time_s=seconds, num_bytes=None, reason="scheduled")
        self._continue()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write the last steps and the summary. Collective."""
        assert self._run is not None, "on_train_begin is the first event"
        self._write_steps()
        self._events.add("end", step=state.global_step)
        self._events.flush()
        self._run.write_summary(self._progress)
        self._close()

    def _close(self) -> None:
        """Remove the hooks and release the folder; the training has ended or starts again."""
        self._is_training, self._is_in_step = False, False
        self._end_watch()
        self._end_loader()
        self._release()

    def _continue(self) -> None:
        """Start the clock after work that is not part of a step."""
        self._events.add("begin", doing="training")
        self._events.flush()
        self._pause_began = time.perf_counter()
        self._clock.restart()

    def _enter(self, phase: str | None) -> None:
        """End the current phase, and begin another one."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = None if phase is None else self._clock(phase)
        if self._phase is not None:
            self._phase.__enter__()

    def _write_steps(self) -> None:
        """Write the steps that have ended. Collective."""
        steps, self._ended = self._ended, []
        if not steps:
            return
        assert self._run is not None
        args = self._run.args
        unknown = torch.tensor(float("nan"), dtype=torch.float64, device=args.device)
        # One reduction and two copies from the device for all steps.
        own = [unknown if step.loss is None else step.loss.double() / (step.loss_scale or 1.0) for step in steps]
        losses = (reduce_over_ranks(torch.stack(own).cpu(), "sum") / args.world_size).tolist()
        counted = [-1 if step.num_tokens is None else step.num_tokens for step in steps]
        tokens = torch.stack([torch.as_tensor(count, device=args.device) for count in counted]).tolist()
        memory_bytes = peak_memory(args.device)
        for step, times, loss, num_tokens in zip(steps, self._clock.take(), losses, tokens, strict=True):
            values = vars(step) | {"loss": loss, "num_tokens": None if num_tokens < 0 else int(num_tokens)}
            values |= {"data_rank": args.process_index, "memory_bytes": memory_bytes}
            self._events.add("step", **values, **time_values(times), warmup=step.step <= self._warmup_steps)
        self._events.flush()


@dataclass
class _Step:
    """A step that is in progress, or has ended and is not written yet."""

    step: int = 0
    epoch: float = 0.0
    learning_rate: float | None = None
    loss: Tensor | None = None
    """Of this rank, summed over its micro-batches; scaled by `loss_scale`."""
    loss_scale: float | None = None
    skipped: bool = False
    grad_norm: float | None = None
    """Set by the Trainer's log."""
    num_samples: int | None = 0
    """Rows of the first tensor of each batch; this and the next two are None where a batch does not show it."""
    num_tokens: Tensor | int | None = 0
    """Sum of `attention_mask`, on the device of the batches."""
    num_padded_tokens: int | None = 0

    def add_batch(self, batch: Any) -> None:
        values = batch if isinstance(batch, Mapping) else {}
        rows = next((len(value) for value in values.values() if isinstance(value, Tensor) and value.ndim), None)
        mask, inputs = (values.get(name) for name in ("attention_mask", "input_ids"))
        padded = inputs.numel() if isinstance(inputs, Tensor) else None
        # The sum of a mask for pairs of tokens, (B, S, S), is not a number of tokens.
        tokens = mask.sum() if isinstance(mask, Tensor) and mask.numel() == padded else None
        for name, value in (("num_samples", rows), ("num_tokens", tokens), ("num_padded_tokens", padded)):
            total = getattr(self, name)
            setattr(self, name, None if total is None or value is None else total + value)


def _release(events: records.EventLog, lock: FileLock | None) -> None:
    with suppress(CheckpointError):
        events.close()
    if lock is not None:
        lock.release()


def _time_loader(loader: DataLoader[Any], clock: PhaseClock, on_batch: Callable[[Any], None]) -> Callable[[], None]:
    """Time each `next` of the loader as `get_batch`, and call `on_batch` with each batch; return how this ends.

    The loader gets a subclass of its class: `iter(loader)` ignores an `__iter__` of the instance.
    """
    base = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        with clock("get_batch"):
            batches = iter(base.__iter__(self))
        while True:
            with clock("get_batch"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            on_batch(batch)
            yield batch

    timed = type(base.__name__, (base,), {"__iter__": iterate, "__module__": base.__module__})
    # The loaders of accelerate hide `__class__` behind a property without a setter.
    set_class = object.__dict__["__class__"].__set__
    set_class(loader, timed)
    return lambda: set_class(loader, base)


def _watch_backward(callback: PhaseCallback) -> Callable[[], None]:
    """Notify the callback of each call of `Tensor.backward` in this process; return the function that ends this.

    Without a strong reference: a training that fails does not end it, and the next call without a callback does.
    """
    reference = weakref.ref(callback)
    original: Callable[..., None] = torch.Tensor.backward

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        current = reference()
        if current is None:
            end()
            original(self, *args, **kwargs)
            return
        if current._is_in_step:
            current._enter(None)
            if self.numel() == 1:  # the loss of a micro-batch, divided by their number
                own, step = self.detach().reshape(()), current._step
                step.loss = own if step.loss is None else step.loss + own
            current._enter("backward")
        try:
            original(self, *args, **kwargs)
        finally:
            if current._is_in_step:  # after the last micro-batch the optimizer phase begins
                current._enter("optimizer" if GradientState().sync_gradients else None)

    def end() -> None:
        if torch.Tensor.backward is backward:
            torch.Tensor.backward = original  # type: ignore[method-assign]

    torch.Tensor.backward = backward  # type: ignore[method-assign]
    return end
