"""How the samples of a micro-batch lie side by side: packed where the model can, else padded, by length or not."""

from dataclasses import dataclass
from typing import Literal

from paratune.config.traits import Traits
from paratune.errors import ConfigError
from paratune.models.task_model import PackedEntry

_BUCKETS = 4
"""Parts of a micro-batch of padded rows on the CPU, where a pass costs what its tokens cost and no more."""


@dataclass(frozen=True)
class BatchLayout:
    """What was chosen, and why."""

    kind: Literal["packed", "bucketed", "padded"]
    reason: str | None = None
    """Why it is not packed, where that was not asked for."""
    num_buckets: int | None = None
    """See `TrainBatches.num_buckets`."""
    rounds: bool = False
    """See `PackedCollator.rounds`."""


def choose_batch_layout(
    asked: Literal["auto", "packed", "bucketed", "padded"],
    traits: Traits,
    *,
    entry: PackedEntry | None,
    why_padded: str | None,
    on_cpu: bool,
    compiles: bool = False,
) -> BatchLayout:
    """Return the layout of a run's batches.

    Args:
        asked: `batch.layout`.
        traits: Of the strategy.
        entry: Of the model, as `packed.find_entry` found it.
        why_padded: Of the model, where there is no entry.
        on_cpu: Where it computes. An eager CPU has no use for shapes that come again.
        compiles: `train.compile`.

    Raises:
        ConfigError: `batch.layout` asks for one that the model or the strategy has no use for.
    """
    if traits.equal_shapes:
        reason = f"strategy.kind: {traits.kind} needs micro-batches of equal shapes"
        if asked in ("packed", "bucketed"):
            raise ConfigError(
                f"batch.layout: {asked}, but {reason}; set batch.layout: padded or auto",
                code="model.layout",
                key="batch.layout",
                value=asked,
            )
        return BatchLayout("padded", reason if asked == "auto" else None)
    if asked == "padded":
        return BatchLayout("padded")
    if asked in ("auto", "packed") and entry is not None:
        return BatchLayout("packed", rounds=compiles or not on_cpu)
    if asked == "packed":
        raise ConfigError(
            f"batch.layout: packed, but {why_padded}; set batch.layout: auto", code="model.layout", key="batch.layout"
        )
    splits = on_cpu and not traits.gathers_per_micro_step and not traits.reduces_each_micro_step
    return BatchLayout("bucketed", why_padded if asked == "auto" else None, _BUCKETS if splits else 1)
