"""Sizes of DeepSpeed's buckets and gathered weights, in elements, for the strategy and the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paratune.base.units import MIB

BUCKET_CAP_MB = 100.0
"""Default for weights in fp32: DeepSpeed's 5e8 elements are 2 GB, more than the gradients of BERT-base."""
STAGES = {
    "bucket_cap_mb": (1, 2, 3),
    "reduce_bucket_size": (1, 2, 3),
    "allgather_bucket_size": (1, 2),
    "prefetch_bucket_size": (3,),
    "max_live_parameters": (3,),
    "max_reuse_distance": (3,),
    "param_persistence_threshold": (3,),
}
"""Stages in which each option has an effect."""


@dataclass(frozen=True)
class Limits:
    """Limits in elements, with the names and the defaults of DeepSpeed.

    Source: DeepSpeed 0.19.8, runtime/zero/config.py, `DeepSpeedZeroConfig`.
    """

    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    param_persistence_threshold: int = 100_000


def deepspeed_limits(options: Mapping[str, Any], *, element_size: int, largest_block: int) -> Limits:
    """Return the limits for the options of a strategy.

    With 16-bit weights the defaults are those of DeepSpeed, as in other programs that use it. In fp32 stage 3 gathers
    two blocks at a time: with DeepSpeed's larger defaults every weight of a small model stays gathered after its first
    use.

    Args:
        element_size: Bytes of an element that is sent.
        largest_block: Elements of the largest of the model's repeated layers.
    """
    limits, cap_mb = Limits(), options.get("bucket_cap_mb")
    if options.get("param_dtype", "fp32") == "fp32":
        live = 2 * largest_block
        limits = _with_buckets(limits, cap_mb or BUCKET_CAP_MB, element_size)
        limits = replace(
            limits,
            prefetch_bucket_size=min(largest_block, limits.reduce_bucket_size),
            max_live_parameters=live,
            max_reuse_distance=live,
        )
    elif cap_mb is not None:
        limits = _with_buckets(limits, cap_mb, element_size)
    given = {name: options[name] for name in vars(limits) if options.get(name) is not None}
    return replace(limits, **given)


def _with_buckets(limits: Limits, cap_mb: float, element_size: int) -> Limits:
    # An even number: DeepSpeed aligns gathered weights to 4 bytes.
    numel = max(2, int(cap_mb * MIB / element_size) // 2 * 2)
    return replace(limits, reduce_bucket_size=numel, allgather_bucket_size=numel)
