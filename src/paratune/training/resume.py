"""Resumes a run from its newest complete checkpoint."""

import logging
from pathlib import Path

import torch

from paratune import checkpoint, records
from paratune.engine.loop import Progress
from paratune.processes.elastic import read_torchrun
from paratune.processes.launcher import job_facts
from paratune.strategies.protocol import Strategy

log = logging.getLogger(__name__)


def resume(strategy: Strategy, folder: Path, *, is_writer: bool) -> Progress:
    """Load the newest complete checkpoint; rank 0 chooses it for all ranks. Collective.

    Returns:
        The progress of the checkpoint, or of a new run if there is none.
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
    # A barrier: no rank may append to its event log before rank 0 has repaired and marked it.
    strategy.reduce(torch.zeros(1), "max")
    return progress


def note_resume(folder: Path, progress: Progress, *, world_size: int) -> None:
    """Write the event `resume` into the logs of all earlier ranks, also of ranks that no longer exist.

    The time of writing the checkpoint, which the checkpoint itself cannot contain, is added to the times. `world_size`
    is that of the new session.
    """
    checkpoints = folder / records.CHECKPOINTS_FOLDER
    resumed = checkpoint.step_folder(checkpoints, progress.step)
    existing = checkpoint.list_checkpoints(checkpoints)
    start, job = read_torchrun(), job_facts()
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
            checkpoint=resumed.name,
            num_requeued=job["num_requeued"] if job else None,
            num_restarts=start.num_restarts if start else None,
            passed_over=[damaged.name for damaged in existing[existing.index(resumed) + 1 :]],
        )
        events.close()
