import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from corpus_documents import STOP_AFTER_TWO_SHARDS
from patience import PATIENCE_S, wait_for
from raised import raises_code

from paratune.console import Display
from paratune.corpus.index.run import run_index
from paratune.corpus.inputs import find_files
from paratune.corpus.settings import Corpus, Index, read_settings
from paratune.corpus.stage import stage_tables
from paratune.errors import ConfigError

DISPLAY = Display(speaks=False)


def line(number, *, digest=None, mime="text/html", status="200"):
    digest = digest or f"{number:032d}".translate(str.maketrans("0189", "ABCD"))
    return f"pt,a)/{number} 20140103030321 http://a.pt/{number} {mime} {status} {digest} - - 10 {number} a.warc.gz\n"


def make_corpus(tmp_path, work="work", *, files=None, **options):
    result = files or {"a.cdx": [line(n) for n in range(5)], "b.cdx": [line(n) for n in range(3, 8)]}
    for name, lines in result.items():
        path = tmp_path / name
        if not path.exists():
            path.write_text("".join(lines))
    index = Index(files=[str(tmp_path / name) for name in result], **options)
    return Corpus(work=str(tmp_path / work), rows_per_shard=3, index=index)


def urls(corpus):
    return [pq.read_table(path)["url"].to_pylist() for path in stage_tables(Path(corpus.work) / "1_index")]


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_each_digest_is_kept_once_in_even_shards(tmp_path):
    corpus = make_corpus(tmp_path)
    totals = run_index(corpus, 1, DISPLAY)
    # 0 to 4 of one file and 3 to 7 of the other: 8 that differ, in shards of 3, and 2 twice.
    assert urls(corpus) == [[f"http://a.pt/{n}" for n in item] for item in ((0, 1, 2), (3, 4, 5), (6, 7))]
    assert (totals["kept"], totals["dropped"]) == (8, {"duplicate": 2})
    assert totals["read"]["kept"] == 10


def test_captures_that_are_not_wanted_are_kept_with_the_reason(tmp_path):
    lines = [
        line(0, mime="image/png"),
        line(1, status="404"),
        line(2, mime="warc/revisit", status="-"),
        line(3, mime="text/html;charset=UTF-8"),
        line(4, mime="TEXT/HTML"),
        "torn",
    ]
    corpus = make_corpus(tmp_path, files={"a.cdx": lines})
    totals = run_index(corpus, 1, DISPLAY)
    assert totals["read"]["dropped"] == {"mime": 1, "revisit": 1, "status": 1, "unreadable line": 1}
    dropped = pq.read_table(tmp_path / "work/1_index/read/dropped-00000.parquet").to_pylist()
    assert [(item["reason"], item["detail"]) for item in dropped][:2] == [("mime", "image/png"), ("status", "404")]
    assert urls(corpus) == [["http://a.pt/3", "http://a.pt/4"]]


def test_addresses_that_are_of_no_document_are_dropped(tmp_path):
    # As wget and pywb keep their logs, and crawlers what they ask of the names of hosts.
    others = ["metadata://gnu.org/software/wget/warc/wget.log", "dns:a.pt", "urn:pageinfo:http://a.pt/"]
    wanted = ["HTTPS://a.pt/", "ftp://a.pt/a.txt", "a.pt/", "a.pt:8080/", "localhost:8080/"]
    lines = [line(n).replace(f"http://a.pt/{n}", url) for n, url in enumerate([*others, *wanted])]
    corpus = make_corpus(tmp_path, files={"a.cdx": lines})
    assert run_index(corpus, 1, DISPLAY)["read"]["dropped"] == {"scheme": 3}
    dropped = pq.read_table(tmp_path / "work/1_index/read/dropped-00000.parquet")
    assert dropped["detail"].to_pylist() == ["metadata", "dns", "urn"]
    assert [url for item in urls(corpus) for url in item] == wanted


def test_halves_of_surrogate_pairs_are_written_as_question_marks(tmp_path):
    fields = '{"url": "http://a.pt/\\ud800", "mime": "text/html", "status": "200"}'
    lines = [f"pt,a)/ 20140103030321 {fields}\n", line(1)]
    corpus = make_corpus(tmp_path, files={"a.cdxj": lines})
    run_index(corpus, 1, DISPLAY)
    assert urls(corpus) == [["http://a.pt/?", "http://a.pt/1"]]


def test_duplicates_stay_when_asked_for(tmp_path):
    assert run_index(make_corpus(tmp_path, unique=False), 1, DISPLAY)["kept"] == 10


def test_captures_without_a_digest_are_all_kept(tmp_path):
    lines = [line(n).replace(line(n).split()[5], "-") for n in range(2)]
    assert run_index(make_corpus(tmp_path, files={"a.cdx": lines}), 1, DISPLAY)["kept"] == 2


def test_workers_change_no_file(tmp_path):
    for workers in (1, 2):
        run_index(make_corpus(tmp_path, str(workers)), workers, DISPLAY)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_read_captures_are_reused_if_only_the_shards_change(tmp_path, caplog):
    corpus = make_corpus(tmp_path)
    run_index(corpus, 1, DISPLAY)
    read = tmp_path / "work/1_index/read/part-00000.parquet"
    before = read.stat().st_mtime_ns
    run_index(corpus.model_copy(update={"rows_per_shard": 5}), 1, DISPLAY)
    assert read.stat().st_mtime_ns == before
    assert [len(url) for url in urls(corpus)] == [5, 3]


def test_a_changed_file_is_read_again(tmp_path):
    corpus = make_corpus(tmp_path)
    run_index(corpus, 1, DISPLAY)
    (tmp_path / "b.cdx").write_text(line(9))
    assert run_index(corpus, 1, DISPLAY)["kept"] == 6


def test_a_missing_file_is_named(tmp_path):
    corpus = make_corpus(tmp_path)
    (tmp_path / "b.cdx").unlink()
    with raises_code("data.not_found", "b.cdx"):
        run_index(corpus, 1, DISPLAY)


def test_invalid_settings_are_refused_with_their_values(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("work: w\nindex:\n  file: [a]\n  statuses: [ok]\nworkers: 0\n")
    with pytest.raises(ConfigError) as result:
        read_settings(path)
    for message in (
        "3 problems",
        "line 3: index.file is not an option",
        "line 4: index.statuses",
        "line 5: workers is 0",
    ):
        assert message in str(result.value)


def test_urls_of_object_stores_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    urls = ["s3://a/work", "hf://b/*.cdxj", "gs://c/*.warc.gz", "memory://d.warc.gz", "https://e/tok"]
    path.write_text(
        f"work: {urls[0]}\nindex: {{files: ['{urls[1]}'], warcs: ['{urls[2]}']}}\nfetch: {{warcs: ['{urls[3]}']}}\n"
        f"store:\n  tokens:\n    tokenizer: {urls[4]}\n"
    )
    with raises_code("config.invalid_value", "5 problems", "line 1", "line 3", "line 6", *urls):
        read_settings(path)
    with raises_code("data.not_found", "s3://a/x.txt", "URL"):
        find_files(["s3://a/x.txt"], "clean.files")


def test_settings_with_nothing_to_read_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("work: w\n")
    with raises_code("config.required", "index.files", "index.warcs", "index.servers"):
        read_settings(path)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[4] / "configs/corpus").glob("*.yaml")), ids=str)
def test_the_examples_can_be_read(path):
    assert read_settings(path).work


ALONE = """
import json, sys
from pathlib import Path
from paratune.console import Display
from paratune.corpus.index.run import run_index
from paratune.corpus.settings import read_settings
print(json.dumps(run_index(read_settings(Path(sys.argv[1])), int(sys.argv[2]), Display(speaks=False))))
"""


def start(config, workers, code=ALONE):
    command = [sys.executable, "-c", code, str(config), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_files(tmp_path):
    names = [f"{n}.cdx" for n in range(6)]
    for n, name in enumerate(names):
        (tmp_path / name).write_text("".join(line(n * 1000 + item) for item in range(6000)))
    for work in ("whole", "killed"):
        config = {"work": str(tmp_path / work), "index": {"files": [str(tmp_path / name) for name in names]}}
        (tmp_path / f"{work}.yaml").write_text(json.dumps(config))
    out, _ = start(tmp_path / "whole.yaml", 1).communicate(timeout=PATIENCE_S)
    assert json.loads(out)["kept"] == 11_000
    read = tmp_path / "killed/1_index/read"
    process = start(tmp_path / "killed.yaml", 2, STOP_AFTER_TWO_SHARDS + ALONE)
    wait_for(lambda: list(read.glob("counts-*")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)  # ends when its workers have closed their ends of the pipes
    assert not (tmp_path / "killed/1_index/stage.json").exists()
    again = start(tmp_path / "killed.yaml", 2)
    _, message = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, message
    assert content(tmp_path / "whole/1_index") == content(tmp_path / "killed/1_index")


def test_a_digest_is_the_same_however_it_is_written_and_the_order_is_that_of_the_files(tmp_path):
    # The SHA-1 of "a", as base32 and as hexadecimal digits, in files of which the first has the later captures.
    hexadecimal = hashlib.sha1(b"a").hexdigest()
    base32 = base64.b32encode(bytes.fromhex(hexadecimal)).decode()
    lines = [line(9), line(5, digest=hexadecimal), line(1, digest=base32), line(0), line(9)]
    corpus = make_corpus(tmp_path, files={"b.cdx": lines[:2], "a.cdx": lines[2:]})
    run_index(corpus, 1, DISPLAY)
    assert urls(corpus) == [["http://a.pt/9", "http://a.pt/5", "http://a.pt/0"]]
    dropped = pq.read_table(tmp_path / "work/1_index/dropped-00000.parquet").to_pylist()
    assert [(item["url"], item["reason"]) for item in dropped] == [
        ("http://a.pt/1", "duplicate"),
        ("http://a.pt/9", "duplicate"),
    ]
    assert not (tmp_path / "work/1_index/digests").exists()
