import gzip
import tracemalloc
import zlib

import pytest

from paratune.corpus.fetch.sources import Received, decode_content, fetched_row, sha1, usage_terms
from paratune.corpus.settings import Fetch
from paratune.corpus.shard import DroppedRow

PAGE = b"<html><body>ol\xc3\xa1</body></html>"
WANTED = Fetch(max_payload_mib=1000 / 2**20), (200,)


def row(**more):
    fields = {"url": "http://a.pt/", "timestamp": "20010101000000", "digest": None, "mime": None, "source": "a.cdx"}
    return fields | more


def received(body=PAGE, *, timestamp="", status=200, is_unframed=False, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Received(timestamp, status, named, body, frozenset({sha1(body)}), is_unframed, "replay")


def test_sha1_is_that_of_an_index():
    # The digest of nothing, as every CDX has it.
    assert sha1(b"") == "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


@pytest.mark.parametrize(
    ("encodings", "body"),
    [
        (None, PAGE),
        ("identity", PAGE),
        ("gzip", gzip.compress(PAGE)),
        ("x-gzip", gzip.compress(PAGE)),
        ("deflate", zlib.compress(PAGE)),
        ("deflate", zlib.compress(PAGE, wbits=-15)),
        ("gzip, gzip", gzip.compress(gzip.compress(PAGE))),
        ("gzip", gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:])),
        ("gzip", gzip.compress(PAGE) + b"\0\0\0 what follows"),
        ("gzip", PAGE),  # the header is wrong
    ],
    ids=["none", "identity", "gzip", "x-gzip", "zlib", "raw deflate", "twice", "in members", "and more", "not packed"],
)
def test_content_encodings_are_undone(encodings, body):
    assert decode_content(body, encodings, 1000) == PAGE


def test_brotli_is_undone():
    brotli = pytest.importorskip("brotli")
    assert decode_content(brotli.compress(PAGE), "br", 1000) == PAGE
    assert decode_content(brotli.compress(b"\0" * 10_000_000), "br", 1000) is None


def test_a_truncated_page_is_decoded_as_far_as_possible():
    body = gzip.compress(bytes(range(256)) * 8)
    assert bytes(range(256)).startswith(decode_content(body[:150], "gzip", 10_000)[:256])


@pytest.mark.parametrize("packed", [gzip.compress(b"\0" * 50_000_000), b"x" * 1001], ids=["packed", "plain"])
def test_payloads_that_unpack_to_too_much_are_dropped(packed):
    result = fetched_row(row(), received(packed, content_encoding="gzip"), *WANTED)
    assert (result.reason, result.detail) == ("too large", "unpacks to more than 1000 bytes")


def test_a_bomb_takes_no_memory():
    bomb = gzip.compress(b"\0" * 50_000_000)
    tracemalloc.start()
    assert decode_content(bomb, "gzip", 1000) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_an_unknown_encoding_is_dropped():
    result = fetched_row(row(), received(content_encoding="sdch"), *WANTED)
    assert (result.reason, result.detail) == ("content encoding", "sdch is not known")


def test_a_row_has_all_known_fields():
    headers = {"content_type": "text/html; charset=UTF-8", "x_robots_tag": "noarchive"}
    result = fetched_row(row(digest=sha1(PAGE)), received(**headers), Fetch(licence="CC0-1.0"), (200,))
    assert result == {
        "url": "http://a.pt/",
        "timestamp": "20010101000000",
        "digest": sha1(PAGE),
        "mime": "text/html",
        "status": 200,
        "source": "a.cdx",
        "content_type": "text/html; charset=UTF-8",
        "sha1": sha1(PAGE),
        "digest_fits": True,
        "how": "replay",
        "licence": "CC0-1.0",
        "robots": "noarchive",
        "payload": PAGE,
    }


@pytest.mark.parametrize("status", [404, None])
def test_another_status_is_dropped(status):
    result = fetched_row(row(), received(status=status), *WANTED)
    assert (result.reason, result.detail) == ("status", str(status) if status else "n/a")


def test_an_archived_redirect_has_its_target_as_detail():
    result = fetched_row(row(), received(status=302, location="http://live.pt/"), *WANTED)
    assert result.detail == "302 to http://live.pt/"


def test_a_payload_with_another_digest_is_dropped():
    result = fetched_row(row(digest=sha1(b"as it was")), received(b"as it is"), *WANTED)
    assert isinstance(result, DroppedRow)
    assert result.reason == "digest"
    assert sha1(b"as it was") in result.detail
    assert sha1(b"as it is") in result.detail
    kept = fetched_row(row(digest=sha1(b"as it was")), received(b"as it is"), Fetch(other_digest="keep"), (200,))
    assert (kept["digest"], kept["sha1"], kept["digest_fits"]) == (sha1(b"as it was"), sha1(b"as it is"), False)


@pytest.mark.parametrize("other_digest", ["drop", "keep"])
@pytest.mark.parametrize(
    ("digest", "more", "fits"),
    [
        (sha1(gzip.compress(PAGE, mtime=0)), {}, True),  # of what is sent, as crawlers do
        (sha1(PAGE), {}, True),  # of what an archive unpacked
        (sha1(PAGE), {"is_unframed": True}, True),
        ("6a6378ae90fe70a685a85a4b293c260c", {}, None),  # MD5 of Arquivo.pt's search: not comparable
        (None, {}, None),
        (sha1(b"of the chunks"), {"is_unframed": True}, None),
    ],
)
def test_digests_that_fit_or_cannot_be_compared(digest, more, fits, other_digest):
    body, fetch = gzip.compress(PAGE, mtime=0), Fetch(other_digest=other_digest)
    result = fetched_row(row(digest=digest), received(body, content_encoding="gzip", **more), fetch, (200,))
    assert (result["payload"], result["digest"], result["digest_fits"]) == (PAGE, digest, fits)


def test_a_nearest_capture_keeps_its_own_time_and_digest():
    result = fetched_row(row(digest=sha1(b"other")), received(timestamp="20020202020202"), *WANTED)
    assert (result["timestamp"], result["digest"]) == ("20020202020202", sha1(PAGE))


def test_use_is_read_from_headers_and_page():
    headers = {
        "x-robots-tag": "noindex, NOFOLLOW",
        "link": '<http://a.pt/style>; rel="stylesheet", <https://creativecommons.org/licenses/by/4.0/>; rel="license"',
    }
    page = b"""<META NAME=robots CONTENT="nofollow,noarchive"><meta name="author" content="noindex2">
    <a rel="nofollow license" href='http://b.pt/l'>x</a><a href="/other" rel="next">y</a>"""
    robots, licence = usage_terms(headers, page)
    assert robots == "noindex, nofollow, noarchive"
    assert licence == "https://creativecommons.org/licenses/by/4.0/ http://b.pt/l"
    assert usage_terms({}, b"<p>nothing</p>") == (None, None)


@pytest.mark.parametrize(
    "piece", [b"<meta ", b"<a " + b"a" * 990 + b">", b"<a " + b"name  " * 160 + b">", b"<link rel=" * 9]
)
def test_hostile_pages_take_no_time(piece):
    usage_terms({"link": "<" * 10_000}, piece * (2_000_000 // len(piece)))
