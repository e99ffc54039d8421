"""Checkpoints: complete or absent, hashed, without pickle, the same for every strategy and world size.

    checkpoints/step_000200/
      manifest.json              step, the file of each tensor, sizes and SHA-256 of the other files, its own SHA-256;
                                 written last
      progress.json              state of the loop
      tensors.00000.safetensors  weights and optimizer states, whole, by name
      ...

A checkpoint is written to a temporary folder, which is renamed when it is complete. It contains no random states,
because sample order and dropout are functions of (seed, step). This module uses neither models nor strategies.
"""

import errno
import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paratune.base.atomic import delete_remains, replace_folder, sync
from paratune.base.units import GIB, format_bytes
from paratune.errors import CheckpointError, coded
from paratune.processes.progress import working
from paratune.records import file_sha256, read_json, write_json

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
PROGRESS = "progress.json"
SHARD_BYTES = GIB
"""Tensors are written when they have this many bytes together, so that memory never has a second copy of the model."""


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step_{step:06d}"


def save(
    folder: Path, tensors: Iterable[tuple[str, Tensor | None]], progress: Any, *, step: int, is_writer: bool
) -> int:
    """Write a checkpoint. Every rank calls this and iterates over `tensors`; one rank writes.

    Args:
        folder: The folder of the checkpoint; replaced if it exists.
        tensors: Keys with whole CPU tensors on the writer, and None on other ranks.

    Returns:
        The size in bytes; 0 on other ranks.

    Raises:
        CheckpointError: The disk is full or not writable; no partial checkpoint remains, earlier ones are unchanged.
    """
    if not is_writer:
        # Gathering a tensor is collective: all ranks take part in it.
        for _ in tensors:
            pass
        return 0
    remaining = iter(tensors)
    try:
        with _disk_errors(folder), replace_folder(folder) as temporary:
            index = _write_shards(temporary, remaining)
            write_json(temporary / PROGRESS, progress)
            with working("hash the checkpoint"):
                num_bytes = _write_manifest(temporary, index, step)
    except BaseException:
        for _ in remaining:  # the other ranks are gathering tensors and wait for this one
            pass
        raise
    return num_bytes


class UnreadableError(CheckpointError):
    """A file exists but cannot be read now; it may be undamaged."""


class CheckpointReader:
    """Reads a complete checkpoint, each tensor when `read` is called."""

    def __init__(self, folder: Path) -> None:
        manifest = _read_manifest(folder)
        self.folder = folder
        self.step: int = manifest["step"]
        self.progress: Any = read_json(folder / PROGRESS)
        self._file_of: dict[str, str] = manifest["tensors"]
        self._open: dict[str, Any] = {}

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of the tensors that start with `prefix`."""
        return [key for key in self._file_of if key.startswith(prefix)]

    def read(self, key: str) -> Tensor:
        """Return a tensor on the CPU.

        Raises:
            KeyError: There is no such tensor.
        """
        name = self._file_of[key]
        if name not in self._open:
            self._open[name] = safe_open(self.folder / name, framework="pt")
        with working(f"read {key}"):
            tensor: Tensor = self._open[name].get_tensor(key)
        return tensor


def verify(folder: Path) -> None:
    """Check sizes and hashes of a checkpoint.

    Raises:
        CheckpointError: A file is missing, truncated or changed; the message has its name.
    """
    for name, expected in _read_manifest(folder)["files"].items():
        path = folder / name
        try:
            with working(f"check {name} of {folder.name}"):
                size, digest = path.stat().st_size, file_sha256(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise _damaged(folder, name, "is missing") from error
        except OSError as error:
            message = f"{folder} cannot be used: {name} cannot be read ({error.strerror})"
            raise UnreadableError(message, code="checkpoint.unreadable", folder=folder, file=name) from error
        if size != expected["num_bytes"]:
            raise _damaged(folder, name, f"has {size} bytes instead of {expected['num_bytes']}")
        if digest != expected["sha256"]:
            raise _damaged(folder, name, "does not match its SHA-256")


def find_newest(checkpoints: Path) -> Path | None:
    """Return the newest complete checkpoint; log a warning for each damaged one.

    Raises:
        CheckpointError: There are checkpoints, but none is complete.
    """
    folders = list_checkpoints(checkpoints)
    for folder in reversed(folders):
        try:
            verify(folder)
        except CheckpointError as error:
            log.warning("%s; trying the previous checkpoint", error, extra=coded("checkpoint.skipped"))
            continue
        return folder
    if folders:
        message = f"{checkpoints}: none of the {len(folders)} checkpoints is complete; start again with --overwrite"
        raise CheckpointError(message, code="checkpoint.none_whole", folder=checkpoints)
    return None


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Return the checkpoint folders in the order of their steps, without checking their content."""
    folders = [path for path in checkpoints.glob("step_*") if path.is_dir() and path.name[5:].isdigit()]
    return sorted(folders, key=_step_of)


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the loop's state in a checkpoint; empty if it is damaged."""
    try:
        progress = read_json(folder / PROGRESS)
    except CheckpointError:
        return {}
    return progress if isinstance(progress, dict) else {}


def prune(checkpoints: Path, keep: int, *, step: int) -> None:
    """Delete checkpoints that a run does not need after it has saved `step`.

    These are: all but the newest `keep` checkpoints up to `step`; checkpoints of later steps, which were damaged when
    the run was resumed and would otherwise count as the newest; and remains of interrupted writes. `keep` is 1 or more.
    """
    folders = list_checkpoints(checkpoints)
    later = [folder for folder in folders if _step_of(folder) > step]
    for folder in [*folders[: len(folders) - len(later)][:-keep], *later]:
        # The manifest is deleted first, so that a half-deleted checkpoint never counts as complete.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    delete_remains(checkpoints)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def _write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor | None]]) -> dict[str, str]:
    """Write tensors to files of about `SHARD_BYTES`; return the file of each tensor."""
    index: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors)):
        name = f"tensors.{number:05d}.safetensors"
        with working(f"write {name}"):
            save_file(shard, folder / name)
            sync(folder / name)  # after each file, so that a slow disk shows progress
        index.update(dict.fromkeys(shard, name))
    return index


def _shards(tensors: Iterable[tuple[str, Tensor | None]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    num_bytes = 0
    for key, tensor in tensors:
        assert tensor is not None, "the writer is rank 0, which gets whole tensors"
        # safetensors refuses views with other strides, such as transposed weights.
        shard[key] = tensor.contiguous()
        num_bytes += tensor.numel() * tensor.element_size()
        if num_bytes >= SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
    if shard:
        yield shard


def _write_manifest(folder: Path, index: dict[str, str], step: int) -> int:
    files = {
        path.name: {"sha256": file_sha256(path), "num_bytes": path.stat().st_size} for path in sorted(folder.iterdir())
    }
    manifest = {"format_version": FORMAT_VERSION, "step": step, "files": files, "tensors": index}
    write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
    return sum(path.stat().st_size for path in folder.iterdir())


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict):
        raise _damaged(folder, MANIFEST, "is not a manifest")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        message = f"{folder} has checkpoint format {version}; this version reads {FORMAT_VERSION}"
        raise CheckpointError(message, code="checkpoint.other_version", folder=folder, version=version)
    if manifest.pop("sha256", None) != _digest(manifest):
        raise _damaged(folder, MANIFEST, "does not match its own SHA-256")
    return manifest


def _damaged(folder: Path, file: str, problem: str) -> CheckpointError:
    message = f"{folder} is damaged: {file} {problem}"
    return CheckpointError(message, code="checkpoint.damaged", folder=folder, file=file)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the system and of safetensors into a CheckpointError with a remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        free = format_bytes(shutil.disk_usage(folder.parent).free) if folder.parent.exists() else "nothing"
        why = f"the disk is full ({free} free); free some space" if full else f"{error}; make it writable"
        raise CheckpointError(
            f"{folder} could not be written: {why}, or set run.folder elsewhere. Earlier checkpoints are unchanged; "
            "--resume continues from the newest",
            code="output.not_writable",
            folder=folder,
        ) from error
