"""The gradient noise scale of a run: every so many steps, the squared norms of the micro-batches' gradients.

docs/explanation/measuring.md says what it means; `paratune.records.efficiency` has the formulas.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from paratune.batch import Batch
from paratune.records.efficiency import GradientSums, noise_estimates
from paratune.strategies.protocol import Strategy, WatchesGradients


@dataclass(frozen=True)
class NoiseSample:
    """This rank's part of the sums of one step."""

    parts_squared_norm: Tensor | None
    """sum |g_i|^2 over the weights of this rank, a float64 scalar on the device; None where none had a gradient."""
    weights_squared: float
    """sum (b_i / B)^2; ranks of one replica share it."""
    num_samples: float
    """Of this rank; ranks of one replica share them."""

    def parts(self) -> list[float]:
        """Return what is summed over ranks; waits for the device."""
        norm = 0.0 if self.parts_squared_norm is None else float(self.parts_squared_norm)
        return [norm, self.weights_squared, self.num_samples]


class NoiseMeter:
    """Samples every `every`-th step of a run."""

    def __init__(self, strategy: Strategy, every: int | None, reason: str | None = None) -> None:
        """Find out whether the strategy can be watched.

        Args:
            strategy: Prepared.
            every: Steps from one sample to the next; None for none.
            reason: Why there can be none, where that is known already.
        """
        self._strategy = strategy
        self._every = every
        self._taken: NoiseSample | None = None
        self.reason = "measure.noise_scale_every is null" if every is None else reason or self._why_not()
        """Why no step is sampled; None where some are."""

    @contextmanager
    def watching(self, step: int, micro_batches: Sequence[Batch]) -> Iterator[None]:
        """Sample a step, counted from 1, if it is one for it, while its gradients are computed."""
        self._taken = None
        if self._every is None or self.reason is not None or step % self._every:
            yield
            return
        assert isinstance(self._strategy, WatchesGradients), "there is a reason otherwise"
        with self._strategy.watch_gradients() as watch:
            yield
            squared_norm = watch.squared_norm()
        layout = self._strategy.layout
        ranks_per_replica = layout.world_size / layout.data_world_size
        self._taken = NoiseSample(
            squared_norm,
            sum((batch.loss_count / batch.loss_denominator) ** 2 for batch in micro_batches) / ranks_per_replica,
            sum(batch.num_samples for batch in micro_batches) / ranks_per_replica,
        )

    def take(self) -> NoiseSample | None:
        """Return what was sampled of the step that was watched last; None where it was none."""
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


def noise_event(parts: Sequence[float], grad_norm: float) -> dict[str, float] | None:
    """Return `noise_scale` of a step's event; None where the step tells nothing, such as one that was skipped.

    Args:
        parts: `NoiseSample.parts`, summed over ranks.
        grad_norm: Of the whole step, before clipping.
    """
    if not math.isfinite(grad_norm):
        return None
    found = noise_estimates(GradientSums(grad_norm**2, *parts))
    return None if found is None else {"trace": found[0], "squared_norm": found[1]}
