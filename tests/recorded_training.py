"""The work of each rank in the tests of collectives: two steps, an evaluation, the states; without files."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from thread_ranks import Recorded, World
from tiny import tiny_masked_lm, tiny_model
from tiny_data import tiny_collator, tiny_masking

from paratune.config.sections import Train
from paratune.config.traits import strategy_traits
from paratune.data.loader import Collate, TrainBatches, eval_batches
from paratune.engine.evaluate import evaluate
from paratune.engine.optim import OptimizerFactory
from paratune.engine.phases import HostPhaseClock
from paratune.engine.stop import StopRequest
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder
from paratune.precision import POLICIES
from paratune.strategies import strategy_class

CPU = torch.device("cpu")
NUM_STEPS = 2


@dataclass(frozen=True)
class Training:
    """A run of two steps: in the first each rank has samples, in the second only one rank has."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 2
    precision: str = "fp32"
    task: Literal["mlm", "classification"] = "classification"
    freeze: bool = False
    has_unused: bool = False
    """Whether some weights of the model get no gradient."""
    num_layers: int = 2
    num_micro_steps: int = 2
    change: Callable[[Any, int], None] | None = None
    """Called first, with the strategy and the rank; it introduces an error."""

    @property
    def name(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        marks = ["head" * self.freeze, "unused" * self.has_unused]
        parts = [self.kind, *options, self.precision, self.task, *marks, f"x{self.size}"]
        return "-".join(filter(None, parts))


@dataclass(frozen=True)
class Record:
    """The operations of the ranks of a training."""

    operations: list[list[Recorded]]
    """Operations of each rank, in the order of its program."""
    losses: list[list[float]]
    """Losses of each rank and step."""

    def of_part(self, part: str, rank: int = 0) -> list[Recorded]:
        """Return the operations of a rank in a part of its run."""
        return [recorded for recorded in self.operations[rank] if recorded.part == part]


def record(training: Training) -> Record:
    """Run a training with all its ranks in this process.

    Raises:
        Deadlock: No rank could continue.
        Mismatch: Ranks called different collectives.
    """
    world = World(training.size)
    model = _model(training)  # built once: all ranks of a run have the same model
    losses = world.run(lambda world, rank: _train(training, copy.deepcopy(model), world, rank))
    return Record(world.recorded, losses)


def _model(training: Training) -> TaskModel:
    if training.task == "mlm":
        model = TaskModel(tiny_masked_lm(num_layers=training.num_layers), "mlm")
    else:
        model = TaskModel(tiny_model(num_labels=3, dropout=0.0, num_layers=training.num_layers), "classification")
    if training.freeze:
        freeze_encoder(model)
    if training.has_unused:
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(3, 5)))
    return model.to(POLICIES[training.precision].param_dtype)


def _train(training: Training, model: TaskModel, world: World, rank: int) -> list[float]:
    strategy = strategy_class(training.kind)(
        device=CPU,
        precision=POLICIES[training.precision],
        rank=rank,
        world_size=training.size,
        **training.options,
    )
    if training.change:
        training.change(strategy, rank)
    world.part(rank, "prepare")
    factory = OptimizerFactory(Train(learning_rate=2e-3), NUM_STEPS)
    strategy.prepare(model, find_blocks(model), factory)
    batches = _batches(training, strategy)
    losses = []
    for step in range(NUM_STEPS):
        world.part(rank, f"step {step}")
        loss = strategy.forward_backward(batches.step(step), HostPhaseClock())
        factory.set_learning_rate(step)
        world.part(rank, f"update {step}")
        strategy.optimizer_step(0.5)
        world.part(rank, "log")
        losses.append(float(strategy.reduce(loss.double(), "sum")))
        StopRequest().agreed(strategy)
    world.part(rank, "evaluate")
    _evaluate(training, strategy, model)
    world.part(rank, "state")
    for _ in strategy.state().tensors():
        pass
    strategy.close()
    return losses


def _batches(training: Training, strategy: Any) -> TrainBatches:
    layout = strategy.layout
    traits = strategy_traits(training.kind, training.options) or strategy.traits
    size = layout.data_world_size * training.num_micro_steps
    # A full step, and a step with a single sample: only one rank has it, the others have filler.
    return TrainBatches(
        _collator(training, size + 1),
        seed=7,
        global_batch_size=size,
        micro_batch_size=1,
        num_micro_steps=training.num_micro_steps,
        data_rank=layout.data_rank,
        data_world_size=layout.data_world_size,
        equal_shapes=traits.equal_shapes,
    )


def _collator(training: Training, num_samples: int) -> Collate:
    return tiny_masking(num_samples) if training.task == "mlm" else tiny_collator(num_samples, num_classes=3)


def _evaluate(training: Training, strategy: Any, model: TaskModel) -> None:
    layout = strategy.layout
    batches = eval_batches(
        _collator(training, 3), batch_size=2, data_rank=layout.data_rank, data_world_size=layout.data_world_size
    )
    evaluate(strategy, model, batches, device=CPU, should_stop=lambda: StopRequest().agreed(strategy))
