"""The frozen values of a run in this process: `Session`, and `PlacedRun`, which has all of it and the placed model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import Config, run_path
from paratune.console import Display
from paratune.engine.optim import OptimizerFactory
from paratune.engine.stop import StopRequest
from paratune.models.packed import BatchLayout
from paratune.models.task_model import TaskModel
from paratune.processes.progress import RankProgress
from paratune.records.run_folder import Mode
from paratune.strategies.protocol import Strategy
from paratune.training.evaluations import SplitEvaluations
from paratune.training.flops import WorkCount
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
class PlacedRun(Session):
    """A session whose strategy has placed the model on the devices."""

    strategy: Strategy
    batch: ResolvedBatch
    """Sizes at the first step of this session."""
    batch_reason: str | None
    """Why the micro-batch is not the configured one, or how `auto` chose it."""
    num_steps: int
    steps_per_epoch: int
    first_step: int
    """Steps that were taken before this run, by the Trainer."""
    model: TaskModel
    model_facts: dict[str, Any]
    """`record.model_facts` of the initial weights."""
    batch_layout: BatchLayout
    evaluations: SplitEvaluations
    optimizer: OptimizerFactory
    work: WorkCount | None
    """Only on rank 0, otherwise None."""
