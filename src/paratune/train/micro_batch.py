"""Which micro-batch a run takes: what it came to before, what the launcher allows, was asked for, or auto finds."""

import gc
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from paratune import hardware
from paratune.config.batch_size import ResolvedBatch
from paratune.console import Display
from paratune.data.loader import longest_batches
from paratune.engine.fitting import Prober, RanOutInCollective, find_micro_batch_size, make_meter
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import find_blocks
from paratune.processes.place import local_world_size
from paratune.strategies.protocol import Strategy
from paratune.train.memory import MemoryGuard, limit_from_environment, recorded_size
from paratune.train.prepare import Prepared, batch_layout_of, collator_of, initial_model, make_strategy
from paratune.train.record import memory_setup

log = logging.getLogger(__name__)
NO_LIMIT = 2**31


@dataclass(frozen=True)
class Choice:
    """The sizes that a run takes."""

    sizes: ResolvedBatch
    reason: str | None
    """Why they are not what was asked for, or how auto found them; None where they are just what was asked for."""
    strategy: Strategy
    """Not prepared; another one than was given when that was tried on."""


def choose_micro_batch(
    prepared: Prepared,
    strategy: Strategy,
    sizes: ResolvedBatch,
    *,
    resumed: Path | None,
    guard: MemoryGuard,
    display: Display,
) -> Choice:
    """Return the sizes with which training begins, the same on every rank. Collective.

    Args:
        prepared: What was loaded.
        strategy: Not prepared yet.
        sizes: What was asked for; the most that is tried, with auto.
        resumed: Folder of the run that is gone on with.
        guard: Says who owned the memory when even the smallest size does not fit.
        display: Shows that something goes on.

    Raises:
        OutOfMemory: Not even one sample fits; or this rank ran out where the others wait for it.
    """
    known = recorded_size(resumed, memory_setup(prepared)) if resumed is not None else None
    # Rank 0 says it: of a folder on another machine the ranks may see different states.
    size = int(strategy.reduce(torch.tensor([known[0] if known and strategy.layout.rank == 0 else 0]), "max"))
    limit = _agreed(limit_from_environment(), strategy)
    if size:
        chosen = sizes.at_most(min(size, limit or size))
        reason = known[1] if known is not None and chosen != sizes else None
        return Choice(chosen, reason, strategy)
    if prepared.config.batch.micro_batch_size == "auto":
        return _search(prepared, strategy, sizes, limit, guard, display)
    if limit is not None and limit < sizes.micro_batch_size:
        return Choice(sizes.at_most(limit), f"memory ran out with {sizes.micro_batch_size}", strategy)
    return Choice(sizes, None, strategy)


def _agreed(limit: int | None, strategy: Strategy) -> int | None:
    """Return the smallest limit that any rank knows; None where none does. Collective."""
    smallest = int(strategy.reduce(torch.tensor([NO_LIMIT if limit is None else limit]), "min"))
    return None if smallest == NO_LIMIT else smallest


def _search(
    prepared: Prepared,
    strategy: Strategy,
    sizes: ResolvedBatch,
    limit: int | None,
    guard: MemoryGuard,
    display: Display,
) -> Choice:
    """Try sizes on a model and a strategy that are thrown away afterwards."""
    share = sizes.share
    # What is taken without auto: all of the share, or less in a pipeline, which larger ones only make idle.
    most = min(limit or share, sizes.micro_batch_size)
    guard.doing, guard.sizes = "one step of one sample", sizes.at_most(1)
    with display.bar("find the micro-batch", 1):
        model = initial_model(prepared)
        guard.model = model
        collator = collator_of(prepared, "train", batch_layout_of(prepared, model))
        strategy.prepare(model, find_blocks(model), OptimizerFactory(prepared.config.train, 1))
        prober = Prober(
            strategy=strategy,
            traits=prepared.traits,
            model=model,
            precision=prepared.precision,
            device=prepared.device,
            worst=longest_batches(collator, num_samples=sizes.global_batch_size),
            share=share,
            meter=make_meter(prepared.device, local_world_size(prepared.place)),
        )
        try:
            found = find_micro_batch_size(prober, [size for size in sizes.possible() if size <= most])
        except RanOutInCollective as error:
            raise guard.probe_failed(error.__cause__ or error, error.size, error.smaller) from error
    if found is None:
        raise guard.post_mortem(MemoryError("one sample"))
    strategy.close()
    del prober, model
    guard.model, guard.doing = None, "placing the model"
    _forget(prepared.device)
    why = f" (memory ran out with more than {limit})" if limit is not None and found.size == limit else ""
    return Choice(sizes.at_most(found.size), f"auto: {found.reason}{why}", make_strategy(prepared))


def _forget(device: torch.device) -> None:
    """Free what was tried, and let peaks begin anew: those of the search are not those of the training."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    hardware.reset_peak_memory()
