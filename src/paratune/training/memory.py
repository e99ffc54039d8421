"""Handles out-of-memory errors of a run: halves the micro-batch, or reports what used the memory, and records both.

There are three outcomes, all with the same global batch. A run of one process halves the micro-batch and repeats the
step. In a run of several processes the other ranks may be waiting in a collective, so all processes end, and
`paratune train --nproc` or torchrun restarts them from the newest checkpoint with half the micro-batch. If neither is
possible, the run ends with a report of the memory. See docs/howto/memory.md.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paratune import hardware, records
from paratune.base.units import parse_count
from paratune.batch import Batch
from paratune.config.batch_size import ResolvedBatch
from paratune.config.hints import remedies
from paratune.config.sections import run_path
from paratune.data.loader import TrainBatches
from paratune.data.workers import BatchesAhead, Workers
from paratune.engine.memory import MemoryUse, is_out_of_memory, memory_use
from paratune.engine.recorder import Recorder
from paratune.errors import OutOfMemory, coded
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.elastic import note_micro_batch, noted_micro_batch, will_restart
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE, local_world_size
from paratune.processes.progress import RankProgress
from paratune.training.prepare import Prepared
from paratune.training.record import memory_setup

log = logging.getLogger(__name__)
PLACING = "placing the model"


class StepBatches:
    """Iterator over the micro-batches of the steps; it can repeat a step with smaller micro-batches."""

    def __init__(
        self,
        make: Callable[[ResolvedBatch], TrainBatches],
        sizes: ResolvedBatch,
        steps: range,
        set_activity: Callable[[str, int], None],
        workers: Workers,
    ) -> None:
        """Start the workers that make batches ahead.

        Args:
            make: Returns the batches of the run for given sizes.
            steps: The steps, counted from 0.
            set_activity: Called with "training" and the step, counted from 1, before its batches are made.
        """
        self._make = make
        self._steps = steps
        self._next = steps.start
        self._set_activity = set_activity
        self._workers = workers
        self._ahead = BatchesAhead(make(sizes).step, steps, workers)

    def __iter__(self) -> "StepBatches":
        return self

    def __next__(self) -> list[Batch]:
        self._next += 1
        self._set_activity("training", self._next)
        return next(self._ahead)

    def repeat_step(self, sizes: ResolvedBatch) -> None:
        """Go back one step and use other sizes from there on; discard the batches made ahead."""
        self._next -= 1
        self._ahead.close()
        self._ahead = BatchesAhead(self._make(sizes).step, range(self._next, self._steps.stop), self._workers)

    def close(self) -> None:
        """End the workers and discard the batches made ahead."""
        self._ahead.close()


@dataclass(eq=False, repr=False)
class Activity:
    """The current activity of this process, for the hang watchdog, the event log and out-of-memory messages."""

    rank_progress: RankProgress
    """Receives every activity but the first one."""
    recorder: Recorder | None = None
    """Writes an event when the activity changes; None before the event log is open."""
    doing: str = PLACING

    def set(self, doing: str, step: int | None = None) -> None:
        """Set the activity, and the step in which it happens if there is one."""
        self.rank_progress.begin(doing)
        self.rank_progress.step = self.rank_progress.step if step is None else step
        if doing != self.doing and self.recorder is not None:
            self.recorder.add("begin", doing=doing)
        self.doing = doing


@dataclass(eq=False, repr=False)
class MemoryGuard:
    """Handles out-of-memory errors in one part of the run, with the objects that exist in this part."""

    prepared: Prepared
    sizes: ResolvedBatch
    """The current batch sizes; `shrink` changes them."""
    activity: Activity
    model: TaskModel | None = None
    """The model whose memory is measured; None before it is loaded."""
    batches: StepBatches | None = None
    """The batches that `shrink` makes smaller; None in parts without steps."""
    recorder: Recorder | None = None
    """Writes events; None before the event log is open."""
    holds_folder: bool = False
    """Whether this run has locked the run folder."""

    @property
    def folder(self) -> Path:
        return run_path(self.prepared.config)

    def shrink(self, step: int, error: BaseException) -> bool:
        """Halve the micro-batch from a step on and return True; see `loop.Loop.shrink`.

        Raises:
            OutOfMemory: This process cannot halve it alone.
        """
        smaller = self.sizes.halved()
        # With several processes, the other ranks may already wait in a collective of this step: it cannot be repeated.
        if smaller is None or self.prepared.traits.max_world_size != 1:
            raise self.post_mortem(error, step) from error
        use = memory_use(self.model, self.prepared.device, error)
        self._note(step, use, smaller)
        log.warning(
            "step %d: out of memory with micro-batches of %d; continuing with %d x %d, the global batch stays %d. %s",
            step,
            self.sizes.micro_batch_size,
            smaller.micro_batch_size,
            smaller.grad_accum_steps,
            smaller.global_batch_size,
            use.text(),
            extra=coded("memory.halved"),
        )
        self._change_record(step, smaller)
        assert self.batches is not None
        self.sizes = smaller
        self.batches.repeat_step(smaller)
        return True

    def post_mortem(self, error: BaseException, step: int | None = None) -> OutOfMemory:
        """Record what used the memory, pass a smaller size to the launcher, and return the error to raise.

        `step` is given, counted from 1, if its gradients were being computed.
        """
        use = memory_use(self.model, self.prepared.device, error)
        smaller = self.sizes.halved() if step is not None else None
        text = self._note(step, use, smaller)
        if smaller is not None:
            self._leave_note(smaller.micro_batch_size)
        return OutOfMemory(text, code="memory.out")

    def probe_failed(self, error: BaseException, size: int, smaller: int | None) -> OutOfMemory:
        """Return the error for a rank that ran out of memory in a collective probe; the launcher tries `smaller`."""
        use = memory_use(self.model, self.prepared.device, error)
        if smaller is not None:
            self._leave_note(smaller)
        advice = (
            f"{self._change(smaller)}, which fit on rank {self.prepared.place.rank}"
            if smaller is not None
            else "Even one sample does not fit"
        )
        message = (
            f"batch.micro_batch_size: auto: out of memory while trying {size} samples on rank "
            f"{self.prepared.place.rank}, where the other ranks wait for it. {use.text()}. {advice}"
        )
        return OutOfMemory(message, code="memory.out", key="batch.micro_batch_size", rank=self.prepared.place.rank)

    def _note(self, step: int | None, use: MemoryUse, smaller: ResolvedBatch | None) -> str:
        """Write the event to the event log and to the out-of-memory file; return the message."""
        prepared = self.prepared
        changes = remedies(
            asdict(use),
            prepared.config,
            prepared.traits,
            self.sizes,
            smaller,
            doing=self.activity.doing,
            num_blocks=len(find_blocks(self.model)) if self.model is not None else 0,
            world_size=prepared.place.world_size,
            is_gpu=prepared.device.type == "cuda",
        )
        text = self._message(step, use, smaller, changes)
        happening = {
            "step": step,
            "doing": self.activity.doing,
            "rank": prepared.place.rank,
            "micro_batch_size": self.sizes.micro_batch_size,
            "next_micro_batch_size": smaller.micro_batch_size if smaller else None,
            "memory": asdict(use),
            "remedies": changes,
        }
        if self.recorder is not None:
            self.recorder.add("out_of_memory", **happening)
        if self.holds_folder:
            path = self.folder / records.rank_file("out_of_memory", prepared.place.rank)
            before = records.read_json(path)["happenings"] if path.exists() else []
            now = {"time": round(time.time(), 3), **happening, "setup": memory_setup(prepared), "message": text}
            records.write_json(path, {"schema_version": records.SCHEMA_VERSION, "happenings": [*before, now]})
        return text

    def _message(self, step: int | None, use: MemoryUse, smaller: ResolvedBatch | None, changes: list[str]) -> str:
        where = f"step {step}" if step is not None else self.activity.doing
        asked = f" ({use.asked_bytes:,} more bytes were requested)" if use.asked_bytes else ""
        lines = [
            f"out of memory on rank {self.prepared.place.rank}, {where}, micro-batches of "
            f"{self.sizes.micro_batch_size}{asked}",
            f"  {use.text()}",
            *(f"  {number}. {change}" for number, change in enumerate(changes, start=1)),
        ]
        if smaller is not None and self.prepared.traits.max_world_size != 1:
            lines.append(f"  {self._change(smaller.micro_batch_size)}")
        return "\n".join(lines)

    def _change(self, size: int) -> str:
        """Return the setting to change so that all processes, when restarted, use micro-batches of `size`."""
        if OUT_OF_MEMORY_VARIABLE in os.environ or will_restart():
            return f"all processes restart with micro-batches of {size}"
        smaller = self.sizes.at_most(size)
        values = {"batch.micro_batch_size": smaller.micro_batch_size}
        if self.prepared.config.batch.per_device is not None:
            values = {
                "batch.per_device": smaller.micro_batch_size,
                "batch.grad_accum_steps": smaller.grad_accum_steps,
            }
        origin = self.prepared.loaded.origin
        settings = " and ".join(f"{key}: {value} ({origin.get(key, 'default')})" for key, value in values.items())
        return f"Set {settings} and restart all processes{' with --resume' if self.holds_folder else ''}"

    def _leave_note(self, size: int) -> None:
        """Leave a note for the launcher that restarts the processes: `paratune train --nproc`, or torchrun."""
        note_micro_batch(size, self.prepared.place.rank)
        place = os.environ.get(OUT_OF_MEMORY_VARIABLE)
        if place:
            note = {"micro_batch_size": size, "holds_folder": self.holds_folder}
            records.write_json(Path(f"{place}.rank{self.prepared.place.rank}"), note)

    def _change_record(self, step: int, smaller: ResolvedBatch) -> None:
        """Add the change to the session in run.json."""
        record = records.read_json(self.folder / records.RUN_FILE)
        change = {
            "step": step,
            "micro_batch_size": smaller.micro_batch_size,
            "grad_accum_steps": smaller.grad_accum_steps,
            "reason": "out of memory",
        }
        record["sessions"][-1]["batch"]["changes"].append(change)
        if len(record["sessions"]) == 1:  # the top level of run.json repeats the first session
            record["batch"]["changes"].append(change)
        records.write_json(self.folder / records.RUN_FILE, record)


@contextmanager
def reports_out_of_memory(guard: MemoryGuard) -> Iterator[None]:
    """Turn an out-of-memory error of the block into an `OutOfMemory` that reports what used the memory.

    Contexts may be nested: the innermost one reports, and `OutOfMemory` passes the others unchanged.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise guard.post_mortem(error) from error


def recorded_size(folder: Path, wanted: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the smallest micro-batch size that a run used under the setup `wanted` (of `memory_setup`), and why."""
    if not (folder / records.RUN_FILE).exists():
        return None
    sizes: list[tuple[int, str]] = []
    for path in sorted(folder.glob("out_of_memory.rank*.json")):
        for happening in records.read_json(path)["happenings"]:
            if happening["setup"] == wanted and happening["next_micro_batch_size"] is not None:
                reason = f"memory ran out with {happening['micro_batch_size']} in this run"
                sizes.append((happening["next_micro_batch_size"], reason))
    for session in records.read_json(folder / records.RUN_FILE).get("sessions", []):
        batch = session["batch"]
        if batch.get("setup") == wanted:
            size = (batch["changes"] or [batch])[-1]["micro_batch_size"]
            sizes.append((size, f"as in the session of {session['began']}"))
    return min(sizes, key=lambda size_and_reason: size_and_reason[0], default=None)


def limit_from_environment() -> int | None:
    """Return the largest micro-batch that is allowed here, after memory had run out with a larger one.

    The launcher sets it for all ranks; the note in torchrun's folder is for the ranks of one machine.
    """
    limits = [parse_count(os.environ.get(MICRO_BATCH_LIMIT_VARIABLE)), noted_micro_batch()]
    return min((size for size in limits if size), default=None)


def device_facts(prepared: Prepared, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return device_bytes and device_name for `config.hints.advice`, from all nodes; None if unknown."""
    if prepared.device.type != "cuda":
        part = hardware.total_memory_bytes() // local_world_size(prepared.place)
        return {"device_bytes": part, "device_name": "memory a process has here"}
    gpus = [gpu for node in nodes for gpu in node["gpus"] or []]
    return {
        "device_bytes": min((gpu["memory_bytes"] for gpu in gpus), default=None),
        "device_name": torch.cuda.get_device_name(prepared.device),
    }
