"""Records of active runs, written as a run writes them, for tests of `paratune watch`."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.records import RUN_FILE, SUMMARY_FILE, events_file
from paratune.records.run_folder import LOCK_FILE

NOW = 1_700_000_000.0


def begin(folder: Path, *, world_size: int = 1, traits: dict[str, Any] | None = None, host: str | None = None) -> Path:
    """Create a run of 100 steps that logs every step."""
    folder.mkdir(parents=True, exist_ok=True)
    session = {
        "world_size": world_size,
        "device": "cpu",
        "strategy": {"kind": "ddp", "traits": {"own_phases": ["get_batch", "forward"], **(traits or {})}},
        "hardware": [{"hostname": host}] if host else [],
        "config": {"measure": {"log_every": 1}},
    }
    plan = {"num_steps": 100, "steps_per_epoch": 50, "num_epochs": 2.0}
    record = {**WHOLE_RUN, **session, "plan": plan, "sessions": [session]}
    (folder / RUN_FILE).write_text(json.dumps(record))
    return folder


def step(number: int, *, time: float = NOW, rank: int = 0, **values: Any) -> dict[str, Any]:
    """Return a step of 200 ms: 8 samples, 100 tokens; a fifth of it forward, half of it backward."""
    phases = {"get_batch": 10.0, "forward": 40.0, "backward": 100.0, "optimizer": 30.0, "other": 20.0}
    return {
        "event": "step",
        "time": time,
        "step": number,
        "epoch": number / 50,
        "loss": 1.0 / number,
        "learning_rate": 1e-4,
        "data_rank": rank,
        "num_samples": 8,
        "num_tokens": 100,
        "phases_ms": phases,
        "wall_ms": 200.0,
        "memory_bytes": 2**30,
        "warmup": False,
        **values,
    }


def event(kind: str, *, time: float = NOW, **values: Any) -> dict[str, Any]:
    return {"event": kind, "time": time, **values}


def log(folder: Path, *events: dict[str, Any], rank: int = 0) -> None:
    """Append events to a rank's log."""
    with (folder / events_file(rank)).open("a") as file:
        file.writelines(json.dumps(item) + "\n" for item in events)


def training(folder: Path, num_steps: int = 10, *, world_size: int = 1) -> Path:
    """Create a run with some steps on each rank, all with the current time."""
    begin(folder, world_size=world_size)
    for rank in range(world_size):
        log(folder, event("begin", doing="training"), rank=rank)
        log(folder, *(step(number, rank=rank) for number in range(1, num_steps + 1)), rank=rank)
    return folder


def finish(folder: Path, **values: Any) -> Path:
    if not (folder / RUN_FILE).exists():
        begin(folder)
    summary = {"num_steps": 100, "scores": {"validation": {"accuracy": 0.9}}, "time": {"total_s": 61.0}, **values}
    (folder / SUMMARY_FILE).write_text(json.dumps({**WHOLE_SUMMARY, **summary}))
    return folder


@contextmanager
def held(folder: Path, *, since: float = NOW - 1000) -> Iterator[None]:
    """Lock a folder as a training process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(folder / LOCK_FILE, (since, since))
        yield
