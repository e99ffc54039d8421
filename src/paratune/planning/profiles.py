"""Profiles of the micro-batches of one job: few are traced, the others are extrapolated from these.

If all rows have the same length, a model runs the same operations in the same order for any number of rows, and their
bytes and FLOP are linear in this number. Two traces therefore determine all others. This is exact, except for the
number of labelled tokens of a masked LM, which is rounded. Traces that differ in more than sizes (a single row needs no
mask) are not extrapolated.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.errors import ConfigError, ParatuneError
from paratune.planning.job import PlannedJob
from paratune.planning.profile import Division, Profile, Shape, profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.trace import Operation, Phase

TRACED_ROWS = (2, 6)
"""Rows of the two traces from which the profiles of more rows are extrapolated. Not 1, because a model may run other
operations for a single row. The larger the distance, the smaller the error from rounding the labelled tokens of a
masked LM."""


class Profiles:
    """Traces and keeps the profiles of one job."""

    def __init__(self, job: PlannedJob, *, is_cuda: bool) -> None:
        self._job = job
        self._is_cuda = is_cuda
        self._profiles: dict[object, Profile] = {}
        self._divisions: dict[object, Division | None] = {}

    def of(self, shape: Shape, setup: PredictionSetup) -> Profile:
        """Return the profile of a micro-batch under a setup.

        Raises:
            ConfigError: The model cannot be traced, because its code reads values.
        """
        is_cut = setup.traits.cuts_blocks
        key = (shape, setup.precision, setup.activation_checkpointing, setup.attention, is_cut)
        if key not in self._profiles:
            profile = self._extrapolated(shape, setup) or self._trace(shape, setup)
            if is_cut:  # the division of the model is computed once, because it takes as long as a trace
                division = self._divisions.setdefault((setup.precision, setup.attention), profile.division)
                profile = replace(profile, division=division)
            self._profiles[key] = profile
        return self._profiles[key]

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
        job = self._job
        try:
            return profile(
                job.hf_config,
                job.config.task,
                shape,
                setup.precision,
                on_cuda=self._is_cuda,
                entry=job.entry,
                activation_checkpointing=setup.activation_checkpointing,
                train=job.config.train,
                model_options=job.config.model,
                attention=setup.attention,
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

    def values(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(value, a, b))

    def phase(a: Phase, b: Phase) -> Phase:
        kinds, others = ([(operation.name, operation.dtype) for operation in x.kernels] for x in (a, b))
        if kinds != others:
            raise NotAffineError("other operations")
        pairs = zip(a.kernels, b.kernels, strict=True)
        return Phase(
            [Operation(value(x.flops, y.flops), value(x.num_bytes, y.num_bytes), x.dtype, x.name) for x, y in pairs]
        )

    if (first.timeline.changes, first.timeline.marks) != (second.timeline.changes, second.timeline.marks):
        raise NotAffineError("other allocations")
    return replace(
        first,
        saved_bytes=value(first.saved_bytes, second.saved_bytes),
        saved_by_block=values(first.saved_by_block, second.saved_by_block),
        batch_bytes=value(first.batch_bytes, second.batch_bytes),
        forward=phase(first.forward, second.forward),
        backward=phase(first.backward, second.backward),
        saved_before=value(first.saved_before, second.saved_before),
        hidden_bytes=value(first.hidden_bytes, second.hidden_bytes),
        timeline=replace(first.timeline, sizes=values(first.timeline.sizes, second.timeline.sizes)),
    )
