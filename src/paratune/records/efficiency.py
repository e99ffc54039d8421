"""Statistical efficiency: how noisy gradients are, and what a sample of a larger batch is worth for that. No torch.

Floor 1. Letters: `G` the gradient over all data, `Sigma` the covariance of the gradient of one
sample, `phi` = tr(Sigma) / |G|^2 the noise scale in samples; `g` the gradient of a step of `B` samples, `g_i` the part
of it that micro-batch i of `b_i` samples has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GradientSums:
    """What is added up in one optimizer step, over parameters, micro-batches and ranks."""

    squared_norm: float
    """|g|^2, of the gradient of the whole step, before clipping."""
    parts_squared_norm: float
    """sum |g_i|^2; the g_i add up to g."""
    weights_squared: float
    """sum (b_i / B)^2, of what each micro-batch weighs in the loss of the step; 1 where there is only one."""
    num_samples: float
    """B."""


def noise_estimates(sums: GradientSums) -> tuple[float, float] | None:
    """Return estimates of tr(Sigma) and of |G|^2 from one step, either of which may be negative.

    The loss of micro-batch i is normalised by the whole step, so g_i = (b_i / B) G_i, where G_i is a mean over b_i
    samples: E|G_i|^2 = |G|^2 + tr(Sigma) / b_i. With s = sum (b_i / B)^2, two sums are known and two unknowns wanted:

        E |g|^2       =   |G|^2 + tr(Sigma) / B
        E sum |g_i|^2 = s |G|^2 + tr(Sigma) / B

    Returns:
        tr(Sigma), for one sample, and |G|^2; None where there are not two micro-batches with samples, or a sum is not
        finite.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1, which has these for a
        small and a big batch (B_small = B s for equal micro-batches); Qiao et al., Pollux, OSDI 2021, section 3.1.
    """
    spread = 1 - sums.weights_squared
    values = (sums.squared_norm, sums.parts_squared_norm, spread)
    if not all(map(math.isfinite, values)) or spread <= 1e-9:
        return None
    squared_norm = (sums.squared_norm - sums.parts_squared_norm) / spread
    trace = sums.num_samples * (sums.parts_squared_norm - sums.weights_squared * sums.squared_norm) / spread
    return trace, squared_norm


def statistical_efficiency(noise_scale: float, batch_size: float, reference_batch_size: float) -> float:
    """Return how much a sample brings in batches of `batch_size`, against one in batches of the reference size.

    (phi + m0) / (phi + m): 1 at the reference, below 1 for larger batches, above 1 for smaller ones.

    Args:
        noise_scale: phi in samples, at least 0.
        batch_size: m, samples of an optimizer step over all ranks.
        reference_batch_size: m0.

    Source: Qiao et al., Pollux, OSDI 2021, equation 7.
    """
    return (noise_scale + reference_batch_size) / (noise_scale + batch_size)


def noise_summary(events: Sequence[Mapping[str, Any]], *, global_batch_size: int, reason: str | None) -> dict[str, Any]:
    """Return `noise_scale` of a summary (see docs/reference/records.md): a ratio of means, never a mean of ratios.

    Args:
        events: Measured steps of one rank; those that were sampled have `noise_scale`.
        global_batch_size: Samples of an optimizer step.
        reason: Why no step was sampled, where that is known.
    """
    samples = [event["noise_scale"] for event in events if event.get("noise_scale") is not None]
    traces, norms = ([sample[name] for sample in samples] for name in ("trace", "squared_norm"))
    trace, squared_norm = (_mean(values) for values in (traces, norms))
    value = _ratio(trace, squared_norm)
    return {
        "value": value,
        "standard_error": None if value is None else _jackknife(traces, norms),
        "trace": trace,
        "squared_norm": squared_norm,
        "num_steps": len(samples),
        "global_batch_size": global_batch_size,
        "reason": None if value is not None else _why_unknown(samples, reason),
    }


def _why_unknown(samples: Sequence[Any], reason: str | None) -> str:
    if samples:
        return (
            f"over the {len(samples)} sampled steps the noise cannot be separated from the gradient: an estimate of "
            "tr(Sigma) or |G|^2 is not above 0; sample more steps (measure.noise_scale_every)"
        )
    return reason or "no step was sampled behind the warm-up; set a smaller measure.noise_scale_every"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _ratio(trace: float | None, squared_norm: float | None) -> float | None:
    """Return the noise scale; None where an estimate that cannot be negative is."""
    if trace is None or squared_norm is None or trace < 0 or squared_norm <= 0:
        return None
    return trace / squared_norm


def _jackknife(traces: Sequence[float], norms: Sequence[float]) -> float | None:
    """Return the standard error of the ratio of means, each step left out once; None where it is unknown.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, equation 11.5.
    """
    count = len(traces)
    sum_trace, sum_norm = math.fsum(traces), math.fsum(norms)
    left = [_ratio(sum_trace - trace, sum_norm - norm) for trace, norm in zip(traces, norms, strict=True)]
    known = [value for value in left if value is not None]
    if count < 2 or len(known) < count:
        return None
    mean = math.fsum(known) / count
    return math.sqrt((count - 1) / count * math.fsum((value - mean) ** 2 for value in known))
