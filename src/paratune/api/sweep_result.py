"""The folder of a matrix of runs as a Python value."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paratune.api.run import Run
from paratune.console.notebook import html_table
from paratune.records import RUN_FILE, is_finished
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder, read_sweep

if TYPE_CHECKING:
    import pandas


class Sweep:
    """A matrix of runs in its folder. It reads the files when they are asked for, and changes nothing."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        record: SweepRecord | None = None,
        changed: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Open the folder of a matrix.

        Args:
            folder: Folder of the matrix.
            record: Its record, if it is not written yet; default: sweep.json.
            changed: Settings by the name of the run with which a run in the folder differs from the matrix.

        Raises:
            CheckpointError: The folder is not that of a matrix.
        """
        self.folder = Path(folder)
        """The folder of the matrix."""
        self.changed = dict(changed or {})
        """Of a dry run: settings that differ between the matrix and a run in its folder, by the name of the run."""
        self._record = record
        if record is None:
            read_sweep(self.folder)

    @property
    def name(self) -> str:
        """Name of the matrix."""
        return self.record.name

    @property
    def record(self) -> SweepRecord:
        """The content of sweep.json: axes, cells, search, rounds."""
        return read_sweep(self.folder) if self._record is None else self._record

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        """The runs of the matrix with their values and states, also those that are not started."""
        return self.record.cells

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the failed runs; their output is in `logs/`."""
        return tuple(cell.name for cell in self.cells if cell.state == "failed")

    @property
    def is_finished(self) -> bool:
        """Whether every run is finished or skipped."""
        return all(cell.state in ("finished", "skipped") for cell in self.cells)

    @property
    def runs(self) -> dict[str, Run]:
        """The started runs, finished or not, by name."""
        folders = {cell.name: cell_run_folder(self.folder, cell.name) for cell in self.cells}
        return {name: Run(folder) for name, folder in folders.items() if (folder / RUN_FILE).is_file()}

    def table(self) -> "pandas.DataFrame":
        """Return a DataFrame with a line for each run: the name of its value on each axis, `state`, `reason`, `kind`,
        `repeat`, `num_processes`, and of finished runs all measures, such as `train_s` (seconds), `samples_per_s` and
        `validation_accuracy`; unknown values are missing.

        The column of an axis replaces the measure of its name; an axis with the name of a column such as `state` is
        the column `axis_NAME`.

        Raises:
            CheckpointError: A record is damaged.
        """
        from paratune.records.finished import read_record
        from paratune.reports.rows import results_frame

        own = ("state", "reason", "kind", "repeat", "num_processes")
        columns, runs = [], {}
        for cell in self.cells:
            axes = {f"axis_{axis}" if axis in own else axis: name for axis, name in cell.values.items()}
            columns.append({**axes, **{name: getattr(cell, name) for name in own}})
            folder = cell_run_folder(self.folder, cell.name)
            is_known = cell.state == "finished" and is_finished(folder)
            runs[cell.name] = read_record(folder, cell.name) if is_known else None
        return results_frame(runs, columns)

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Return a table with the state of each run, for notebooks."""
        rows = [(cell.name, f"{cell.state}: {cell.reason}" if cell.reason else cell.state) for cell in self.cells]
        return html_table(str(self.folder), rows)
