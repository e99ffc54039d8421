"""Writes and unpacks bundles: uncompressed tar files that start with the manifest.

Only plain files are allowed: links, devices, paths outside of the folder and extended headers are refused.
"""

import errno
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from paratune.base.atomic import fill_folder, replace_file
from paratune.base.units import MIB, format_bytes
from paratune.bundle.manifest import MANIFEST, BundledFile, Manifest, parse_manifest
from paratune.errors import DataError, os_error_as

MAX_MANIFEST_BYTES = 64 * MIB
_CHUNK_BYTES = 4 * MIB
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.DIRTYPE: "a folder",
    tarfile.GNUTYPE_SPARSE: "a file with holes",
}
OnProgress = Callable[[int, int], None]
"""Takes the bytes done, and all bytes."""


def hash_file(path: Path, name: str) -> BundledFile:
    """Return the entry of a file in the manifest.

    Raises:
        DataError: The file is unreadable.
    """
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        return BundledFile(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_bundle(
    path: Path, manifest: Manifest, files: Mapping[str, Path], on_progress: OnProgress = lambda *_: None
) -> None:
    """Write a bundle; the file is complete or absent.

    Args:
        path: The bundle; replaced if it exists.

    Raises:
        DataError: The disk is full or not writable, or a file has changed.
    """
    done = 0
    try:
        with (
            replace_file(path) as temporary,
            temporary.open("wb") as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,  # USTAR has a limit of 8 GiB
        ):
            text = json.dumps(manifest.as_dict(), indent=1).encode()
            tar.addfile(_header(MANIFEST, len(text)), io.BytesIO(text))
            for packed in manifest.files:
                with files[packed.name].open("rb") as file:
                    tar.addfile(_header(packed.name, packed.num_bytes), file)
                done += packed.num_bytes
                on_progress(done, manifest.num_bytes)
    except (OSError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{path} cannot be written: {reason}; partial files were deleted"
        raise DataError(message, code="bundle.not_writable", path=path) from error


def _header(name: str, num_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, 0o644
    return info


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a bundle, without unpacking it.

    Raises:
        DataError: The file is not a bundle, or is truncated.
    """
    with _open(path) as tar:
        return _manifest(tar, path)


def unpack(
    path: Path,
    folder: Path,
    on_progress: OnProgress = lambda *_: None,
    complete: Callable[[Manifest, Path], None] = lambda *_: None,
) -> Manifest:
    """Unpack a bundle into a new folder, completely or not at all, and check all hashes.

    Args:
        folder: Missing or empty folder.
        complete: Called with the manifest and the temporary folder; may add files. If it raises, nothing is unpacked.

    Raises:
        DataError: The bundle is truncated, damaged or unsafe; nothing is unpacked.
    """
    with _open(path) as tar:
        manifest = _manifest(tar, path)
        _check_sizes(manifest, path, folder)
        try:
            with fill_folder(folder) as aside:
                _write_files(tar, manifest, path, aside, on_progress)
                complete(manifest, aside)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                message = f"{folder} exists and is not empty; choose a new folder"
                raise DataError(message, code="bundle.folder_not_empty", folder=folder) from error
            message = f"{folder} cannot be written: {error.strerror or error}; partial files were deleted"
            raise DataError(message, code="bundle.not_writable", folder=folder) from error
    return manifest


def _open(path: Path) -> tarfile.TarFile:
    with (
        os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path),
        _tar_error_as_data_error(path),
    ):
        return tarfile.open(path, "r:")  # not compressed, so that it cannot unpack to more than its size


@contextmanager
def _tar_error_as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        message = f"{path} is not a bundle, or is truncated ({error})"
        raise DataError(message, code="bundle.not_a_bundle", path=path) from error


def _manifest(tar: tarfile.TarFile, path: Path) -> Manifest:
    info = _next(tar, path)
    if info is None or info.name != MANIFEST or not 0 <= info.size <= MAX_MANIFEST_BYTES:
        found = "is empty" if info is None else f"starts with {info.name!r} ({format_bytes(info.size)})"
        message = f"{path} is not a bundle: it {found} instead of {MANIFEST}"
        raise DataError(message, code="bundle.not_a_bundle", path=path, name=info and info.name)
    with _tar_error_as_data_error(path):
        raw = _content(tar, info).read()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {MANIFEST} is not JSON: {error}", code="bundle.not_a_bundle", path=path) from error
    return parse_manifest(value, str(path))


def _next(tar: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    """Return the header of the next file, which must be a plain file; None at the end."""
    with _tar_error_as_data_error(path):
        info = tar.next()
    if info is not None and (info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.pax_headers):
        kind = "an extended header" if info.pax_headers else _KINDS.get(info.type, "no plain file")
        raise _unsafe(path, f"contains {kind} ({info.name!r}); only plain files are allowed", kind=kind, name=info.name)
    return info


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(info)
    assert file is not None, "a plain file"
    return file


def _unsafe(path: Path, problem: str, **facts: Any) -> DataError:
    return DataError(f"{path} {problem}; nothing was unpacked", code="bundle.unsafe", path=path, **facts)


def _check_sizes(manifest: Manifest, path: Path, folder: Path) -> None:
    size = path.stat().st_size
    if manifest.num_bytes > size:
        listed = f"its manifest lists {format_bytes(manifest.num_bytes)}; it is truncated or unsafe"
        raise _unsafe(path, f"has {format_bytes(size)}, but {listed}", num_bytes=manifest.num_bytes)
    above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(above).free
    if manifest.num_bytes > free:
        raise DataError(
            f"{path} unpacks to {format_bytes(manifest.num_bytes)}, but only {format_bytes(free)} are free in {above}",
            code="bundle.no_room",
            path=path,
            num_bytes=manifest.num_bytes,
        )


def _write_files(tar: tarfile.TarFile, manifest: Manifest, path: Path, aside: Path, on_progress: OnProgress) -> None:
    done = 0
    for packed in manifest.files:
        info = _next(tar, path)
        if info is None or (info.name, info.size) != (packed.name, packed.num_bytes):
            found = "ends" if info is None else f"contains {info.name!r} ({info.size} bytes)"
            listed = f"where its manifest lists {packed.name!r} ({packed.num_bytes} bytes)"
            message = f"{path} {found} {listed}; nothing was unpacked"
            raise DataError(message, code="bundle.damaged", path=path, name=info and info.name)
        target = aside / packed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _tar_error_as_data_error(path), target.open("xb") as out:
            shutil.copyfileobj(_content(tar, info), out, _CHUNK_BYTES)
        if hash_file(target, packed.name) != packed:
            message = f"{path}: {packed.name} is damaged: its SHA-256 differs from the manifest; copy the bundle again"
            raise DataError(message, code="bundle.damaged", path=path, name=packed.name)
        done += packed.num_bytes
        on_progress(done, manifest.num_bytes)
    if _next(tar, path) is not None:
        raise _unsafe(path, "contains files that its manifest does not list")
