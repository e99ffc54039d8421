"""The folder of a run, and that of a matrix of runs, as Python values."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from paratune.api.apply import check_model
from paratune.api.process import process_as_before
from paratune.console.notebook import html_table
from paratune.errors import CheckpointError, ConfigError
from paratune.records import RUN_FILE, SUMMARY_FILE, is_finished, predictions_file, read_events, read_json
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder, read_sweep

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Run:
    """A run in its folder, finished or not. It reads the files when they are asked for, and changes nothing.

    >>> run = paratune.Run("runs/first")
    >>> run.is_finished, run.config["task"]["kind"]
    (True, 'classification')
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the folder of an existing run.

        Raises:
            CheckpointError: The folder is not that of a run.
        """
        self.folder = Path(folder)
        """The run folder."""
        if not (self.folder / RUN_FILE).is_file():
            message = f"{self.folder} is not a run folder: it has no {RUN_FILE}"
            raise CheckpointError(message, code="run.not_found", path=self.folder)

    @property
    def name(self) -> str:
        """Name of the run folder, `run.name`."""
        return self.folder.name

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished: it has a summary."""
        return is_finished(self.folder)

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The content of run.json: configuration, data, machine and software; docs/reference/records.md."""
        return cast(Mapping[str, Any], read_json(self.folder / RUN_FILE))

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, as sections."""
        return cast(Mapping[str, Any], self.record["config"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json: scores, medians, peaks; docs/reference/records.md.

        Raises:
            CheckpointError: The run is not finished.
        """
        if not self.is_finished:
            message = f"{self.folder} is not finished: it has no {SUMMARY_FILE}; resume it"
            raise CheckpointError(message, code="run.not_finished", path=self.folder)
        return cast(Mapping[str, Any], read_json(self.folder / SUMMARY_FILE))

    @property
    def scores(self) -> Mapping[str, Mapping[str, float | None]]:
        """The scores of the kept model, by split and metric: `run.scores["validation"]["accuracy"]`."""
        return cast(Mapping[str, Mapping[str, float | None]], self.summary["scores"])

    def events(self, kind: str = "step", *, rank: int = 0) -> "pyarrow.Table":
        """Return the events of one kind, one row each, in their order.

        Args:
            kind: `step` (loss, times of the phases, samples, memory), `evaluation`, `checkpoint`, ...;
                docs/reference/records.md lists them.
            rank: Rank whose event log is read.

        Raises:
            CheckpointError: The event log cannot be read.
            ConfigError: There is no event of this kind.

        >>> paratune.Run("runs/first").events()["step"].to_pylist()
        [1, 2]
        """
        import pyarrow as pa

        events = list(read_events(self.folder, rank))
        rows = [event for event in events if event["event"] == kind]
        if not rows:
            kinds = sorted({str(event["event"]) for event in events})
            message = f"{self.folder} has no event {kind!r} of rank {rank}; it has: {', '.join(kinds) or 'none'}"
            raise ConfigError(message, code="cli.invalid_value", value=kind)
        names = dict.fromkeys(name for row in rows for name in row if name != "event")
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def table(self) -> "pandas.DataFrame":
        """Return all measures of a finished run as a DataFrame with one line, as `Sweep.table()` has them.

        Raises:
            CheckpointError: The run is not finished, or its record is damaged.

        >>> int(paratune.Run("runs/first").table().loc["first", "num_steps"])
        2
        """
        from paratune.records.finished import read_record
        from paratune.reports.rows import results_frame

        return results_frame({self.name: read_record(self.folder, self.name)})

    def predictions(self, split: str = "test") -> "pyarrow.Table":
        """Return the predictions of the kept model for a split: index, label, prediction, and a score per class.

        Raises:
            CheckpointError: The run saved no predictions of this split.

        >>> paratune.Run("runs/first").predictions("validation").num_rows
        16
        """
        from pyarrow import parquet

        path = self.folder / predictions_file(split)
        if not path.is_file():
            names = sorted(file.name.split(".")[1] for file in self.folder.glob(predictions_file("*")))
            message = f"{path} does not exist; the run has predictions of: {', '.join(names) or 'no split'}"
            raise CheckpointError(message, code="run.damaged", path=path)
        return parquet.read_table(path)

    @process_as_before()
    def load_model(self, device: str = "auto", *, run_code: bool = False) -> Any:
        """Return the kept model, a PreTrainedModel of transformers in evaluation mode.

        It is the model that `from_pretrained` of transformers returns for the run's `model/`, with nothing of paratune.

        Args:
            device: auto, cpu or cuda.
            run_code: Run code that the folder names although you did not train it here.

        Raises:
            CheckpointError: The run has no model: it is not finished, or a fitted baseline.
            ConfigError: Somebody else's run names code, and `run_code` is False.

        >>> type(paratune.Run("runs/first").load_model()).__name__
        'BertForSequenceClassification'
        """
        check_model(str(self.folder), run_code=run_code)
        from paratune.infer.trained import NamedColumns, load_trained

        trained = load_trained(str(self.folder), NamedColumns(), device, is_plain=True)
        return trained.model.release().to(trained.device).eval()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Return a table with the main figures, for notebooks."""
        model = self.config["model"]["name"]
        rows: list[tuple[str, Any]] = [("model", model), ("strategy", self.config["strategy"]["kind"])]
        if not self.is_finished:
            return html_table(f"{self.folder}: not finished", rows)
        for split, scores in self.scores.items():
            rows += [(f"{split} {metric}", "n/a" if value is None else value) for metric, value in scores.items()]
        return html_table(str(self.folder), rows)


class Sweep:
    """A matrix of runs in its folder. It reads the files when they are asked for, and changes nothing.

    >>> sweep = paratune.sweep("matrix.yaml", dry_run=True)
    >>> sweep.is_finished, len(sweep.cells), sweep.runs
    (False, 2, {})
    """

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

        >>> paratune.sweep("matrix.yaml", dry_run=True).table()["state"].tolist()
        ['pending', 'pending']
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


def run_folder(run: Run | Sweep | str | os.PathLike[str]) -> str:
    """Return the folder of a run or of a matrix; of a model its folder or its name on the hub."""
    return os.fspath(run.folder if isinstance(run, Run | Sweep) else run)
