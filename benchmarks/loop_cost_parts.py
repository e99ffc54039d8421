"""Where the CPU time of a step of `paratune train` goes: `loop_cost.py --parts`.

The run is `paratune train` in this process. Functions are replaced by wrappers that add the CPU time of the training
thread (`time.thread_time`) to a part; when a part calls another part, the time counts only for the inner part. Each
wrapped call adds about 1 us. The table has the median and the mean of the last three quarters of the steps: the
recorder writes in every tenth step.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paratune.batch import Batch
from paratune.config.load import load_config
from paratune.data import loader
from paratune.engine import loop as engine_loop
from paratune.engine.optim import OptimizerFactory
from paratune.engine.recorder import Recorder
from paratune.engine.stop import StopRequest
from paratune.models import blocks
from paratune.models.attention import cpu
from paratune.models.dropout import CheapDropout
from paratune.models.task_model import TaskModel
from paratune.strategies.single import SingleStrategy
from paratune.training.run import train

PARTS: list[tuple[str, Any, str]] = [
    ("get batch: make", loader.TrainBatches, "step"),
    ("get batch: to the device", Batch, "to"),
    ("forward: model without the lines below", TaskModel, "forward"),
    ("forward: dropout", CheapDropout, "forward"),
    ("forward: attention of packed rows", cpu, "attend_tiles"),
    ("forward: attention of the last layer", blocks, "_attend"),
    ("loss", TaskModel, "loss_sum"),
    ("backward without the lines below", torch.Tensor, "backward"),
    ("backward: attention", cpu._TiledAttention, "backward"),
    ("clipping, gradients cleared", SingleStrategy, "optimizer_step"),
    ("fused AdamW", torch.optim.AdamW, "step"),
    ("recorder, sampler's step, display", Recorder, "step"),
    ("stop flag", StopRequest, "agreed"),
    ("seed of dropout", engine_loop, "seed_step"),
    ("learning rate", OptimizerFactory, "set_learning_rate"),
]
REST = "loop, clocks, rank_progress"


class Account:
    """CPU seconds of the training thread by part; they count for the innermost part."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.steps: list[dict[str, float]] = []
        self._open = [REST]
        self._since = time.thread_time()

    def switch(self) -> None:
        """Add the time since the last switch to the current part."""
        now = time.thread_time()
        self.spent[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted for a part."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._open.pop()

        return wrapper

    def end_step(self) -> None:
        """Start to count for the next step."""
        self.switch()
        self.steps.append(dict(self.spent))
        self.spent.clear()


def parts_table(configuration: Path, num_steps: int, layout: str) -> list[str]:
    """Train, and return the Markdown table of parts.

    Args:
        configuration: Configuration file of `paratune train`.
        num_steps: Steps to train.
        layout: packed or padded.
    """
    account = Account()
    for part, owner, name in PARTS:
        function = getattr(owner, name)
        timed = account.timed(part, function)
        is_static = isinstance(vars(owner).get(name), staticmethod)
        setattr(owner, name, staticmethod(timed) if is_static else timed)
    recorded = Recorder.step

    def step(self: Recorder, **values: Any) -> None:
        recorded(self, **values)
        account.end_step()

    Recorder.step = step  # type: ignore[method-assign]
    settings = [f"train.max_steps={num_steps}", f"batch.layout={layout}", "run.name=parts"]
    train(load_config(configuration, settings), mode="overwrite")
    steps = account.steps[num_steps // 4 :]
    lines = [
        f"Steps {num_steps // 4 + 1} to {num_steps}, {layout} batches; milliseconds of the training thread.",
        "",
        "| part | median | mean |",
        "| --- | --- | --- |",
    ]
    rows = {
        part: [spent.get(part, 0.0) for spent in steps] for part in [*dict.fromkeys(part for part, _, _ in PARTS), REST]
    }
    rows["whole step"] = [sum(spent.values()) for spent in steps]
    return [*lines, *(f"| {part} | {1000 * np.median(s):.3f} | {1000 * np.mean(s):.3f} |" for part, s in rows.items())]
