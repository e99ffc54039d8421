"""What comes out of WARC files in the end, and that it is the same with more workers."""

import json
import random
from pathlib import Path

import demo_captures
import pyarrow.parquet as pq
import pytest
from corpus_documents import content
from raised import check_shown

import paratune
from paratune.cli import run
from paratune.commands.corpus_run import STAGES, build_corpus
from paratune.data.read import iterate_texts

pytestmark = pytest.mark.slow

COMMON = (
    "a casa de o rio que não se via para com uma noite em por mais as dos como mas ao ele das tem seu sua ou quando "
    "muito nos já eu também só pelo pela até isso ela entre depois sem mesmo aos seus quem nas me esse eles você essa"
)


def page(number: int) -> bytes:
    """Return a page of running text of its own."""
    draw = random.Random(number)
    lines = [" ".join(draw.choices(COMMON.split(), k=13)).capitalize() + " casa." for _ in range(30)]
    paragraphs = "".join(f"<p>{' '.join(lines[at : at + 3])}</p>" for at in range(0, 30, 3))
    return f"<html><head><title>n{number}</title></head><body><article>{paragraphs}</article></body></html>".encode()


def record(url: str, body: bytes, mime: str) -> bytes:
    return demo_captures.record(url, "2010-05-06T07:08:09Z", body, mime)


def configure(folder: Path, name: str, workers: int) -> Path:
    (folder / f"{name}.yaml").write_text(
        f"work: {folder / name}\nworkers: {workers}\nrows_per_shard: 4\n"
        f"index: {{warcs: [{folder}/*.warc.gz]}}\nclean: {{skip: [language, variety, quality]}}\n"
        "store: {validation: 0.3}\n"
    )
    return folder / f"{name}.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    pages = [(f"http://www.a{number % 3}.pt/{number}", page(number % 9), "text/html") for number in range(10)]
    records = [record(*entry) for entry in (*pages, ("http://a.pt/x.png", b"\x89PNG", "image/png"))]
    (folder / "1.warc.gz").write_bytes(b"".join(records))
    build_corpus(configure(folder, "one", 1), only=None, workers=None, as_json=False)
    return folder


def test_all_stages_run_one_after_the_other(made, capsys):
    work = made / "one"
    build_corpus(made / "one.yaml", only=None, workers=None, as_json=True)
    totals = json.loads(capsys.readouterr().out)
    assert list(totals) == list(STAGES)
    # Of 11 records one is no text, and one page is there twice.
    assert totals["index"]["read"]["dropped"] == {"mime": 1}
    assert totals["index"]["dropped"] == {"duplicate": 1}
    assert [totals[name]["kept"] for name in ("index", "fetch", "extract", "clean", "store")] == [9] * 5
    assert totals["sentences"]["kept"] == 9 * 30
    texts = [str(path) for path in sorted((work / "6_store/texts").glob("*.parquet"))]
    assert len(list(iterate_texts(texts, "text"))) == 9
    rows = pq.read_table(work / "6_store/documents/part-00000.parquet").to_pylist()
    assert {(row["host"], row["timestamp"], row["title"]) for row in rows} >= {("a0.pt", "20100506070809", "n0")}


def test_the_report_exists(made):
    work = made / "one"
    assert "9 documents, 3,780 words, 270 sentences from 3 hosts." in (work / "report.html").read_text()


def test_more_workers_give_the_same_files(made):
    build_corpus(configure(made, "two", 2), only=None, workers=None, as_json=True)
    for folder, _ in STAGES.values():
        item, two = content(made / "one" / folder), content(made / "two" / folder)
        assert [name for name in {**item, **two} if item.get(name) != two.get(name)] == [], folder


@pytest.mark.parametrize("num_pages", [12, 60])
def test_an_archive_becomes_an_encoder(
    tmp_path: Path, num_pages: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    pages = [record(f"http://www.a{number % 3}.pt/{number}", page(number), "text/html") for number in range(num_pages)]
    (tmp_path / "1.warc.gz").write_bytes(b"".join(pages))
    file = configure(tmp_path, "pt", 2)
    file.write_text(file.read_text().replace("0.3}", "0.3, tokens: {tokenizer: tokenizer, max_length: 32}}"))
    assert not run(["corpus", str(file)])
    check_shown(capsys.readouterr().err, "corpus.no_tokenizer")
    folder = tmp_path / "pt/6_store"
    sizes = ["--vocab-size", "200", "--out", "tokenizer"]
    assert not run(["tokenizer", "train", str(folder / "texts/train.parquet"), *sizes])
    capsys.readouterr()
    assert not run(["corpus", str(file), "--json"])
    counts = json.loads(capsys.readouterr().out)["store"]["tokens"]
    made = paratune.train({
        "run": {"name": "encoder"},
        "task": {"kind": "mlm"},
        "data": {
            "train": str(folder / "tokens/train"), "validation": str(folder / "tokens/validation"), "max_length": 32
        },
        "model": {
            "name": "AiBERTa", "from_scratch": True, "tokenizer": "tokenizer",
            "overrides": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
        },
        "train": {"max_steps": 6, "learning_rate": 1e-3},
        "batch": {"global": 8},
        "evaluate": {"every": "steps", "steps": 3, "best": "perplexity"},
        "device": "cpu",
    })  # fmt: skip
    recorded = {name: made.record["data"][name]["num_tokens"] for name in counts}
    assert recorded == counts
    documents = pq.read_table(folder / "texts/train.parquet").num_rows
    assert made.record["data"]["train"]["num_rows"] == documents
    capsys.readouterr()
    assert not run(["fill-mask", "runs/encoder", "a casa de o [MASK]", "--json"])
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    assert [len(mask) for mask in text["masks"]] == [5]
