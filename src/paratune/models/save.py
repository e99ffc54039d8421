"""Write the trained model as a plain Hugging Face folder: whole, or not at all.

Floor 3.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from paratune.base.atomic import replace_folder
from paratune.errors import CheckpointError
from paratune.hangs.pulse import working
from paratune.models.files import TASK_FILE, file_records
from paratune.models.task_model import TaskModel
from paratune.records import write_json


def save_model(
    folder: Path, model: TaskModel, tokenizer: Any, tensors: Mapping[str, Tensor], task: Mapping[str, Any]
) -> None:
    """Write configuration, weights (safetensors), tokenizer and `paratune.json`: all or nothing (see `atomic`).

    Args:
        folder: Replaced when it exists.
        model: Gives the architecture and the configuration; its own weights are not read.
        tokenizer: Saved beside it.
        tensors: Whole weights on the CPU by the names of `model`, such as hf.classifier.weight.
        task: JSON-able content of `paratune.json`, to which the hashes of the files are added.

    Raises:
        CheckpointError: It cannot be written; what was there before is kept.
    """
    try:
        state = {name.removeprefix("hf."): tensor.contiguous() for name, tensor in tensors.items()}
        with replace_folder(folder) as temporary, working(f"write {folder.name}"):
            model.hf.save_pretrained(temporary, state_dict=state)
            tokenizer.save_pretrained(temporary)
            write_json(temporary / TASK_FILE, {**task, "files": file_records(temporary)})
    except (OSError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{folder} could not be written: {error}; make room there or make it writable, then --resume "
            f"continues from "
            "the newest checkpoint, if checkpoint.every saved one",
            code="run.not_writable",
            folder=folder,
        ) from error
