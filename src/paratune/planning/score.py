"""The accuracy of predictions: predicted against measured time and memory of runs that recorded both. No torch."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_bytes, format_percent, format_share
from paratune.records.published import NOT_ALLOCATED


@dataclass(frozen=True)
class ScoredRun:
    """One run."""

    run: str
    kind: str
    """Its strategy."""
    num_ranks: int
    is_calibrated: bool | None
    """Whether the constants of the machine were measured."""
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    measured_s: float | None
    """Mean of the measured steps."""
    predicted_bytes: int | None
    """Of the rank that needs most, without memory that PyTorch does not allocate; None if the measurement is not
    comparable."""
    measured_bytes: int | None
    reason: str | None = None
    """Why nothing was predicted."""

    @property
    def time_error(self) -> float | None:
        """Predicted over measured time, minus 1."""
        return _error(self.predicted_s, self.measured_s)

    @property
    def memory_error(self) -> float | None:
        return _error(self.predicted_bytes, self.measured_bytes)

    @property
    def is_covered(self) -> bool | None:
        """Whether the measured time is in the interval."""
        if self.low_s is None or self.high_s is None or self.measured_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Score:
    """The accuracy over all runs."""

    runs: tuple[ScoredRun, ...]

    @property
    def time_error(self) -> float | None:
        """Median of the absolute errors."""
        return _median_error([run.time_error for run in self.runs])

    @property
    def memory_error(self) -> float | None:
        return _median_error([run.memory_error for run in self.runs])

    @property
    def coverage(self) -> float | None:
        """Share of the runs whose measured time is in the interval."""
        known = [run.is_covered for run in self.runs if run.is_covered is not None]
        return sum(known) / len(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                asdict(run)
                | {"time_error": run.time_error, "memory_error": run.memory_error, "is_covered": run.is_covered}
                for run in self.runs
            ],
            "median_absolute_time_error": self.time_error,
            "median_absolute_memory_error": self.memory_error,
            "coverage": self.coverage,
        }

    def lines(self) -> list[str]:
        """Return the accuracy over all runs as sentences."""
        known = sum(run.time_error is not None for run in self.runs)
        inside = sum(bool(run.is_covered) for run in self.runs)
        lines = []
        if known:
            lines.append(
                f"Step time: off by {format_share(self.time_error)} (median of {known}), {inside} of {known} within "
                "the interval."
            )
        if self.memory_error is not None:
            count = sum(run.memory_error is not None for run in self.runs)
            lines.append(f"Memory: off by {format_share(self.memory_error)} (median of {count}).")
        lines += [f"{run.run}: not predicted: {run.reason}" for run in self.runs if run.predicted_s is None]
        return lines


def score_run(name: str, run: dict[str, Any], summary: dict[str, Any], measured_s: float | None) -> ScoredRun:
    """Return prediction and measurement from run.json and summary.json of a run, and the mean seconds of its steps."""
    prediction = summary.get("prediction")
    if not isinstance(prediction, dict):
        prediction = {"reason": "it was trained before runs had predictions"}
    span = prediction.get("step_s")
    value, low, high = span if isinstance(span, list) and len(span) == 3 else (None, None, None)
    terms = prediction.get("memory_terms")
    memory = summary.get("memory", {})
    predicted = _predicted_bytes(terms, memory.get("kind")) if isinstance(terms, dict) else None
    return ScoredRun(
        run=name,
        kind=run["strategy"]["kind"],
        num_ranks=run["world_size"],
        is_calibrated=prediction.get("is_calibrated"),
        predicted_s=value,
        low_s=low,
        high_s=high,
        measured_s=measured_s,
        predicted_bytes=predicted,
        measured_bytes=None if predicted is None else memory["largest_bytes"],
        reason=prediction.get("reason"),
    )


def _predicted_bytes(terms: dict[str, int], kind: str | None) -> int | None:
    """Return the predicted peak of what a run measured; None for a resident peak without the term of the process."""
    if kind == "cuda_allocated":
        return sum(size for term, size in terms.items() if term not in NOT_ALLOCATED)
    return sum(terms.values()) if kind == "rss" and "process" in terms else None


def row_texts(run: ScoredRun) -> list[str]:
    """Return the cells of a run in the table; see `COLUMNS`."""
    covered = {None: NOT_AVAILABLE, True: "yes", False: "no"}[run.is_covered]
    return [
        run.run,
        run.kind,
        str(run.num_ranks),
        _ms(run.predicted_s),
        NOT_AVAILABLE if run.low_s is None else f"{_ms(run.low_s)} to {_ms(run.high_s)}",
        _ms(run.measured_s),
        _percent(run.time_error),
        covered,
        format_bytes(run.predicted_bytes),
        format_bytes(run.measured_bytes),
        _percent(run.memory_error),
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
