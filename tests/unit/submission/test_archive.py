"""The zip of a submission, good and bad ones."""

import zipfile
from pathlib import Path

import pytest
from raised import raises_code

from paratune.submission.archive import check_archive, write_archive

WNLI = "index\tprediction\n" + "".join(f"{row}\t0\n" for row in range(146))


def messages(path: Path, wanted: list[str]) -> list[str]:
    return [str(result) for result in check_archive(path, wanted, any_size=False)]


def test_the_archive_is_valid_and_reproducible(tmp_path):
    write_archive(tmp_path / "a.zip", {"WNLI.tsv": WNLI})
    write_archive(tmp_path / "b.zip", {"WNLI.tsv": WNLI})
    assert messages(tmp_path / "a.zip", ["WNLI.tsv"]) == []
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_tables_that_are_missing_odd_or_in_a_folder_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("WNLI.tsv", WNLI.replace("0\n", "2\n", 1))
        archive.writestr("out/RTE.tsv", "")
        archive.writestr("readme.txt", "hello")
    result = check_archive(tmp_path / "a.zip", ["WNLI.tsv", "RTE.tsv"], any_size=False)
    assert [(note.file, note.is_error) for note in result] == [
        ("RTE.tsv", True),
        ("WNLI.tsv", True),
        ("out/RTE.tsv", True),
        ("readme.txt", False),
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_table_that_is_there_twice_or_no_text_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("WNLI.tsv", WNLI)
        archive.writestr("WNLI.tsv", WNLI)
        archive.writestr("RTE.tsv", b"\xff")
    twice, undecodable = messages(tmp_path / "a.zip", [])
    assert twice.startswith("WNLI.tsv: ")
    assert undecodable.startswith("RTE.tsv: ")
    assert "0xff" in undecodable


def test_a_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("WNLI.tsv", bytes(65 * 2**20))
    assert "more than any table has" in messages(tmp_path / "a.zip", [])[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_with_damaged_bytes_is_an_error(method, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("WNLI.tsv", WNLI)
    raw = bytearray(path.read_bytes())
    start = 30 + len("WNLI.tsv")  # the header of an entry is 30 bytes and its name
    raw[start : start + 40] = b"\xff" * 40
    path.write_bytes(raw)
    with raises_code("data.damaged"):
        messages(path, [])


def test_a_file_that_is_not_a_zip_is_an_error(tmp_path):
    (tmp_path / "a.zip").write_text("hello")
    for path in (tmp_path / "a.zip", tmp_path / "absent.zip", tmp_path):
        with raises_code("data.damaged"):
            messages(path, [])
    with raises_code("output.not_writable"):
        write_archive(tmp_path / "no" / "a.zip", {})
