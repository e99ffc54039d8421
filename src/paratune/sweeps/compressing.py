"""The section `compress` of a matrix file: smaller forms of each finished run, and their measurement."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from paratune.config.section import Positive, Section
from paratune.errors import CheckpointError, require_installed
from paratune.records import MODEL_FOLDER
from paratune.records.compressed import FP32, Form, ScoredSplit, measured_folder, read_measured
from paratune.records.sweep import CellRecord


class Compress(Section):
    """Smaller forms of each finished run, measured beside it: options of `paratune compress`."""

    forms: Annotated[list[Form], Field(min_length=1)] = Field(default=["bf16", "int8"])
    """Smaller forms."""
    split: ScoredSplit | None = None
    """Set whose rows are scored; default: test if the run has scored it."""
    rows: Annotated[int, Field(ge=2)] = 1000
    """Most rows that are scored, evenly spaced."""
    timed_rows: Positive = 200
    """Rows of latency and throughput."""
    batch_sizes: Annotated[list[Positive], Field(min_length=1)] = Field(default=[1, 8, 32])
    """Sizes of the batches of throughput."""

    def words(self, run: Path) -> list[str]:
        """Return the arguments of paratune for a run."""
        words = ["compress", str(run), "--to", ",".join(self.forms), "--rows", str(self.rows)]
        words += ["--timed-rows", str(self.timed_rows)]
        words += [word for size in self.batch_sizes for word in ("--batch-size", str(size))]
        return words + (["--split", self.split] if self.split is not None else [])

    def is_done(self, run: Path) -> bool:
        """Return whether a run has all measurements with these settings."""
        sizes = sorted({1, *self.batch_sizes})
        wanted = {"num_rows": self.rows, "num_timed": self.timed_rows, "batch_sizes": sizes}
        wanted |= {} if self.split is None else {"split": self.split}
        try:
            made = [read_measured(measured_folder(run, form))["settings"] for form in (FP32, *self.forms)]
        except CheckpointError:
            return False
        return all(settings.get(key) == value for settings in made for key, value in wanted.items())


def is_compressed(folder: Path, cell: CellRecord) -> bool:
    """Return whether smaller forms of a run are made: it is finished, its scores count, and it has a model."""
    return cell.state == "finished" and cell.counts and cell.task != "mlm" and (folder / MODEL_FOLDER).is_dir()


def require_forms(compress: Compress | None) -> None:
    """Raise MissingDependency, before runs are trained, where a form needs the extra `onnx`."""
    if compress is not None and any(form != "bf16" for form in compress.forms):
        for name in ("onnx", "onnxruntime"):
            require_installed(name, extra="onnx")
