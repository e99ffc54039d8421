import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow.parquet as pq
import pytest
from archive import has_pywb, network, page, pywb, stand_in, write_warc
from raised import raises_code

from paratune.console import Display
from paratune.corpus.index.run import run_index, server_queries
from paratune.corpus.settings import CdxServer, Corpus, Index, TextSearchServer, VersionsServer, read_settings
from paratune.corpus.stage import stage_tables
from paratune.corpus.web import Unavailable
from paratune.errors import ConfigError

DISPLAY = Display(speaks=False)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server():
    with stand_in() as server:
        yield server


def make_corpus(tmp_path, *servers, work="work", **options):
    index = Index(servers=list(servers))
    return Corpus(work=str(tmp_path / work), network=network(tmp_path, **options), index=index)


def rows(corpus):
    return [row for path in stage_tables(Path(corpus.work) / "1_index") for row in pq.read_table(path).to_pylist()]


def windows(**options):
    queries = server_queries(CdxServer(urls=["a.pt"], **options))
    return [(dict(query.parameters)["from"], dict(query.parameters)["to"]) for query in queries]


def test_windows_are_years_within_the_span():
    result = windows(**{"from": 199610, "to": 19980213})
    assert result == [
        ("19961001000000", "19961231235959"),
        ("19970101000000", "19971231235959"),
        ("19980101000000", "19980213235959"),
    ]


def test_windows_are_months_and_know_leap_years():
    result = windows(**{"from": 20000131, "to": 200003, "window": "month"})
    assert [last for _, last in result] == ["20000131235959", "20000229235959", "20000331235959"]


def test_windows_are_days():
    assert windows(**{"from": 19991231, "to": 20000101, "window": "day"})[1] == ("20000101000000", "20000101235959")


def test_a_whole_span_needs_no_limits():
    assert server_queries(CdxServer(urls=["a.pt"], window="whole"))[0].target() == (
        "/wayback/cdx?url=a.pt&matchType=exact&output=json"
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("from: 1996", "line 5: index.servers[0]: window: year needs from and to"),
        ("from: 2001\n      to: 1999", "from (2001) is after to (1999)"),
        ("from: 199\n      to: 1999", "index.servers[0].from is 199"),
        ("from: 19991301\n      to: 2000", "19991301"),
        ("from: 19991\n      to: 2000", "19991 has 5 digits"),
        ("from: 1999\n      to: 2000\n      site: a.pt", "index.servers[0].site is not an option of cdx"),
        ("from: 1999\n      to: 2000\n      endpoint: ftp://a.pt/", "line 7: index.servers[0].endpoint is"),
        ("from: 1999\n      to: 2000\n      endpoint: https://me@a.pt/", "index.servers[0].endpoint is"),
        ("from: 1999\n      to: 2000", "network.contact is required"),
    ],
)
def test_invalid_settings_are_refused_with_their_values(tmp_path, lines, expected):
    path = tmp_path / "c.yaml"
    path.write_text(f"work: w\nnetwork: {{}}\nindex:\n  servers:\n    - kind: cdx\n      {lines}\n      urls: [a.pt]\n")
    if "endpoint" in lines:
        path.write_text(f"work: w\nindex:\n  servers:\n    - kind: cdx\n      {lines}\n      urls: [a.pt]\n")
    with pytest.raises(ConfigError) as result:
        read_settings(path)
    assert expected in str(result.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("servers: {kind: cdx}", "a list of mappings of options"),
        ("servers: [{kind: cdxx}]", "did you mean cdx?"),
        ("servers: [{urls: [a.pt]}]", "index.servers[0].kind is required"),
    ],
)
def test_servers_are_a_list_of_known_kinds(tmp_path, text, expected):
    path = tmp_path / "c.yaml"
    path.write_text(f"work: w\nindex: {{{text}}}\n")
    with pytest.raises(ConfigError) as result:
        read_settings(path)
    assert expected in str(result.value)


def cdx_line(number, **more):
    fields = {"urlkey": "x", "timestamp": f"2001010100000{number}", "url": f"http://a.pt/{number}"}
    fields |= {"mime": "text/html", "status": "200", "digest": f"{'ABCDEFGH'[number] * 32}", "length": "0"}
    return json.dumps(fields | more)


def test_a_cdx_server_is_asked_a_year_at_a_time(tmp_path, server):
    asked = CdxServer(
        endpoint=f"{server.url}/wayback/cdx",
        urls=["a.pt", "b.pt/á"],
        match="domain",
        filters=["=status:200", "~mime:text/.*"],
        **{"from": 2000, "to": 2001},
    )
    body = "\n".join(cdx_line(n, mime="image/png" if n == 2 else "text/html") for n in range(4)).encode()
    server.answers["/wayback/cdx"] = [(200, {"Content-Type": "text/x-ndjson"}, body)]
    corpus = make_corpus(tmp_path, asked)
    totals = run_index(corpus, 1, DISPLAY)
    queries = [parse_qsl(urlsplit(target).query) for target in server.targets()]
    assert len(queries) == 4
    assert queries[2] == [
        ("url", "b.pt/á"),
        ("matchType", "domain"),
        ("filter", "=status:200"),
        ("filter", "~mime:text/.*"),
        ("output", "json"),
        ("from", "20000101000000"),
        ("to", "20001231235959"),
    ]
    assert (totals["read"]["kept"], totals["read"]["dropped"]) == (12, {"mime": 4})
    # All four windows answer the same: each digest is kept once.
    assert [row["url"] for row in rows(corpus)] == ["http://a.pt/0", "http://a.pt/1", "http://a.pt/3"]
    assert rows(corpus)[0]["source"].startswith(f"127.0.0.1:{server.server_port} url=a.pt&matchType=domain")
    assert rows(corpus)[0]["length"] is None


ARRAYS = b"""[["urlkey","timestamp","original","mimetype","statuscode","digest","length"],
["pt,a)/", "20010101000000", "http://a.pt/", "text/html", "200", "ABCDEFGHABCDEFGHABCDEFGHABCDEFGH", "812"],
["pt,a)/", "20010101000000", "http://a.pt/"],
["pt,a)/b", "20020101000000", "http://a.pt/b]]", "text/html", "200", "BBCDEFGHABCDEFGHABCDEFGHABCDEFGH", "9"]]
"""
SEVEN = b"""pt,a)/ 20010101000000 http://a.pt/ text/html 200 ABCDEFGHABCDEFGHABCDEFGHABCDEFGH 812
pt,a)/b 20020101000000 http://a.pt/b]] text/html 200 BBCDEFGHABCDEFGHABCDEFGHABCDEFGH 9
"""


@pytest.mark.parametrize(("body", "num_lost"), [(ARRAYS, 1), (SEVEN, 0)])
def test_the_answers_of_openwayback_are_read(tmp_path, server, body, num_lost):
    # The forms of https://github.com/internetarchive/wayback/tree/master/wayback-cdx-server
    server.answers["/cdx"] = [(200, JSON, body)]
    corpus = make_corpus(tmp_path, CdxServer(endpoint=f"{server.url}/cdx", urls=["a.pt"], window="whole"))
    totals = run_index(corpus, 1, DISPLAY)
    assert [(row["url"], row["length"]) for row in rows(corpus)] == [("http://a.pt/", 812), ("http://a.pt/b]]", 9)]
    assert totals["read"]["dropped"] == ({"unreadable line": num_lost} if num_lost else {})


def test_truncated_responses_are_requested_again_without_duplicate_rows(tmp_path, server):
    whole = "\n".join(cdx_line(n) for n in range(3)).encode()

    def cut(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + whole[:-30])

    server.answers["/cdx"] = [cut, (429, {"Retry-After": "0"}, b""), (200, JSON, whole)]
    corpus = make_corpus(tmp_path, CdxServer(endpoint=f"{server.url}/cdx", urls=["a.pt"], window="whole"))
    assert run_index(corpus, 1, DISPLAY)["kept"] == 3
    assert len(server.log) == 3


def item(number, **more):
    """An item as Arquivo.pt has it: numbers are strings, and digests of the text search MD5."""
    url = f"http://a.pt/{number}"
    fields = {
        "title": "Um bom jogo",
        "originalURL": url,
        "linkToArchive": f"https://arquivo.pt/wayback/20090714011510/{url}",
        "tstamp": "20090714011510",
        "contentLength": "17447",
        "digest": f"6a6378ae90fe70a685a85a4b293c26{number:02d}",
        "mimeType": "text/html",
        "date": "1247534110",
        "collection": "AWP4",
    }
    return {key: value for key, value in (fields | more).items() if value is not None}


def answer(*items, **more):
    return 200, JSON, json.dumps({"serviceName": "Arquivo.pt", "response_items": items} | more).encode()


def offsets(server):
    return [dict(parse_qsl(urlsplit(target).query))["offset"] for target in server.targets()]


def search(server, **options):
    spans = {"from": 2009, "to": 2009} | options
    return TextSearchServer(endpoint=f"{server.url}/textsearch", queries=["jogo"], items_per_request=2, **spans)


def test_a_search_is_asked_until_it_brings_nothing_new(tmp_path, server):
    pages = [answer(item(0), item(1)), answer(item(1), item(2, mimeType=None)), answer(item(3)), answer()]
    server.answers["/textsearch"] = pages
    corpus = make_corpus(tmp_path, search(server, site="www.a.pt", types=["html"], collections=["AWP4", "AWP5"]))
    totals = run_index(corpus, 1, DISPLAY)
    assert offsets(server) == ["0", "2", "4", "5"]
    assert parse_qsl(urlsplit(server.targets()[0]).query) == [
        ("q", "jogo"),
        ("dedupField", "url"),
        ("dedupValue", "1"),
        ("siteSearch", "www.a.pt"),
        ("collection", "AWP4,AWP5"),
        ("type", "html"),
        ("from", "20090101000000"),
        ("to", "20091231235959"),
        ("offset", "0"),
        ("maxItems", "2"),
        ("prettyPrint", "false"),
    ]
    # Neither status nor, of one, a MIME type is known: they are documents all the same.
    assert [(row["url"], row["status"], row["mime"]) for row in rows(corpus)] == [
        ("http://a.pt/0", None, "text/html"),
        ("http://a.pt/1", None, "text/html"),
        ("http://a.pt/2", None, None),
        ("http://a.pt/3", None, "text/html"),
    ]
    assert totals["dropped"] == {}


def test_a_search_that_repeats_itself_ends(tmp_path, server):
    server.answers["/textsearch"] = [
        answer(item(0), item(1), next_page="http://elsewhere.pt", estimated_nr_results="9")
    ]
    assert run_index(make_corpus(tmp_path, search(server)), 1, DISPLAY)["kept"] == 2
    assert offsets(server) == ["0", "2"]


def test_items_that_say_too_little_are_dropped_with_the_reason(tmp_path, server):
    items = [
        item(0, originalURL=None),
        item(1, tstamp="2009"),
        "text",
        item(2, status="404"),
        item(3, mimeType="image/png"),
    ]
    server.answers["/textsearch"] = [answer(*items), answer()]
    totals = run_index(make_corpus(tmp_path, search(server)), 1, DISPLAY)
    assert totals["read"]["dropped"] == {"mime": 1, "status": 1, "unreadable line": 3}
    dropped = pq.read_table(tmp_path / "work/1_index/read/dropped-00000.parquet").to_pylist()
    message = ("item 0: no url", "item 1: the timestamp is 2009", "item 2: ")
    assert all(value["detail"].startswith(start) for value, start in zip(dropped, message, strict=False))


def test_a_sha1_and_the_documented_name_of_the_status_are_read(tmp_path, server):
    # A capture whose digest is SHA-1, and one under the documentation's name of the status.
    sha1 = "POPLDWWERZ2PUX2BRPCFNS2BB6ELQHMY"
    items = [item(0, status="200", digest=sha1), item(1, statusCode="302"), item(2, statusCode="200")]
    server.answers["/textsearch"] = [answer(*items), answer()]
    corpus = make_corpus(tmp_path, search(server))
    run_index(corpus, 1, DISPLAY)
    assert [(row["status"], row["digest"] == sha1) for row in rows(corpus)] == [(200, True), (200, False)]


def test_all_versions_of_a_page_are_found(tmp_path, server):
    # A capture whose digest is SHA-1, and one under the documentation's name of the status.
    sha1 = "POPLDWWERZ2PUX2BRPCFNS2BB6ELQHMY"
    items = [item(0, status="200", digest=sha1), item(1, statusCode="302"), item(2, statusCode="200")]
    server.answers["/textsearch"] = [answer(*items), answer()]
    versions = VersionsServer(endpoint=f"{server.url}/textsearch", urls=["http://a.pt/?a=b&c"], window="whole")
    corpus = make_corpus(tmp_path, versions)
    run_index(corpus, 1, DISPLAY)
    assert [(row["status"], row["digest"] == sha1) for row in rows(corpus)] == [(200, True), (200, False)]
    assert "versionHistory=http%3A%2F%2Fa.pt%2F%3Fa%3Db%26c&" in server.targets()[0]


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ((400, JSON, b"{}"), ("corpus.server", "HTTP", "400 of", "application/json")),
        ((404, {}, b""), ("corpus.server", "HTTP", "404")),
        ((200, {"Content-Type": "text/html"}, b"<p>Welcome"), ("corpus.server", "200")),
        ((301, {"Location": "https://a.pt/"}, b""), ("corpus.server", "https://a.pt/")),
        ((200, JSON, b"[" * 100_000), ("corpus.server", "JSON", "response_items")),
        ((200, JSON, b'{"response_items": 3}'), ("corpus.server", "JSON", "response_items")),
    ],
)
def test_an_answer_that_is_none_ends_the_command(tmp_path, server, sent, refused):
    server.answers["/textsearch"] = [sent]
    with raises_code(*refused):
        run_index(make_corpus(tmp_path, search(server)), 1, DISPLAY)
    assert len(server.log) == 1


def test_finished_queries_are_not_repeated(tmp_path, server):
    server.answers["/textsearch"] = [answer(item(0)), answer(), (503, {}, b"")]
    corpus = make_corpus(tmp_path, search(server, to=2010), tries=2)
    with pytest.raises(Unavailable, match="HTTP 503 after 2 tries"):
        run_index(corpus, 1, DISPLAY)
    server.log.clear()
    server.answers["/textsearch"] = [answer(item(1)), answer()]
    assert run_index(corpus, 1, DISPLAY)["kept"] == 2
    assert {dict(parse_qsl(urlsplit(target).query))["from"] for target in server.targets()} == {"20100101000000"}
    server.log.clear()
    run_index(make_corpus(tmp_path, search(server, to=2010), requests_per_minute=90_000), 1, DISPLAY)
    assert server.log == []


def test_workers_that_fail_say_why(tmp_path, server):
    server.answers["/textsearch"] = [(503, {}, b"")]
    with pytest.raises(Unavailable, match="HTTP 503 after one try"):
        run_index(make_corpus(tmp_path, search(server, to=2010), tries=1), 2, DISPLAY)


@pytest.mark.skipif(not has_pywb(), reason="needs pywb")
def test_a_real_cdx_server_answers(tmp_path):
    headers = [("Content-Type", "text/html")]
    records = [(f"http://a.pt/{n}", f"{1999 + n}0101000000", "200 OK", headers, page(f"page {n}")) for n in range(4)]
    records.append(("http://a.pt/gone", "20010101000000", "404 Not Found", headers, b"gone"))
    write_warc(tmp_path / "a.warc.gz", records)
    span = {"from": 2000, "to": 2001}
    with pywb(tmp_path / "pywb", [tmp_path / "a.warc.gz"]) as url:
        asked = CdxServer(endpoint=f"{url}/wayback/cdx", urls=["a.pt"], match="domain", **span)
        corpus = make_corpus(tmp_path, asked)
        totals = run_index(corpus, 1, DISPLAY)
    assert totals["read"]["dropped"] == {"status": 1}
    local = Corpus(work=str(tmp_path / "local"), index=Index(warcs=[str(tmp_path / "a.warc.gz")]))
    run_index(local, 1, DISPLAY)
    same = ("url", "timestamp", "digest", "mime", "status", "offset", "length", "filename")
    assert [[row[key] for key in same] for row in rows(corpus)] == [
        [row[key] for key in same] for row in rows(local)[1:3]
    ]
