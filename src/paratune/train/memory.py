"""What a run does when memory runs out: halve the micro-batch, or say who owned the memory, and remember both.

Three ways lead on, and all keep the global batch. One process halves the micro-batch and takes the step again. Of
several processes the others may wait in a collective for the one that ran out, so all end, and `paratune train --nproc`
starts them again from the newest checkpoint with half the micro-batch. What neither can mend ends with the post-mortem.
See docs/howto/memory.md.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paratune import hardware, records
from paratune.base.units import parse_count
from paratune.batch import Batch
from paratune.config.batch_size import ResolvedBatch
from paratune.config.remedies import Shortage, remedies
from paratune.data.loader import TrainBatches
from paratune.data.workers import BatchesAhead, Workers
from paratune.engine.memory import MemoryUse, is_out_of_memory, memory_use
from paratune.engine.recorder import Recorder
from paratune.errors import OutOfMemory, coded
from paratune.hangs.pulse import Pulse
from paratune.hardware.gpus import link_bytes_per_s
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.elastic import note_micro_batch, noted_micro_batch, will_restart
from paratune.processes.place import MICRO_BATCH_LIMIT_VARIABLE, OUT_OF_MEMORY_VARIABLE, local_world_size
from paratune.train.prepare import Prepared
from paratune.train.record import memory_setup

log = logging.getLogger(__name__)
PLACING = "placing the model"


class StepBatches:
    """The micro-batches of one step after another; a step can be had again in smaller ones."""

    def __init__(
        self,
        make: Callable[[ResolvedBatch], TrainBatches],
        sizes: ResolvedBatch,
        steps: range,
        begins: Callable[[str, int], None],
        workers: Workers,
    ) -> None:
        """Start what makes batches.

        Args:
            make: Cuts samples into micro-batches of some size.
            sizes: To begin with.
            steps: Counted from 0; those that are to come.
            begins: Called with "training" and the step, counted from 1, before its batches are made.
            workers: Who makes them.
        """
        self._make = make
        self._steps = steps
        self._next = steps.start
        self._begins = begins
        self._workers = workers
        self._ahead = BatchesAhead(make(sizes).step, steps, workers)

    def __iter__(self) -> "StepBatches":
        return self

    def __next__(self) -> list[Batch]:
        self._next += 1
        self._begins("training", self._next)
        return next(self._ahead)

    def again(self, sizes: ResolvedBatch) -> None:
        """Go back one step, and cut from there on into micro-batches of another size; those made ahead are dropped."""
        self._next -= 1
        self._ahead.close()
        self._ahead = BatchesAhead(self._make(sizes).step, range(self._next, self._steps.stop), self._workers)

    def close(self) -> None:
        """End the workers; what they have made ahead is dropped."""
        self._ahead.close()


class Activity:
    """What this process does: for the watchdog's pulse, the event log, and the message when memory runs out."""

    def __init__(self, pulse: Pulse, recorder: Recorder | None = None, doing: str = PLACING) -> None:
        """Start.

        Args:
            pulse: Beats with it.
            recorder: Of the event log; None before there is one.
            doing: At first.
        """
        self._pulse = pulse
        self._recorder = recorder
        self.doing = doing

    def begins(self, doing: str, step: int | None = None) -> None:
        """Note what is done from now on."""
        self._pulse.begins(doing)
        self._pulse.step = self._pulse.step if step is None else step
        if doing != self.doing and self._recorder is not None:
            self._recorder.add("begin", doing=doing)
        self.doing = doing


class MemoryGuard:
    """Knows the sizes of the run, and what to do when memory runs out; a new one for each part of the run."""

    def __init__(
        self,
        prepared: Prepared,
        folder: Path,
        sizes: ResolvedBatch,
        activity: Activity,
        *,
        model: TaskModel | None = None,
        batches: StepBatches | None = None,
        recorder: Recorder | None = None,
        holds_folder: bool = False,
    ) -> None:
        """Start with what there is in this part of the run.

        Args:
            prepared: What is known of the run.
            folder: Of the run.
            sizes: Of its batches.
            activity: What the process does.
            model: Whose memory is looked at; None before there is one.
            batches: Of the steps, which `shrink` makes smaller; None where no step is taken.
            recorder: Of the event log; None before there is one.
            holds_folder: Whether the run folder is this run's by now.
        """
        self._prepared = prepared
        self._folder = folder
        self.sizes = sizes
        self._activity = activity
        self._model = model
        self._batches = batches
        self._recorder = recorder
        self._holds_folder = holds_folder

    def shrink(self, step: int, error: BaseException) -> bool:
        """Halve the micro-batch from a step on, if that can be done in this process; see `loop.Loop.shrink`.

        Raises:
            OutOfMemory: It cannot.
        """
        smaller = self.sizes.halved()
        # Of one process nobody waits for it, and its strategy can take the step again.
        if smaller is None or self._prepared.traits.max_world_size != 1:
            raise self.post_mortem(error, step) from error
        use = memory_use(self._model, self._prepared.device, error)
        self._note(step, use, smaller)
        log.warning(
            "step %d: out of memory with micro-batches of %d; going on with %d x %d, the global batch stays %d. %s",
            step,
            self.sizes.micro_batch_size,
            smaller.micro_batch_size,
            smaller.grad_accum_steps,
            smaller.global_batch_size,
            use.text(),
            extra=coded("memory.halved"),
        )
        self._change_record(step, smaller)
        assert self._batches is not None
        self.sizes = smaller
        self._batches.again(smaller)
        return True

    def post_mortem(self, error: BaseException, step: int | None = None) -> OutOfMemory:
        """Write down who owned the memory, tell the launcher what to try next, and return the error that says it all.

        Args:
            error: What was raised.
            step: In which it was, counted from 1, when it was in the gradients of one.
        """
        use = memory_use(self._model, self._prepared.device, error)
        smaller = self.sizes.halved() if step is not None else None
        text = self._note(step, use, smaller)
        if smaller is not None:
            self._tell_launcher(smaller.micro_batch_size)
        return OutOfMemory(text, code="memory.out")

    def probe_failed(self, error: BaseException, size: int, smaller: int | None) -> OutOfMemory:
        """Return the error for a rank that ran out in a probe that others take part in; the launcher tries less."""
        use = memory_use(self._model, self._prepared.device, error)
        if smaller is not None:
            self._tell_launcher(smaller)
        advice = (
            f"{self._change(smaller)}, which rank {self._prepared.place.rank} certainly has memory for"
            if smaller is not None
            else "One sample is more than there is room for"
        )
        return OutOfMemory(
            f"batch.micro_batch_size: auto: out of memory while trying {size} samples on rank "
            f"{self._prepared.place.rank}, where the other ranks wait for it. {use.text()}. {advice}",
            code="memory.out",
            key="batch.micro_batch_size",
            rank=self._prepared.place.rank,
        )

    def _note(self, step: int | None, use: MemoryUse, smaller: ResolvedBatch | None) -> str:
        """Write the event and the file beside it; return the message."""
        shortage = self._shortage(use, smaller)
        changes = [remedy.text() for remedy in remedies(shortage, self._prepared.traits)]
        text = self._message(step, use, smaller, changes)
        happening = {
            "step": step,
            "doing": self._activity.doing,
            "rank": self._prepared.place.rank,
            "micro_batch_size": self.sizes.micro_batch_size,
            "next_micro_batch_size": smaller.micro_batch_size if smaller else None,
            "memory": use.as_dict(),
            "remedies": changes,
        }
        if self._recorder is not None:
            self._recorder.add("out_of_memory", **happening)
        if self._holds_folder:
            path = self._folder / records.out_of_memory_file(self._prepared.place.rank)
            before = records.read_json(path)["happenings"] if path.exists() else []
            now = {"time": round(time.time(), 3), **happening, "setup": memory_setup(self._prepared), "message": text}
            records.write_json(path, {"schema_version": records.SCHEMA_VERSION, "happenings": [*before, now]})
        return text

    def _message(self, step: int | None, use: MemoryUse, smaller: ResolvedBatch | None, changes: list[str]) -> str:
        where = f"step {step}" if step is not None else self._activity.doing
        asked = f" ({use.asked_bytes:,} more bytes were requested)" if use.asked_bytes else ""
        lines = [
            f"out of memory on rank {self._prepared.place.rank}, {where}, micro-batches of "
            f"{self.sizes.micro_batch_size}{asked}",
            f"  {use.text()}",
            *(f"  {number}. {change}" for number, change in enumerate(changes, start=1)),
        ]
        if smaller is not None and self._prepared.traits.max_world_size != 1:
            lines.append(f"  {self._change(smaller.micro_batch_size)}")
        return "\n".join(lines)

    def _change(self, size: int) -> str:
        """Return which line to change so that all processes, started again, take micro-batches of `size`."""
        if OUT_OF_MEMORY_VARIABLE in os.environ or will_restart():
            return f"all processes start again with micro-batches of {size}"
        smaller = self.sizes.at_most(size)
        values = {"batch.micro_batch_size": smaller.micro_batch_size}
        if self._prepared.config.batch.per_device is not None:
            values = {
                "batch.per_device": smaller.micro_batch_size,
                "batch.grad_accum_steps": smaller.grad_accum_steps,
            }
        origin = self._prepared.loaded.origin
        settings = " and ".join(f"{key}: {value} ({origin.get(key, 'default')})" for key, value in values.items())
        again = " --resume" if self._holds_folder else ""
        return f"Set {settings} and start all processes again{' with' + again if again else ''}"

    def _shortage(self, use: MemoryUse, smaller: ResolvedBatch | None) -> Shortage:
        config = self._prepared.config
        return Shortage(
            doing=self._activity.doing,
            weights_bytes=use.weights_bytes,
            gradients_bytes=use.gradients_bytes,
            optimizer_bytes=use.optimizer_bytes,
            rest_bytes=use.rest_bytes or 0,
            unallocated_bytes=use.unallocated_bytes or 0,
            others_bytes=use.others_bytes or 0,
            micro_batch_size=self.sizes.micro_batch_size,
            smaller_micro_batch_size=smaller.micro_batch_size if smaller else None,
            batch_key="batch.micro_batch_size" if config.batch.per_device is None else "batch.per_device",
            smaller_grad_accum_steps=smaller.grad_accum_steps if smaller and config.batch.per_device else None,
            evaluate_batch_size=config.evaluate.batch_size,
            num_blocks=len(find_blocks(self._model)) if self._model is not None else 0,
            checkpoints_activations=bool(getattr(config.train, "activation_checkpointing", None)),
            offload_option=self._prepared.traits.offload_option,
            world_size=self._prepared.place.world_size,
            is_gpu=self._prepared.device.type == "cuda",
        )

    def _tell_launcher(self, size: int) -> None:
        """Leave a note for what starts the processes again: `paratune train --nproc`, or torchrun."""
        note_micro_batch(size, self._prepared.place.rank)
        place = os.environ.get(OUT_OF_MEMORY_VARIABLE)
        if place:
            note = {"micro_batch_size": size, "holds_folder": self._holds_folder}
            records.write_json(Path(f"{place}.rank{self._prepared.place.rank}"), note)

    def _change_record(self, step: int, smaller: ResolvedBatch) -> None:
        """Add the change to the session in run.json."""
        record = records.read_run(self._folder)
        change = {
            "step": step,
            "micro_batch_size": smaller.micro_batch_size,
            "grad_accum_steps": smaller.grad_accum_steps,
            "reason": "out of memory",
        }
        record["sessions"][-1]["batch"]["changes"].append(change)
        if len(record["sessions"]) == 1:  # what stands on top is the first session's
            record["batch"]["changes"].append(change)
        records.write_run(self._folder, record)


@contextmanager
def explained(current: Callable[[], MemoryGuard]) -> Iterator[None]:
    """Turn an out-of-memory error of the block into one that says who owned the memory.

    Args:
        current: Returns the guard of the part of the run that failed.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise current().post_mortem(error) from error


def recorded_size(folder: Path, wanted: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the micro-batch size that a run came to under the same setup, and why; None when it did not.

    Args:
        folder: Of the run.
        wanted: Of `record.memory_setup`.
    """
    if not (folder / records.RUN_FILE).exists():
        return None
    found: list[tuple[int, str]] = []
    for path in sorted(folder.glob(records.out_of_memory_file("*"))):
        for happening in records.read_json(path)["happenings"]:
            if happening["setup"] == wanted and happening["next_micro_batch_size"] is not None:
                reason = f"memory ran out with {happening['micro_batch_size']} in this run"
                found.append((happening["next_micro_batch_size"], reason))
    for session in records.read_run(folder).get("sessions", []):
        batch = session["batch"]
        if batch.get("setup") == wanted:
            size = (batch["changes"] or [batch])[-1]["micro_batch_size"]
            found.append((size, f"as in the session of {session['began']}"))
    return min(found, key=lambda one: one[0], default=None)


def limit_from_environment() -> int | None:
    """Return the largest micro-batch that is allowed here, after memory had run out with a larger one.

    The launcher says it to all ranks, torchrun's folder to those of one machine.
    """
    limits = [parse_count(os.environ.get(MICRO_BATCH_LIMIT_VARIABLE)), noted_micro_batch()]
    return min((size for size in limits if size), default=None)


def device_facts(prepared: Prepared, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what advice asks of the machine: device_bytes, device_name and link_bytes_per_s; None where not known.

    Args:
        prepared: Which device.
        nodes: Descriptions of all machines of the run.
    """
    if prepared.device.type != "cuda":
        part = hardware.total_memory_bytes() // local_world_size(prepared.place)
        return {"device_bytes": part, "device_name": "memory a process has here", "link_bytes_per_s": None}
    gpus = [gpu for node in nodes for gpu in node["gpus"] or []]
    links = [link_bytes_per_s(gpu["link"], gpu["capability"]) for gpu in gpus]
    known = [link for link in links if link is not None]
    return {
        "device_bytes": min((gpu["memory_bytes"] for gpu in gpus), default=None),
        "device_name": torch.cuda.get_device_name(prepared.device),
        # Between machines nothing is known of the network.
        "link_bytes_per_s": min(known) if len(nodes) == 1 and known and len(known) == len(links) else None,
    }
