"""The work of one process of `paratune publish` and `verify`: it trains the first steps of a recorded run again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.config.load import LoadedConfig, allow_code
from paratune.config.sections import Config
from paratune.engine.stop import StopRequest
from paratune.errors import Stopped
from paratune.records.run_folder import Mode
from paratune.strategies.protocol import Strategy
from paratune.training.gradients import tensor_hashes
from paratune.training.run import train


@dataclass(frozen=True)
class FirstStepsJob:
    """The settings of a job, read from a file."""

    name: str  # of the run, for messages
    values: dict[str, Any]  # the configuration of a probe, which neither evaluates nor saves
    source: str
    num_steps: int | None  # None: all, as an ordinary run
    mode: Mode  # `resume`, where the run folder has a checkpoint to start from
    folder: str
    code: str = ""  # what may run: "config" is that of the configuration, "models" also that of the model's folder


class _StopAfter(StopRequest):
    """Stops a run after some steps, as a signal would, and keeps the hashes of the weights after each of them."""

    def __init__(self, num_steps: int, earlier: StopRequest) -> None:
        super().__init__()
        self.signal, self._num_steps = earlier.signal, num_steps
        self.weights: list[dict[str, str]] = []

    def was_agreed(self, strategy: Strategy) -> bool:
        # The loop of a probe calls it once after each step, on all ranks; the hashes are collective.
        self.weights.append(tensor_hashes(strategy.state().tensors("model/")))
        if len(self.weights) < self._num_steps:
            return super().was_agreed(strategy)
        self.settle()  # the reduction that the step before started
        return True


def train_first_steps(job: FirstStepsJob, stop: StopRequest) -> dict[str, Any]:
    """Train the steps by the loop of `paratune train`, and return the hashes of the weights after each of them.

    Losses, gradient norms and facts are in the record of the run, below the folder of the job.

    Raises:
        ParatuneError: The run cannot be trained here, or a signal came.
    """
    loaded = LoadedConfig(Config.model_validate(job.values), {}, job.values, Path(job.source))
    if job.code:
        allow_code(loaded, with_models=job.code == "models")
    if job.num_steps is None:
        train(loaded, mode=job.mode, stop=stop)
        return {"weights": []}
    after = _StopAfter(job.num_steps, stop)
    after.install()
    try:
        train(loaded, mode=job.mode, stop=after)
    except Stopped:
        if len(after.weights) < job.num_steps:
            raise
    return {"weights": after.weights}
