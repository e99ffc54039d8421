"""Predicts an option of a plan: memory, whether it fits, times of step, epoch and run."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune.base.units import format_bytes
from paratune.planning.enumerate import JobOption, resized
from paratune.planning.figure_range import FigureRange
from paratune.planning.job import PlannedJob
from paratune.planning.kinds import kind_of
from paratune.planning.machine import Machine
from paratune.planning.memory import STATES, HostMemory, Memory, host_memory, peak, with_nccl, with_process
from paratune.planning.profile import Profile, Shape
from paratune.planning.setup import PredictionSetup
from paratune.planning.time import StepCase, StepTime, step_time


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of one option."""

    option: JobOption
    """With the micro-batch size of the prediction."""
    memory: Memory
    """Of the rank that needs most."""
    room_bytes: int | None
    """Free memory of the device, negative if it is too small; on a CPU of a rank's share of the memory."""
    largest_micro_batch: int | None
    """Largest micro-batch size that fits and divides the share of a rank; None if none fits or memory is unknown."""
    time: StepTime | None
    why_no_time: str | None
    steps_per_epoch: float | None
    """Rows of the split over the global batch size, not rounded."""
    num_steps: int | None
    """Steps of the run."""
    machine: Machine
    notes: tuple[str, ...] = ()
    host: HostMemory | None = None
    """Memory of the host of a node; None on a CPU, where it is the memory of the device."""

    @property
    def host_fit(self) -> str | None:
        """Whether the host of a node has enough memory, as `HostMemory.fit`; None on a CPU."""
        return None if self.host is None else self.host.fit(self.machine.host_memory_bytes)

    @property
    def shortage(self) -> str | None:
        """Return which memory is missing; None if it fits or the memory of the device is unknown."""
        if self.room_bytes is not None and self.room_bytes < 0:
            return f"{format_bytes(-self.room_bytes)} of {format_bytes(self.memory.total)}"
        if self.host is None or self.host_fit != "no":
            return None
        return (
            f"memory of the host: {format_bytes(self.machine.host_memory_bytes)}, and the "
            f"{self.setup.ranks_per_node} processes of a node need at least {format_bytes(self.host.low)}"
        )

    @property
    def setup(self) -> PredictionSetup:
        return self.option.setup

    @property
    def label(self) -> str:
        """Return strategy and devices, such as "ddp on 4 devices", with its differences: "... (bf16)"."""
        differences = f" ({', '.join(self.option.differences)})" if self.option.differences else ""
        return f"{self.option.name} on {devices(self.setup.num_ranks, self.setup.num_nodes)}{differences}"

    @property
    def fit(self) -> str:
        """Return "yes", "tight" (it fits, but an upper bound of its memory does not), "no" or "unknown"."""
        if self.room_bytes is None:
            return "unknown"
        spread = self.memory.high - self.memory.total
        if self.room_bytes < 0 or self.host_fit == "no":
            return "no"
        return "tight" if self.room_bytes < spread or self.host_fit == "tight" else "yes"

    @property
    def fits(self) -> bool | None:
        """Whether the expected memory of the device and the least memory of the host are there; None if unknown."""
        return None if self.fit == "unknown" else self.fit != "no"

    @property
    def in_words(self) -> str:
        """Return the label with the micro-batch size, such as "ddp on 4 devices, micro-batches of 8"."""
        size = f"micro-batches of {self.setup.micro_batch_size}"
        return self.label if size in self.option.differences else f"{self.label}, {size}"

    @property
    def step(self) -> FigureRange | None:
        """Seconds of an optimizer step."""
        return None if self.time is None else FigureRange(self.time.total_s, self.time.low_s, self.time.high_s)

    @property
    def epoch(self) -> FigureRange | None:
        """Seconds of all steps of an epoch."""
        return None if self.step is None or self.steps_per_epoch is None else self.step.times(self.steps_per_epoch)

    @property
    def run(self) -> FigureRange | None:
        """Seconds of all steps of the run, without start-up, evaluations and checkpoints."""
        return None if self.step is None or self.num_steps is None else self.step.times(self.num_steps)

    @property
    def per_sample(self) -> FigureRange | None:
        """Seconds for a sample, with which options with different global batches are compared."""
        return None if self.step is None else self.step.times(1 / self.setup.global_batch_size)

    @property
    def price(self) -> FigureRange | None:
        """Price of the run, or of an epoch if the length of the run is unknown, in the user's currency."""
        span, rate = self.run or self.epoch, self.machine.price_per_hour
        return None if span is None or rate is None else span.times(rate * self.setup.num_ranks / 3600)

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        setup, option = self.setup, self.option
        spans = {
            f"{name}_s": None if span is None else span.as_list()
            for name, span in (("step", self.step), ("epoch", self.epoch), ("run", self.run))
        }
        return {
            "strategy": option.name,
            "precision": setup.precision.name,
            "num_ranks": setup.num_ranks,
            "num_nodes": setup.num_nodes,
            "global_batch_size": setup.global_batch_size,
            "micro_batch_size": setup.micro_batch_size,
            "grad_accum_steps": setup.grad_accum_steps,
            "layout": option.layout.kind,
            "memory": {
                "total_bytes": self.memory.total,
                "low_bytes": self.memory.low,
                "high_bytes": self.memory.high,
                "usable_bytes": None if self.room_bytes is None else self.memory.total + self.room_bytes,
                "terms": dict(self.memory.terms),
                "host_bytes": self.memory.host_total,
                "host_terms": dict(self.memory.host_terms),
                "host_node_bytes": None if self.host is None else [self.host.low, self.host.high],
                "at": self.memory.at,
            },
            "fits": self.fits,
            "fit": self.fit,
            "host_fit": self.host_fit,
            "room_bytes": self.room_bytes,
            "largest_micro_batch": self.largest_micro_batch,
            **spans,
            "terms_s": None if self.time is None else dict(self.time.terms),
            "parts_s": None if self.time is None else dict(self.time.parts),
            "bound": None if self.time is None else self.time.bound,
            "why_no_time": self.why_no_time,
            "steps_per_epoch": self.steps_per_epoch,
            "num_steps": self.num_steps,
            "price": None if self.price is None else self.price.as_list(),
            "notes": list(self.notes),
        }


class JobPredictor:
    """Predicts options of one job on one machine, and keeps the traced profiles."""

    def __init__(
        self,
        job: PlannedJob,
        machine: Machine,
        profile_of: Callable[[Shape, PredictionSetup], Profile],
        *,
        searches: bool = True,
        memory_factor: float = 1.0,
    ) -> None:
        """Take the inputs that all predictions share.

        `profile_of` returns the profile of a micro-batch for a setup; `searches` is whether to search the largest
        micro-batch that fits; `memory_factor` is measured over predicted memory, without the states.
        """
        self.job = job
        self.machine = machine
        self.profile_of = profile_of
        self._searches = searches
        self._memory_factor = memory_factor

    def predict(self, option: JobOption) -> Prediction:
        """Predict an option. If paratune chooses its micro-batch, it has the largest that fits, or the smallest one.

        Raises:
            ConfigError: The model cannot be divided into the stages of a pipeline.
        """
        largest, limit = self._largest(option) if self._searches else None, self._limit(option.setup)
        notes = []
        if option.is_open and limit is not None:
            size, asked = largest or min(self._sizes(option)), option.setup.micro_batch_size
            if size < asked:
                notes.append(f"micro-batches of {asked} would take {format_bytes(self._memory(option).total)}")
                option = resized(option, size)
        memory, (setup, profile) = self._memory(option), self._largest_micro_batch(option)
        if (note := kind_of(setup).note) is not None:
            notes.append(note)
        room = None if limit is None else limit - memory.total
        time, why_no = step_time(self.step_case(option))
        host = host_memory(profile.num_parameters, setup, memory.host_total) if self.machine.is_cuda else None
        num_samples, global_batch_size = self.job.num_samples, option.setup.global_batch_size
        return Prediction(
            option=option,
            memory=memory,
            host=host,
            room_bytes=room,
            largest_micro_batch=largest,
            time=time,
            why_no_time=why_no,
            steps_per_epoch=None if num_samples is None else num_samples / global_batch_size,
            num_steps=self.job.num_steps(global_batch_size),
            machine=self.machine,
            notes=tuple(notes),
        )

    def _limit(self, setup: PredictionSetup) -> int | None:
        """Return the memory limit of a rank: that of a device, or on a CPU its share of the machine's memory."""
        memory = self.machine.memory_bytes
        return memory if memory is None or self.machine.is_cuda else memory // setup.ranks_per_node

    def _largest_micro_batch(self, option: JobOption) -> tuple[PredictionSetup, Profile]:
        """Return the setup of an option as it is computed, and the profile of its largest micro-batch."""
        setup = self.job.passes(option.setup, option.layout)
        return setup, self.profile_of(self.job.largest_shape(option.setup, option.layout), setup)

    def _memory(self, option: JobOption) -> Memory:
        setup, profile = self._largest_micro_batch(option)
        memory = peak(profile, setup, self.machine.is_cuda)
        if not self.machine.is_cuda:
            memory = with_process(memory)
        elif setup.num_ranks > 1:
            memory = with_nccl(memory, has_links=self.machine.has_links)
        if self._memory_factor == 1:
            return memory
        states = sum(memory.terms.get(name, 0) for name in STATES)
        difference = round((self._memory_factor - 1) * (memory.total - states))
        return replace(memory, terms={**memory.terms, "measured_difference": difference})

    def _sizes(self, option: JobOption) -> list[int]:
        """Return the micro-batch sizes, ascending, with the same global batch and enough of them for a pipeline."""
        least = option.setup.traits.num_micro_batches
        share = option.sizes.share
        return [size for size in option.sizes.possible() if share // size >= min(least, share)]

    def _largest(self, option: JobOption) -> int | None:
        """Return the largest micro-batch size that fits, or None if none does.

        Memory grows with the micro-batch size, except for the last one: the whole share of a rank in one micro-batch
        needs no accumulated gradients.
        """
        limit = self._limit(option.setup)
        if limit is None:
            return None
        sizes = self._sizes(option)

        def is_too_large(size: int) -> bool:
            return self._memory(resized(option, size)).total > limit

        if sizes and not is_too_large(sizes[-1]):
            return sizes[-1]
        num_fitting = bisect_left(sizes[:-1], True, key=is_too_large)
        return sizes[num_fitting - 1] if num_fitting else None

    def step_case(self, option: JobOption) -> StepCase:
        """Return the inputs of the time of a step of an option."""
        job = self.job
        setup = job.passes(option.setup, option.layout)
        shape = job.mean_shape(option.setup, option.layout)
        return StepCase(
            self.profile_of(shape, setup),
            setup,
            self.machine,
            num_tokens=shape.num_tokens,
            num_workers=job.config.data.num_workers,
            hides_words=job.config.task.kind == "mlm",
            num_threads=self.machine.threads_of_rank(setup.ranks_per_node),
        )


def devices(number: int, num_nodes: int = 1) -> str:
    """Return "1 device", "2 devices", "16 devices of 2 nodes", ..."""
    of_nodes = f" of {num_nodes} nodes" if num_nodes > 1 else ""
    return f"{number} device{'s' * (number != 1)}{of_nodes}"


def start_command(path: Path, prediction: Prediction) -> str:
    """Return the command that starts the predicted option of a configuration."""
    setup = prediction.setup
    if setup.num_nodes > 1:
        return (
            f"torchrun --nnodes {setup.num_nodes} --nproc-per-node {setup.ranks_per_node} "
            f"--rdzv-backend c10d --rdzv-endpoint HOST:PORT -m paratune train {path}"
        )
    return f"paratune train {path}" + (f" --nproc {setup.num_ranks}" if setup.num_ranks > 1 else "")
