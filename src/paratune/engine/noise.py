"""Measures the gradient noise scale of a run: squared norms of the gradients of micro-batches, in every N-th step.

docs/explanation/measuring.md explains it; `paratune.records.efficiency` has the formulas.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paratune.batch import Batch
from paratune.records.efficiency import noise_estimates
from paratune.strategies.protocol import Strategy, UnavailableEstimate, WatchesGradients

NUM_PARTS = 5
"""Values of a rank in a sampled step."""


@dataclass(frozen=True)
class NoiseSample:
    """This rank's part of the sums of one step."""

    parts_squared_norm: Tensor | None
    """sum |g_i|^2 over the weights of this rank, a float64 scalar on the device; None without a gradient."""
    weights_squared: float
    """sum (b_i / B)^2, divided by the number of ranks of a replica."""
    num_samples: float
    """Samples of this rank, divided by the number of ranks of a replica."""
    preconditioned: tuple[Tensor, Tensor] | None = None
    """sum |P g_i|^2 over the weights of this rank, and its part of |P g|^2, float64 scalars on the device; None where
    P is unknown."""

    def parts(self) -> list[Tensor | float]:
        """Return the `NUM_PARTS` values that are summed over ranks."""
        norm = 0.0 if self.parts_squared_norm is None else self.parts_squared_norm
        # NaN of one rank makes the sum unknown.
        preconditioned = (math.nan, math.nan) if self.preconditioned is None else self.preconditioned
        return [norm, self.weights_squared, self.num_samples, *preconditioned]


class NoiseMeter:
    """Measures every `every`-th step of a run."""

    def __init__(self, strategy: Strategy, every: int | None, reason: str | None = None) -> None:
        """Prepare to measure a prepared strategy.

        With None in place of `every`, or with a `reason`, nothing is measured.
        """
        self._strategy = strategy
        self._every = every
        self._taken: NoiseSample | None = None
        self.reason = "measure.noise_scale_every is null" if every is None else reason or self._why_not()
        """Why no step is measured; None if some are."""
        self.why_not_preconditioned = self._why_not_preconditioned()
        """Why no measured step has the preconditioned estimate; None if some have it."""

    @contextmanager
    def watching(self, step: int, micro_batches: Sequence[Batch]) -> Iterator[None]:
        """Measure a step, counted from 1, if it is due, while its gradients are computed in the block."""
        self._taken = None
        if self._every is None or self.reason is not None or step % self._every:
            yield
            return
        assert isinstance(self._strategy, WatchesGradients), "otherwise self.reason is not None"
        with self._strategy.watch_gradients() as watch:
            yield
            squared_norm = watch.squared_norm()
            preconditioned = watch.preconditioned_squared_norms()
        layout = self._strategy.layout
        ranks_per_replica = layout.world_size / layout.data_world_size
        self._taken = NoiseSample(
            squared_norm,
            sum((batch.loss_count / batch.loss_denominator) ** 2 for batch in micro_batches) / ranks_per_replica,
            sum(batch.num_samples for batch in micro_batches) / ranks_per_replica,
            preconditioned,
        )

    def take(self) -> NoiseSample | None:
        """Return the sample of the last step; None if it was not measured."""
        taken, self._taken = self._taken, None
        return taken

    def _why_not(self) -> str | None:
        if not isinstance(self._strategy, WatchesGradients):
            kind = self._strategy.traits.kind
            return f"strategy.kind: {kind} has no watch_gradients (see docs/explanation/strategies.md)"
        try:
            self._strategy.watch_gradients()
        except NotImplementedError as error:
            return str(error)
        return None

    def _why_not_preconditioned(self) -> UnavailableEstimate | None:
        if self.reason is not None or not isinstance(self._strategy, WatchesGradients):
            return None
        return self._strategy.watch_gradients().why_not_preconditioned


def noise_event(parts: Sequence[float], grad_norm: float) -> dict[str, Any] | None:
    """Return `noise_scale` of a step's event; None if the step gives no estimate, such as a skipped step.

    `parts` are those of `NoiseSample.parts`, summed over ranks.
    """
    if not math.isfinite(grad_norm):
        return None
    parts_squared_norm, weights_squared, num_samples, *preconditioned = parts
    estimates = _estimates(grad_norm**2, parts_squared_norm, weights_squared, num_samples)
    if estimates is None:
        return None
    parts_squared_norm, squared_norm = preconditioned
    own = _estimates(squared_norm, parts_squared_norm, weights_squared, num_samples)
    return {**estimates, "preconditioned": own}


def _estimates(*sums: float) -> dict[str, float] | None:
    estimates = noise_estimates(*sums)
    return None if estimates is None else {"trace": estimates[0], "squared_norm": estimates[1]}
