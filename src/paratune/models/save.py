"""Write the trained model as a plain Hugging Face folder: whole, or not at all.

Floor 3.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from paratune.errors import CheckpointError
from paratune.models.task_model import TaskModel
from paratune.records import write_json

TASK_FILE = "paratune.json"
"""Beside the model: task, columns and token limit, so that `evaluate` and `predict` need no more than the folder."""


def save_model(folder: Path, model: TaskModel, tokenizer: Any, tensors: Mapping[str, Tensor], task: Any) -> None:
    """Write configuration, weights (safetensors), tokenizer and `paratune.json`, aside, then rename.

    Args:
        folder: Replaced when it exists.
        model: Gives the architecture and the configuration; its own weights are not read.
        tokenizer: Saved beside it.
        tensors: Whole weights on the CPU by the names of `model`, such as hf.classifier.weight.
        task: JSON-able content of `paratune.json`.

    Raises:
        CheckpointError: It cannot be written; what stood there before may be gone, but nothing is half written.
    """
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        state = {name.removeprefix("hf."): tensor.contiguous() for name, tensor in tensors.items()}
        model.hf.save_pretrained(aside, state_dict=state)
        tokenizer.save_pretrained(aside)
        write_json(aside / TASK_FILE, task)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except (OSError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{folder} could not be written: {error}; make room there or make it writable, then --resume goes on from "
            "the newest checkpoint, if checkpoint.every let any be saved"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
