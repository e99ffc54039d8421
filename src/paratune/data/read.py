"""Reading a table from wherever the configuration says it is; columns keep the types that the source gives them.

Floor 3, without torch.
"""

import gzip
import importlib.resources
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune import hub
from paratune.base.text import listing
from paratune.base.units import GIB, MIB, format_bytes
from paratune.config.sources import local_path, split_of
from paratune.data.text_tables import parse_csv, parse_json, parse_paragraphs, parse_text, parse_tsv
from paratune.errors import DataError, did_you_mean, require

DEMO = {"sentences": "sentences.csv"}
"""Embedded data sets by name: `demo:sentences`."""
PARAGRAPHS = "paragraphs"
"""`corpus.txt#paragraphs`: blank lines are between documents; without it each line is one."""
MAX_UNPACKED_BYTES = 16 * GIB
"""Most bytes of an unpacked file: all of it is held in memory, and a bomb of 16 MiB unpacks to as much."""
MAX_UNPACKED_RATIO = 200
"""Most bytes for each packed one, past `FREE_UNPACKED_BYTES`: text packs to a third or a tenth, zeros to a
thousandth."""
FREE_UNPACKED_BYTES = GIB
"""What is unpacked without looking at the ratio; small files of repeated rows pack very well."""
_CHUNK_BYTES = 16 * MIB


def read_table(source: str, *, revision: str | None = None) -> pa.Table:
    """Read a whole table.

    Args:
        source: A file (.csv, .tsv, .jsonl, .json, .ndjson, .parquet, .txt, each also .gz; `file.txt#paragraphs` where
            documents are separated by blank lines), a folder saved by `datasets` (`folder#split` where it holds several
            splits), `demo:NAME`, or `hub:NAME`, `hub:NAME/CONFIG`, with `@SPLIT` where there are several.
        revision: Commit, tag or branch of a hub data set.

    Returns:
        The table with at least one row. CSV and TSV columns are strings, an empty field is "".

    Raises:
        DataError: It is absent, empty, damaged, or of an unknown kind.
        MissingDependency: A `datasets` folder or hub data set, and `datasets` is not installed.
    """
    if source.startswith("<") and source.endswith(">"):
        raise DataError(
            f"data: {source} is still to be filled in; name a file", code="config.placeholder", source=source
        )
    if source.startswith("hub:"):
        table = _read_hub(source, revision)
    elif source.startswith("demo:"):
        table = _read_demo(source)
    else:
        table = _read_path(source)
    if table.num_rows == 0:
        raise DataError(
            f"{source} has no rows (columns: {listing(table.column_names) or 'none'})", code="data.empty", source=source
        )
    return table


def _read_demo(source: str) -> pa.Table:
    name = source.removeprefix("demo:")
    if name not in DEMO:
        raise DataError(
            f"{source} is not an embedded data set{did_you_mean(name, DEMO)} (there are: demo:{', demo:'.join(DEMO)})",
            code="data.not_found",
            source=source,
        )
    return parse_csv((importlib.resources.files("paratune.demo") / DEMO[name]).read_bytes(), source)


def _read_path(source: str) -> pa.Table:
    whole = local_path(source)
    assert whole is not None
    path, split = split_of(whole)
    if not path.exists():
        raise DataError(_absent(path), code="data.not_found")
    return _read_datasets_folder(path, split) if path.is_dir() else _read_file(path, split)


def _absent(path: Path) -> str:
    """Say that a path is not there, and what is near it."""
    parent = path.parent
    if not parent.is_dir():
        return f"{path} does not exist; nor does its folder {parent} (working directory: {Path.cwd()})"
    near = did_you_mean(path.name, [item.name for item in parent.iterdir()])
    return f"{path} does not exist{near} (working directory: {Path.cwd()})"


def _read_file(path: Path, split: str | None) -> pa.Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_gzip = bool(suffixes) and suffixes[-1] == ".gz"
    kind = suffixes[-2] if is_gzip and len(suffixes) > 1 else suffixes[-1] if suffixes and not is_gzip else ""
    is_paragraphs = kind == ".txt" and split == PARAGRAPHS
    if split is not None and not is_paragraphs:
        raise DataError(
            f"{path}#{split}: only a folder saved by `datasets` has splits, and a .txt file {PARAGRAPHS}; name the "
            "file alone",
            code="data.split_unknown",
            path=path,
            split=split,
        )
    if kind not in PARSERS:
        raise DataError(
            f"{path}: {kind or 'no suffix'} is not a kind of file that can be read "
            f"(allowed: {', '.join(PARSERS)}, each also with .gz)",
            code="data.format",
            path=path,
        )
    if not path.is_file():
        raise DataError(
            f"{path} is not a regular file (a pipe, a socket or a device?); write the rows to a file",
            code="data.unreadable",
            path=path,
        )
    try:
        raw = _unpacked(path) if is_gzip else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is damaged or not gzip: {error}; fetch or compress it again", code="data.damaged", path=path
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}", code="data.unreadable", path=path
        ) from error
    if not raw:
        raise DataError(f"{path} is empty (0 bytes)", code="data.empty", path=path)
    parse = parse_paragraphs if is_paragraphs else PARSERS[kind]
    return parse(raw, str(path))


def _unpacked(path: Path) -> bytes:
    """Return what a gzip file holds; the packed bytes are read in pieces and not kept."""
    packed = path.stat().st_size
    limit = min(MAX_UNPACKED_BYTES, max(FREE_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed))
    held = io.BytesIO()
    with gzip.open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if held.tell() + len(chunk) > limit:
                raise DataError(
                    f"{path} has {format_bytes(packed)} and unpacks to more than {format_bytes(limit)}, which is more "
                    "than data of this size would; if it is meant to, unpack it and name the unpacked file",
                    code="data.too_large",
                    path=path,
                )
            held.write(chunk)
    return held.getvalue()  # shares the memory, no copy


def _parse_parquet(raw: bytes, source: str) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a whole Parquet file: {error}", code="data.damaged", source=source) from error


PARSERS: dict[str, Callable[[bytes, str], pa.Table]] = {
    ".csv": parse_csv,
    ".tsv": parse_tsv,
    ".jsonl": parse_json,
    ".json": parse_json,
    ".ndjson": parse_json,
    ".parquet": _parse_parquet,
    ".txt": parse_text,
}
"""What reads the bytes of a file, by suffix."""


def _read_datasets_folder(path: Path, split: str | None) -> pa.Table:
    is_one, is_several = (path / "state.json").is_file(), (path / "dataset_dict.json").is_file()
    if not is_one and not is_several:
        files = sorted(item.name for item in path.iterdir())
        raise DataError(
            f"{path} is a folder, but not one that `datasets` saved (save_to_disk); name a file in it"
            f" (it holds {', '.join(files[:8]) or 'nothing'}{', ...' if len(files) > 8 else ''})",
            code="data.format",
            path=path,
        )
    datasets = require("datasets", extra="datasets")
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a damaged folder makes `datasets` raise
        raise DataError(f"{path} cannot be read by datasets: {error}", code="data.unreadable", path=path) from error
    if is_one and split is not None:
        raise DataError(
            f"{path} holds a single split: name it without #{split}", code="data.split_unknown", path=path, split=split
        )
    return _as_table(_pick(found, split, str(path), "#") if is_several else found)


def _pick(found: Any, split: str | None, source: str, mark: str) -> Any:
    """Return one split of a dictionary of splits: the named one, or the only one."""
    names = list(found)
    if split is None and len(names) == 1:
        return found[names[0]]
    if split is None:
        raise DataError(
            f"{source} holds {len(names)} splits; name one: {source}{mark}{names[0]} (has: {', '.join(names)})",
            code="data.split_unknown",
            source=source,
        )
    if split not in names:
        raise DataError(
            f"{source} has no split {split}{did_you_mean(split, names)} (has: {', '.join(names)})",
            code="data.split_unknown",
            source=source,
            split=split,
        )
    return found[split]


def _as_table(dataset: Any) -> pa.Table:
    # Through the format, not `.data`: only this honours rows that were selected or shuffled.
    table: pa.Table = dataset.with_format("arrow")[:]
    return table


def _read_hub(source: str, revision: str | None) -> pa.Table:
    name, _, split = source.removeprefix("hub:").partition("@")
    parts = name.split("/")
    if not all(parts) or len(parts) > 3:
        raise DataError(
            f"{source}: expected hub:NAME, hub:OWNER/NAME or hub:OWNER/NAME/CONFIG, with @SPLIT",
            code="data.hub",
            source=source,
        )
    # One slash can be OWNER/NAME or NAME/CONFIG: both are tried, in this order.
    readings: list[tuple[str, str | None]] = (
        [(name, None)] if len(parts) == 1 else [("/".join(parts[:2]), parts[2] if len(parts) == 3 else None)]
    )
    if len(parts) == 2:
        readings.append((parts[0], parts[1]))
    datasets = require("datasets", extra="datasets")
    reason = hub.why_not()
    problems = []
    # Its cache gives the latest version that was loaded, whatever the revision.
    for data_set, config in readings if reason is None or revision is None else ():
        try:
            with _offline(datasets, reason is not None):
                found = datasets.load_dataset(data_set, config, revision=revision)
        except Exception as error:  # no network, no such name, a broken file: all end here
            problems.append(f"{data_set}{' ' + config if config else ''}: {error}")
            continue
        return _as_table(_pick(found, split or None, source.partition("@")[0], "@"))
    if reason is not None:
        raise DataError(
            f"{source} is on the hub, {'its revision' if revision else 'it'} is not in the cache, and {reason}; save "
            "it where there is a network (datasets.load_dataset(...).save_to_disk(FOLDER)) and name the folder",
            code="data.hub",
            source=source,
        )
    raise DataError(
        f"{source} could not be loaded from the hub ({'; '.join(problems)})", code="data.hub", source=source
    )


@contextmanager
def _offline(datasets: Any, is_offline: bool) -> Iterator[None]:
    """Let `datasets` do as HF_HUB_OFFLINE has it, which it reads once, when it is imported."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = is_offline or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
