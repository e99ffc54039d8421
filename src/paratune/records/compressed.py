"""The smaller forms of a run and their measurements, which `paratune compress` writes and reports read.

RUN/compressed/
  FORM/                     a smaller form of the model, from `paratune quantize`
  measured/FORM/            measurements of a form; fp32 is the model of the run itself
    measured.json           size, latency, throughput, memory, scores
    predictions.<split>.parquet   predictions for the scored rows
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, get_args

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import read_object
from paratune.records.run_folder import locked_folder

FP32: Final = "fp32"
"""Name of the model of the run, with weights and computation in float32."""
Form = Literal["bf16", "onnx", "int8", "int8-static"]
FORMS: tuple[str, ...] = get_args(Form)
"""Smaller forms that `paratune quantize` makes."""
COMPRESSED_FOLDER: Final = "compressed"
MEASURED_FILE: Final = "measured.json"
ScoredSplit = Literal["test", "validation"]
SPLITS: tuple[str, ...] = get_args(ScoredSplit)
"""Splits that can be scored."""


def form_folder(run: Path, form: str) -> Path:
    return run / COMPRESSED_FOLDER / form


def measured_folder(run: Path, form: str) -> Path:
    return run / COMPRESSED_FOLDER / "measured" / form


def locked_forms(run: Path) -> AbstractContextManager[None]:
    """Make the folder with the smaller forms of a run, and lock it; see `locked_folder`."""
    return locked_folder(run / COMPRESSED_FOLDER, "paratune compress", "make it possible to write in the run folder")


def measured_forms(run: Path) -> Iterator[tuple[str, Path]]:
    """Yield the measured forms of a run and their folders: fp32, then in the order of `FORMS`."""
    for form in (FP32, *FORMS):
        folder = measured_folder(run, form)
        if (folder / MEASURED_FILE).is_file():
            yield form, folder


def read_measured(folder: Path) -> dict[str, Any]:
    """Read the measurements of a form.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    from pydantic import TypeAdapter, ValidationError  # after --help

    from paratune.records.typed import Measured

    path, remedy = folder / MEASURED_FILE, f"delete {plain(folder)} and run paratune compress again"
    record = read_object(path, remedy)
    try:
        TypeAdapter(Measured).validate_python(record, strict=True)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        text = f"{plain(path)} is damaged: {plain(key)} is missing or of another type; {remedy}"
        raise CheckpointError(text, code="run.damaged", path=path, key=key) from error
    return record
