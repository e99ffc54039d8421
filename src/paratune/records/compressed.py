"""The smaller forms of a run and their measurements, which `paratune compress` writes and reports read.

RUN/compressed/
  FORM/                     a smaller form of the model, from `paratune quantize`
  measured/FORM/            measurements of a form; fp32 is the model of the run itself
    measured.json           size, latency, throughput, memory, scores
    predictions.<split>.parquet   predictions for the scored rows
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, get_args

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import SCHEMA_VERSION, read_json
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
_NUMBERS = ("weights_bytes", "loaded_bytes", "peak_bytes", "p50_ms", "p95_ms", "cpu_share")


def form_folder(run: Path, form: str) -> Path:
    """Return the folder of a smaller form of a run."""
    return run / COMPRESSED_FOLDER / form


def measured_folder(run: Path, form: str) -> Path:
    """Return the folder with the measurements of a form of a run."""
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
    path = folder / MEASURED_FILE
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION or not _is_whole(record):
        raise CheckpointError(
            f"{plain(path)} is damaged or from another version of paratune; delete {plain(folder)} and run paratune "
            "compress again",
            code="run.damaged",
            path=path,
        )
    return record


def _is_whole(record: Mapping[str, Any]) -> bool:
    rates = record.get("texts_per_s")
    return (
        all(_is_number(record.get(name)) for name in _NUMBERS)
        and isinstance(record.get("split"), str)
        and all(isinstance(record.get(name), dict) for name in ("settings", "machine"))
        and all(isinstance(record.get(name), dict) for name in ("scores", "intervals", "slices"))
        and isinstance(rates, dict)
        and bool(rates)
        and all(size.isdigit() and _is_number(rate) and rate > 0 for size, rate in rates.items())
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
