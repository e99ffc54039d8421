"""Writes the trained model as a plain Hugging Face folder that is complete or absent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from paratune.base.atomic import replace_folder
from paratune.errors import CheckpointError
from paratune.models.adapters import has_adapter, merged_weights, save_adapter
from paratune.models.files import TASK_FILE, file_records
from paratune.models.head_rows import ADAPTER_LABELS
from paratune.models.sentence_transformers import sentence_modules, write_modules
from paratune.models.task_model import TaskModel
from paratune.models.tokenizer import save_tokenizer
from paratune.processes.progress import working
from paratune.records import write_json
from paratune.records.own import signed_model


def save_model(
    folder: Path,
    model: TaskModel,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    task: Mapping[str, Any],
    *,
    adapter_base_model: str | None = None,
) -> None:
    """Write configuration, weights (safetensors), tokenizer and `paratune.json`: all files or none (see `atomic`).

    Args:
        folder: Replaced when it exists.
        model: Gives the architecture and the configuration; its own weights are not read.
        tokenizer: Saved in the same folder.
        tensors: Whole weights on the CPU by their names in `model`, such as hf.classifier.weight.
        task: Content of `paratune.json` as JSON values; the hashes of the files are added.
        adapter_base_model: Folder or hub name of the base model; then only the adapter is written. None writes a plain
            model folder, with an adapter added to the weights.

    Raises:
        CheckpointError: The folder cannot be written; an existing folder is not changed.
    """
    try:
        state = {name.removeprefix("hf."): tensor.contiguous() for name, tensor in tensors.items()}
        with replace_folder(folder) as temporary, working(f"write {folder.name}"):
            if adapter_base_model is not None:
                save_adapter(temporary, model.hf, state, base=adapter_base_model, new_weights=model.new_weights)
                task = {**task, ADAPTER_LABELS: list(model.hf.config.id2label.values())}
            else:
                whole = merged_weights(model.hf, state) if has_adapter(model.hf) else state
                model.hf.save_pretrained(temporary, state_dict=whole)
            task = {**task, **save_tokenizer(temporary, tokenizer, task.get("max_length"))}
            if (modules := sentence_modules(task)) is not None:
                write_modules(temporary, modules, width=model.hf.config.hidden_size)
            write_json(temporary / TASK_FILE, signed_model(temporary, {**task, "files": file_records(temporary)}))
    except (OSError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{folder} could not be written: {error}; free space there or make it writable, then continue with "
            "--resume from the newest checkpoint, if checkpoint.every saved one",
            code="run.not_writable",
            folder=folder,
        ) from error
