"""Names of data sets: a path of this machine, `hub:NAME`, `demo:NAME` or `code:package.module:function`."""

import glob
import os
from importlib.resources import files
from pathlib import Path

from paratune.errors import DataError, did_you_mean

CODE = "code:"
"""Start of a source that is the user's own function; see docs/howto/extend.md."""
DEMO = {
    "sentences": "sentences.csv",
    "pairs": "pairs.csv",
    "words": "words.conll",
    "questions": "questions.json",
    "choices": "choices.csv",
    "texts": "texts.txt",
    "captures": "captures.warc.gz",
}
"""Files of the data sets that come with paratune, by name: `demo:sentences`; captures are for `paratune corpus`."""
TOKENS_FILE = "tokens.json"
"""The last file of a folder of tokens that `paratune corpus` writes."""


def local_path(source: str) -> Path | None:
    """Return the path of a source, with ~ replaced; None for a data set of the hub, an embedded one or own code.

    The file system is not read. A split after # is still in the path, see `path_and_split`.
    """
    # Not Path.expanduser, which raises for an unknown user.
    return None if source.startswith(("hub:", "demo:", CODE)) else Path(os.path.expanduser(source))  # noqa: PTH111


def demo_file(source: str, *, has_captures: bool = False) -> Path:
    """Return the file of `demo:NAME`: of rows, or of captures.

    Raises:
        DataError: There is no such data set.
    """
    name = source.removeprefix("demo:")
    names = [known for known in DEMO if (known == "captures") == has_captures]
    if name not in names:
        problem = f"is not an embedded data set{did_you_mean(name, names)} (there are: demo:{', demo:'.join(names)})"
        raise DataError(f"{source} {problem}", code="data.not_found", source=source)
    return Path(str(files("paratune") / "demo" / DEMO[name]))


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


def matching_sources(source: str) -> list[str]:
    """Return the files that a pattern such as texts-*.parquet matches, sorted by name; another source as it is.

    `*`, `?` and `[...]` match as in a shell, and `**` any folders. What exists is no pattern, and what matches nothing
    is returned as it is, for the error of who reads it. A split after # belongs to each of the files.
    """
    path = local_path(source)
    if path is None or not glob.has_magic(source) or os.path.exists(path):  # noqa: PTH110 - Path raises for long names
        return [source]
    name, mark, split = path.name.partition("#")
    folder = str(path.parent)
    folder = glob.escape(folder) if os.path.isdir(folder) else folder  # noqa: PTH112
    files = sorted(str(Path(file)) for file in glob.glob(os.path.join(folder, name), recursive=True))  # noqa: PTH118, PTH207
    return [file + mark + split for file in files] or [source]


def absence(path: Path) -> str:
    """Return the problem of a path, or a pattern, without a file, with the nearest name; it follows the source."""
    if (files := matching_sources(str(path))) != [str(path)]:
        only = "is a pattern, which only data.train, data.validation and data.test may be"
        return f" {only}; name one of its {len(files)} files, such as {files[0]}"
    what = "matches no file" if glob.has_magic(str(path)) else "does not exist"
    near = f"; nor does its folder {path.parent}"
    if path.parent.is_dir():
        near = did_you_mean(path.name, [item.name for item in path.parent.iterdir()])
    return f" {what}{near} (working directory: {Path.cwd()})"
