"""Writes the zip of a submission, equal for equal predictions, and checks one without unpacking it to disk."""

import lzma
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from paratune.base.atomic import replace_file
from paratune.base.units import MIB
from paratune.errors import DataError
from paratune.submission.tables import TABLES, SubmissionNote, check_table

MAX_BYTES = 64 * MIB
"""Maximum size of a table; the largest, QQP, has 4 MiB."""
_DATE = (1980, 1, 1, 0, 0, 0)


def write_archive(path: Path, texts: Mapping[str, str]) -> None:
    """Write tables as a zip; the file is complete or absent.

    Raises:
        DataError: The file is not writable.
    """
    try:
        with replace_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in TABLES:
                if name in texts:
                    entry = zipfile.ZipInfo(name, _DATE)
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    archive.writestr(entry, texts[name])
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}"
        raise DataError(message, code="output.not_writable", path=path) from error


def check_archive(path: Path, wanted: Sequence[str], *, any_size: bool) -> list[SubmissionNote]:
    """Return the problems of a submission: of its files, then of their content.

    Raises:
        DataError: The file is not a readable zip.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _check(archive, wanted, any_size=any_size)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read as a zip: {error}", code="data.damaged", path=path) from error


def _check(archive: zipfile.ZipFile, wanted: Sequence[str], *, any_size: bool) -> list[SubmissionNote]:
    names = [entry.filename for entry in archive.infolist()]
    notes = [SubmissionNote(name, "is missing") for name in wanted if name not in names]
    notes += [SubmissionNote(name, "occurs more than once") for name in dict.fromkeys(names) if names.count(name) > 1]
    for entry in archive.infolist():
        name = entry.filename
        if name not in TABLES:
            inner = name.rpartition("/")[2]
            message = "is in a folder, not at the top" if inner in TABLES else "is not a table of a submission"
            notes.append(SubmissionNote(name, message, is_error=inner in TABLES))
        elif entry.file_size > MAX_BYTES:
            notes.append(SubmissionNote(name, f"unpacks to {entry.file_size} bytes, more than any table has"))
        elif names.count(name) == 1:
            notes += _check_entry(archive, name, any_size=any_size)
    return notes


def _check_entry(archive: zipfile.ZipFile, name: str, *, any_size: bool) -> list[SubmissionNote]:
    with archive.open(name) as file:
        raw = file.read(MAX_BYTES + 1)  # the size in the entry may be wrong
    if len(raw) > MAX_BYTES:
        return [SubmissionNote(name, f"unpacks to more than {MAX_BYTES} bytes")]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return [SubmissionNote(name, f"is not UTF-8 text: byte {raw[error.start]:#04x} at {error.start}")]
    return check_table(name, text, any_size=any_size)
