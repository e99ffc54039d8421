"""The expected values are the fields as the legend of CDX and the lines of public archives have them."""

import base64
import hashlib
import io

import pytest

from paratune.corpus.index.captures import MAX_LINE_BYTES, base32_digest, read_lines
from paratune.corpus.shard import CaptureRow, DroppedRow

DIGEST = "B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A"
ROW = CaptureRow(
    url="http://example.com?example=1",
    timestamp="20140103030321",
    digest=DIGEST,
    mime="text/html",
    status=200,
    offset=333,
    length=1043,
    filename="example.warc.gz",
    source="a.cdx",
)
LINE_11 = f"com,example)/?example=1 20140103030321 {ROW.url} text/html 200 {DIGEST} - - 1043 333 example.warc.gz"
JSON = f'"mime": "text/html", "status": "200", "digest": "{DIGEST}", "length": "1043", "offset": "333", ' + (
    '"filename": "example.warc.gz"'
)


def read(text):
    return list(read_lines(io.BytesIO(text if isinstance(text, bytes) else text.encode()), "a.cdx"))


@pytest.mark.parametrize(
    "text",
    [
        f" CDX N b a m s k r M S V g\n{LINE_11}\n",
        f"{LINE_11}\r\n",
        f" CDX g V S a b k s m\nexample.warc.gz 333 1043 {ROW.url} {ROW.timestamp} {DIGEST} 200 text/html",
        f'com,example)/?example=1 20140103030321 {{"url": "{ROW.url}", {JSON}}}\n',
        f'{{"urlkey": "com,example)/?example=1", "timestamp": "20140103030321", "url": "{ROW.url}", {JSON}}}\n',
        f'!OpenWayback-CDXJ 1.0\n\n{{"timestamp": "20140103030321", "original": "{ROW.url}", '
        f"{JSON.replace('mime', 'mimetype').replace('status', 'statuscode')}}}\n",
    ],
    ids=["header", "11 fields", "another order", "CDXJ", "JSON of pywb", "JSON of OpenWayback"],
)
def test_the_dialects_say_the_same(text):
    assert read(text) == [ROW]


def test_nine_fields_have_no_length():
    line = f"com,example)/ 20140103030321 {ROW.url} text/html 200 {DIGEST} - 333 example.arc.gz"
    (row,) = read(line)
    assert (row.offset, row.length, row.filename) == (333, None, "example.arc.gz")


def test_unknown_values_are_none():
    (row,) = read('pt,a)/ 20140103030321 {"url": "http://a.pt/", "status": "-", "length": "0", "offset": "0"}')
    assert row == CaptureRow("http://a.pt/", "20140103030321", None, None, None, 0, None, None, "a.cdx")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a b c", "line 1: 3 fields, where CDX has 7, 9, 10 or 11"),
        (LINE_11.replace("20140103030321", "2014"), "the timestamp is 2014, not 14 digits"),
        (LINE_11.replace(" 200 ", " OK "), "the status is OK, not a whole number up to 999"),
        (LINE_11.replace(" 333 ", " -1 "), "the offset is -1"),
        (LINE_11.replace(ROW.url, "-"), "no url"),
        ("{]", "line 1"),
        ("{" + '"a":[' * 100_000, "line 1"),
        ("pt,a)/ 20140103030321 {}", "no url"),
        (b"\x00\xff" * 40, "fields"),
    ],
)
def test_a_bad_line_is_dropped_with_the_reason_and_the_next_is_read(line, expected):
    line = line if isinstance(line, bytes) else line.encode()
    lost, row = read(line + b"\n" + LINE_11.encode())
    assert isinstance(lost, DroppedRow)
    assert lost.reason == "unreadable line"
    assert expected in lost.detail
    assert row == ROW


def test_a_line_without_end_is_not_held_in_memory():
    lost, row = read(b"x" * (3 * MAX_LINE_BYTES) + b"\n" + LINE_11.encode())
    assert "line 1: longer than 1048576 bytes" in lost.detail
    assert row == ROW


def test_urls_in_an_old_charset_are_read():
    (row,) = read(LINE_11.replace("example=1 text", "não text").encode("latin-1"))
    assert row.url == "http://example.com?não"


def test_digests_are_base32():
    sha1 = hashlib.sha1(b"texto")
    in_base32 = base64.b32encode(sha1.digest()).decode()
    for written in (sha1.hexdigest(), f"sha1:{in_base32}", in_base32.lower()):
        assert base32_digest(written) == in_base32
    assert base32_digest("md5:abc") == "md5:abc"
    # The search of Arquivo.pt gives MD5; this one has no digit that base32 has not.
    assert base32_digest("6a63ab54fe72fe62a625a25a4b273c26") == "6a63ab54fe72fe62a625a25a4b273c26"
    assert base32_digest(None) is None
