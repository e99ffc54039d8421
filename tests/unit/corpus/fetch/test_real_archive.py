"""Real captures: those of the test suites of pywb and warcio, and of Arquivo.pt, from files and replayed by pywb."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from archive import has_pywb, network, pywb, stand_in

from paratune.console import Display
from paratune.corpus.fetch.run import run_fetch
from paratune.corpus.index.run import run_index
from paratune.corpus.settings import CdxServer, Corpus, Fetch, Index, TextSearchServer
from paratune.corpus.stage import stage_tables

SHARED = Path(os.environ.get("PARATUNE_SHARED_DATA", "no such folder"))
WARCS = [
    *("webarchive/pywb/warcs/iana.warc.gz", "webarchive/pywb/warcs/dupes.warc.gz"),
    *(f"webarchive/arquivo/inlinks.{n}.warc.gz.warc.gz" for n in (1, 2, 3)),
    "webarchive/arquivo/chunked.gzip.html.record.warc.gz",
    *("webarchive/warcio/example.warc.gz", "webarchive/warcio/example-iana.org-chunked.warc"),
]
DISPLAY = Display(speaks=False)
pytestmark = [pytest.mark.shared, pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data sets")]


def run(tmp_path, work, index, **fetch):
    corpus = Corpus(work=str(tmp_path / work), network=network(tmp_path), index=index, fetch=Fetch(**fetch))
    run_index(corpus, 1, DISPLAY)
    return corpus, run_fetch(corpus, 1, DISPLAY)


def rows(corpus):
    return [row for path in stage_tables(Path(corpus.work) / "2_fetch") for row in pq.read_table(path).to_pylist()]


def by_key(corpus):
    return {(row["url"], row["timestamp"]): row for row in rows(corpus)}


@pytest.mark.skipif(not has_pywb(), reason="needs pywb")
def test_replay_gives_the_same_content_as_files(tmp_path):
    warcs = [str(SHARED / name) for name in WARCS]
    files, totals = run(tmp_path, "files", Index(warcs=warcs))
    assert totals["dropped"] == {}
    with pywb(tmp_path / "pywb", warcs) as url:
        sites = ["iana.org", "publico.pt", "sobre.arquivo.pt", "contamehistorias.pt", "example.com"]
        server = CdxServer(endpoint=f"{url}/wayback/cdx", urls=sites, match="domain", window="whole")
        replayed, _ = run(tmp_path, "replayed", Index(servers=[server]), replay=f"{url}/wayback")
    here, there = by_key(files), by_key(replayed)
    both = here.keys() & there.keys()
    assert len(both) >= 20
    for key in both:
        first, other = here[key], there[key]
        assert (first["payload"], first["sha1"], first["status"]) == (
            other["payload"],
            other["sha1"],
            other["status"],
        ), key
        assert (first["content_type"], first["robots"], first["licence"]) == (
            other["content_type"],
            other["robots"],
            other["licence"],
        )
    # What is in one alone was found in one alone: nothing of what both indexes know was dropped.
    assert set(there) <= set(here)


def test_whatever_a_file_holds_nothing_ends_the_command(tmp_path):
    result = Counter()
    for number, path in enumerate(sorted(path for path in SHARED.glob("webarchive/*/**/*arc*") if path.is_file())):
        _, totals = run(tmp_path, str(number), Index(warcs=[str(path)], mimes=["text/html", "text/plain"]))
        result.update(totals["dropped"], kept=totals["kept"])
    assert result["kept"] >= 35
    # A record that is truncated on purpose.
    assert set(result) == {"kept", "digest"}


def test_real_items_of_the_text_search_are_read(tmp_path):
    with gzip.open(SHARED / "arquivo_api/textsearch_response_items.jsonl.gz", "rt") as file:
        items = [json.loads(line) for line in file][:1200]
    with stand_in() as server:
        bodies = [json.dumps({"response_items": items[n : n + 500]}).encode() for n in (0, 500, 1000, 1500)]
        server.answers["/textsearch"] = [(200, {"Content-Type": "application/json"}, body) for body in bodies]
        search = TextSearchServer(endpoint=f"{server.url}/textsearch", queries=["gasolina"], window="whole")
        corpus = Corpus(work=str(tmp_path / "work"), network=network(tmp_path), index=Index(servers=[search]))
        totals = run_index(corpus, 1, DISPLAY)
    assert totals["read"]["dropped"] == {}
    distinct = {(item["originalURL"], item["tstamp"]) for item in items}
    assert totals["kept"] == len(distinct)
