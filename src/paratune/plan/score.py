"""How right the plan was: predicted against measured, over runs that wrote both down. No torch."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_bytes, format_percent, format_share

NOT_ALLOCATED = ("context", "fragmentation")
"""Terms of memory that PyTorch's count of allocated bytes has no part in."""


@dataclass(frozen=True)
class ScoredRun:
    """One run."""

    run: str
    kind: str
    """Its strategy."""
    num_ranks: int
    is_calibrated: bool | None
    """Whether the machine had been measured."""
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    measured_s: float | None
    """Mean of the measured steps."""
    predicted_bytes: int | None
    """Of the fullest rank, without what PyTorch does not allocate; None where nothing comparable was measured."""
    measured_bytes: int | None
    reason: str | None = None
    """Why nothing was predicted."""

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, less 1."""
        return _error(self.predicted_s, self.measured_s)

    @property
    def memory_error(self) -> float | None:
        return _error(self.predicted_bytes, self.measured_bytes)

    @property
    def is_covered(self) -> bool | None:
        """Whether the measured time lies in the interval."""
        if self.low_s is None or self.high_s is None or self.measured_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Score:
    """All runs together."""

    runs: tuple[ScoredRun, ...]

    @property
    def time_error(self) -> float | None:
        """Median of the absolute errors."""
        return _median_error([each.time_error for each in self.runs])

    @property
    def memory_error(self) -> float | None:
        return _median_error([each.memory_error for each in self.runs])

    @property
    def coverage(self) -> float | None:
        """Share of the runs whose measured time lies in the interval."""
        known = [each.is_covered for each in self.runs if each.is_covered is not None]
        return sum(known) / len(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                asdict(each)
                | {"time_error": each.time_error, "memory_error": each.memory_error, "is_covered": each.is_covered}
                for each in self.runs
            ],
            "median_absolute_time_error": self.time_error,
            "median_absolute_memory_error": self.memory_error,
            "coverage": self.coverage,
        }

    def lines(self) -> list[str]:
        """Return what all runs come to, in words."""
        known = sum(each.time_error is not None for each in self.runs)
        inside = sum(bool(each.is_covered) for each in self.runs)
        found = []
        if known:
            found.append(
                f"Step time: off by {format_share(self.time_error)} (median of {known}), {inside} of {known} within "
                "the interval."
            )
        if self.memory_error is not None:
            count = sum(each.memory_error is not None for each in self.runs)
            found.append(f"Memory: off by {format_share(self.memory_error)} (median of {count}).")
        found += [f"{each.run}: not predicted: {each.reason}" for each in self.runs if each.predicted_s is None]
        return found


def scored(name: str, run: dict[str, Any], summary: dict[str, Any], measured_s: float | None) -> ScoredRun:
    """Return one run as its record tells it.

    Args:
        name: Of the run.
        run: Content of run.json.
        summary: Content of summary.json.
        measured_s: Mean seconds of its measured steps.
    """
    found = summary.get("prediction")
    found = found if isinstance(found, dict) else {"reason": "it was trained before runs had predictions"}
    span = found.get("step_s")
    value, low, high = span if isinstance(span, list) and len(span) == 3 else (None, None, None)
    terms = found.get("memory_terms")
    is_allocated = summary.get("memory", {}).get("kind") == "cuda_allocated"
    predicted = None
    if is_allocated and isinstance(terms, dict):
        predicted = sum(size for term, size in terms.items() if term not in NOT_ALLOCATED)
    return ScoredRun(
        run=name,
        kind=run["strategy"]["kind"],
        num_ranks=run["world_size"],
        is_calibrated=found.get("is_calibrated"),
        predicted_s=value,
        low_s=low,
        high_s=high,
        measured_s=measured_s,
        predicted_bytes=predicted,
        measured_bytes=summary["memory"]["largest_bytes"] if is_allocated else None,
        reason=found.get("reason"),
    )


def row_texts(each: ScoredRun) -> list[str]:
    """Return a run's line in the table: predicted and measured times, the error, memory and its error."""
    covered = {None: NOT_AVAILABLE, True: "yes", False: "no"}[each.is_covered]
    return [
        each.run,
        each.kind,
        str(each.num_ranks),
        _ms(each.predicted_s),
        NOT_AVAILABLE if each.low_s is None else f"{_ms(each.low_s)} to {_ms(each.high_s)}",
        _ms(each.measured_s),
        _percent(each.time_error),
        covered,
        format_bytes(each.predicted_bytes),
        format_bytes(each.measured_bytes),
        _percent(each.memory_error),
    ]


COLUMNS = (
    *("run", "strategy", "ranks", "predicted (ms)", "interval", "measured (ms)", "error", "within"),
    *("memory predicted", "measured", "error"),
)


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else predicted / measured - 1


def _median_error(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None and math.isfinite(error)]
    return statistics.median(known) if known else None


def _ms(seconds: float | None) -> str:
    return NOT_AVAILABLE if seconds is None else f"{1000 * seconds:.4g}"


def _percent(error: float | None) -> str:
    return format_percent(None if error is None else 100 * error)
