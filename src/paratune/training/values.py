"""The frozen values of a run, in the order in which they are made; each contains the one before it.

`Prepared` (before the processes connect), `Session`, `SizedRun`, `PlacedRun`, `TrainedRun`. `paratune.training.run`
makes them, so that a function that receives one finds everything in it complete.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import Config, run_path
from paratune.console import Display
from paratune.data.loader import TrainBatches
from paratune.engine.keeper import RunKeeper
from paratune.engine.loop import Loop
from paratune.engine.optim import OptimizerFactory
from paratune.engine.stop import StopRequest
from paratune.hangs.progress import RankProgress
from paratune.models.batch_layout import BatchLayout
from paratune.models.task_model import TaskModel
from paratune.records.run_folder import Mode
from paratune.strategies.protocol import Strategy
from paratune.training.evaluations import SplitEvaluations
from paratune.training.flops import WorkCount
from paratune.training.memory import Activity, MemoryGuard
from paratune.training.prepare import Prepared


@dataclass(frozen=True)
class Session:
    """One session of a run in this process: the prepared run and the arguments of `train`."""

    prepared: Prepared
    mode: Mode
    stop: StopRequest
    display: Display
    rank_progress: RankProgress
    began: float
    """`time.perf_counter()` at the start of the command."""

    @property
    def config(self) -> Config:
        return self.prepared.config

    @property
    def folder(self) -> Path:
        return run_path(self.config)

    @property
    def is_writer(self) -> bool:
        """Whether this is rank 0, which writes the record, the checkpoints and the model."""
        return self.prepared.place.rank == 0


@dataclass(frozen=True)
class SizedRun:
    """A run with its strategy and batch sizes; its model is not loaded yet."""

    session: Session
    strategy: Strategy
    batch: ResolvedBatch
    """Sizes at the first step of this session."""
    batch_reason: str | None
    """Why the micro-batch is not the configured one, or how `auto` chose it."""
    num_steps: int
    steps_per_epoch: int
    first_step: int
    """Steps that were taken before this run, by the Trainer."""


@dataclass(frozen=True)
class PlacedRun:
    """A run whose strategy has placed the model on the devices."""

    sized: SizedRun
    model: TaskModel
    model_facts: dict[str, Any]
    """`record.model_facts` of the initial weights."""
    batch_layout: BatchLayout
    evaluations: SplitEvaluations
    optimizer: OptimizerFactory
    work: WorkCount | None
    """Only on rank 0, otherwise None."""


@dataclass(frozen=True)
class TrainedRun:
    """A run after its last step."""

    placed: PlacedRun
    loop: Loop
    keeper: RunKeeper
    guard: MemoryGuard
    activity: Activity
    make_batches: Callable[[ResolvedBatch], TrainBatches]
