"""Extrapolates the profile of a micro-batch with any number of rows from two traced profiles.

If all rows have the same length, a model runs the same operations in the same order for any number of rows, and their
bytes and FLOP are linear in this number. Two traces therefore determine all others. This is exact, except for the
number of labelled tokens of a masked LM, which is rounded. Traces that differ in more than sizes (a single row needs no
mask) are not extrapolated.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.planning.profile import Profile
from paratune.planning.trace import Operation, Phase


class NotAffineError(ValueError):
    """Two traces differ in more than sizes."""


def extrapolate_profile(first: Profile, second: Profile, *, at: tuple[int, int], rows: int) -> Profile:
    """Return the profile for another number of rows.

    Args:
        first: Of `at[0]` rows.
        second: Of `at[1]` rows, of the same model and lengths.
        at: The numbers of rows of both profiles, ascending.
        rows: Number of rows of the result, at least `at[0]`: the model may run other operations for fewer rows.

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
        if [(operation.name, operation.dtype) for operation in a.kernels] != [
            (operation.name, operation.dtype) for operation in b.kernels
        ]:
            raise NotAffineError("other operations")
        pairs = zip(a.kernels, b.kernels, strict=True)
        return Phase(
            [Operation(value(x.flops, y.flops), value(x.num_bytes, y.num_bytes), x.dtype, x.name) for x, y in pairs]
        )

    if not first.timeline.has_same_changes(second.timeline):
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
