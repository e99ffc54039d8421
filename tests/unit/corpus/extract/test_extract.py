import hashlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from corpus_documents import content, dropped, kept
from corpus_files import HEART, docx, fetched, fetched_row, pdf
from patience import PATIENCE_S, wait_for
from raised import raises_code

from paratune.console import Display
from paratune.corpus.extract.run import run_extract
from paratune.corpus.settings import Corpus, Extract

DISPLAY = Display(speaks=False)
PAGE = "<html><head><title>Título {0}</title></head><body><p>{1} Página {0}.</p></body></html>"


def page(number, **known):
    known = {"content_type": "text/html; charset=iso-8859-1"} | known
    return fetched_row(number, PAGE.format(number, HEART).encode("iso-8859-1"), **known)


def make_corpus(work, **options):
    return Corpus(work=str(work), extract=Extract(**options))


def test_fetched_captures_become_documents_or_are_dropped(tmp_path):
    rows = [
        page(1),
        fetched_row(2, pdf([HEART]), content_type="application/pdf", digest=None),
        fetched_row(3, b"", content_type="text/html"),
        fetched_row(4, b"\x89PNG\r\n\x1a\n\x00\x00", content_type="image/png"),
        fetched_row(5, b"x" * 1000, content_type="text/plain"),
    ]
    fetched(tmp_path, rows[:2], rows[2:])
    totals = run_extract(make_corpus(tmp_path, max_mib=0.0009), 1, DISPLAY)
    assert (totals["shards"], totals["kept"]) == (2, 2)
    assert totals["dropped"] == {"empty": 1, "kind": 1, "large": 1}
    first, second = kept(tmp_path / "3_extract")[0]
    assert first == dict.fromkeys(first) | {
        # sha256 of "http://a.pt/1 20050102030405 D1"
        "id": hashlib.sha256(b"http://a.pt/1 20050102030405 D1").hexdigest()[:16],
        "url": "http://a.pt/1",
        "timestamp": "20050102030405",
        "digest": "D1",
        "source": "a.warc.gz",
        "mime": "text/html",
        "charset": "windows-1252",
        "extractor": "trafilatura",
        "title": "Título 1",
        "text": f"{HEART} Página 1.",
        "sha256": hashlib.sha256(f"{HEART} Página 1.".encode()).hexdigest(),
    }
    # A capture without a digest is known by that of its payload.
    assert (second["digest"], second["extractor"], second["charset"]) == ("S2", "pypdfium2", None)
    assert second["id"] == hashlib.sha256(b"http://a.pt/2 20050102030405 S2").hexdigest()[:16]
    lost = dropped(tmp_path / "3_extract")
    assert [(item["url"][-1], item["reason"], item["detail"]) for item in lost] == [
        ("3", "empty", "0 bytes"),
        ("4", "kind", "image/png"),
        ("5", "large", "1000 bytes"),
    ]
    assert all(len(value["id"]) == 16 for value in lost)


def test_licence_and_robots_are_those_of_the_capture(tmp_path):
    payload = f"<html><body><p>{HEART}</body></html>".encode()
    fetched(tmp_path, [fetched_row(1, payload), fetched_row(2, payload, licence="CC0", robots="all")])
    run_extract(make_corpus(tmp_path), 1, DISPLAY)
    (result,) = kept(tmp_path / "3_extract")
    assert [(row["licence"], row["robots"]) for row in result] == [(None, None), ("CC0", "all")]


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_files(tmp_path):
    shards = [[page(10 * shard + number) for number in range(3)] for shard in range(3)]
    for workers in (1, 2):
        fetched(tmp_path / str(workers), *shards)
        run_extract(make_corpus(tmp_path / str(workers)), workers, DISPLAY)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_the_order_of_documents_does_not_change_them(tmp_path):
    # What a process has read before leaves no trace in what it reads.
    rows = [page(1), fetched_row(2, docx(HEART)), fetched_row(3, pdf([HEART])), page(4)]
    fetched(tmp_path / "a", rows)
    fetched(tmp_path / "b", rows[::-1])
    for name in "ab":
        run_extract(make_corpus(tmp_path / name), 1, DISPLAY)
    assert kept(tmp_path / "a" / "3_extract")[0] == kept(tmp_path / "b" / "3_extract")[0][::-1]


RUN = """
import sys
from paratune.console import Display
from paratune.corpus.extract.run import run_extract
from paratune.corpus.settings import Corpus
run_extract(Corpus(work=sys.argv[1]), 1, Display(speaks=False))
"""


HELD = """
import time
from paratune.corpus.extract.process import DocumentReader

read, num_read = DocumentReader.read, 0

def held(*arguments):
    global num_read
    num_read += 1
    if num_read > 90:
        time.sleep(1000)
    return read(*arguments)

DocumentReader.read = held
"""
"""Stays in the third of shards of 40 documents."""


@pytest.mark.slow
def test_a_killed_stage_resumes_to_the_same_files(tmp_path):
    shards = [[page(100 * shard + number) for number in range(40)] for shard in range(4)]
    for name in ("whole", "killed"):
        fetched(tmp_path / name, *shards)
    run_extract(make_corpus(tmp_path / "whole"), 1, DISPLAY)
    folder = tmp_path / "killed" / "3_extract"
    running = subprocess.Popen([sys.executable, "-c", HELD + RUN, str(tmp_path / "killed")])
    wait_for(lambda: (folder / "counts-00001.json").exists() or running.poll() is not None)
    assert running.poll() is None
    readers = wait_for(psutil.Process(running.pid).children)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    _, alive = psutil.wait_procs(readers, timeout=PATIENCE_S)
    assert len(readers) == 1
    assert not alive
    assert not (folder / "stage.json").exists()
    run_extract(make_corpus(tmp_path / "killed"), 2, DISPLAY)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_a_missing_stage_is_an_error(tmp_path):
    with raises_code("corpus.not_finished", "2_fetch", "--only fetch", name="fetch"):
        run_extract(make_corpus(tmp_path), 1, DISPLAY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_s": 0}, "greater than or equal to 1"),
        ({"memory_mib": 16}, "greater than or equal to 128"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Extract(**options)
