"""Writes and unpacks bundles: uncompressed tar files that start with a manifest of all files and their hashes.

Only plain files are allowed: links, devices, paths outside of the folder and extended headers are refused.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from paratune.base.atomic import replace_file, replace_folder
from paratune.base.units import MIB
from paratune.errors import DataError, os_error_as

MANIFEST = "manifest.json"
"""The first file of a bundle."""
MAX_MANIFEST_BYTES = 64 * MIB
_CHUNK_BYTES = 4 * MIB
MAX_NAME = 100
"""Maximum bytes of a name, the limit of the oldest tar format."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


@dataclass(frozen=True)
class BundledFile:
    """A file of a bundle."""

    name: str
    """Path in the bundle, with /."""
    num_bytes: Annotated[int, Field(ge=0)]
    sha256: str
    """In hexadecimal."""


@dataclass(frozen=True)
class Manifest:
    """Content of a bundle."""

    config: Mapping[str, Any]
    """The resolved configuration."""
    paths: Mapping[str, str | list[str]]
    """Path or paths in the bundle, by dotted key of the configuration; a part of a folder follows a #."""
    files: tuple[BundledFile, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    """Description of the source of each path."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Versions of packages on the machine that made the bundle."""
    schema_version: Literal[1] = 1


def name_problem(name: str, most: int = MAX_NAME) -> str | None:
    """Return why a name is not allowed in a bundle; None if it is. It has at most `most` characters."""
    if len(name) <= most and _NAME.fullmatch(name):
        return None
    allowed = f"at most {most} letters, digits and . _ + - with single / between"
    return f"is not a plain path: {allowed}; no part begins with a dot"


def hash_file(path: Path, name: str) -> BundledFile:
    """Return the entry of a file in the manifest.

    Raises:
        DataError: The file is unreadable.
    """
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        return BundledFile(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_bundle(path: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write a bundle; the file is complete or absent.

    Args:
        path: The bundle; replaced if it exists.

    Raises:
        DataError: The disk is full or not writable, or a file has changed.
    """
    try:
        with (
            replace_file(path) as temporary,
            temporary.open("wb") as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,  # USTAR has a limit of 8 GiB
        ):
            text = json.dumps(asdict(manifest), indent=1).encode()
            tar.addfile(_header(MANIFEST, len(text)), io.BytesIO(text))
            for packed in manifest.files:
                with files[packed.name].open("rb") as file:
                    tar.addfile(_header(packed.name, packed.num_bytes), file)
    except (OSError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{path} cannot be written: {reason}; partial files were deleted"
        raise DataError(message, code="output.not_writable", path=path) from error


def _header(name: str, num_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, 0o644
    return info


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a bundle, without unpacking it.

    Raises:
        DataError: The file is not a bundle, or is truncated.
    """
    with _open(path) as file:
        return _manifest(file, path)


def unpack(
    path: Path,
    folder: Path,
    complete: Callable[[Manifest, Path], None] = lambda *_: None,
) -> Manifest:
    """Unpack a bundle into a new folder, completely or not at all, and check all hashes.

    Args:
        folder: New folder.
        complete: Called with the manifest and the temporary folder; may add files. If it raises, nothing is unpacked.

    Raises:
        DataError: The folder exists, or the bundle is truncated, damaged or unsafe; nothing is unpacked.
    """
    if folder.exists():
        # Not even an empty one: it may be a working directory or a mount point, which cannot be replaced at once.
        raise DataError(f"{folder} exists; choose a new folder", code="output.exists", folder=folder)
    with _open(path) as file:
        manifest = _manifest(file, path)
        failed = os_error_as(
            DataError,
            f"{folder} cannot be written",
            "partial files were deleted",
            code="output.not_writable",
            folder=folder,
        )
        with failed, replace_folder(folder, is_new=True) as aside:
            _write_files(file, manifest, path, aside)
            complete(manifest, aside)
    return manifest


def _open(path: Path) -> BinaryIO:
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path):
        return path.open("rb")


def _manifest(file: BinaryIO, path: Path) -> Manifest:
    info = _next_header(file, path)
    if info.name != MANIFEST or not 0 <= info.size <= MAX_MANIFEST_BYTES:
        message = f"{path} is not a bundle: it starts with {info.name!r} instead of {MANIFEST}"
        raise DataError(message, code="bundle.damaged", path=path, name=info.name)
    raw = file.read(info.size)
    file.seek(-info.size % tarfile.BLOCKSIZE, os.SEEK_CUR)
    try:
        manifest = TypeAdapter(Manifest).validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        message = f"{path}: {MANIFEST} is not that of a bundle: {where}: {first['msg']}"
        raise DataError(message, code="bundle.damaged", path=path) from error
    _check_manifest(manifest, path)
    return manifest


def _check_manifest(manifest: Manifest, path: Path) -> None:
    seen = {MANIFEST}
    for file in manifest.files:
        if reason := name_problem(file.name):
            raise _unsafe(path, f"contains {file.name!r}, which {reason}", name=file.name)
        if file.name.lower() in seen:
            raise _unsafe(path, f"lists {file.name!r} twice", name=file.name)
        seen.add(file.name.lower())
    names = {file.name for file in manifest.files}
    tops = names | {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    for key, value in manifest.paths.items():
        for inner in value if isinstance(value, list) else [value]:
            if not inner.startswith("demo:") and inner.partition("#")[0] not in tops:
                raise _unsafe(path, f"does not contain {inner!r}, which {key} names", key=key)


def _next_header(file: BinaryIO, path: Path) -> tarfile.TarInfo:
    """Return the header of the next file, which must be a plain file."""
    try:
        # Not with `TarFile.next`: it parses extended headers and follows long names before it returns, and takes an
        # invalid header after the first for the end.
        info = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "ascii", "strict")
    except (tarfile.TarError, UnicodeDecodeError) as error:
        message = f"{path} is not a bundle, or is truncated ({error})"
        raise DataError(message, code="bundle.damaged", path=path) from error
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        problem = f"contains {info.name!r}, which is no plain file but a link, a device, a folder or an extended header"
        raise _unsafe(path, problem, name=info.name)
    return info


def _unsafe(path: Path, problem: str, **facts: Any) -> DataError:
    return DataError(f"{path} {problem}; nothing was unpacked", code="bundle.unsafe", path=path, **facts)


def _write_files(file: BinaryIO, manifest: Manifest, path: Path, aside: Path) -> None:
    for packed in manifest.files:
        info = _next_header(file, path)
        if (info.name, info.size) != (packed.name, packed.num_bytes):
            listed = f"where its manifest lists {packed.name!r} ({packed.num_bytes} bytes)"
            message = f"{path} contains {info.name!r} ({info.size} bytes) {listed}; nothing was unpacked"
            raise DataError(message, code="bundle.damaged", path=path, name=info.name)
        target = aside / packed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if _copy(file, target, info.size) != packed.sha256:
            message = f"{path}: {packed.name} is damaged: its SHA-256 differs from the manifest; copy the bundle again"
            raise DataError(message, code="bundle.damaged", path=path, name=packed.name)
    if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise _unsafe(path, "contains files that its manifest does not list")


def _copy(file: BinaryIO, target: Path, num_bytes: int) -> str:
    """Copy the content of a file, and return its SHA-256."""
    digest, left = hashlib.sha256(), num_bytes
    with target.open("xb") as out:
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            out.write(chunk)
            left -= len(chunk)
    file.seek(-num_bytes % tarfile.BLOCKSIZE, os.SEEK_CUR)
    return digest.hexdigest()
