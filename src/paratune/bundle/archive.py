"""A bundle as a file: a plain tar, whose first file is the manifest.

It is read by hand, header by header, because nothing but plain files is wanted: a link, a device, a name that leads
out of the folder, an extended header of any kind is refused before a byte of it is written. A plain tar cannot unpack
to more than it is itself.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from paratune.base.atomic import fill_folder, replace_file
from paratune.base.units import MIB, format_bytes
from paratune.bundle.manifest import MANIFEST, Manifest, Packed, parse_manifest
from paratune.errors import DataError, os_error_as

BLOCK = tarfile.BLOCKSIZE
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
Told = Callable[[int, int], None]
"""Called with the bytes done and all bytes."""


def hash_file(path: Path, name: str) -> Packed:
    """Return what the manifest says of a file.

    Raises:
        DataError: It cannot be read.
    """
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path), path.open("rb") as file:
        return Packed(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_bundle(path: Path, manifest: Manifest, files: Mapping[str, Path], told: Told = lambda *_: None) -> None:
    """Write a bundle, whole or not at all.

    Args:
        path: Replaced when it exists.
        manifest: Names the files, with their hashes.
        files: Where each of them is.
        told: How far it is.

    Raises:
        DataError: The disk is full or not writable, or a file changed meanwhile.
    """
    done = 0
    try:
        with (
            replace_file(path) as temporary,
            temporary.open("wb") as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,  # USTAR ends at 8 GiB
        ):
            text = json.dumps(manifest.as_dict(), indent=1).encode()
            tar.addfile(_header(MANIFEST, len(text)), io.BytesIO(text))
            for packed in manifest.files:
                with files[packed.name].open("rb") as file:
                    tar.addfile(_header(packed.name, packed.num_bytes), file)
                done += packed.num_bytes
                told(done, manifest.num_bytes)
    except (OSError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{path} cannot be written: {reason}; nothing is left of it", code="bundle.not_writable", path=path
        ) from error


def _header(name: str, num_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, 0o644
    return info


def read_manifest(path: Path) -> Manifest:
    """Return what is in a bundle, without unpacking it.

    Raises:
        DataError: It is no bundle, or not a whole one.
    """
    with _opened(path) as file:
        return _manifest(file, path)


def unpack(
    path: Path,
    folder: Path,
    told: Told = lambda *_: None,
    complete: Callable[[Manifest, Path], None] = lambda *_: None,
) -> Manifest:
    """Unpack a bundle into a new folder, all of it or nothing, and check every hash.

    Args:
        path: The bundle.
        folder: Absent, or empty.
        told: How far it is.
        complete: Called with the manifest and the hidden folder in which all files are; it may add to them, and what it
            raises leaves nothing.

    Raises:
        DataError: It is not a whole bundle, or not an honest one; nothing is left in that case.
    """
    with _opened(path) as file:
        manifest = _manifest(file, path)
        _check_sizes(manifest, path, folder)
        try:
            with fill_folder(folder) as aside:
                _write_files(file, manifest, path, aside, told)
                complete(manifest, aside)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise DataError(
                    f"{folder} is there already and not empty; name a new folder",
                    code="bundle.folder_not_empty",
                    folder=folder,
                ) from error
            raise DataError(
                f"{folder} cannot be written: {error.strerror or error}; nothing is left of it",
                code="bundle.not_writable",
                folder=folder,
            ) from error
    return manifest


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with os_error_as(DataError, f"{path} cannot be read", code="data.unreadable", path=path):
        file = path.open("rb")
    with file:
        yield file


def _manifest(file: BinaryIO, path: Path) -> Manifest:
    name, size = _next_header(file, path)
    if name != MANIFEST or not 0 <= size <= MAX_MANIFEST_BYTES:
        raise DataError(
            f"{path} is not a bundle: it begins with {name!r} ({format_bytes(size)}) and not with {MANIFEST}",
            code="bundle.not_a_bundle",
            path=path,
            name=name,
        )
    raw = file.read(size)
    file.seek(-size % BLOCK, os.SEEK_CUR)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {MANIFEST} is not JSON: {error}", code="bundle.not_a_bundle", path=path) from error
    return parse_manifest(value, str(path))


def _next_header(file: BinaryIO, path: Path) -> tuple[str, int]:
    """Return name and size of the file that comes next; of nothing but a plain file."""
    raw = file.read(BLOCK)
    try:
        info = tarfile.TarInfo.frombuf(raw, "ascii", "strict")
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a bundle, or was cut off ({error or 'it ends early'})",
            code="bundle.not_a_bundle",
            path=path,
        ) from error
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        kind = _KINDS.get(info.type, "an extended header")
        raise DataError(
            f"{path} holds {kind} ({info.name!r}); a bundle has plain files alone, nothing was unpacked",
            code="bundle.unsafe",
            path=path,
            kind=kind,
            name=info.name,
        )
    return info.name, info.size


def _check_sizes(manifest: Manifest, path: Path, folder: Path) -> None:
    held = path.stat().st_size
    if manifest.num_bytes > held:
        raise DataError(
            f"{path} has {format_bytes(held)}, and its manifest gives {format_bytes(manifest.num_bytes)}; a "
            "bundle that was cut off, or no honest one; nothing was unpacked",
            code="bundle.unsafe",
            path=path,
            num_bytes=manifest.num_bytes,
        )
    above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(above).free
    if manifest.num_bytes > free:
        raise DataError(
            f"{path} unpacks to {format_bytes(manifest.num_bytes)}, and {format_bytes(free)} are free in {above}",
            code="bundle.no_room",
            path=path,
            num_bytes=manifest.num_bytes,
        )


def _write_files(file: BinaryIO, manifest: Manifest, path: Path, aside: Path, told: Told) -> None:
    done = 0
    for packed in manifest.files:
        name, size = _next_header(file, path)
        if (name, size) != (packed.name, packed.num_bytes):
            raise DataError(
                f"{path} holds {name!r} ({size} bytes) where its manifest lists {packed.name!r} ({packed.num_bytes} "
                "bytes); nothing was unpacked",
                code="bundle.damaged",
                path=path,
                name=name,
                num_bytes=packed.num_bytes,
            )
        target = aside / packed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = _copy(file, target, size)
        if digest != packed.sha256:
            raise DataError(
                f"{path}: {name} is damaged: its SHA-256 is not the manifest's; copy the bundle again",
                code="bundle.damaged",
                path=path,
                name=name,
            )
        done += size
        told(done, manifest.num_bytes)
    if file.read(BLOCK).strip(b"\0"):
        raise DataError(
            f"{path} holds files that its manifest does not name; nothing was unpacked", code="bundle.unsafe", path=path
        )


def _copy(file: BinaryIO, target: Path, size: int) -> str:
    """Copy the bytes of a file and return their SHA-256."""
    digest, left = hashlib.sha256(), size
    with target.open("xb") as out:
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                break
            digest.update(chunk)
            out.write(chunk)
            left -= len(chunk)
    file.seek(-size % BLOCK, os.SEEK_CUR)
    return digest.hexdigest()
