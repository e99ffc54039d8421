"""Warm-up runs: probes before the first run, whose results are discarded.

Warm-up steps are left out of the figures of each run, but the first run also reads files from the disk for the first
time, tokenizes texts, and runs before fans and clocks are steady. So a probe of each model and data set runs first, on
the largest number of devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paratune.config.load import show_text
from paratune.config.plain import one_line
from paratune.sweeps.cell import Cell
from paratune.sweeps.environment import for_a_run
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.order import renamed
from paratune.sweeps.plan import Step
from paratune.sweeps.probe import ProbeLength, as_probe
from paratune.sweeps.run import Start, write_text

WARMUP_FOLDER = "warmup"
_LOG = "log.txt"
_MAKES_NO_TOKENS = {"num_workers", "prefetch_factor", "cache_dir", "figures"}
"""Options of `data` that change neither the files that are read nor their tokens."""


@dataclass(frozen=True)
class WarmUp:
    """A warm-up run."""

    of: str
    """Name of the cell whose first steps it takes."""
    cell: Cell
    folder: Path
    """Folder of its configuration, its log and its run."""

    @property
    def log(self) -> Path:
        return self.folder / _LOG

    def run(self, start: Start) -> int:
        """Run it, replacing an earlier one; return the exit code.

        Raises:
            CheckpointError: Its configuration cannot be written.
        """
        config = self.folder / f"{self.cell.name}.yaml"
        assert self.cell.loaded is not None
        write_text(config, show_text(self.cell.loaded))
        words = ["train", str(config), "--nproc", str(self.cell.num_processes), "--overwrite"]
        return start(words, self.log, for_a_run(self.cell.environment))


def warm_ups(matrix: Matrix, todo: Sequence[Step]) -> list[WarmUp]:
    """Return the warm-up runs: `warmup_runs` for each model and data set.

    The default is one when speed is measured (probes, repeats), else none.
    """
    number = matrix.warmup_runs
    if number is None:
        number = int(matrix.repeats > 1 or any(step.cell.kind == "probe" for step in todo))
    cell_by_data: dict[str, Cell] = {}
    for step in todo:
        key = _what_is_read(step.cell)
        if key not in cell_by_data or step.cell.num_processes > cell_by_data[key].num_processes:
            cell_by_data[key] = step.cell
    folder = matrix.folder / WARMUP_FOLDER
    return [
        WarmUp(cell.name, _probe(matrix, cell, folder, f"{WARMUP_FOLDER}-{at}-{again}"), folder)
        for at, cell in enumerate(cell_by_data.values(), start=1)
        for again in range(1, number + 1)
    ]


def _what_is_read(cell: Cell) -> str:
    """Return the settings that decide which files a run reads and which tokens it needs, in one line."""
    assert cell.loaded is not None
    values = cell.loaded.values
    data = {key: value for key, value in values["data"].items() if key not in _MAKES_NO_TOKENS}
    return one_line([values["task"], data, values["model"]])


def _probe(matrix: Matrix, cell: Cell, folder: Path, name: str) -> Cell:
    assert cell.loaded is not None
    # Trackers receive nothing of a discarded run.
    quiet = replace(cell.loaded, values={**cell.loaded.values, "trackers": {}})
    loaded = as_probe(quiet, matrix.probe or ProbeLength(), reads_all=cell.kind == "full")
    return replace(cell, name=name, loaded=renamed(loaded, name, str(folder)))
