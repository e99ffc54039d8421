"""What a way of running a job needs and takes, put together: memory, whether it fits, times of step, epoch and run.

One predictor knows one job on one machine, and keeps what it has traced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.units import format_bytes
from paratune.plan.enumerate import JobOption, resized
from paratune.plan.job import PlannedJob
from paratune.plan.kinds import kind_of
from paratune.plan.machine import Machine
from paratune.plan.memory import Memory, peak
from paratune.plan.profile import Profile, Shape
from paratune.plan.setup import PredictionSetup
from paratune.plan.time import StepTime, TimeInputs, step_time, why_no_time


@dataclass(frozen=True)
class FigureRange:
    """A figure, and the bounds between which it should lie."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "FigureRange":
        return FigureRange(self.value * factor, self.low * factor, self.high * factor)

    def overlaps(self, other: "FigureRange") -> bool:
        """Say whether either may be the smaller one."""
        return self.low <= other.high and other.low <= self.high

    def as_list(self) -> list[float]:
        """Return value, low and high."""
        return [self.value, self.low, self.high]


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is said of one option."""

    option: JobOption
    """With the micro-batch that it was predicted for."""
    memory: Memory
    """Of the fullest rank."""
    fits: bool | None
    """None where the device's memory is not known."""
    room_bytes: int | None
    """What is left of a device's memory, or what it lacks, below 0; on a CPU of a rank's part of the memory."""
    largest_micro_batch: int | None
    """That fits, of those into which a rank's share can be cut; None where none does, or that is not known."""
    time: StepTime | None
    why_no_time: str | None
    steps_per_epoch: float | None
    """Of whole batches: the last one of an epoch takes less."""
    num_steps: int | None
    """Of the run."""
    machine: Machine
    notes: tuple[str, ...] = ()

    @property
    def setup(self) -> PredictionSetup:
        return self.option.setup

    @property
    def label(self) -> str:
        """Return strategy and devices, as "ddp on 4 devices", with what else tells it apart: "... (bf16)"."""
        apart = f" ({', '.join(self.option.apart)})" if self.option.apart else ""
        return f"{self.option.name} on {devices(self.setup.num_ranks)}{apart}"

    @property
    def in_words(self) -> str:
        """Return the label with the micro-batches, as "ddp on 4 devices, micro-batches of 8"."""
        size = f"micro-batches of {self.setup.micro_batch_size}"
        return self.label if size in self.option.apart else f"{self.label}, {size}"

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
        """Seconds of all steps of the run; start-up, evaluations and checkpoints come on top."""
        return None if self.step is None or self.num_steps is None else self.step.times(self.num_steps)

    @property
    def per_sample(self) -> FigureRange | None:
        """Seconds of the whole machine for a sample: what ways with other global batches are compared by."""
        return None if self.step is None else self.step.times(1 / self.setup.global_batch_size)

    @property
    def energy_j(self) -> float | None:
        """Of the run, or of an epoch where its length is not known; at most, so with the longest time."""
        span = self.run or self.epoch
        return None if span is None else self.machine.energy_j(self.setup.num_ranks, span.high)

    @property
    def price(self) -> FigureRange | None:
        """Of the run, in the currency of the price of a device-hour."""
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
                "terms": dict(self.memory.terms),
                "host_bytes": self.memory.host_total,
                "host_terms": dict(self.memory.host_terms),
                "at": self.memory.at,
            },
            "fits": self.fits,
            "room_bytes": self.room_bytes,
            "largest_micro_batch": self.largest_micro_batch,
            **spans,
            "terms_s": None if self.time is None else dict(self.time.terms),
            "parts_s": None if self.time is None else dict(self.time.parts),
            "bound": None if self.time is None else self.time.bound,
            "why_no_time": self.why_no_time,
            "steps_per_epoch": self.steps_per_epoch,
            "num_steps": self.num_steps,
            "energy_j_at_most": self.energy_j,
            "price": None if self.price is None else self.price.as_list(),
            "notes": list(self.notes),
        }


class JobPredictor:
    """Predicts options of one job on one machine."""

    def __init__(
        self,
        job: PlannedJob,
        machine: Machine,
        profile_of: Callable[[Shape, PredictionSetup], Profile],
        *,
        searches: bool = True,
    ) -> None:
        """Take what all predictions have in common.

        Args:
            job: With its lengths.
            machine: On which it would run.
            profile_of: Gives the profile of a micro-batch under a setup.
            searches: Look for the largest micro-batch that fits.
        """
        self._job = job
        self._machine = machine
        self._profile_of = profile_of
        self._searches = searches

    def predict(self, option: JobOption) -> Prediction:
        """Predict an option; one whose micro-batch is open, with the largest that fits, or with 1 where none does.

        Raises:
            ConfigError: A pipeline cannot be cut so.
        """
        largest, limit = self._largest(option) if self._searches else None, self._limit(option.setup)
        notes = []
        if option.is_open and limit is not None:
            size, asked = largest or min(self._sizes(option)), option.setup.micro_batch_size
            if size < asked:
                notes.append(f"micro-batches of {asked} would take {format_bytes(self._memory(option).total)}")
                option = resized(option, size)
        memory = self._memory(option)
        notes += self._approximations(option)
        room = None if limit is None else limit - memory.total
        found, why_no = self._time(option)
        return Prediction(
            option=option,
            memory=memory,
            fits=None if room is None else room >= 0,
            room_bytes=room,
            largest_micro_batch=largest,
            time=found,
            why_no_time=why_no,
            steps_per_epoch=self._per_epoch(option.setup.global_batch_size),
            num_steps=self._job.num_steps(option.setup.global_batch_size),
            machine=self._machine,
            notes=tuple(notes),
        )

    def _per_epoch(self, global_batch_size: int) -> float | None:
        return None if self._job.num_samples is None else self._job.num_samples / global_batch_size

    def _limit(self, setup: PredictionSetup) -> int | None:
        """Return the bytes that a rank may take: a device's, or on a CPU its part of the machine's memory."""
        memory = self._machine.memory_bytes
        return memory if memory is None or self._machine.is_cuda else memory // setup.ranks_per_node

    def _memory(self, option: JobOption) -> Memory:
        setup = self._job.passes(option.setup, option.layout)
        profile = self._profile_of(self._job.largest(option.setup, option.layout), setup)
        return peak(profile, setup, self._machine.is_cuda)

    def _approximations(self, option: JobOption) -> list[str]:
        setup = self._job.passes(option.setup, option.layout)
        why = self._profile_of(self._job.largest(option.setup, option.layout), setup).why_approximate
        notes = [] if why is None else [f"activations are a formula's: the model cannot be traced ({why})"]
        note = kind_of(option.setup).note
        return notes if note is None else [*notes, note]

    def _sizes(self, option: JobOption) -> list[int]:
        """Return the micro-batches that keep the step, ascending, and leave a pipeline enough of them."""
        least = option.setup.traits.num_micro_batches
        share = option.sizes.share
        return [size for size in option.sizes.possible() if share // size >= min(least, share)]

    def _largest(self, option: JobOption) -> int | None:
        """Return the largest micro-batch that fits, None where none does.

        Memory grows with the micro-batch, but for the last one: all of a rank's share needs no accumulated gradients.
        """
        limit = self._limit(option.setup)
        if limit is None:
            return None
        sizes = self._sizes(option)

        def fits(index: int) -> bool:
            return self._memory(resized(option, sizes[index])).total <= limit

        if sizes and fits(len(sizes) - 1):
            return sizes[-1]
        low, high = -1, len(sizes) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return sizes[low] if low >= 0 else None

    def _time(self, option: JobOption) -> tuple[StepTime | None, str | None]:
        job = self._job
        setup = job.passes(option.setup, option.layout)
        shape = job.usual(option.setup, option.layout)
        profile = self._profile_of(shape, setup)
        figures = TimeInputs(
            num_tokens=shape.num_tokens,
            num_workers=job.config.data.num_workers,
            hides_words=job.config.task.kind == "mlm",
        )
        found = step_time(profile, setup, self._machine, figures)
        why = None if found is not None else why_no_time(profile, setup, self._machine, figures)
        return found, why


def devices(number: int) -> str:
    """Return "1 device", "2 devices", ..."""
    return f"{number} device{'s' * (number != 1)}"


def start_command(path: Path, prediction: Prediction) -> str:
    """Return how a configuration is started as was predicted."""
    setup = prediction.setup
    if setup.num_nodes > 1:
        return (
            f"torchrun --nnodes {setup.num_nodes} --nproc-per-node {setup.ranks_per_node} "
            f"--rdzv-backend c10d --rdzv-endpoint HOST:PORT -m paratune train {path}"
        )
    return f"paratune train {path}" + (f" --nproc {setup.num_ranks}" if setup.num_ranks > 1 else "")
