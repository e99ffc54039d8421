"""The stage as a whole, from archive files, from a server of files, from pywb, and from a stand-in on bad days."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from archive import has_pywb, network, page, pywb, sha1, stand_in, write_warc
from patience import PATIENCE_S, wait_for
from raised import raises_code

from paratune.console import Display
from paratune.corpus.fetch.run import run_fetch
from paratune.corpus.index.run import run_index
from paratune.corpus.settings import Corpus, Fetch, Index, read_settings
from paratune.corpus.stage import stage_tables
from paratune.corpus.web import Unavailable

DISPLAY = Display(speaks=False)
HTML = [("Content-Type", "text/html; charset=iso-8859-1")]
GMT = "Mon, 01 Jan 2001 00:00:00 GMT"
MOMENT = "20010101000000"


@pytest.fixture
def server():
    with stand_in() as server:
        yield server


def chunked(body):
    return b"".join(b"%x\r\n%s\r\n" % (len(item), item) for item in (body[:7], body[7:])) + b"0\r\n\r\n"


def pages(number):
    """Return records of pages, each sent in another way, and what they are once unpacked."""
    ways = [
        (HTML, lambda body: body),
        ([*HTML, ("Content-Encoding", "gzip")], lambda body: gzip.compress(body, mtime=0)),
        ([*HTML, ("Transfer-Encoding", "chunked")], chunked),
    ]
    result, payloads = [], []
    for n in range(number):
        headers, pack = ways[n % 3]
        payloads.append(page(f"page {n}"))
        result.append(
            (f"http://a.pt/{n}", f"2001010100{n // 60:02d}{n % 60:02d}", "200 OK", headers, pack(payloads[-1]))
        )
    return result, payloads


def make_corpus(tmp_path, work="work", *, index, rows_per_shard=10_000, settings=None, **fetch):
    return Corpus(
        work=str(tmp_path / work),
        rows_per_shard=rows_per_shard,
        network=settings or network(tmp_path),
        index=Index(**{key: [str(tmp_path / name) for name in names] for key, names in index.items()}),
        fetch=Fetch(**fetch),
    )


def run(corpus, workers=1):
    run_index(corpus, 1, DISPLAY)
    return run_fetch(corpus, workers, DISPLAY)


def rows(corpus):
    return [row for path in stage_tables(Path(corpus.work) / "2_fetch") for row in pq.read_table(path).to_pylist()]


def dropped(corpus):
    result = sorted((Path(corpus.work) / "2_fetch").glob("dropped-*.parquet"))
    return {row["url"]: (row["reason"], row["detail"]) for path in result for row in pq.read_table(path).to_pylist()}


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_captures_come_from_files_of_this_machine(tmp_path, name):
    records, payloads = pages(7)
    write_warc(tmp_path / name, records)
    corpus = make_corpus(tmp_path, index={"warcs": [name]}, licence="CC0-1.0")
    assert run(corpus)["dropped"] == {}
    result = rows(corpus)
    assert [row["payload"] for row in result] == payloads
    assert {row["how"] for row in result} == {"file"}
    assert {row["content_type"] for row in result} == {"text/html; charset=iso-8859-1"}
    assert {row["licence"] for row in result} == {"CC0-1.0"}
    assert all(row["sha1"] == sha1(row["payload"]) for row in result)


def cdx(path, records, places, *, name, length=True):
    """Write an index of a WARC file that is elsewhere."""
    lines = []
    for (url, moment, _, _, body), (offset, size) in zip(records, places, strict=True):
        fields = {"url": url, "mime": "text/html", "status": "200", "digest": sha1(body), "offset": str(offset)}
        fields |= {"filename": name, "length": str(size) if length else "0"}
        lines.append(f"pt,a)/ {moment} {json.dumps(fields)}\n")
    path.write_text("".join(lines))


def test_files_of_an_index_are_found_by_their_names(tmp_path):
    records, payloads = pages(3)
    places = write_warc(tmp_path / "a.warc.gz", records)
    cdx(tmp_path / "a.cdxj", records, places, name="a.warc.gz", length=False)
    corpus = make_corpus(tmp_path, index={"files": ["a.cdxj"]}, warcs=[str(tmp_path / "a.warc.gz")])
    run(corpus)
    assert [row["payload"] for row in rows(corpus)] == payloads


def test_captures_without_a_source_are_an_error(tmp_path):
    (tmp_path / "a.cdxj").write_text("")
    with raises_code("config.required"):
        run(make_corpus(tmp_path, index={"files": ["a.cdxj"]}))


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_warc(tmp_path / folder / "x.warc", pages(1)[0])
    with raises_code("config.conflict"):
        run(make_corpus(tmp_path, index={"warcs": ["a/x.warc", "b/x.warc"]}))


def test_missing_records_are_dropped_with_the_reason(tmp_path):
    records, payloads = pages(4)
    places = write_warc(tmp_path / "a.warc", records)
    big = ("http://a.pt/big", MOMENT, "200 OK", HTML, b"x" * 200_000)
    places += write_warc(tmp_path / "big.warc", [big])
    whole = (tmp_path / "a.warc").read_bytes() + (tmp_path / "big.warc").read_bytes()
    start = places[3][0]
    places[4] = (start + places[3][1], places[4][1])
    places[1] = (places[1][0] + 5, places[1][1])  # in the middle of a line
    places[2] = places[0]  # of another capture
    whole = whole[:start] + whole[start:].replace(b"page 3", b"page X", 1)
    (tmp_path / "a.warc").write_bytes(whole)
    cdx(tmp_path / "a.cdxj", [*records, big], places, name="a.warc")
    corpus = make_corpus(tmp_path, index={"files": ["a.cdxj"]}, warcs=[str(tmp_path / "a.warc")], max_payload_mib=0.1)
    totals = run(corpus)
    assert [row["payload"] for row in rows(corpus)] == payloads[:1]
    assert totals["dropped"] == {"another record": 1, "damaged record": 1, "digest": 1, "too large": 1}
    assert dropped(corpus)["http://a.pt/2"][1].endswith("http://a.pt/0")


def file_server(server, path):
    """Let a server give ranges of a file."""
    whole = path.read_bytes()

    def give(handler):
        asked = re.fullmatch("bytes=([0-9]+)-([0-9]+)", handler.headers["Range"])
        first, last = map(int, asked.groups())
        part = whole[first : last + 1]
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % len(part) + part)

    server.answers[f"/warcs/{path.name}"] = [give]


def test_captures_come_by_ranges_of_files_on_a_server(tmp_path, server):
    records, payloads = pages(5)
    places = write_warc(tmp_path / "a.warc.gz", records)
    file_server(server, tmp_path / "a.warc.gz")
    cdx(tmp_path / "a.cdxj", records, places, name="a.warc.gz")
    corpus = make_corpus(tmp_path, index={"files": ["a.cdxj"]}, ranges=f"{server.url}/warcs/")
    run(corpus)
    assert [row["payload"] for row in rows(corpus)] == payloads
    assert {row["how"] for row in rows(corpus)} == {"range"}
    assert len(server.log) == 5


@pytest.mark.parametrize(("headers", "body"), [({"Content-Length": str(1 << 40)}, b""), ({}, b"a small file")])
def test_a_server_without_ranges_is_refused_before_it_sends_whole_files(tmp_path, server, headers, body):
    records, _ = pages(1)
    places = write_warc(tmp_path / "a.warc.gz", records)
    cdx(tmp_path / "a.cdxj", records, places, name="a.warc.gz")
    server.answers["/warcs/a.warc.gz"] = [(200, headers, body)]
    with raises_code("corpus.server"):
        run(make_corpus(tmp_path, index={"files": ["a.cdxj"]}, ranges=f"{server.url}/warcs"))


def test_ranges_that_are_not_there_are_dropped(tmp_path, server):
    records, _ = pages(3)
    places = write_warc(tmp_path / "a.warc.gz", records)
    cdx(tmp_path / "a.cdxj", records[:1], places[:1], name="a.warc.gz")
    cdx(tmp_path / "b.cdxj", records[1:2], places[1:2], name="../secret")
    cdx(tmp_path / "c.cdxj", records[2:], places[2:], name="a.warc.gz", length=False)
    corpus = make_corpus(tmp_path, index={"files": ["a.cdxj", "b.cdxj", "c.cdxj"]}, ranges=f"{server.url}/warcs")
    assert run(corpus)["dropped"] == {"missing": 2, "no way to it": 1}
    assert server.targets() == ["/warcs/a.warc.gz"]


@pytest.mark.skipif(not has_pywb(), reason="needs pywb")
def test_captures_come_by_replay_of_a_real_archive(tmp_path):
    records, payloads = pages(6)
    gone = ("http://a.pt/gone", MOMENT, "404 Not Found", HTML, b"gone")
    moved = ("http://a.pt/moved", MOMENT, "302 Found", [*HTML, ("Location", "http://127.0.0.1:9/live")], b"moved")
    robots = ("http://a.pt/r?a=b c&á", MOMENT, "200 OK", [*HTML, ("X-Robots-Tag", "noarchive")], page("robots"))
    more = [robots, gone, moved]
    places = write_warc(tmp_path / "a.warc.gz", [*records, *more])
    cdx(tmp_path / "all.cdxj", [*records, *more], places, name="elsewhere.warc.gz")
    late = [
        ("http://a.pt/0", "20110101000000", "", HTML, payloads[0]),
        ("http://a.pt/never", MOMENT, "", HTML, b"never"),
    ]
    cdx(tmp_path / "wrong.cdxj", late, [(0, 0)] * 2, name="elsewhere.warc.gz")
    index = {"files": ["all.cdxj", "wrong.cdxj"]}
    with pywb(tmp_path / "pywb", [tmp_path / "a.warc.gz"]) as url:
        corpus = make_corpus(tmp_path, index=index, replay=f"{url}/wayback")
        corpus = corpus.model_copy(update={"index": corpus.index.model_copy(update={"unique": False})})
        run(corpus)
        near = corpus.model_copy(
            update={"work": str(tmp_path / "near"), "fetch": Fetch(replay=f"{url}/wayback", nearest=True)}
        )
        run(near)
    assert [row["payload"] for row in rows(corpus)] == [*payloads, page("robots")]
    assert {row["how"] for row in rows(corpus)} == {"replay"}
    assert {row["content_type"] for row in rows(corpus)} == {HTML[0][1]}
    assert rows(corpus)[-1]["robots"] == "noarchive"
    assert dropped(corpus) == {
        "http://a.pt/gone": ("status", "404"),
        "http://a.pt/moved": ("status", "302 to http://127.0.0.1:9/live"),
        "http://a.pt/0": ("another capture", "20010101000000 instead of 20110101000000"),
        "http://a.pt/never": ("missing", "the archive has no capture of it"),
    }
    assert [row["timestamp"] for row in rows(near) if row["url"] == "http://a.pt/0"] == [MOMENT, MOMENT]


def captures(tmp_path, number, name="a.cdxj", **more):
    """Write an index of pages of a stand-in, each with a digest of its own."""
    records = [(f"http://a.pt/{n}", MOMENT, "", HTML, page(f"page {n}")) for n in range(number)]
    cdx(tmp_path / name, records, [(0, 0)] * number, name="elsewhere.warc.gz")
    return records


def replays(server, number, **headers):
    """Let a stand-in replay pages; return the targets."""
    result = []
    for n in range(number):
        result.append(f"/noFrame/replay/{MOMENT}id_/http://a.pt/{n}")
        server.answers[result[-1]] = [(200, {"Memento-Datetime": GMT, "Content-Type": "text/html"}, page(f"page {n}"))]
    return result


def replayed(tmp_path, server, work="work", **options):
    return make_corpus(tmp_path, work, index={"files": ["a.cdxj"]}, replay=f"{server.url}/noFrame/replay", **options)


def test_no_request_leaves_for_a_host_that_is_not_the_archive(tmp_path, server):
    captures(tmp_path, 4)
    targets = replays(server, 4)
    with stand_in() as live:
        away = {"Location": f"{live.url}/page"}
        server.answers[targets[0]] = [(302, away | {"Memento-Datetime": GMT}, b"")]  # as it was archived
        server.answers[targets[1]] = [(307, away, b"")]  # by the archive
        server.answers[targets[2]] = [(307, {"Location": f"//{live.url[7:]}/noFrame/replay/{MOMENT}id_/x"}, b"")]
        # As pywb does for another form of an address: within the replay.
        server.answers[targets[3]] = [
            (307, {"Location": f"{server.url}/noFrame/replay/{MOMENT}id_/http://a.pt/3/"}, b"")
        ]
        server.answers[f"{targets[3]}/"] = [(200, {"Memento-Datetime": GMT}, page("page 3"))]
        corpus = replayed(tmp_path, server)
        totals = run(corpus)
        assert live.log == []
    assert totals["dropped"] == {"redirect": 2, "status": 1}
    assert [row["url"] for row in rows(corpus)] == ["http://a.pt/3"]
    assert len(server.log) == 5


def test_endless_redirects_within_the_archive_end(tmp_path, server):
    captures(tmp_path, 1)
    (target,) = replays(server, 1)
    server.answers[target] = [(307, {"Location": target}, b"")]
    assert run(replayed(tmp_path, server))["dropped"] == {"redirect": 1}
    assert len(server.log) == 3


def test_traps_of_a_replay_are_dropped_with_the_reason(tmp_path, server):
    captures(tmp_path, 6)
    targets = replays(server, 6)
    archived = {"Memento-Datetime": GMT}
    server.answers[targets[0]] = [(404, archived, b"archived")]
    server.answers[targets[1]] = [(404, {}, b"missing")]
    server.answers[targets[2]] = [(200, {"Memento-Datetime": "Tue, 02 Jan 2001 00:00:00 GMT"}, page("page 2"))]
    server.answers[targets[3]] = [(200, archived, page("changed"))]
    server.answers[targets[4]] = [(200, archived | {"Content-Length": str(500 << 20)}, b"")]
    server.answers[targets[5]] = [(200, {}, b"<p>Welcome to the archive")]
    corpus = replayed(tmp_path, server)
    run(corpus)
    result = [reason for _, (reason, _) in sorted(dropped(corpus).items())]
    assert result == ["status", "missing", "another capture", "digest", "too large", "unavailable"]
    assert len(server.log) == 6


def test_a_bad_day_of_the_archive_changes_nothing(tmp_path, server):
    captures(tmp_path, 6)
    targets = replays(server, 6)
    run(replayed(tmp_path, server, "good"))

    def half(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nhalf")

    def slow(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        time.sleep(1)

    bad = [(429, {"Retry-After": "0"}, b""), half, slow, (503, {}, b"")]
    for target, answer in zip(targets, bad, strict=False):
        server.answers[target].insert(0, answer)
    settings = network(tmp_path, timeout_s=0.5)
    run(replayed(tmp_path, server, "bad", settings=settings))
    assert content(tmp_path / "good/2_fetch") == content(tmp_path / "bad/2_fetch")


def test_a_capture_that_the_archive_cannot_give_is_dropped(tmp_path, server):
    captures(tmp_path, 3)
    targets = replays(server, 3)
    server.answers[targets[1]] = [(500, {}, b"broken")]
    corpus = replayed(tmp_path, server, settings=network(tmp_path, tries=2))
    assert run(corpus)["dropped"] == {"unavailable": 1}
    assert dropped(corpus)["http://a.pt/1"][1].endswith("HTTP 500 after 2 tries")


def test_an_archive_that_is_ill_ends_the_command_and_nothing_is_lost(tmp_path, server):
    captures(tmp_path, 40)
    targets = replays(server, 40)
    well = dict(server.answers)
    server.answers |= {target: [(500, {}, b"")] for target in targets[5:]}
    corpus = replayed(tmp_path, server, settings=network(tmp_path, tries=1))
    with pytest.raises(Unavailable, match="20 "):
        run(corpus)
    server.answers = well
    server.log.clear()
    assert run(corpus)["kept"] == 40
    # The five that had come are not asked for again.
    assert sorted(server.targets()) == sorted(targets[5:])
    assert not list((tmp_path / "work/2_fetch").glob("journal-*"))


@pytest.mark.parametrize("answer", [(403, {}, b"blocked"), (200, {}, b"Welcome"), (301, {"Location": "/x"}, b"")])
def test_an_address_that_is_no_replay_ends_the_command(tmp_path, server, answer):
    captures(tmp_path, 40)
    server.answers[".*"] = [answer]
    with pytest.raises(Unavailable, match=f"HTTP {answer[0]} "):
        run(replayed(tmp_path, server))
    assert len(server.log) <= 20 + 2 * 4 + 1  # and what was under way


def test_an_address_that_has_nothing_ends_the_command_once(tmp_path, server):
    captures(tmp_path, 130)
    server.answers[".*"] = [(404, {}, b"no such page")]
    corpus = replayed(tmp_path, server, rows_per_shard=120)
    with pytest.raises(Unavailable, match=r"100 .*http://a.pt/99"):
        run(corpus)
    assert len(server.log) <= 100 + 2 * 4 + 1  # and what was under way
    # Who starts it again means it, and nothing that was answered is asked for twice.
    assert run(corpus)["dropped"] == {"missing": 130}
    assert len(set(server.targets())) == len(server.targets()) == 130
    assert not (tmp_path / "work/2_fetch/missing-was-said").exists()


def test_a_site_that_is_missing_ends_no_command(tmp_path, server):
    captures(tmp_path, 130)
    targets = replays(server, 130)
    server.answers |= {target: [(404, {}, b"")] for target in targets[1:]}
    assert run(replayed(tmp_path, server))["dropped"] == {"missing": 129}


def test_a_server_that_refuses_ranges_ends_the_command(tmp_path, server):
    records, _ = pages(30)
    cdx(tmp_path / "a.cdxj", records, write_warc(tmp_path / "a.warc.gz", records), name="a.warc.gz")
    server.answers[".*"] = [(403, {}, b"not for you")]
    with pytest.raises(Unavailable, match=r"HTTP 403 for /warcs/a\.warc\.gz"):
        run(make_corpus(tmp_path, index={"files": ["a.cdxj"]}, ranges=f"{server.url}/warcs"))


def test_an_unavailable_archive_ends_the_command(tmp_path, server):
    captures(tmp_path, 3)
    replays(server, 3)
    corpus = replayed(tmp_path, server, settings=network(tmp_path, tries=1, connections=1))
    server.answers.clear()
    server.answers[".*"] = [(429, {"Retry-After": "9999"}, b"")]
    with pytest.raises(Unavailable, match="9999 s"):
        run(corpus)
    assert len(server.log) == 1


def test_workers_and_connections_change_no_file(tmp_path, server):
    captures(tmp_path, 20)
    replays(server, 20)
    for workers, connections in ((1, 1), (2, 3)):
        settings = network(tmp_path, connections=connections)
        run(replayed(tmp_path, server, f"{workers}", rows_per_shard=6, settings=settings), workers)
    assert content(tmp_path / "1/2_fetch") == content(tmp_path / "2/2_fetch")


@pytest.mark.slow
def test_processes_and_connections_stay_within_one_limit(tmp_path, server):
    captures(tmp_path, 60)
    replays(server, 60)
    # 1,501 a minute are 40 ms apart: any 0.4 s have 11 at most, and one more for each of 6 connections that is late.
    settings = network(tmp_path, requests_per_minute=1501, connections=3)
    run(replayed(tmp_path, server, rows_per_shard=15, settings=settings), 2)
    moments = sorted(moment for moment, _, _ in server.log)
    assert len(moments) == 60
    assert moments[-1] - moments[0] >= 59 * 0.04 - 0.1
    most = max(sum(start <= item < start + 0.4 for item in moments) for start in moments)
    assert most <= 11 + 6


def test_a_row_group_has_a_limited_size(tmp_path, server, monkeypatch):
    monkeypatch.setattr("paratune.corpus.shard.MAX_GROUP_BYTES", 200)
    captures(tmp_path, 5)
    replays(server, 5)
    corpus = replayed(tmp_path, server)
    run(corpus)
    # Pages of about 90 bytes and their addresses: each group is full after one or two.
    assert pq.ParquetFile(stage_tables(tmp_path / "work/2_fetch")[0]).num_row_groups >= 3
    assert len(rows(corpus)) == 5


def test_fetching_from_the_network_needs_a_contact(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("work: w\nindex: {files: [a]}\nfetch: {replay: https://arquivo.pt/noFrame/replay}\n")
    with raises_code("config.required", "network.contact"):
        read_settings(path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("network: {contact: cora\u00e7\u00e3o@a.pt}\nfetch: {replay: https://arquivo.pt/}", "network.contact"),
        ("network: {contact: me@a.pt}\nfetch: {replay: https://arquivo.pt/\u00e9}", "fetch.replay"),
    ],
)
def test_characters_outside_ascii_are_refused_in_settings(tmp_path, settings, expected):
    (tmp_path / "c.yaml").write_text(f"work: w\nindex: {{files: [a]}}\n{settings}\n")
    with raises_code("config.invalid_value", expected):
        read_settings(tmp_path / "c.yaml")


ALONE = """
import sys
from pathlib import Path
from paratune.console import Display
from paratune.corpus.fetch.run import run_fetch
from paratune.corpus.settings import read_settings
run_fetch(read_settings(Path(sys.argv[1])), int(sys.argv[2]), Display(speaks=False))
"""


def start(path, workers):
    return subprocess.Popen([sys.executable, "-c", ALONE, str(path), str(workers)], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_command_asks_for_nothing_twice_that_had_come(tmp_path, server):
    captures(tmp_path, 300)
    replays(server, 300)
    for work in ("whole", "killed"):
        settings = network(tmp_path, connections=2, requests_per_minute=3000)
        corpus = replayed(tmp_path, server, work, rows_per_shard=120, settings=settings)
        run_index(corpus, 1, DISPLAY)
        (tmp_path / f"{work}.json").write_text(corpus.model_dump_json(by_alias=True, exclude={"clean"}))
        (tmp_path / f"{work}.yaml").write_text((tmp_path / f"{work}.json").read_text())
    run_fetch(read_settings(tmp_path / "whole.yaml"), 1, DISPLAY)
    server.log.clear()
    for after in (40, 130):
        process = start(tmp_path / "killed.yaml", 2)
        wait_for(lambda after=after: len(server.log) >= after)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
    last = start(tmp_path / "killed.yaml", 2)
    _, message = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, message
    assert content(tmp_path / "whole/2_fetch") == content(tmp_path / "killed/2_fetch")
    # Two processes with two connections each: what was under way when they were killed, twice.
    again = {target: times for target, times in Counter(server.targets()).items() if times > 1}
    assert sum(again.values()) - len(again) <= 8
    assert len(server.targets()) <= 300 + 8
