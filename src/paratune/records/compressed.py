"""The smaller forms of a run: each is a run folder, RUN/compressed/FORM, that `paratune compress` writes.

It has run.json, summary.json and the predictions of the scored rows, so that reports compare forms as other runs. The
smaller model is in its model/; fp32, the model of the run itself, has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from paratune.errors import CheckpointError
from paratune.records import is_finished, read_run

FP32: Final = "fp32"
"""The model of the run, with weights and computation in float32."""
Form = Literal["bf16", "onnx", "int8"]
FORMS: tuple[str, ...] = get_args(Form)
"""Smaller forms that `paratune quantize` makes."""
COMPRESSED_FOLDER: Final = "compressed"
ScoredSplit = Literal["test", "validation"]
SPLITS: tuple[str, ...] = get_args(ScoredSplit)
"""Splits that can be scored."""


def form_folder(run: Path, form: str) -> Path:
    return run / COMPRESSED_FOLDER / form


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a model folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".onnx", ".data"))


def is_measured(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether a form is measured with these settings, which its run.json has as `measured`."""
    try:
        return is_finished(folder) and settings.items() <= read_run(folder)["measured"].items()
    except (CheckpointError, KeyError, TypeError, AttributeError):  # damaged: measured again
        return False
