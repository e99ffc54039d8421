"""Checkpoints: complete or absent, hashed, without pickle, the same for every strategy and world size.

    checkpoints/step_000200/
      manifest.json              step, the files of each tensor, sizes and SHA-256 of the other files, its own SHA-256;
                                 written last
      progress.json              state of the loop
      tensors.00000.safetensors  weights and optimizer states, whole, by name
      ...

A sharded checkpoint has files of every rank instead, such as tensors.rank0003.00000.safetensors, with the elements of
each tensor that this rank holds; the manifest has their places. Both forms have the same names and the same bits.

A checkpoint is written to a temporary folder, which is renamed when it is complete. It contains no random states,
because sample order and dropout are functions of (seed, step). This module uses neither models nor strategies.
"""

import errno
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paratune.base.atomic import delete_remains, replace_folder, sync
from paratune.base.piece import Piece
from paratune.base.units import GIB, format_bytes
from paratune.errors import CheckpointError, coded
from paratune.processes.progress import working
from paratune.records import file_sha256, read_json, write_json

log = logging.getLogger(__name__)

T = TypeVar("T")
Gather = Callable[[Any], Sequence[Any]]
"""Returns the JSON values of all ranks in their order. Collective."""
FORMAT_VERSION, SHARDED_VERSION = 1, 2
MANIFEST = "manifest.json"
PROGRESS = "progress.json"
SHARD_BYTES = GIB
"""Tensors are written when they have this many bytes together, so that memory never has a second copy of the model."""
SHARDED_FROM_BYTES = 20 * 10**9
"""The size of a checkpoint from which `checkpoint.sharded: auto` takes the sharded form."""


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
                files = _describe(temporary, [*dict.fromkeys(index.values()), PROGRESS])
            num_bytes = _write_manifest(temporary, files, index, step, FORMAT_VERSION)
    except BaseException:
        for _ in remaining:  # the other ranks are gathering tensors and wait for this one
            pass
        raise
    return num_bytes


def save_sharded(
    folder: Path, pieces: Iterable[tuple[str, Piece, Tensor]], progress: Any, *, step: int, rank: int, gather: Gather
) -> int:
    """Write a checkpoint of which each rank writes and hashes its own part. Collective.

    Args:
        folder: The folder of the checkpoint, which all ranks see; replaced if it exists.
        pieces: This rank's elements of tensors, with their places. All ranks together have each element once.

    Returns:
        The size in bytes.

    Raises:
        CheckpointError: A rank could not write, or elements are missing; raised by every rank. No partial checkpoint
            remains, earlier ones are unchanged.
    """

    def on_all(act: Callable[[], T]) -> list[T]:
        """Call `act` and return the results of all ranks; if it fails on one, every rank raises."""
        result, error = None, None
        try:
            with _disk_errors(folder):
                result = act()
        except CheckpointError as problem:
            error = problem
        results = gather([error is None, result])
        if error is not None:
            raise error
        if failed := [number for number, (is_written, _) in enumerate(results) if not is_written]:
            message = f"rank {failed[0]} could not write {folder}; its log has the reason"
            raise CheckpointError(message, code="output.not_writable", folder=folder)
        return [result for _, result in results]

    with ExitStack() as stack:
        # The name of the temporary folder has the process number of rank 0, which also deletes it after an error.
        names = on_all(lambda: stack.enter_context(replace_folder(folder)).name if rank == 0 else "")
        temporary = folder.with_name(names[0])
        parts = on_all(lambda: _write_pieces(temporary, pieces, rank))

        def finish() -> int:
            write_json(temporary / PROGRESS, progress)
            files = {name: facts for part, _ in parts for name, facts in part.items()}
            tensors = _join(folder, [tensors for _, tensors in parts])
            files |= _describe(temporary, [PROGRESS])
            num_bytes = _write_manifest(temporary, files, tensors, step, SHARDED_VERSION)
            stack.close()  # renames the folder
            return num_bytes

        return on_all(lambda: finish() if rank == 0 else 0)[0]


class UnreadableError(CheckpointError):
    """A file exists but cannot be read now; it may be undamaged."""


class CheckpointReader:
    """Reads a complete checkpoint, each tensor when `read` is called."""

    def __init__(self, folder: Path) -> None:
        manifest = _read_manifest(folder)
        self.folder = folder
        self.step: int = manifest["step"]
        self.progress: Any = read_json(folder / PROGRESS)
        self._places: dict[str, Any] = manifest["tensors"]
        self._open: dict[str, Any] = {}

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of the tensors that start with `prefix`."""
        return [key for key in self._places if key.startswith(prefix)]

    def read(self, key: str, piece: Piece | None = None) -> Tensor:
        """Return a tensor on the CPU, or some of its elements, flat; only these are read from the disk.

        A scalar, such as a step count, is whole in any case.

        Raises:
            KeyError: There is no such tensor.
            ValueError: Its shape is not that of `piece`.
        """
        place = self._places[key]
        with working(f"read {key}"):
            if isinstance(place, str):
                tensor = self._tensor(place, key)
                return tensor if piece is None else piece.cut_from(tensor, key)
            shape = place["shape"]
            wanted = Piece.whole(shape) if piece is None else piece.of(shape, key)
            pieces = [
                self._tensor(name, key)[max(wanted.begin - begin, 0) : wanted.end - begin]
                for begin, end, name in place["pieces"]
                if begin < wanted.end and end > wanted.begin
            ]
            pieces = pieces or [self._tensor(place["pieces"][0][2], key)[:0]]
            flat = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            return flat.view(shape) if piece is None or not shape else flat

    def _tensor(self, name: str, key: str) -> Tensor:
        """Return what a file has of a tensor; it is mapped, and read when it is used."""
        if name not in self._open:
            self._open[name] = safe_open(self.folder / name, framework="pt")
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
                size = path.stat().st_size
                digest = file_sha256(path) if size == expected["num_bytes"] else None
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


def _write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor | None]], stem: str = "tensors") -> dict[str, str]:
    """Write tensors to files of about `SHARD_BYTES`; return the file of each tensor."""
    index: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors)):
        name = f"{stem}.{number:05d}.safetensors"
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
        shard[key] = tensor.cpu().contiguous()
        num_bytes += tensor.numel() * tensor.element_size()
        if num_bytes >= SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
    if shard:
        yield shard


def _write_pieces(folder: Path, pieces: Iterable[tuple[str, Piece, Tensor]], rank: int) -> tuple[Any, Any]:
    """Write a rank's elements; return sizes and hashes of its files, and shape, range and file of each tensor."""
    places: dict[str, Piece] = {}

    def values() -> Iterator[tuple[str, Tensor]]:
        for key, piece, tensor in pieces:
            assert key not in places, "a rank has one range of each tensor"
            assert tensor.shape == (piece.end - piece.begin,)
            places[key] = piece
            yield key, tensor

    index = _write_shards(folder, values(), f"tensors.rank{rank:04d}")
    with working("hash the checkpoint"):
        files = _describe(folder, dict.fromkeys(index.values()))
    return files, {key: [piece.shape, piece.begin, piece.end, index[key]] for key, piece in places.items()}


def _join(folder: Path, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return shape and places of each tensor from the parts of all ranks.

    Raises:
        CheckpointError: They are not each element of each tensor once.
    """
    tensors: dict[str, Any] = {}
    for part in parts:
        for key, (shape, begin, end, name) in part.items():
            tensor = tensors.setdefault(key, {"shape": shape, "pieces": []})
            tensor["pieces"].append([begin, end, name])
    for key, tensor in tensors.items():
        tensor["pieces"].sort()
        begins, ends = ([piece[place] for piece in tensor["pieces"]] for place in (0, 1))
        if [*begins, math.prod(tensor["shape"])] != [0, *ends]:
            raise _damaged(folder, MANIFEST, f"has the elements {tensor['pieces']} of {key}, {tensor['shape']}")
    return tensors


def _describe(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    return {name: {"sha256": file_sha256(folder / name), "num_bytes": (folder / name).stat().st_size} for name in names}


def _write_manifest(folder: Path, files: dict[str, Any], tensors: dict[str, Any], step: int, version: int) -> int:
    """Write the manifest; return the size of the checkpoint in bytes."""
    manifest = {"format_version": version, "step": step, "files": files, "tensors": tensors}
    write_json(folder / MANIFEST, {**manifest, "sha256": _digest(manifest)})
    return int(sum(file["num_bytes"] for file in files.values())) + (folder / MANIFEST).stat().st_size


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict):
        raise _damaged(folder, MANIFEST, "is not a manifest")
    version = manifest.get("format_version")
    if version not in (FORMAT_VERSION, SHARDED_VERSION):
        known = f"{FORMAT_VERSION} and {SHARDED_VERSION}"
        message = f"{folder} has checkpoint format {version}; this version reads {known}"
        raise CheckpointError(message, code="checkpoint.other_version", folder=folder, version=version)
    if manifest.pop("sha256", None) != _digest(manifest):
        raise _damaged(folder, MANIFEST, "does not match its own SHA-256")
    places = manifest["tensors"].values()
    pieces = (place if isinstance(place, str) else [piece[2] for piece in place["pieces"]] for place in places)
    names = {*manifest["files"], *(name for own in pieces for name in ([own] if isinstance(own, str) else own))}
    if outside := [name for name in names if "/" in name or name in ("", ".", "..")]:
        raise _damaged(folder, MANIFEST, f"names {outside[0]!r}, which is no file of the checkpoint")
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
