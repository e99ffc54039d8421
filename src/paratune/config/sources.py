"""Names of data sets: a path of this machine, `hub:NAME`, `demo:NAME` or `code:package.module:function`."""

import os
from pathlib import Path

CODE = "code:"
"""Start of a source that is the user's own function; see docs/howto/extend.md."""
TOKENS_FILE = "tokens.json"
"""The last file of a folder of tokens that `paratune corpus` writes."""


def local_path(source: str) -> Path | None:
    """Return the path of a source, with ~ replaced; None for a data set of the hub, an embedded one or own code.

    The file system is not read. A split after # is still in the path, see `path_and_split`.
    """
    # Not Path.expanduser, which raises for an unknown user.
    return None if source.startswith(("hub:", "demo:", CODE)) else Path(os.path.expanduser(source))  # noqa: PTH111


def has_tokens(source: str) -> bool:
    """Return whether a source is a folder of finished tokens; see `paratune.data.token_shards`."""
    path = local_path(source)
    return path is not None and (path / TOKENS_FILE).is_file()


def path_and_split(path: Path) -> tuple[Path, str | None]:
    """Return a path without the split after its last #, and the split; None where it has none.

    A path that exists with its # has no split.
    """
    if path.exists() or "#" not in path.name:
        return path, None
    before, _, split = str(path).rpartition("#")
    return Path(before), split
