"""`paratune corpus` with a real archive on loopback: captures are found and fetched, and not requested again."""

import json
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from archive import has_pywb, page, pywb, stand_in, write_warc
from patience import PATIENCE_S

from paratune.corpus.stage import stage_tables
from paratune.errors import EXIT_DATA

HTML = [("Content-Type", "text/html")]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_pywb(), reason="needs pywb")]


def corpus(config, *more):
    command = [sys.executable, "-m", "paratune", "corpus", str(config), "--json", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def configure(tmp_path, **sections):
    limits = {"contact": "me@uni.pt", "limit_folder": str(tmp_path / "limits"), "requests_per_minute": 60_000}
    # One connection: then only one capture is in progress when the archive refuses.
    network = limits | {"tries": 2, "first_wait_s": 0.01, "connections": 1}
    path = tmp_path / "corpus.yaml"
    path.write_text(json.dumps({"work": str(tmp_path / "work"), "workers": 2, "network": network} | sections))
    return path


def payloads(tmp_path):
    result = [row for path in stage_tables(tmp_path / "work/2_fetch") for row in pq.read_table(path).to_pylist()]
    return {row["url"]: row["payload"] for row in result}


def test_finished_stages_send_no_more_requests(tmp_path):
    records = [(f"http://a.pt/{n}", f"200{n}0101000000", "200 OK", HTML, page(f"página {n}")) for n in range(6)]
    write_warc(tmp_path / "a.warc.gz", records)
    with pywb(tmp_path / "pywb", [tmp_path / "a.warc.gz"]) as url:
        server = {"kind": "cdx", "endpoint": f"{url}/wayback/cdx", "urls": ["a.pt"], "match": "domain"}
        servers = [server | {"from": 2000, "to": 2005}]
        config = configure(tmp_path, index={"servers": servers}, fetch={"replay": f"{url}/wayback"})
        for stage in ("index", "fetch"):
            completed = corpus(config, "--only", stage)
            assert completed.returncode == 0, completed.stderr
            assert json.loads(completed.stdout)[stage]["kept"] == 6
        log = (tmp_path / "pywb/log.txt").read_text()
        requested = re.findall(r'"GET (\S+) HTTP', log)
        assert sum("/cdx?" in entry for entry in requested) == 6
        assert sum("id_/" in entry for entry in requested) == 6
    assert payloads(tmp_path) == {url: body for url, _, _, _, body in records}


def test_an_unfinished_stage_resumes_with_only(tmp_path):
    digests = {n: page(f"page {n}") for n in range(3)}
    lines = [
        json.dumps({"url": f"http://a.pt/{n}", "timestamp": "20010101000000", "mime": "text/html", "status": "200"})
        for n in digests
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with stand_in() as server:
        config = configure(
            tmp_path, index={"files": [str(tmp_path / "a.jsonl")]}, fetch={"replay": f"{server.url}/replay"}
        )
        assert corpus(config, "--only", "index").returncode == 0
        memento = {"Memento-Datetime": "Mon, 01 Jan 2001 00:00:00 GMT"}
        for n, body in digests.items():
            server.answers[f"/replay/20010101000000id_/http://a.pt/{n}"] = [(200, memento, body)]
        last = "/replay/20010101000000id_/http://a.pt/2"
        server.answers[last].insert(0, (429, {"Retry-After": "7200"}, b""))
        completed = corpus(config, "--only", "fetch")
        assert completed.returncode == EXIT_DATA
        assert "7200 s" in completed.stderr
        for path in (tmp_path / "limits").iterdir():  # two hours later
            path.unlink()
        completed = corpus(config, "--only", "fetch")
        assert completed.returncode == 0, completed.stderr
        targets = server.targets()
    assert json.loads(completed.stdout)["fetch"]["kept"] == 3
    assert len(targets) <= 4 + 2  # the last one twice, and the request that the archive refused
    assert targets.count("/replay/20010101000000id_/http://a.pt/0") == 1
