"""Chooses the layout of batches: packed where model and strategy allow it, otherwise bucketed or padded."""

from dataclasses import dataclass
from typing import Literal

from paratune.config.traits import Traits
from paratune.errors import ConfigError
from paratune.models.task_model import PackedEntry

_BUCKETS = 4
"""Parts of a micro-batch in the bucketed layout on the CPU, where small passes have no extra cost per pass."""


@dataclass(frozen=True)
class BatchLayout:
    """The chosen layout with its options."""

    kind: Literal["packed", "bucketed", "padded"]
    reason: str | None = None
    """Why it is not packed; None where it is packed, or another layout was configured."""
    num_buckets: int | None = None
    """See `TrainBatches.num_buckets`."""
    rounds: bool = False
    """See `PackedCollator.rounds`."""


def choose_batch_layout(
    configured: Literal["auto", "packed", "bucketed", "padded"],
    traits: Traits,
    *,
    entry: PackedEntry | None,
    why_padded: str | None,
    on_cpu: bool,
    compiles: bool = False,
) -> BatchLayout:
    """Return the layout of a run's batches, from `batch.layout` and the traits of the strategy.

    `entry` and `why_padded` are those of the `TaskModel`, which `packed.enable_packed_batches` sets; `compiles` is
    `train.compile`. On the CPU, without compilation, repeated shapes have no advantage.

    Raises:
        ConfigError: The model or the strategy does not support the layout of `batch.layout`.
    """
    if traits.equal_shapes:
        reason = f"strategy.kind: {traits.kind} needs micro-batches of equal shapes"
        if configured in ("packed", "bucketed"):
            raise ConfigError(
                f"batch.layout: {configured}, but {reason}; set batch.layout: padded or auto",
                code="model.layout",
                key="batch.layout",
                value=configured,
            )
        return BatchLayout("padded", reason if configured == "auto" else None)
    if configured == "padded":
        return BatchLayout("padded")
    if configured in ("auto", "packed") and entry is not None:
        return BatchLayout("packed", rounds=compiles or not on_cpu)
    if configured == "packed":
        raise ConfigError(
            f"batch.layout: packed, but {why_padded}; set batch.layout: auto", code="model.layout", key="batch.layout"
        )
    is_divided = on_cpu and not traits.gathers_per_micro_step and not traits.reduces_each_micro_step
    return BatchLayout("bucketed", why_padded if configured == "auto" else None, _BUCKETS if is_divided else 1)
