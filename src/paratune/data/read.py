"""Reads a source of the configuration (file, folder, demo data, hub data set, own code) as an Arrow table.

Imports no torch.
"""

import csv
import gzip
import io
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq

from paratune import hub
from paratune.base.text import listing
from paratune.base.units import GIB, MIB, format_bytes
from paratune.config.own_code import OWN_ERRORS, call_own_code, described_error, same_folder
from paratune.config.section import OwnCode
from paratune.config.sections import AS_FOUND, Columns, FileReading
from paratune.config.sources import CODE, absence, demo_file, has_tokens, local_path, path_and_split
from paratune.data.columns import TableReader
from paratune.data.formats import parse_conll, parse_conllu, text_format
from paratune.data.json_tables import parse_json
from paratune.data.tables import ENCODING, decode, parse_csv, parse_paragraphs, parse_text, parse_tsv
from paratune.errors import ConfigError, DataError, did_you_mean, require

log = logging.getLogger(__name__)

PARAGRAPHS = "paragraphs"
"""In `corpus.txt#paragraphs`, blank lines separate documents; without it, each line is a document."""
MAX_UNPACKED_BYTES = 16 * GIB
"""Largest size of an unpacked file, which is in memory as a whole; a malicious file of 16 MiB can unpack to 16 GiB."""
MAX_UNPACKED_RATIO = 200
"""Largest ratio of unpacked to packed bytes above `FREE_UNPACKED_BYTES`: text has 3 to 10, zeros have 1000."""
FREE_UNPACKED_BYTES = GIB
"""Unpacked size up to which the ratio is not checked: small files of repeated rows have very large ratios."""
_CHUNK_BYTES = 16 * MIB
_TEXTS_AT_A_TIME = 10_000
"""Rows of a Parquet file that are in memory at a time in `iterate_texts`."""


def source_error(source: object, problem: str, *, code: str, **facts: Any) -> DataError:
    """Return the error of a source; `problem` follows its name."""
    return DataError(f"{source}{problem}", code=code, source=str(source), **facts)


def read_table(source: str, reading: FileReading = AS_FOUND) -> pa.Table:
    """Return a table with at least one row; columns of CSV and TSV are strings, with "" for empty fields.

    `source` is a file, a folder, `demo:NAME`, `hub:NAME` or `code:package.module:function`, as in `data.train`.

    Raises:
        ConfigError: Own code cannot be imported, or raises an error.
        DataError: The source is absent, empty, damaged, or of an unknown kind.
        MissingDependency: The source needs a package that is not installed.
    """
    if source.startswith("<") and source.endswith(">"):
        message = f"data: {source} is a placeholder; replace it with the name of a file"
        raise DataError(message, code="config.placeholder", source=source)
    if source.startswith("hub:"):
        table = _read_hub(source, reading.hub_revision)
    elif source.startswith("demo:"):
        table = _read_file(demo_file(source), None, AS_FOUND)
    else:
        table = read_own_rows(source) if source.startswith(CODE) else _read_path(source, reading)
    if table.num_rows == 0:
        columns = listing(table.column_names) or "none"
        raise source_error(source, f" has no rows (columns: {columns})", code="data.empty")
    return table


def iterate_texts(sources: Sequence[str], column: str) -> Iterator[str]:
    """Yield the texts of a column of files (as for `read_table`), in order, without rows that have no text.

    For code that reads each text once: Parquet files are read in parts, other files whole. Errors as in `read_table`.
    """
    for source in sources:
        for table in _tables(source):
            texts = TableReader(table, Columns(text=column), "drop", source, require_labels=False).texts("text")
            yield from (text for text in texts or () if text is not None)


def _tables(source: str) -> Iterator[pa.Table]:
    if not source.endswith(PARQUET) or not Path(source).is_file():
        yield read_table(source)
        return
    with _explained(source), pq.ParquetFile(source) as file:
        for batch in file.iter_batches(batch_size=_TEXTS_AT_A_TIME):
            batch.validate(full=True)  # otherwise invalid UTF-8 raises only where a text is used
            yield pa.Table.from_batches([batch])


def _read_path(source: str, reading: FileReading) -> pa.Table:
    whole = local_path(source)
    assert whole is not None
    path, split = path_and_split(whole)
    if has_tokens(source):
        problem = " has tokens and no texts. data.train, data.validation and data.test of task.kind: mlm may name it, "
        problem += "alone or with other folders of tokens"
        raise source_error(source, problem, code="data.only_tokens")
    if path.exists():
        return _read_folder(path, split, reading) if path.is_dir() else _read_file(path, split, reading)
    raise source_error(path, absence(path), code="data.not_found")


def _read_file(path: Path, split: str | None, reading: FileReading) -> pa.Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_gzip = bool(suffixes) and suffixes[-1] == ".gz"
    kind = suffixes[-2] if is_gzip and len(suffixes) > 1 else suffixes[-1] if suffixes and not is_gzip else ""
    is_paragraphs = kind == ".txt" and split == PARAGRAPHS
    if split is not None and not is_paragraphs and kind not in SPREADSHEETS:
        problem = f"#{split}: only folders of `datasets` have splits, spreadsheets sheets, and .txt files #{PARAGRAPHS}"
        raise source_error(path, f"{problem}; name the file without #", code="data.split_unknown", split=split)
    if not path.is_file():
        problem = " is not a regular file (a pipe, a socket or a device?); write the rows to a file"
        raise source_error(path, problem, code="data.unreadable")
    try:
        raw = _unpacked(path) if is_gzip else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = f" is damaged or not gzip: {error}; download or compress it again"
        raise source_error(path, problem, code="data.unreadable") from error
    except OSError as error:
        raise source_error(path, f" cannot be read: {error.strerror or error}", code="data.unreadable") from error
    if not raw:
        raise source_error(path, " is empty (0 bytes)", code="data.empty")
    start = raw[:200].lstrip().lower()
    if start.startswith(b"version https://git-lfs.github.com"):
        problem = " is a pointer of Git LFS, not the data itself; run git lfs pull in its repository"
        raise source_error(path, problem, code="data.not_data")
    if re.match(rb"<(!doctype html|html|head)\b", start):
        problem = " is a web page (HTML): the error of a download, or the page around a file; download the file itself"
        raise source_error(path, problem, code="data.not_data")
    if kind == PARQUET:
        with _explained(str(path)):
            table = pq.read_table(pa.BufferReader(raw), page_checksum_verification=True)
            table.validate(full=True)  # otherwise invalid UTF-8 raises only where a text is used
            table.column_names  # noqa: B018 - raises where a name is not UTF-8
        return table
    if start.startswith(b"pk\3\4") and kind in ("", ".zip", *PARSERS):
        problem = " is a zip archive, or a spreadsheet without its suffix .xlsx; unpack or rename it"
        raise source_error(path, problem, code="data.not_data")
    if kind in SPREADSHEETS:
        return _parse_spreadsheet(raw, str(path), split, reading)
    is_known = kind in PARSERS
    text, guessed = decode(raw, str(path), reading.encoding) if is_known or b"\0" not in raw else ("", None)
    is_plain = reading[1:4] == AS_FOUND[1:4] and not is_paragraphs and kind not in _ONE_FORMAT
    if is_plain and (named := text_format(text)) is not None:
        log.info("%s: read as %s", path, named[0])
        table = named[1](text, str(path), reading)
    elif kind in _CONVERTED:
        code, suffix = _CONVERTED[kind]
        command = f"python -c '{code}' {quote(str(path))} > NEW{suffix}"
        raise source_error(path, f": files with {kind} are not read; convert it: {command}", code="data.format")
    elif not is_known:
        allowed = f"(allowed: {', '.join((*PARSERS, PARQUET, *SPREADSHEETS))}, each also with .gz); rename a text file"
        raise source_error(path, f": files with {kind or 'no suffix'} cannot be read {allowed}", code="data.format")
    else:
        table = (parse_paragraphs if is_paragraphs else PARSERS[kind])(text, str(path), reading)
    return table.replace_schema_metadata({**(table.schema.metadata or {}), ENCODING: guessed}) if guessed else table


def _unpacked(path: Path) -> bytes:
    """Return the unpacked content of a gzip file; raise a DataError above the limit, before memory is full."""
    packed = path.stat().st_size
    limit = min(MAX_UNPACKED_BYTES, max(FREE_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed))
    unpacked = io.BytesIO()
    with gzip.open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            if unpacked.tell() + len(chunk) > limit:
                sizes = f" has {format_bytes(packed)} and unpacks to more than {format_bytes(limit)}"
                advice = "which is not plausible for text; if the file is right, unpack it and name the unpacked file"
                raise source_error(path, f"{sizes}, {advice}", code="data.too_large")
            unpacked.write(chunk)
    return unpacked.getvalue()  # shares the memory, no copy


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Replace errors of Parquet by a `DataError`."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise source_error(source, f" is damaged or not Parquet: {error}", code="data.unreadable") from error


def _parse_spreadsheet(raw: bytes, source: str, sheet: str | None, reading: FileReading) -> pa.Table:
    """Return a sheet, the first one where `sheet` is None, as text columns as in a CSV file."""
    from python_calamine import CalamineWorkbook

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(raw))
        names = list(book.sheet_names)
        rows = book.get_sheet_by_name(sheet or names[0]).to_python() if sheet in (None, *names) else None
    except Exception as error:  # python-calamine raises many kinds for a damaged file
        raise source_error(source, f" cannot be read as a spreadsheet: {error}", code="data.unreadable") from error
    if rows is None:
        problem = f" has no sheet {sheet}{did_you_mean(str(sheet), names)} (has: {listing(names)})"
        raise source_error(source, problem, code="data.split_unknown", split=sheet)
    cells = [
        [str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell) for cell in row] for row in rows
    ]
    text = io.StringIO()
    csv.writer(text).writerows(row for row in cells if any(row))
    return parse_csv(text.getvalue(), source, AS_FOUND._replace(separator=",", header=reading.header))


PARQUET = ".parquet"
SPREADSHEETS = (".xlsx", ".xls", ".ods")
PARSERS: dict[str, Callable[[str, str, FileReading], pa.Table]] = {
    ".csv": parse_csv,
    ".tsv": parse_tsv,
    ".jsonl": parse_json,
    ".json": parse_json,
    ".ndjson": parse_json,
    ".txt": parse_text,
    ".conll": parse_conll,
    ".conllu": parse_conllu,
}
"""Parser of the text of a file by suffix; files with other suffixes have one of `TEXT_FORMATS`."""
_ONE_FORMAT = (".csv", ".jsonl", ".json", ".ndjson", ".conllu")
"""Suffixes of files that have no other format."""
_CONVERTED = {
    ".xml": (
        "import json, sys, xml.etree.ElementTree as tree; rows = tree.parse(sys.argv[1]).getroot(); "
        r'print(*(json.dumps({**row.attrib, **{part.tag: part.text for part in row}}) for row in rows), sep="\n")',
        ".jsonl",
    ),
    ".arff": (
        r'import csv, re, sys; head, data = re.split(r"(?im)^@data.*\n", open(sys.argv[1]).read(), maxsplit=1); '
        r'names = [name for _, name in re.findall(r"(?im)^@attribute\s+([\x22\x27]?)(.+?)\1\s", head)]; '
        r'rows = (row for row in data.split("\n") if row[:1] not in "%"); quote = max("\x22\x27", key=data.count); '
        r'rows = csv.reader(rows, quotechar=quote, escapechar="\\", skipinitialspace=True); '
        "csv.writer(sys.stdout).writerows([names, *rows])",
        ".csv",
    ),
}
"""Python that prints the rows of other formats, by suffix, and the suffix for what it prints."""


def _read_folder(path: Path, split: str | None, reading: FileReading) -> pa.Table:
    is_one, is_several = (path / "state.json").is_file(), (path / "dataset_dict.json").is_file()
    if not is_one and not is_several:
        return _read_class_folders(path, split, reading)
    datasets = require("datasets", extra="hub")
    try:
        dataset = datasets.load_from_disk(str(path))
    except Exception as error:  # `datasets` raises many kinds for a damaged folder
        raise source_error(path, f" cannot be read by datasets: {error}", code="data.unreadable") from error
    if is_one and split is not None:
        problem = f" has a single split; name it without #{split}"
        raise source_error(path, problem, code="data.split_unknown", split=split)
    return _as_table(_pick(dataset, split, str(path), "#") if is_several else dataset)


def _read_class_folders(path: Path, split: str | None, reading: FileReading) -> pa.Table:
    """Return the texts in the folders of a folder, such as `pos/0_9.txt`; the label is the name of their folder."""
    inner = sorted(path.glob("[!.]*/[!.]*"))
    files = [file for file in inner if file.suffix.lower() in ("", ".txt")]
    folders = listing(sorted({str(item.parent) for item in inner if item.is_dir()}))
    if folders or not files or split is not None:
        problem = " was not saved by `datasets` (save_to_disk), and has no folder of .txt files for each class"
        advice = f"a folder, such as {folders}" if folders else "a file in it that has a row for each text"
        raise source_error(path, f"{problem}; name {advice}", code="data.format")
    try:
        raws = [file.read_bytes() for file in files]
    except OSError as error:
        raise source_error(error.filename, f" cannot be read: {error.strerror}", code="data.unreadable") from error
    texts, encoding = list[str](), reading.encoding
    for file, raw in zip(files, raws, strict=True):
        is_utf8 = raw.decode(errors="ignore").encode() == raw
        text, guessed = decode(raw, str(file), reading.encoding if is_utf8 else encoding)
        encoding = guessed or encoding  # once, with one warning
        texts.append(text)
    log.info("%s: read as text files in folders of classes", path)
    labels = [None if file.parent.name == "unsup" else file.parent.name for file in files]  # as in aclImdb
    about = None if encoding == reading.encoding else {ENCODING: encoding}
    return pa.table([pa.array(texts), pa.array(labels, pa.string())], names=["text", "label"], metadata=about)


def _pick(splits: Any, split: str | None, source: str, mark: str) -> Any:
    """Return the named split, or the only one; `mark` is before the split in a source, for messages."""
    names = list(splits)
    if split is None and len(names) == 1:
        return splits[names[0]]
    if split in names:
        return splits[split]
    problem = f" has {len(names)} splits; name one: {source}{mark}{names[0]}"
    if split is not None:
        problem = f" has no split {split}{did_you_mean(split, names)}"
    raise source_error(source, f"{problem} (has: {', '.join(names)})", code="data.split_unknown", split=split)


def _as_table(dataset: Any) -> pa.Table:
    # By the format and not by `.data`, which ignores that rows were selected or shuffled.
    table: pa.Table = dataset.with_format("arrow")[:]
    return table


def _read_hub(source: str, revision: str | None) -> pa.Table:
    name, _, split = source.removeprefix("hub:").partition("@")
    parts = name.split("/")
    if not all(parts) or len(parts) > 3:
        problem = ": expected hub:NAME, hub:OWNER/NAME or hub:OWNER/NAME/CONFIG, with @SPLIT"
        raise source_error(source, problem, code="data.hub")
    readings: list[tuple[str, str | None]] = [("/".join(parts[:2]), parts[2] if len(parts) == 3 else None)]
    if len(parts) == 2:  # OWNER/NAME or NAME/CONFIG: both are tried, in this order
        readings.append((parts[0], parts[1]))
    datasets = require("datasets", extra="hub")
    readings = [(data_set, config) for data_set, config in readings if not _is_local(data_set)]
    if not readings:
        problem = f": {name} is a folder here or a reader of `datasets`, and no data set of the hub; name a file"
        raise source_error(source, problem, code="data.hub")
    reason = hub.unreachable_reason()
    problems = []
    # Offline, `datasets` returns the newest version in its cache and ignores the revision: then nothing is tried.
    for data_set, config in readings if reason is None or revision is None else ():
        try:
            with _offline(datasets, reason is not None):
                dataset = datasets.load_dataset(data_set, config, revision=revision)
        except Exception as error:  # for a failed connection, an unknown name, a damaged file
            problems.append(f"{data_set}{' ' + config if config else ''}: {error}")
            continue
        return _as_table(_pick(dataset, split or None, source.partition("@")[0], "@"))
    if reason is not None:
        problem = f" is on the hub, {'its revision' if revision else 'it'} is not in the cache, and {reason}"
        advice = "on a machine with a network, save it (datasets.load_dataset(...).save_to_disk(FOLDER))"
        raise source_error(source, f"{problem}; {advice}, and name the folder", code="data.hub")
    raise source_error(source, f" could not be loaded from the hub ({'; '.join(problems)})", code="data.hub")


def _is_local(name: str) -> bool:
    """Return whether `datasets` reads files of this machine for a name: such as `pandas`, which reads pickles of the
    current folder in some versions."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    return name in _PACKAGED_DATASETS_MODULES or Path(name).exists()


@contextmanager
def _offline(datasets: Any, is_offline: bool) -> Iterator[None]:
    """Set the offline mode of `datasets`, which reads HF_HUB_OFFLINE only at import; restore it at the end."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = is_offline or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def read_own_rows(source: str) -> pa.Table:
    """Return the rows of a source `code:package.module:function`, or `...?key=value&key=value` with keyword arguments.

    The function is called once, with the arguments as texts. It returns an Arrow table, an object with a length and
    items such as a torch Dataset, or another iterable that ends. Rows are mappings of columns to values.
    """
    name, _, query = source.removeprefix(CODE).partition("?")
    rows = call_own_code(OwnCode.model_construct(function=name, options=_arguments(query, source)), source)
    if isinstance(rows, pa.Table):
        return rows
    try:
        with same_folder():
            read = _rows_of(rows, source)
    except (ConfigError, DataError):
        raise
    except OWN_ERRORS as error:  # a user's data set may raise anything
        problem = f": reading its rows raised {described_error(error)}"
        raise source_error(source, problem, code="data.own_rows") from error
    for number, row in enumerate(read):
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            problem = f": row {number} is of type {type(row).__name__}; a row is a mapping of column names to values"
            raise source_error(source, problem, code="data.own_rows", row=number)
    columns = dict.fromkeys(key for row in read for key in row)
    try:
        return pa.table({key: pa.array([row.get(key) for row in read]) for key in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        problem = f": the values of a column have different types, or a type that Arrow does not have: {error}"
        raise source_error(source, f"{problem}; use texts, numbers and lists of them", code="data.own_rows") from error


def _arguments(query: str, source: str) -> dict[str, str]:
    """Return the keyword arguments of a source, what follows the question mark."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        pairs = []
    arguments = dict(pairs)
    if len(arguments) != len(pairs) or bool(arguments) != bool(query):
        problem = f": what follows ? is {query}; write key=value&key=value, each key once"
        raise source_error(source, problem, code="data.own_rows", value=query)
    return arguments


def _rows_of(rows: Any, source: str) -> list[Any]:
    """Return all rows, as many as the length before and after reading."""
    before = len(rows) if hasattr(rows, "__len__") else None
    if before is not None and hasattr(rows, "__getitem__") and not isinstance(rows, Mapping):
        read = [rows[number] for number in range(before)]
    elif isinstance(rows, Iterable) and not isinstance(rows, Mapping | str):
        read = list(rows)
    else:
        problem = f" returned {type(rows).__name__}; return a data set or an iterable of mappings"
        raise source_error(source, problem, code="data.own_rows")
    after = len(rows) if before is not None else None
    if before != after or before not in (None, len(read)):
        lengths = f": its length was {before} before and {after} after reading, and it has {len(read)} rows"
        raise source_error(source, f"{lengths}; a data set must not change", code="data.own_rows")
    return read
