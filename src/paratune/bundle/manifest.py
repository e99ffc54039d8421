"""What is in a bundle: its files with their hashes, and which option of the configuration names which of them."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paratune.errors import DataError

MANIFEST = "manifest.json"
"""The first file of a bundle."""
VERSION = 1
MAX_FILES = 100_000
MAX_NAME = 100
"""Bytes of a name, which is as much as the oldest form of tar has room for."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


@dataclass(frozen=True)
class Packed:
    """A file of a bundle."""

    name: str
    """Path in the bundle, with / between."""
    num_bytes: int
    sha256: str
    """In hexadecimal."""


@dataclass(frozen=True)
class Manifest:
    """What is in a bundle."""

    config: Mapping[str, Any]
    """The resolved configuration."""
    paths: Mapping[str, str | list[str]]
    """By dotted key of the configuration: the path in the bundle, or paths; a part of a folder stands behind a #."""
    files: tuple[Packed, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each of the paths was taken from, in words."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Packages of the machine that made it."""

    def as_dict(self) -> dict[str, Any]:
        return {"schema_version": VERSION, **asdict(self)}

    @property
    def num_bytes(self) -> int:
        return sum(packed.num_bytes for packed in self.files)


def why_no_name(name: str) -> str | None:
    """Return why a file of a bundle may not have this name, in words; None when it may."""
    if not _NAME.fullmatch(name):
        return "is not a plain path: letters, digits and . _ + - with single / between, none of which begins with a dot"
    return f"is longer than {MAX_NAME} bytes" if len(name) > MAX_NAME else None


def parse_manifest(value: Any, source: str) -> Manifest:
    """Return the manifest that a JSON value holds.

    Raises:
        DataError: It is none, or one of another version, or it names files that a bundle may not hold.
    """
    if not isinstance(value, dict) or value.get("schema_version") != VERSION:
        found = value.get("schema_version") if isinstance(value, dict) else None
        raise DataError(
            f"{source}: {MANIFEST} is not that of a bundle (version {found}; {VERSION} is known)",
            code="bundle.not_a_bundle",
            source=source,
        )
    try:
        files = tuple(Packed(str(one["name"]), int(one["num_bytes"]), str(one["sha256"])) for one in value["files"])
        paths = {str(key): each if isinstance(each, list) else str(each) for key, each in value["paths"].items()}
        manifest = Manifest(dict(value["config"]), paths, files, dict(value["sources"]), dict(value["versions"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{source}: {MANIFEST} is damaged ({error!r})", code="bundle.damaged", source=source) from error
    _check_files(manifest, source)
    return manifest


def _check_files(manifest: Manifest, source: str) -> None:
    if len(manifest.files) > MAX_FILES:
        raise DataError(
            f"{source}: {MANIFEST} names {len(manifest.files)} files; at most {MAX_FILES} are unpacked",
            code="bundle.unsafe",
            source=source,
        )
    seen: set[str] = set()
    for packed in manifest.files:
        if reason := why_no_name(packed.name):
            raise DataError(
                f"{source}: {packed.name!r} {reason}; nothing was unpacked",
                code="bundle.unsafe",
                source=source,
                name=packed.name,
            )
        if packed.name.lower() in seen or packed.name == MANIFEST:
            raise DataError(
                f"{source}: {packed.name!r} occurs twice; nothing was unpacked",
                code="bundle.unsafe",
                source=source,
                name=packed.name,
            )
        if packed.num_bytes < 0:
            raise DataError(
                f"{source}: {packed.name!r} has {packed.num_bytes} bytes; nothing was unpacked",
                code="bundle.unsafe",
                source=source,
                name=packed.name,
                num_bytes=packed.num_bytes,
            )
        seen.add(packed.name.lower())
    names = {packed.name for packed in manifest.files}
    tops = names | {name[: at.start()] for name in names for at in re.finditer("/", name)}
    for key, value in manifest.paths.items():
        for each in value if isinstance(value, list) else [value]:
            if not str(each).startswith("demo:") and str(each).partition("#")[0] not in tops:
                raise DataError(
                    f"{source}: {key} is to be {each!r}, which is not in the bundle; nothing was unpacked",
                    code="bundle.unsafe",
                    source=source,
                    key=key,
                )
