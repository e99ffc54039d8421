"""Checks the files of a saved model against their sizes and hashes in `paratune.json`.

Imports no torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import listing
from paratune.errors import CheckpointError
from paratune.records import file_sha256, read_json
from paratune.records.own import TASK_FILE as TASK_FILE
from paratune.records.own import read_task_file as read_task_file

_MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.onnx", "*.gguf", "pytorch_model*", "tf_model*", "flax_model*"),
    *("config.json", "adapter_*", "checkpoint-*", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json"),
    *("spiece.model", "sentencepiece*.model", "trainer_state.json", "training_args.bin", "model", "modules.json"),
)
"""Names that the files of a model have."""


def file_names(folder: Path) -> str:
    """Return the names of model files in a folder; others may be private, and say nothing about a model."""
    named = [path.name for path in sorted(folder.iterdir()) if any(map(path.match, _MODEL_FILES))]
    return listing(named, 8) or "no files of a model"


def file_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file of a model folder except `paratune.json`, by name.

    Raises:
        OSError: A file cannot be read.
    """
    return {
        path.name: {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != TASK_FILE
    }


def saved_weights(folder: Path, step: int, names: Sequence[str]) -> tuple[Callable[[str], Any], Sequence[str]]:
    """Return a function that reads weights of a model folder by their names in a checkpoint, and these names.

    `folder` is from `save_model`; its weights must be from `step`. Names are such as model/hf.classifier.weight.

    Raises:
        CheckpointError: The folder is absent, from another step, changed, or lacks a weight.
    """
    from safetensors import safe_open

    path = folder / "model.safetensors"
    if not (path.is_file() and (folder / TASK_FILE).is_file()):
        raise CheckpointError(
            f"{folder} does not have all weights in one file", code="checkpoint.unreadable", folder=folder
        )
    record = read_json(folder / TASK_FILE)
    if not isinstance(record, dict) or record.get("kept_step") != step:
        raise CheckpointError(
            f"{folder} is not from step {step}", code="checkpoint.unreadable", folder=folder, step=step
        )
    check_files(folder)
    file: Any = safe_open(path, framework="pt")
    keys = {name: name.removeprefix("model/").removeprefix("hf.") for name in names}
    if lacking := sorted(set(keys.values()) - set(file.keys())):
        raise CheckpointError(f"{path} lacks {listing(lacking, 3)}", code="checkpoint.unreadable", path=path)
    return lambda name: file.get_tensor(keys[name]), names


def check_files(folder: Path) -> None:
    """Check that the files of a model folder are those that its `paratune.json` lists.

    Raises:
        CheckpointError: Files are missing or changed; the message names all of them.
    """
    if problems := file_problems(folder):
        raise CheckpointError(
            f"{folder} has changed since it was saved: {'; '.join(map(' '.join, problems))}. Copy the folder again, "
            f"or train again. If you changed a file on purpose, delete its entry under `files` in {folder / TASK_FILE}",
            code="model.changed",
            folder=folder,
        )


def file_problems(folder: Path) -> list[tuple[str, str]]:
    """Return name and problem of each missing or changed file; an empty list without `paratune.json` or hashes.

    Raises:
        CheckpointError: `paratune.json` is damaged.
    """
    expected = read_task_file(folder).get("files", {})
    if not isinstance(expected, dict) or not all(isinstance(item, dict) for item in expected.values()):
        raise CheckpointError(
            f"{folder / TASK_FILE} is damaged: `files` is not a mapping of names to sizes and hashes",
            code="run.damaged",
        )
    problems = ((name, _problem(folder / name, about)) for name, about in expected.items())
    return [(name, problem) for name, problem in problems if problem is not None]


def _problem(path: Path, about: dict[str, Any]) -> str | None:
    try:
        size = path.stat().st_size
        if size != about.get("num_bytes"):
            return f"has {size} bytes instead of {about.get('num_bytes')}"
        return None if file_sha256(path) == about.get("sha256") else "does not match its SHA-256"
    except (FileNotFoundError, ValueError):  # a name with a null byte
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
