"""Steps of all sides of `loop_cost.py` in one process, in turn (`--paired`): for a machine that is not idle.

Each side trains in its own thread, for one block of steps per turn, while the other threads wait. So other load of the
machine affects all sides equally, and start-up does not count. CPU time is that of the whole process
(`time.process_time`), with paratune's sampling and watchdog threads. paratune's side is `paratune train` itself.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NUM_WARMUP_BLOCKS = 2


class Turns:
    """Lets one thread run at a time, each for a block of steps."""

    def __init__(self, names: Sequence[str], block: int) -> None:
        self._names, self._block = list(names), block
        self._condition = threading.Condition()
        self._turn = 0
        self._num_steps = dict.fromkeys(names, 0)
        self._begin = 0.0, 0.0
        self.cpu_ms: dict[str, list[float]] = {name: [] for name in names}
        self.wall_ms: dict[str, list[float]] = {name: [] for name in names}

    def start(self, name: str) -> None:
        """Wait for the first turn of a side."""
        with self._condition:
            self._wait(name)

    def step(self, name: str) -> None:
        """Count a step that a side has taken; at the end of its block, wait for its next turn."""
        self._num_steps[name] += 1
        if self._num_steps[name] % self._block:
            return
        cpu, wall = time.process_time() - self._begin[0], time.perf_counter() - self._begin[1]
        self.cpu_ms[name].append(1000 * cpu / self._block)
        self.wall_ms[name].append(1000 * wall / self._block)
        with self._condition:
            self._pass()
            self._wait(name)

    def leave(self, name: str) -> None:
        """Remove a side that has finished."""
        with self._condition:
            if self._names[self._turn] == name:
                self._pass()
            following = self._names[self._turn]
            self._names.remove(name)
            self._turn = self._names.index(following) if following in self._names else 0
            self._condition.notify_all()

    def _pass(self) -> None:
        self._turn = (self._turn + 1) % len(self._names)
        self._condition.notify_all()

    def _wait(self, name: str) -> None:
        self._condition.wait_for(lambda: self._names[self._turn] == name)
        self._begin = time.process_time(), time.perf_counter()


def paired_table(folder: Path, layout: str, num_blocks: int, block: int) -> list[str]:
    """Train all sides and return the Markdown table.

    Args:
        folder: Inputs of `loop_cost.write_inputs`.
        layout: Layout of paratune's batches: packed or padded.
        num_blocks: Blocks of each side, including warm-up.
        block: Steps of a block.
    """
    ours = f"paratune, {layout}"
    runs: dict[str, Callable[[Turns, str, int], None]] = {
        "hand-written, padded": lambda *a: _plain(folder, "padded", *a),
        "hand-written, packed": lambda *a: _plain(folder, "packed", *a),
        "Trainer": lambda *a: _trainer(folder, *a),
        ours: lambda *a: _paratune(folder, layout, *a),
    }
    turns = Turns(list(runs), block)

    def run(name: str) -> None:
        try:
            runs[name](turns, name, num_blocks * block)
        finally:
            turns.leave(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in runs if name != ours]
    for thread in threads:
        thread.start()
    run(ours)
    for thread in threads:
        thread.join()
    return _lines(turns, list(runs), num_blocks, block)


def _plain(folder: Path, layout: str, turns: Turns, name: str, num_steps: int) -> None:
    import plain_tiny
    from plain_loop import PlainLoop

    def watched(batches: Iterable[Any]) -> Iterator[Any]:
        turns.start(name)
        for number, batch in enumerate(batches):
            if number:
                turns.step(name)
            yield batch

    class Watched(PlainLoop):
        def run(self, batches: Iterable[Any]) -> None:
            super().run(watched(batches))

    plain_tiny.main(folder, num_steps, layout, make=Watched)


def _trainer(folder: Path, turns: Turns, name: str, num_steps: int) -> None:
    import hf_trainer_tiny
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            turns.start(name)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            turns.step(name)

    hf_trainer_tiny.main(folder, num_steps, callbacks=[Watch()])


def _paratune(folder: Path, layout: str, turns: Turns, name: str, num_steps: int) -> None:
    from paratune.config.load import load_config
    from paratune.engine.recorder import Recorder
    from paratune.training.run import train

    recorded, resumed = Recorder.step, Recorder.resume

    def step(self: Recorder, **values: Any) -> None:
        recorded(self, **values)
        turns.step(name)

    def resume(self: Recorder, **values: Any) -> None:
        turns.start(name)
        resumed(self, **values)

    Recorder.step, Recorder.resume = step, resume  # type: ignore[method-assign]
    settings = [f"train.max_steps={num_steps}", f"batch.layout={layout}", "run.name=paired"]
    train(load_config(folder / "train.yaml", settings), mode="overwrite")


def _lines(turns: Turns, names: Sequence[str], num_blocks: int, block: int) -> list[str]:
    counted = slice(NUM_WARMUP_BLOCKS, num_blocks - 1)
    cpu = {name: np.array(turns.cpu_ms[name][counted]) for name in names}
    wall = {name: np.array(turns.wall_ms[name][counted]) for name in names}
    base = names[0]
    lines = [
        f"{len(cpu[base])} blocks of {block} steps of each side, in turn; milliseconds a step: median (p10 to p90).",
        "",
        f"| side | CPU time | wall time | CPU time more than {base}, paired | wall time more, paired |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        more = ["", ""] if name == base else [_range(cpu[name] - cpu[base]), _range(wall[name] - wall[base])]
        lines.append("| " + " | ".join([name, _range(cpu[name]), _range(wall[name]), *more]) + " |")
    return lines


def _range(values: Any) -> str:
    low, middle, high = np.percentile(values, [10, 50, 90])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


sys.path.insert(0, str(Path(__file__).parent / "peers"))
