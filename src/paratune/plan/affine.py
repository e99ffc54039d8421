"""Profiles of micro-batches of any number of rows, from two that were traced.

With all rows as long as each other, a model does the same with more of them: the same operations in the same order, of
which each has so many bytes and FLOP, and so many more for each row. So two traces tell those of all others, exactly
but for the labelled tokens of a masked LM, whose number is rounded in each. Where the two differ in more than that (a
row alone needs no mask), nothing is told.
"""

from collections.abc import Sequence
from dataclasses import replace

from paratune.plan.profile import Profile
from paratune.plan.trace import Operation, Phase


class NotAffineError(ValueError):
    """Two traces differ in more than sizes."""


def between(first: Profile, second: Profile, *, at: tuple[int, int], rows: int) -> Profile:
    """Return the profile for another number of rows.

    Args:
        first: Of `at[0]` rows.
        second: Of `at[1]` rows, of the same model and lengths.
        at: Their rows, ascending.
        rows: Those that are wanted, at least `at[0]`: fewer may take other ways through the model.

    Raises:
        NotAffineError: The two do not follow from each other.
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
        if [(each.name, each.dtype) for each in a.kernels] != [(each.name, each.dtype) for each in b.kernels]:
            raise NotAffineError("other operations")
        pairs = zip(a.kernels, b.kernels, strict=True)
        return Phase(
            [Operation(value(x.flops, y.flops), value(x.num_bytes, y.num_bytes), x.dtype, x.name) for x, y in pairs]
        )

    if not first.timeline.same_course(second.timeline):
        raise NotAffineError("another course")
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
