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
    plain = [event["noise_scale"] for event in events if event.get("noise_scale") is not None]
    divided = [sample["preconditioned"] for sample in plain if sample.get("preconditioned") is not None]
    every = len(events) // MIN_SAMPLES
    advice = f"set measure.noise_scale_every: {every}" if every else f"train at least {MIN_SAMPLES} measured steps"
    estimates: list[dict[str, Any]] = []
    for samples, unavailable in ((plain, reason), (divided, reason or why_not_preconditioned)):
        traces, norms = ([sample[name] for sample in samples] for name in ("trace", "squared_norm"))
        trace, squared_norm = (fmean(values) if values else None for values in (traces, norms))
        # An estimate of the trace below 0, or of the squared norm that is not above 0, has no ratio.
        value: float | None = None
        if len(samples) >= MIN_SAMPLES and trace is not None and squared_norm and trace >= 0 and squared_norm > 0:
            value = trace / squared_norm
        why: str | None = None
        if value is None and len(samples) >= MIN_SAMPLES:
            why = (
                f"the {len(samples)} sampled steps do not separate the noise from the gradient: an estimate of "
                "tr(Sigma) or |G|^2 is not above 0; sample more steps (measure.noise_scale_every)"
            )
        elif samples and value is None:
            why = f"only {len(samples)} steps were sampled and {MIN_SAMPLES} are needed; {advice}"
        elif not samples:
            why = unavailable or f"no step was sampled after the warm-up; {advice}"
        error: float | None = None
        if value is not None:
            # The jackknife: the ratio of means without each step. Source: Efron and Tibshirani, An Introduction to the
            # Bootstrap, 1993, equation 11.5.
            sums, pairs = (math.fsum(traces), math.fsum(norms)), zip(traces, norms, strict=True)
            left = [(sums[0] - trace, sums[1] - norm) for trace, norm in pairs]
            known = [trace / norm for trace, norm in left if trace >= 0 and norm > 0]
            if len(known) == len(left):
                mean = math.fsum(known) / len(known)
                share = (len(known) - 1) / len(known)
                error = math.sqrt(share * math.fsum((value - mean) ** 2 for value in known))
        estimates.append({
            "value": value, "standard_error": error, "trace": trace, "squared_norm": squared_norm,
            "num_steps": len(samples), "reason": why,
        })  # fmt: skip
    return {**estimates[0], "global_batch_size": global_batch_size, "preconditioned": estimates[1]}
