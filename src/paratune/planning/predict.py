"""Predicts an option of a plan: memory, whether it fits, times of step, epoch and run.

Few micro-batches are traced; the profiles of the others are extrapolated from these. If all rows have the same length,
a model runs the same operations in the same order for any number of rows, and their bytes and FLOP are linear in this
number. Two traces therefore determine all others. This is exact, except for the number of labelled tokens of a masked
LM, which is rounded. Traces that differ in more than sizes (a single row needs no mask) are not extrapolated.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import torch

from paratune.base.units import format_bytes
from paratune.errors import ConfigError, ParatuneError
from paratune.planning.constants import Bounded
from paratune.planning.enumerate import JobOption
from paratune.planning.job import PlannedJob
from paratune.planning.kinds import step_transfers
from paratune.planning.machine import Machine
from paratune.planning.memory import Memory, peak, with_machine
from paratune.planning.profile import Division, Profile, Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.planning.time import StepTime, step_time
from paratune.planning.trace import Phase
from paratune.planning.work import StepCase, ring_bytes

TRACED_ROWS = (2, 6)
"""Rows of the two traces from which the profiles of more rows are extrapolated. Not 1, because a model may run other
operations for a single row. The larger the distance, the smaller the error from rounding the labelled tokens of a
masked LM."""


@dataclass(eq=False)
class Profiles:
    """Traces and keeps the profiles of one job."""

    job: PlannedJob
    is_cuda: bool
    _profiles: dict[object, Profile] = field(default_factory=dict)
    _divisions: dict[object, Division] = field(default_factory=dict)

    def of(self, shape: Shape, setup: PredictionSetup) -> Profile:
        """Return the profile of a micro-batch under a setup.

        Raises:
            ConfigError: The model cannot be traced, because its code reads values.
        """
        is_cut = setup.traits.cuts_blocks
        stored = self._stored_dtype(setup)
        key = (shape, setup.precision, setup.activation_checkpointing, setup.attention, is_cut, stored)
        if key not in self._profiles:
            profile = self._extrapolated(shape, setup) or self._trace(shape, setup)
            if is_cut:  # the division of the model is computed once, because it takes as long as a trace
                division = self._divisions.setdefault((setup.precision, setup.attention), profile.division)
                profile = replace(profile, division=division)
            self._profiles[key] = profile
        return self._profiles[key]

    def _stored_dtype(self, setup: PredictionSetup) -> torch.dtype | None:
        """Return the dtype of autocast if frozen weights of linear layers are held in it."""
        dtype = setup.precision.autocast_dtype
        is_held = self.job.stored_dtype == dtype or self.job.config.model.may_round_base
        return dtype if setup.traits.holds_16_bits and is_held else None

    def _extrapolated(self, shape: Shape, setup: PredictionSetup) -> Profile | None:
        """Return the profile extrapolated from two other numbers of rows, or None if that is impossible."""
        rows, longest = len(shape.lengths), max(shape.lengths)
        if rows in TRACED_ROWS or rows < TRACED_ROWS[0] or shape.lengths[:-1] != (longest,) * (rows - 1):
            return None
        low, high = (
            replace(shape, lengths=(longest,) * (num_rows - 1) + shape.lengths[-1:]) for num_rows in TRACED_ROWS
        )
        try:
            return extrapolate_profile(self.of(low, setup), self.of(high, setup), at=TRACED_ROWS, rows=rows)
        except NotAffineError:
            return None

    def _trace(self, shape: Shape, setup: PredictionSetup) -> Profile:
        job = self.job
        try:
            return profile(
                job.hf_config,
                job.config.task,
                shape,
                setup.precision,
                on_cuda=self.is_cuda,
                entry=job.entry,
                activation_checkpointing=setup.activation_checkpointing,
                train=job.config.train,
                model_options=job.config.model,
                attention=setup.attention,
                stored_dtype=self._stored_dtype(setup),
                with_division=setup.traits.cuts_blocks and (setup.precision, setup.attention) not in self._divisions,
            )
        except ParatuneError:
            raise
        except Exception as error:  # the model's code may raise anything for tensors without values
            first_line = next(iter(str(error).splitlines()), "")
            message = f"the model cannot be traced without values ({type(error).__name__}: {first_line}), so that its "
            message += "memory and time are unknown; measure 20 steps: paratune train --set train.max_steps=20"
            raise ConfigError(message, code="plan.not_traced", error=type(error).__name__) from error


class NotAffineError(ValueError):
    """Two traces differ in more than sizes."""


def extrapolate_profile(first: Profile, second: Profile, *, at: tuple[int, int], rows: int) -> Profile:
    """Return the profile for another number of rows.

    The profiles have `at[0]` and `at[1]` rows, ascending, of the same model and lengths. `rows` is at least `at[0]`,
    because the model may run other operations for fewer rows.

    Raises:
        NotAffineError: The profiles differ in more than sizes.
    """
    low, high = at
    assert low <= rows

    def value(a: int, b: int) -> int:
        step, rest = divmod(b - a, high - low)
        if rest:
            raise NotAffineError(f"{a} bytes or FLOP for {low} rows and {b} for {high}")
        return a + step * (rows - low)

    def phase(a: Phase, b: Phase) -> Phase:
        kinds, others = ([(operation.name, operation.dtype) for operation in x.kernels] for x in (a, b))
        if kinds != others:
            raise NotAffineError("other operations")
        return Phase(
            [
                x._replace(
                    flops=value(x.flops, y.flops),
                    num_bytes=value(x.num_bytes, y.num_bytes),
                    # Rounded, because labelled tokens of a masked LM are.
                    rows=x.rows + round((y.rows - x.rows) * (rows - low) / (high - low)),
                    columns=value(x.columns, y.columns),
                )
                for x, y in zip(a.kernels, b.kernels, strict=True)
            ]
        )

    if (first.timeline.changes, first.timeline.marks) != (second.timeline.changes, second.timeline.marks):
        raise NotAffineError("other allocations")
    return replace(
        first,
        saved_bytes=value(first.saved_bytes, second.saved_bytes),
        saved_by_block=tuple(map(value, first.saved_by_block, second.saved_by_block)),
        batch_bytes=value(first.batch_bytes, second.batch_bytes),
        forward=phase(first.forward, second.forward),
        backward=phase(first.backward, second.backward),
        saved_before=value(first.saved_before, second.saved_before),
        hidden_bytes=value(first.hidden_bytes, second.hidden_bytes),
        timeline=replace(first.timeline, sizes=tuple(map(value, first.timeline.sizes, second.timeline.sizes))),
    )


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
    """Largest micro-batch size that divides the share of a rank and fits with the upper bound of its memory; None if
    none fits or memory is unknown."""
    may_fit_micro_batch: int | None
    """The same for the expected memory: at least as large."""
    time: StepTime | None
    why_no_time: str | None
    steps_per_epoch: float | None
    """Rows of the split over the global batch size, not rounded."""
    num_steps: int | None
    """Steps of the run."""
    machine: Machine
    notes: tuple[str, ...] = ()

    @property
    def trains(self) -> tuple[object, ...]:
        """What decides memory and time, so that an option is planned once."""
        return self.option.setup, self.option.config.model

    @property
    def label(self) -> str:
        """Return what distinguishes the option, such as "ddp on 4 devices, bf16, micro-batches of 8"."""
        setup = self.option.setup
        of_nodes = f" of {setup.num_nodes} nodes" if setup.num_nodes > 1 else ""
        on = f"{setup.num_ranks} device{'s' * (setup.num_ranks != 1)}{of_nodes}"
        text = f"{self.option.name} on {on}, {setup.precision.name}, micro-batches of {setup.micro_batch_size}"
        return text if self.option.remedy is None else f"{text}, with {self.option.remedy.name}"

    @property
    def fit(self) -> str:
        """Return "yes", "tight" (it may fit: an upper bound of its memory does not), "no" or "unknown"."""
        if self.room_bytes is None:
            return "unknown"
        if self.room_bytes < 0:
            return "no"
        return "tight" if self.room_bytes < self.memory.bounds[1] - self.memory.total else "yes"

    @property
    def fits(self) -> bool | None:
        """Whether the expected memory of the device is there; None if unknown."""
        return None if self.fit == "unknown" else self.fit != "no"

    @property
    def figures(self) -> dict[str, Bounded | None]:
        """Seconds of an optimizer step, of an epoch, and of the run, as `step_s`, `epoch_s` and `run_s`; and `price`.

        They are those of all steps, without start-up, evaluations and checkpoints. The price is that of the run, or of
        an epoch if the length of the run is unknown, in the user's currency.
        """
        step, rate = None if self.time is None else self.time.total, self.machine.price_per_hour
        epoch = None if step is None or self.steps_per_epoch is None else step.times(self.steps_per_epoch)
        run = None if step is None or self.num_steps is None else step.times(self.num_steps)
        span = run or epoch
        price = None if span is None or rate is None else span.times(rate * self.option.setup.num_ranks / 3600)
        return {"step_s": step, "epoch_s": epoch, "run_s": run, "price": price}

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        setup, memory, remedy = self.option.setup, self.memory, self.option.remedy
        return {
            "device": self.machine.name,
            "strategy": self.option.name,
            "remedy": None if remedy is None else asdict(remedy),
            "precision": setup.precision.name,
            "num_ranks": setup.num_ranks,
            "num_nodes": setup.num_nodes,
            "global_batch_size": setup.global_batch_size,
            "micro_batch_size": setup.micro_batch_size,
            "grad_accum_steps": setup.grad_accum_steps,
            "layout": self.option.layout.kind,
            "memory": {
                "total_bytes": memory.total,
                "low_bytes": memory.bounds[0],
                "high_bytes": memory.bounds[1],
                "usable_bytes": None if self.room_bytes is None else memory.total + self.room_bytes,
                "terms": dict(memory.terms),
                "host_bytes": memory.host_total,
                "host_terms": dict(memory.host_terms),
            },
            "fits": self.fits,
            "fit": self.fit,
            "room_bytes": self.room_bytes,
            "largest_micro_batch": self.largest_micro_batch,
            "may_fit_micro_batch": self.may_fit_micro_batch,
            **{
                name: None if figure is None else [figure.value, figure.low, figure.high]
                for name, figure in self.figures.items()
            },
            "terms_s": None if self.time is None else dict(self.time.terms),
            "why_no_time": self.why_no_time,
            "steps_per_epoch": self.steps_per_epoch,
            "num_steps": self.num_steps,
            "notes": list(self.notes),
        }


def _largest_within(limit: int, sizes: Sequence[int], num_bytes: Callable[[int], int]) -> int | None:
    """Return the largest of ascending micro-batches whose bytes are at most `limit`; None if there is none.

    Memory grows with the size, so that it is found by bisection; except for the last: the whole share of a rank in one
    micro-batch needs no accumulated gradients.
    """
    if sizes and num_bytes(sizes[-1]) <= limit:
        return sizes[-1]
    num = bisect_right(sizes[:-1], limit, key=num_bytes)
    return sizes[num - 1] if num else None


class JobPredictor:
    """Predicts options of one job on one machine, and keeps the traced profiles."""

    def __init__(self, job: PlannedJob, machine: Machine, *, searches: bool = True) -> None:
        """Take the inputs that all predictions share; `searches` is whether to search the largest micro-batch."""
        self.job = job
        self.machine = machine
        self.profile_of = Profiles(job, is_cuda=machine.is_cuda).of
        self._searches = searches

    def predict(self, option: JobOption) -> Prediction:
        """Predict an option. If paratune chooses its micro-batch, it has the largest that fits, or the smallest one.

        Raises:
            ConfigError: The model cannot be divided into the stages of a pipeline.
        """
        # On a CPU a rank has its share of the machine's memory.
        limit = self.machine.memory_bytes
        if limit is not None and not self.machine.is_cuda:
            limit //= option.setup.ranks_per_node
        largest, may_fit, notes = None, None, []
        if self._searches and limit is not None:
            # Micro-batches with the same global batch, ascending, and enough of them for a pipeline.
            share, least = option.sizes.share, option.setup.traits.num_micro_batches
            sizes = [size for size in option.sizes.possible() if share // size >= min(least, share)]
            resized, memory_of = option.resized, cache(lambda size: self._memory(resized(size)))
            # With the upper bound of memory, so that the run has room; what may fit is only named.
            largest = _largest_within(limit, sizes, lambda size: memory_of(size).bounds[1])
            may_fit = _largest_within(limit, sizes, lambda size: memory_of(size).total)
            asked = option.setup.micro_batch_size
            if option.is_open and (size := largest or sizes[0]) < asked:
                notes.append(f"micro-batches of {asked} would take {format_bytes(self._memory(option).total)}")
                option = option.resized(size)
        memory = self._memory(option)
        time, why_no = step_time(self.step_case(option))
        num_samples, global_batch_size = self.job.num_samples, option.setup.global_batch_size
        return Prediction(
            option=option,
            memory=memory,
            room_bytes=None if limit is None else limit - memory.total,
            largest_micro_batch=largest,
            may_fit_micro_batch=may_fit,
            time=time,
            why_no_time=why_no,
            steps_per_epoch=None if num_samples is None else num_samples / global_batch_size,
            num_steps=self.job.num_steps(global_batch_size),
            machine=self.machine,
            notes=tuple(notes),
        )

    def candidates(self, option: JobOption) -> list[Prediction]:
        """Return the prediction of an option and, if only that fits, of the same one with smaller gradients.

        With `strategy.reduce_each_micro_step` a rank holds shards of gradients between micro-batches; its note has the
        costs at the same micro-batch. Raises as `predict`.
        """
        plain = self.predict(option)
        is_tried = plain.fit in ("no", "tight") and plain.option.setup.grad_accum_steps > 1
        if not is_tried or (other := option.reducing_each()) is None:
            return [plain]
        less = self.predict(other)
        if less.fit != "yes" and (plain.fit, less.fit) != ("no", "tight"):
            return [plain]
        without = option.resized(less.option.setup.micro_batch_size)
        cases = self.step_case(without), self.step_case(less.option)
        sent, more = (
            sum(t.num_calls * ring_bytes(t.collective, t.num_bytes, t.num_ranks) for t in step_transfers(*case))
            for case in ((case.profile, case.setup) for case in cases)
        )
        times = [time.total.value for time, _ in map(step_time, cases) if time is not None]
        slower = f" and takes {times[1] - times[0]:.3g} s more" if len(times) == 2 else ""
        note = (
            f"the option is there because {option.name} would take {format_bytes(self._memory(without).total)}; in a "
            f"step each device sends {format_bytes(round(more))} instead of {format_bytes(round(sent))}{slower}"
        )
        return [plain, replace(less, notes=(*less.notes, note))]

    def _memory(self, option: JobOption) -> Memory:
        """Return the memory of an option with its largest micro-batch."""
        setup = self.job.passes(option.setup, option.layout)
        profile = self.profile_of(self.job.shape(option.setup, option.layout, largest=True), setup)
        return with_machine(peak(profile, setup, self.machine.is_cuda), self.machine, setup.num_ranks)

    def step_case(self, option: JobOption) -> StepCase:
        """Return the inputs of the time of a step of an option."""
        job = self.job
        setup = job.passes(option.setup, option.layout)
        shape = job.shape(option.setup, option.layout, largest=False)
        return StepCase(
            self.profile_of(shape, setup),
            setup,
            self.machine,
            num_tokens=shape.num_tokens,
            num_workers=job.config.data.num_workers,
            hides_words=job.config.task.kind == "mlm",
            num_threads=self.machine.threads_of_rank(setup.ranks_per_node),
        )
