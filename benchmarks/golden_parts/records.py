"""The stored records of runs: packed without weights and without names of the machine that made them."""

import getpass
import io
import json
import re
import socket
import sys
import tarfile
from pathlib import Path

FILES = ("run.json", "summary.json", "sweep.json", "events.rank*.jsonl", "predictions.*.parquet")
"""What reports read of a run or of a matrix."""
TEXTS = (".json", ".jsonl")


def pack(folder: Path, archive: Path) -> None:
    """Write the records below `folder`/runs into an archive, in the order of their names and without times of files."""
    found = sorted(path for pattern in FILES for path in (folder / "runs").rglob(pattern) if path.is_file())
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in found:
            raw = path.read_bytes()
            if path.suffix in TEXTS:
                raw = without_names(raw.decode(), folder).encode()
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))


def without_names(text: str, folder: Path) -> str:
    """Replace folders, the name of the machine and the name of the user by fixed words.

    Raises:
        ValueError: One of these names is still there.
    """
    root = Path(__file__).resolve().parents[2]
    for path, word in ((folder.resolve(), "/golden"), (sys.prefix, "/python"), (root, "/paratune")):
        text = text.replace(str(path), word)
    text = text.replace(f'"{socket.gethostname()}"', '"machine"').replace(f"_{getpass.getuser()}", "_user")
    text = re.sub(r'"kernel": "[^"]*"', '"kernel": "Linux"', text)
    names = [str(folder.parent), str(Path.home()) + "/", f'"{socket.gethostname()}"', f'"{getpass.getuser()}"']
    if left := [name for name in names if len(name) > 3 and name in text]:
        raise ValueError(f"records still contain {', '.join(left)}")
    return text


def unpack(archive: Path, folder: Path) -> None:
    """Write the records of an archive below a folder, in `runs`."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def change_number(folder: Path, file: str, key: str) -> tuple[float, float]:
    """Add a billionth to the first number of this key in a file of JSON or JSON lines; return both numbers."""
    path = folder / file
    text = path.read_text()
    match = re.search(rf'"{key}": (-?[0-9][0-9.e+-]*)', text)
    if match is None:
        raise ValueError(f"{file} has no number {key}")
    old = json.loads(match[1])
    new = old * (1 + 1e-9) if isinstance(old, float) else old + 1
    path.write_text(f"{text[: match.start(1)]}{new!r}{text[match.end(1) :]}")
    return old, new
