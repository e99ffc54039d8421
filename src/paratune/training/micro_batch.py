"""Chooses the micro-batch of a run: that of an earlier session, the launcher's limit, the configured one, or auto's."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from paratune.config.batch_size import ResolvedBatch
from paratune.console import Display
from paratune.data.loader import longest_batches
from paratune.engine.fitting import DeviceMeter, Prober, RanOutInCollective, find_micro_batch_size
from paratune.engine.memory import free_memory
from paratune.models.task_model import find_blocks
from paratune.processes.place import local_world_size
from paratune.processes.progress import RankProgress
from paratune.strategies.protocol import Strategy
from paratune.training.memory import Activity, MemoryGuard, limit_from_environment, recorded_size, reports_out_of_memory
from paratune.training.prepare import (
    Prepared,
    initial_model,
    make_collator,
    make_strategy,
    optimizer_factory,
    run_batch_layout,
)
from paratune.training.record import memory_setup

log = logging.getLogger(__name__)
NO_LIMIT = 2**31


@dataclass(frozen=True)
class Choice:
    """The batch sizes of a run and its strategy."""

    sizes: ResolvedBatch
    reason: str | None
    """Why the sizes are not the configured ones, or how auto chose them; None if they are the configured ones."""
    strategy: Strategy
    """Not prepared; a new one if the search has used the given one."""


def choose_micro_batch(
    prepared: Prepared,
    strategy: Strategy,
    sizes: ResolvedBatch,
    *,
    resumed: Path | None,
    rank_progress: RankProgress,
    display: Display,
) -> Choice:
    """Return the sizes of the first step, the same on every rank. Collective.

    `sizes` are the configured ones; with auto, the largest ones to try.

    Raises:
        OutOfMemory: One sample does not fit; or this rank ran out of memory in a collective.
    """
    recorded = recorded_size(resumed, memory_setup(prepared)) if resumed is not None else None
    # Rank 0 decides: through a network file system the ranks may see different states of the folder.
    size = int(strategy.reduce(torch.tensor([recorded[0] if recorded and strategy.layout.rank == 0 else 0]), "max"))
    limit = _smallest_limit(limit_from_environment(), strategy)
    if size:
        chosen = sizes.at_most(min(size, limit or size))
        reason = recorded[1] if recorded is not None and chosen != sizes else None
        return Choice(chosen, reason, strategy)
    if prepared.config.batch.micro_batch_size == "auto":
        return _search(prepared, strategy, sizes, limit, rank_progress, display)
    if limit is not None and limit < sizes.micro_batch_size:
        return Choice(sizes.at_most(limit), f"memory ran out with {sizes.micro_batch_size}", strategy)
    return Choice(sizes, None, strategy)


def _smallest_limit(limit: int | None, strategy: Strategy) -> int | None:
    """Return the smallest limit over all ranks; None if no rank has one. Collective."""
    smallest = int(strategy.reduce(torch.tensor([NO_LIMIT if limit is None else limit]), "min"))
    return None if smallest == NO_LIMIT else smallest


def _search(
    prepared: Prepared,
    strategy: Strategy,
    sizes: ResolvedBatch,
    limit: int | None,
    rank_progress: RankProgress,
    display: Display,
) -> Choice:
    """Try sizes on a model and a strategy that are discarded afterwards."""
    share = sizes.share
    # The size without auto: the whole share, or less in a pipeline, where larger micro-batches leave stages idle.
    largest = min(limit or share, sizes.micro_batch_size)
    activity = Activity(rank_progress, doing="one step of one sample")
    smallest = sizes.at_most(1)
    with reports_out_of_memory(MemoryGuard(prepared, smallest, activity)):
        model = initial_model(prepared)
    guard = MemoryGuard(prepared, smallest, activity, model=model)
    with reports_out_of_memory(guard), display.bar("find the micro-batch", 1):
        collator = make_collator(prepared, "train", run_batch_layout(prepared, model))
        strategy.prepare(model, find_blocks(model), optimizer_factory(prepared, model, 1))
        prober = Prober(
            strategy=strategy,
            traits=prepared.traits,
            model=model,
            precision=prepared.precision,
            device=prepared.device,
            longest=longest_batches(collator, num_samples=sizes.global_batch_size),
            share=share,
            meter=DeviceMeter(prepared.device, local_world_size(prepared.place)),
        )
        try:
            result = find_micro_batch_size(prober, [size for size in sizes.possible() if size <= largest])
        except RanOutInCollective as error:
            raise guard.probe_failed(error.__cause__ or error, error.size, error.smaller) from error
    if result is None:
        raise guard.post_mortem(MemoryError("one sample"))
    strategy.close()
    del prober, guard, model  # all references to the model, so that its memory can be freed
    free_memory(prepared.device)
    why = f" (memory ran out with more than {limit})" if limit is not None and result.size == limit else ""
    return Choice(sizes.at_most(result.size), f"auto: {result.reason}{why}", make_strategy(prepared))
