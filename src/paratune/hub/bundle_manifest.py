"""The manifest of a bundle: files with hashes, and the options of the configuration that name them."""

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
"""Maximum bytes of a name, the limit of the oldest tar format."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


@dataclass(frozen=True)
class BundledFile:
    """A file of a bundle."""

    name: str
    """Path in the bundle, with /."""
    num_bytes: int
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

    def as_dict(self) -> dict[str, Any]:
        return {"schema_version": VERSION, **asdict(self)}

    @property
    def num_bytes(self) -> int:
        return sum(packed.num_bytes for packed in self.files)


def name_problem(name: str) -> str | None:
    """Return why a name is not allowed in a bundle; None if it is."""
    if not _NAME.fullmatch(name):
        return "is not a plain path: letters, digits and . _ + - with single / between; no part begins with a dot"
    return f"is longer than {MAX_NAME} bytes" if len(name) > MAX_NAME else None


def parse_manifest(value: Any, source: str) -> Manifest:
    """Return the manifest in a JSON value.

    Raises:
        DataError: The value is not a manifest, has another version, or lists files that are not allowed.
    """
    if not isinstance(value, dict) or value.get("schema_version") != VERSION:
        version = value.get("schema_version") if isinstance(value, dict) else None
        message = f"{source}: {MANIFEST} is not a manifest of a bundle (version {version}; supported: {VERSION})"
        raise DataError(message, code="bundle.not_a_bundle", source=source)
    try:
        files = tuple(
            BundledFile(str(entry["name"]), int(entry["num_bytes"]), str(entry["sha256"])) for entry in value["files"]
        )
        paths = {str(key): path if isinstance(path, list) else str(path) for key, path in value["paths"].items()}
        manifest = Manifest(dict(value["config"]), paths, files, dict(value["sources"]), dict(value["versions"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{source}: {MANIFEST} is damaged ({error!r})", code="bundle.damaged", source=source) from error
    _check_files(manifest, source)
    return manifest


def _check_files(manifest: Manifest, source: str) -> None:
    def unsafe(problem: str, **facts: Any) -> DataError:
        return DataError(f"{source}: {problem}; nothing was unpacked", code="bundle.unsafe", source=source, **facts)

    if len(manifest.files) > MAX_FILES:
        raise unsafe(f"{MANIFEST} lists {len(manifest.files)} files, at most {MAX_FILES} are allowed")
    seen: set[str] = set()
    for file in manifest.files:
        if reason := name_problem(file.name):
            raise unsafe(f"{file.name!r} {reason}", name=file.name)
        if file.name.lower() in seen or file.name == MANIFEST:
            raise unsafe(f"{file.name!r} occurs twice", name=file.name)
        if file.num_bytes < 0:
            raise unsafe(f"{file.name!r} has {file.num_bytes} bytes", name=file.name, num_bytes=file.num_bytes)
        seen.add(file.name.lower())
    names = {file.name for file in manifest.files}
    tops = names | {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    for key, value in manifest.paths.items():
        for path in value if isinstance(value, list) else [value]:
            if not str(path).startswith("demo:") and str(path).partition("#")[0] not in tops:
                raise unsafe(f"{key} names {path!r}, which is not in the bundle", key=key)
