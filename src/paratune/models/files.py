"""Whether the files of a saved model are those that were written: their sizes and hashes stand in `paratune.json`.

Floor 3, without torch.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import listing
from paratune.errors import CheckpointError
from paratune.records import file_sha256, read_json

TASK_FILE = "paratune.json"
"""Beside the model: task, columns, token limit and the files, so that `evaluate` and `predict` need only the folder."""


def file_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file of a model folder except `paratune.json`, by its name.

    Raises:
        OSError: One cannot be read.
    """
    return {
        path.name: {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != TASK_FILE
    }


def saved_weights(folder: Path, step: int, names: Sequence[str]) -> tuple[Callable[[str], Any], Sequence[str]]:
    """Return what reads the weights of a model folder by their names in a checkpoint, and these names.

    Args:
        folder: That `save_model` wrote.
        step: From which its weights must be.
        names: In a checkpoint, such as model/hf.classifier.weight.

    Raises:
        CheckpointError: It was not written, is of another step, was changed, or lacks a weight.
    """
    from safetensors import safe_open

    path = folder / "model.safetensors"
    if not (path.is_file() and (folder / TASK_FILE).is_file()):
        raise CheckpointError(
            f"{folder} does not hold all weights in one file", code="checkpoint.unreadable", folder=folder
        )
    record = read_json(folder / TASK_FILE)
    if not isinstance(record, dict) or record.get("kept_step") != step:
        raise CheckpointError(f"{folder} is not of step {step}", code="checkpoint.unreadable", folder=folder, step=step)
    check_files(folder)
    file: Any = safe_open(path, framework="pt")
    keys = {name: name.removeprefix("model/").removeprefix("hf.") for name in names}
    if lacking := sorted(set(keys.values()) - set(file.keys())):
        raise CheckpointError(f"{path} lacks {listing(lacking, 3)}", code="checkpoint.unreadable", path=path)
    return lambda name: file.get_tensor(keys[name]), names


def check_files(folder: Path) -> None:
    """Refuse a model folder whose files are not those that its `paratune.json` lists.

    Raises:
        CheckpointError: Files are missing or changed; all of them are named.
    """
    if problems := file_problems(folder):
        raise CheckpointError(
            f"{folder} is not the model that was saved: {'; '.join(map(' '.join, problems))}. Copy the folder again, "
            "or train again; after a change that you made on purpose, delete the file's entry under `files` in "
            f"{folder / TASK_FILE}",
            code="model.changed",
            folder=folder,
        )


def file_problems(folder: Path) -> list[tuple[str, str]]:
    """Return the files of a model folder that its `paratune.json` lists and that are missing or changed.

    Returns:
        Name and problem of each; empty where there is no `paratune.json`, or one without hashes.

    Raises:
        CheckpointError: `paratune.json` is damaged.
    """
    if not (folder / TASK_FILE).is_file():
        return []
    record = read_json(folder / TASK_FILE)
    expected = record.get("files", {}) if isinstance(record, dict) else None
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
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
