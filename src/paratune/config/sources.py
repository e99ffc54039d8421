"""What names a data set: a path of this machine, `hub:NAME` or `demo:NAME`."""

import os
from pathlib import Path


def local_path(source: str) -> Path | None:
    """Return the path that a source names, with ~ replaced; None of one on the hub or embedded.

    The disk is not asked; what stands behind a # is still in it, see `split_of`.
    """
    # Not Path.expanduser, which raises for a user that there is none of.
    return None if source.startswith(("hub:", "demo:")) else Path(os.path.expanduser(source))  # noqa: PTH111


def split_of(path: Path) -> tuple[Path, str | None]:
    """Return a path without the split that stands behind its last #, and the split; None where it has none.

    A file that is there under the whole name has none.
    """
    if path.exists() or "#" not in path.name:
        return path, None
    before, _, split = str(path).rpartition("#")
    return Path(before), split
