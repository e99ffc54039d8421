"""Where a resumed run goes on: at its newest whole checkpoint."""

import logging
from pathlib import Path

import torch

from paratune import checkpoint, records
from paratune.engine.loop import Progress
from paratune.processes.elastic import torchrun_of
from paratune.processes.launcher import job_facts
from paratune.strategies.protocol import Strategy

log = logging.getLogger(__name__)


def resume(strategy: Strategy, folder: Path, *, is_writer: bool) -> Progress:
    """Load the newest whole checkpoint; rank 0 says which, so that all take the same. Collective.

    Returns:
        That of the checkpoint, or of a run that is at its beginning where there is none.
    """
    checkpoints = folder / records.CHECKPOINTS_FOLDER
    newest = checkpoint.find_newest(checkpoints) if is_writer else None
    step = int(strategy.reduce(torch.tensor([checkpoint.CheckpointReader(newest).step if newest else 0]), "max"))
    if step == 0:
        log.info("no checkpoint to resume from in %s: starting at the first step", folder)
        if is_writer:
            for rank in records.event_ranks(folder):
                (folder / records.events_file(rank)).unlink()
        strategy.reduce(torch.zeros(1), "max")
        return Progress()
    reader = checkpoint.CheckpointReader(checkpoint.step_folder(checkpoints, step))
    strategy.state().load(reader.read, reader.keys())
    progress = Progress(**reader.progress)
    progress.num_interruptions += 1
    log.info("resuming after step %d from %s", step, reader.folder)
    if is_writer:
        for rank in records.event_ranks(folder):
            progress.num_lost_events += records.repair_events(folder, rank)
        note_resume(folder, progress, world_size=strategy.layout.world_size)
    strategy.reduce(torch.zeros(1), "max")
    return progress


def note_resume(folder: Path, progress: Progress, *, world_size: int) -> None:
    """Write the event into the logs of all ranks there have been, also of those that are no more.

    What the checkpoint itself cost, which it cannot hold, is added to the times.

    Args:
        folder: The run.
        progress: Of the checkpoint.
        world_size: Ranks from now on.
    """
    checkpoints = folder / records.CHECKPOINTS_FOLDER
    taken = checkpoint.step_folder(checkpoints, progress.step)
    there = checkpoint.list_checkpoints(checkpoints)
    start, job = torchrun_of(), job_facts()
    for event in records.read_events(folder):
        if event["event"] == "checkpoint" and event["step"] == progress.step:
            progress.seconds["checkpoint"] += event["time_s"]
            progress.seconds["total"] += event["time_s"]
    for rank in records.event_ranks(folder):
        events = records.EventLog(folder, rank)
        events.add(
            "resume",
            step=progress.step,
            world_size=world_size,
            checkpoint=taken.name,
            num_requeued=job["num_requeued"] if job else None,
            num_restarts=start.num_restarts if start else None,
            passed_over=[damaged.name for damaged in there[there.index(taken) + 1 :]],
        )
        events.close()
