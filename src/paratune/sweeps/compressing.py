"""The section `compress` of a matrix file: smaller forms of each finished run, and their measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune.config.validate import describe_value
from paratune.errors import CheckpointError, require_installed
from paratune.records import MODEL_FOLDER
from paratune.records.compressed import FORMS, FP32, SPLITS, measured_folder, read_measured
from paratune.records.sweep import CellRecord
from paratune.sweeps.matrix_file import MatrixFile

COMPRESS = "compress"


@dataclass(frozen=True)
class Compress:
    """Options of `paratune compress` for each finished run."""

    forms: tuple[str, ...] = ("bf16", "int8")
    split: str | None = None
    rows: int = 1000
    timed_rows: int = 200
    batch_sizes: tuple[int, ...] = (1, 8, 32)

    def words(self, run: Path) -> list[str]:
        """Return the arguments of paratune for a run."""
        words = ["compress", str(run), "--to", ",".join(self.forms), "--rows", str(self.rows)]
        words += ["--timed-rows", str(self.timed_rows)]
        words += [word for size in self.batch_sizes for word in ("--batch-size", str(size))]
        return words + (["--split", self.split] if self.split is not None else [])

    def is_done(self, run: Path) -> bool:
        """Return whether a run has all measurements with these settings."""
        wanted = {
            "num_rows": self.rows,
            "num_timed": self.timed_rows,
            "batch_sizes": sorted({1, *self.batch_sizes}),
        }
        wanted |= {} if self.split is None else {"split": self.split}
        for form in (FP32, *self.forms):
            try:
                settings = read_measured(measured_folder(run, form))["settings"]
            except CheckpointError:
                return False
            if any(settings.get(key) != value for key, value in wanted.items()):
                return False
        return True


def is_compressed(folder: Path, cell: CellRecord) -> bool:
    """Return whether smaller forms of a run are made: it is finished, its scores count, and it has a model."""
    return cell.state == "finished" and cell.counts and cell.task != "mlm" and (folder / MODEL_FOLDER).is_dir()


def require_forms(compress: Compress | None) -> None:
    """Check that the packages of the forms are installed, before runs are trained.

    Raises:
        MissingDependency: A form needs the extra `onnx`, which is not installed.
    """
    if compress is not None and any(form != "bf16" for form in compress.forms):
        for name in ("onnx", "onnxruntime"):
            require_installed(name, extra="onnx")


def read_compress(file: MatrixFile, content: Any) -> Compress | None:
    """Return the section, or None without one; problems are added to the file."""
    if content is None:
        return None
    allowed = "a mapping, such as {forms: [bf16, int8]}"
    if (content := file.mapping(content, COMPRESS, allowed, tuple(Compress.__dataclass_fields__))) is None:
        return None
    given: dict[str, Any] = {}
    for key, least in (("rows", 2), ("timed_rows", 1)):
        if key in content:
            given[key] = file.count(content[key], f"{COMPRESS}.{key}", least=least)
    if "forms" in content:
        given["forms"] = _listed(file, content, "forms", FORMS)
    if "batch_sizes" in content:
        # An empty list is refused as a number: without a size the command takes its default.
        sizes = content["batch_sizes"] if isinstance(content["batch_sizes"], list) else [content["batch_sizes"]]
        given["batch_sizes"] = tuple(file.count(size, f"{COMPRESS}.batch_sizes") for size in sizes or [[]])
    if (split := content.get("split")) is not None:
        given["split"] = split
        if split not in SPLITS:
            file.refuse(
                f"{COMPRESS}.split is {describe_value(split)}; allowed: {' or '.join(SPLITS)}", f"{COMPRESS}.split"
            )
    return replace(Compress(), **given)


def _listed(file: MatrixFile, content: Mapping[Any, Any], key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    values = content[key] if isinstance(content[key], list) else [content[key]]
    wrong = next((value for value in values if value not in allowed), None)
    if wrong is not None or not values:
        message = f"{COMPRESS}.{key} is {describe_value(content[key])}; allowed: a list of {', '.join(allowed)}"
        file.refuse(message, f"{COMPRESS}.{key}")
        return ()
    return tuple(dict.fromkeys(values))
