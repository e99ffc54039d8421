"""Runs that are thrown away before the first one that counts.

Warm-up steps are left out of the figures of each run. What they do not reach is what the first run pays for all
others: files that are read from the disk for the first time, texts that are tokenized, and a machine whose fans and
clocks have not settled. So a probe of each model and data goes first, on as many devices as will be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paratune.config.load import show_text
from paratune.config.plain import one_line
from paratune.sweep.cell import Cell
from paratune.sweep.environment import for_a_run
from paratune.sweep.matrix import Matrix
from paratune.sweep.order import renamed
from paratune.sweep.plan import Step
from paratune.sweep.probe import ProbeLength, as_probe
from paratune.sweep.run import Start, write_text

WARMUP_FOLDER = "warmup"
_LOG = "log.txt"
_MAKES_NO_TOKENS = {"num_workers", "prefetch_factor", "cache_dir", "figures"}
"""Options of `data` that change neither what is read nor what it becomes."""


@dataclass(frozen=True)
class WarmUp:
    """One of them."""

    of: str
    """The cell whose first steps it takes."""
    cell: Cell
    folder: Path
    """In which it has its configuration, its log and its run."""

    @property
    def log(self) -> Path:
        return self.folder / _LOG

    def run(self, start: Start) -> int:
        """Run it, in the place of an earlier one; return the exit code.

        Raises:
            CheckpointError: Its configuration cannot be written.
        """
        config = self.folder / f"{self.cell.name}.yaml"
        assert self.cell.loaded is not None
        write_text(config, show_text(self.cell.loaded))
        words = ["train", str(config), "--nproc", str(self.cell.num_processes), "--overwrite"]
        return start(words, self.log, for_a_run(self.cell.environment))


def warm_ups(matrix: Matrix, todo: Sequence[Step]) -> list[WarmUp]:
    """Return what is to be run before the steps: `warmup_runs` of each model and data among them.

    Where the file does not say how many: one where it is speed that is asked for (probes, repeats), else none.

    Args:
        matrix: The file.
        todo: What is to be trained.
    """
    number = matrix.warmup_runs
    if number is None:
        number = int(matrix.repeats > 1 or any(step.cell.kind == "probe" for step in todo))
    of: dict[str, Cell] = {}
    for step in todo:
        key = _what_is_read(step.cell)
        if key not in of or step.cell.num_processes > of[key].num_processes:
            of[key] = step.cell
    folder = matrix.folder / WARMUP_FOLDER
    return [
        WarmUp(cell.name, _probe(matrix, cell, folder, f"{WARMUP_FOLDER}-{at}-{again}"), folder)
        for at, cell in enumerate(of.values(), start=1)
        for again in range(1, number + 1)
    ]


def _what_is_read(cell: Cell) -> str:
    """Return what decides which files a run reads and which tokens it needs, in one line."""
    assert cell.loaded is not None
    values = cell.loaded.values
    data = {key: value for key, value in values["data"].items() if key not in _MAKES_NO_TOKENS}
    return one_line([values["task"], data, values["model"]])


def _probe(matrix: Matrix, cell: Cell, folder: Path, name: str) -> Cell:
    assert cell.loaded is not None
    # What is thrown away is told to no tracker.
    quiet = replace(cell.loaded, values={**cell.loaded.values, "trackers": {}})
    loaded = as_probe(quiet, matrix.probe or ProbeLength(), reads_all=cell.kind == "full")
    return replace(cell, name=name, loaded=renamed(loaded, name, str(folder)))
