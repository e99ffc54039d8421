"""WARC files are written out; lengths and digests are computed from their bytes."""

import base64
import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from raised import raises_code

from paratune.corpus.index.captures import HEAD_BYTES, read_records
from paratune.corpus.shard import CaptureRow, DroppedRow
from paratune.errors import DataError

SHARED = Path(os.environ.get("PARATUNE_SHARED_DATA", "no such folder")) / "webarchive"
PAGE = b"<p>Uma p\xc3\xa1gina</p>" * 20
DATE = "2014-01-03T03:03:21Z"


def record(url):
    http = b"HTTP/1.0 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + PAGE
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: {DATE}\r\n"
    head += f"WARC-Target-URI: {url}\r\nContent-Type: application/http; msgtype=response\r\n"
    return f"{head}Content-Length: {len(http)}\r\n\r\n".encode() + http + b"\r\n\r\n"


def make_warc(path, *, compressed=True):
    records = [record(url) for url in ("http://a.pt/", "http://b.pt/")]
    path.write_bytes(b"".join(gzip.compress(item) if compressed else item for item in records))
    return path


@pytest.mark.parametrize("compressed", [True, False])
def test_captures_are_found_where_they_are(tmp_path, compressed):
    path = make_warc(tmp_path / "a.warc", compressed=compressed)
    first, second = read_records(path)
    digest = base64.b32encode(hashlib.sha1(PAGE).digest()).decode()
    # Without compression the four bytes between two records are of neither, as in pywb's indexes.
    whole = len(gzip.compress(record("http://a.pt/"))) if compressed else len(record("http://a.pt/"))
    length = whole if compressed else whole - 4
    assert first == CaptureRow(
        *("http://a.pt/", "20140103030321", digest, "text/html; charset=utf-8", 200, 0, length, "a.warc", "a.warc"),
    )
    assert (second.url, second.offset) == ("http://b.pt/", whole)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("num_bytes", [30, 60, 150, 180])
def test_records_before_a_truncation_are_kept(tmp_path, compressed, num_bytes):
    path = make_warc(tmp_path / "a.warc", compressed=compressed)
    path.write_bytes(path.read_bytes()[:-num_bytes])
    first, lost = read_records(path)
    assert first.url == "http://a.pt/"
    assert isinstance(lost, DroppedRow)
    assert lost.reason in ("torn record", "damaged WARC")


def test_a_file_that_was_compressed_as_a_whole_is_an_error_with_the_remedy(tmp_path):
    path, new = tmp_path / "whole.warc.gz", tmp_path / "new-whole.warc.gz"
    path.write_bytes(gzip.compress(make_warc(tmp_path / "a.warc", compressed=False).read_bytes()))
    with raises_code("corpus.archive_unreadable", f"warcio recompress {path} {new}", path=path):
        list(read_records(path))
    recompress = [sys.executable, "-m", "warcio.cli", "recompress", str(path), str(new)]
    subprocess.run(recompress, check=True, capture_output=True)
    assert [capture.url for capture in read_records(new)] == ["http://a.pt/", "http://b.pt/"]


@pytest.mark.parametrize("line", [b"X: abcdef\r\n", b"abcdefghijk"])
def test_headers_without_end_are_not_read(tmp_path, line):
    head = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.pt/\r\nWARC-Date: 2020-01-01T00:00:00Z\r\n"
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(head + 2 * HEAD_BYTES // len(line) * line, 1))
    (lost,) = read_records(tmp_path / "a.warc.gz")
    assert lost.reason == "damaged WARC"
    assert "headers of more than 1048576 bytes" in lost.detail


def test_headers_are_limited_record_by_record(tmp_path):
    more = b"X: " + b"a" * (HEAD_BYTES // 2) + b"\r\n"
    head = b"WARC/1.0\r\nWARC-Type: metadata\r\nContent-Length: 0\r\n" + more + b"\r\n\r\n\r\n"
    (tmp_path / "a.warc").write_bytes(3 * head)
    assert list(read_records(tmp_path / "a.warc")) == []


def test_a_file_with_other_content_is_an_error(tmp_path):
    (tmp_path / "a.warc").write_bytes(b"<!doctype html>\n" * 50)
    (lost,) = read_records(tmp_path / "a.warc")
    assert lost.reason == "damaged WARC"
    assert "after 0 whole records" in lost.detail


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(b"")
    (lost,) = read_records(tmp_path / "a.warc.gz")
    assert (lost.url, lost.reason) == ("a.warc.gz", "damaged WARC")
    assert "the file is empty" in lost.detail


def test_nothing_that_a_stranger_wrote_reaches_the_terminal(tmp_path, capfd, caplog):
    (tmp_path / "a.warc").write_bytes(record("http://a.pt/\x1b[2J b"))
    (result,) = read_records(tmp_path / "a.warc")
    assert result.url == "http://a.pt/\x1b[2J%20b"
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data sets")
def test_iana_is_found_as_pywb_indexed_it():
    """pywb's own index of the same file: url, timestamp, status, digest, length and offset of each response."""
    from paratune.corpus.index.captures import read_lines

    with (SHARED / "pywb/cdxj/iana.cdxj").open("rb") as file:
        known = [read_line for read_line in read_lines(file, "x") if read_line.mime != "warc/revisit"]
    result = [
        read_record
        for read_record in read_records(SHARED / "pywb/warcs/iana.warc.gz")
        if isinstance(read_record, CaptureRow)
    ]

    def key(row):
        return row.offset, row.length, row.url, row.timestamp, row.status, row.digest

    assert len(result) > 40
    assert sorted(map(key, result)) == sorted(map(key, known))


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data sets")
def test_of_the_test_suites_only_files_that_were_compressed_as_a_whole_end_in_an_error(capfd):
    paths = [path for path in sorted(SHARED.rglob("*")) if "arc" in path.name and path.is_file()]
    assert len(paths) > 30
    refused = []
    for path in paths:
        try:
            list(read_records(path))
        except DataError as error:
            refused.append((path.name, *error.codes))
    names = ["example-bad-non-chunked.warc.gz", *["example-bad.warc.gz.bad"] * 2]
    assert sorted(refused) == [(name, "corpus.archive_unreadable") for name in names]
