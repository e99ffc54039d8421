"""The training loop with small parts, for tests of the engine: `from looping import Bench`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from exact import RowModel, row_steps
from torch import nn

from paratune import records
from paratune.batch import Batch
from paratune.config.sections import Config, Train
from paratune.engine import loop
from paratune.engine.noise import NoiseMeter
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import HostPhaseClock, PhaseClock
from paratune.engine.profiling import StepProfiler
from paratune.engine.recorder import Recorder
from paratune.engine.stop import StopRequest
from paratune.precision import POLICIES
from paratune.records import EventLog
from paratune.strategies.single import SingleStrategy

CPU = torch.device("cpu")


def single(precision: str = "fp32") -> SingleStrategy:
    """Return the strategy for one process, not prepared yet."""
    return SingleStrategy(device=CPU, precision=POLICIES[precision], rank=0, world_size=1)


def tiny_run_config(best: str | None = "accuracy", *, keep: int = 2, **evaluate: Any) -> Config:
    """Return a configuration for tests of its sections evaluate and checkpoint."""
    return Config.model_validate(
        {
            "task": {"kind": "classification", "labels": ["a", "b", "c"]},
            "data": {"train": "train.csv", "columns": {"text": "text", "label": "label"}},
            "model": {"name": "model"},
            "train": {"epochs": 1},
            "batch": {"global": 4},
            "evaluate": {"best": best, **evaluate},
            "checkpoint": {"keep": keep},
        }
    )


@dataclass
class NotedKeeper:
    """A `loop.Keeper` that records its calls."""

    calls: list[Any]
    on_evaluate: Callable[[loop.Progress], None] = lambda progress: None

    def evaluate(self, progress: loop.Progress) -> None:
        self.calls.append(("evaluate", progress.step))
        self.on_evaluate(progress)
        progress.evaluated_step = progress.step

    def save(self, progress: loop.Progress, reason: loop.Reason) -> None:
        progress.saved_step = progress.step
        self.calls.append(("save", progress.step, reason))


@dataclass
class Bench:
    """A complete loop; `run()` runs it and returns its events."""

    folder: Path
    num_steps: int = 6
    model: nn.Module = field(default_factory=RowModel)
    strategy: Any = None
    batches: Iterable[Sequence[Batch]] | None = None
    keeper: Any = None
    clock: PhaseClock = field(default_factory=HostPhaseClock)
    stop: StopRequest = field(default_factory=StopRequest)
    steps_per_epoch: int = 3
    log_every: int = 1
    noise_scale_every: int | None = None
    profile_steps: int = 0
    exchanges: bool = True
    warmup_steps: int = 0
    train: Train = field(default_factory=lambda: Train(learning_rate=0.01))
    make_optimizer: Callable[[OptimizerFactory], Any] = lambda factory: factory
    evaluation_due: Callable[[int], bool] = lambda step: False
    checkpoint_due: Callable[[int], bool] = lambda step: False
    on_log: Callable[[dict[str, Any]], None] = lambda event: None
    calls: list[Any] = field(default_factory=list)
    seed: int = 42
    factory: OptimizerFactory | None = None
    recorder: Recorder = field(init=False)

    def run(self, progress: loop.Progress | None = None) -> list[dict[str, Any]]:
        progress = progress or loop.Progress()
        built = self.build(progress)
        try:
            loop.run(built, progress)
            self.recorder.flush()
        finally:
            self.events.close()
        return self.logged()

    def prepare(self) -> OptimizerFactory:
        """Prepare the strategy once."""
        if self.factory is None:
            self.factory = OptimizerFactory(self.train, self.num_steps)
            self.strategy = self.strategy or single()
            self.strategy.prepare(self.model, [], self.make_optimizer(self.factory))
        return self.factory

    def build(self, progress: loop.Progress) -> loop.Loop:
        factory = self.prepare()
        self.events = EventLog(self.folder, 0)
        self.recorder = Recorder(
            self.events,
            self.strategy,
            self.clock,
            warmup_steps=self.warmup_steps,
            log_every=self.log_every,
            peak_memory=lambda: 1000,
            on_log=self.on_log,
        )
        self.keeper = self.keeper or NotedKeeper(self.calls)
        return loop.Loop(
            strategy=self.strategy,
            optimizer=factory,
            batches=iter(self.batches or row_steps(self.num_steps)[progress.step :]),
            keeper=self.keeper,
            recorder=self.recorder,
            clock=self.clock,
            stop=self.stop,
            device=CPU,
            seed=self.seed,
            num_steps=self.num_steps,
            steps_per_epoch=self.steps_per_epoch,
            max_grad_norm=1.0,
            evaluation_due=self.evaluation_due,
            checkpoint_due=self.checkpoint_due,
            profiler=StepProfiler(
                CPU,
                self.profile_steps,
                warmup_steps=self.warmup_steps,
                folder=self.folder,
                exchanges=self.exchanges,
            ),
            noise=NoiseMeter(self.strategy, self.noise_scale_every),
        )

    def logged(self) -> list[dict[str, Any]]:
        return list(records.read_events(self.folder))

    def steps(self) -> list[dict[str, Any]]:
        return [event for event in self.logged() if event["event"] == "step"]
