"""Computes the gradient noise scale and the statistical efficiency of a batch size.

Letters: `G` the gradient over all data, `Sigma` the covariance of the gradient of one sample, `phi` = tr(Sigma) / |G|^2
the noise scale in samples; `g` the gradient of a step of `B` samples, `g_i` the part of it from micro-batch i of `b_i`
samples.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

MIN_SAMPLES = 20  # sampled steps, below which it is unknown: with 5 to 10 it was 14 to 345 in runs of one experiment

NoiseKind = Literal["plain", "preconditioned"]  # of gradients, or of those divided as AdamW divides them
NOISE_KINDS: tuple[NoiseKind, ...] = ("plain", "preconditioned")


def noise_estimates(
    squared_norm: float, parts_squared_norm: float, weights_squared: float, num_samples: float
) -> tuple[float, float] | None:
    """Return estimates of tr(Sigma) and of |G|^2 from one step; both may be negative.

    The loss of micro-batch i is normalised by the whole step, so g_i = (b_i / B) G_i, where G_i is a mean over b_i
    samples: E|G_i|^2 = |G|^2 + tr(Sigma) / b_i. With s = sum (b_i / B)^2, two known sums give the two unknowns:

        E |g|^2       =   |G|^2 + tr(Sigma) / B
        E sum |g_i|^2 = s |G|^2 + tr(Sigma) / B

    Args:
        squared_norm: |g|^2, of the gradient of the whole step, before clipping.
        parts_squared_norm: sum |g_i|^2; the sum of the g_i is g.
        weights_squared: s, with the weight of each micro-batch in the loss of the step; 1 for a single micro-batch.
        num_samples: B.

    Returns:
        tr(Sigma), for one sample, and |G|^2; None with fewer than two micro-batches with samples, or where a sum is not
        finite.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1, which has these for a
        small and a big batch (B_small = B s for equal micro-batches); Qiao et al., Pollux, OSDI 2021, section 3.1.
    """
    spread = 1 - weights_squared
    if not all(map(math.isfinite, (squared_norm, parts_squared_norm, spread))) or spread <= 1e-9:
        return None
    trace = num_samples * (parts_squared_norm - weights_squared * squared_norm) / spread
    return trace, (squared_norm - parts_squared_norm) / spread


def statistical_efficiency(noise_scale: float, batch_size: float, reference_batch_size: float) -> float:
    """Return the value of a sample in batches of `batch_size`, relative to batches of the reference size.

    (phi + m0) / (phi + m): 1 at the reference, below 1 for larger batches, above 1 for smaller ones.

    Args:
        noise_scale: phi in samples, at least 0.
        batch_size: m, samples of an optimizer step over all ranks.
        reference_batch_size: m0.

    Source: Qiao et al., Pollux, OSDI 2021, equation 7.
    """
    return (noise_scale + reference_batch_size) / (noise_scale + batch_size)


def noise_summary(
    events: Sequence[Mapping[str, Any]],
    *,
    global_batch_size: int,
    reason: str | None,
    why_not_preconditioned: str | None = None,
) -> dict[str, Any]:
    """Return `noise_scale` of a summary (see docs/reference/records.md): ratios of means, never means of ratios.

    `events` are the measured steps of one rank.
    """
    samples = [event["noise_scale"] for event in events if event.get("noise_scale") is not None]
    known = [sample["preconditioned"] for sample in samples if sample.get("preconditioned") is not None]
    return {
        **_estimate(samples, len(events), reason),
        "global_batch_size": global_batch_size,
        "preconditioned": _estimate(known, len(events), reason or why_not_preconditioned),
    }


def _estimate(samples: Sequence[Mapping[str, float]], num_measured: int, why: str | None) -> dict[str, Any]:
    """Return the estimate of the sampled steps; `why` is the reason where there are none."""
    traces, norms = ([sample[name] for sample in samples] for name in ("trace", "squared_norm"))
    trace, squared_norm = (fmean(values) if values else None for values in (traces, norms))
    value = _ratio(trace, squared_norm) if len(samples) >= MIN_SAMPLES else None
    every = num_measured // MIN_SAMPLES
    advice = f"set measure.noise_scale_every: {every}" if every else f"train at least {MIN_SAMPLES} measured steps"
    reason: str | None = None
    if value is None and len(samples) >= MIN_SAMPLES:
        reason = (
            f"the {len(samples)} sampled steps do not separate the noise from the gradient: an estimate of tr(Sigma) "
            "or |G|^2 is not above 0; sample more steps (measure.noise_scale_every)"
        )
    elif samples and value is None:
        reason = f"only {len(samples)} steps were sampled and {MIN_SAMPLES} are needed; {advice}"
    elif not samples:
        reason = why or f"no step was sampled after the warm-up; {advice}"
    error: float | None = None
    if value is not None:
        # The jackknife: the ratio of means without each step. Source: Efron and Tibshirani, An Introduction to the
        # Bootstrap, 1993, equation 11.5.
        sums, pairs = (math.fsum(traces), math.fsum(norms)), zip(traces, norms, strict=True)
        left = [_ratio(sums[0] - trace, sums[1] - norm) for trace, norm in pairs]
        known = [value for value in left if value is not None]
        if len(known) == len(left):
            mean = math.fsum(known) / len(known)
            share = (len(known) - 1) / len(known)
            error = math.sqrt(share * math.fsum((value - mean) ** 2 for value in known))
    return {
        "value": value,
        "standard_error": error,
        "trace": trace,
        "squared_norm": squared_norm,
        "num_steps": len(samples),
        "reason": reason,
    }


def _ratio(trace: float | None, squared_norm: float | None) -> float | None:
    """Return the noise scale; None where an estimate is negative, or |G|^2 is 0."""
    if trace is None or squared_norm is None or trace < 0 or squared_norm <= 0:
        return None
    return trace / squared_norm
