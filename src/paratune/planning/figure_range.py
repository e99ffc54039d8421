"""A predicted figure with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FigureRange:
    """A predicted figure with the bounds of its interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "FigureRange":
        return FigureRange(self.value * factor, self.low * factor, self.high * factor)

    def overlaps(self, other: "FigureRange") -> bool:
        """Return whether the intervals overlap, so that either figure may be the smaller one."""
        return self.low <= other.high and other.low <= self.high

    def as_list(self) -> list[float]:
        """Return value, low and high."""
        return [self.value, self.low, self.high]
