"""The stage `store`: expected values are written out, or read back by pyarrow and paratune's own readers."""

import hashlib
import shutil

import pyarrow.parquet as pq
import pytest
from corpus_documents import content, document, dropped, extracted, kept
from raised import raises_code

from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import SENTENCE_SCHEMA, STORED_DOCUMENT_SCHEMA, DroppedRow, write_shard
from paratune.corpus.stage import Stage, begin, finish, stage_output
from paratune.corpus.store import run_store, text_split, url_host
from paratune.data.read import iterate_texts, read_table

DISPLAY = Display(speaks=False)
STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]


def corpus(work, **store):
    return Corpus.model_validate({"work": str(work), "clean": {"skip": STEPS}, "store": store})


def sentences(work, *shards):
    """Write a finished stage of sentences, pairs of document and text; the first shard also drops one."""
    folder = work / "5_sentences"
    stage = Stage("sentences", folder, SENTENCE_SCHEMA, list, {}, stage_output(work / "3_extract"))
    begin(stage)
    for position, shard in enumerate(shards):
        rows = [
            {"document_id": name, "position": at, "text": text, "sha256": "", "perplexity": None}
            for at, (name, text) in enumerate(shard)
        ]
        write_shard(
            folder,
            position,
            SENTENCE_SCHEMA,
            [*rows, *([] if position else [DroppedRow("u", "short", "2 words", "d0")])],
        )
    finish(stage, len(shards))


def made(work, *, workers=1, **store):
    return run_store(corpus(work, **store), workers, DISPLAY)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://www.Publico.pt:80/a?b", "publico.pt"),
        ("https://user@blogs.sapo.pt/x", "blogs.sapo.pt"),
        ("mailto:a@b.pt", None),
        ("http://[::1/", None),
        ("www.a.pt/x", None),
    ],
)
def test_hosts(url, host):
    assert url_host(url) == host


def test_the_split_is_the_share_of_the_first_52_bits():
    # 0.8000... of 16**13 in hexadecimal is 0.5 exactly.
    assert text_split("8" + "0" * 63, 0.5) == "train"
    assert text_split("7" + "f" * 63, 0.5) == "validation"
    assert text_split("0" * 64, 0.0) == "train"
    hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(4000)]
    share = sum(text_split(hashe, 0.1) == "validation" for hashe in hashes) / 4000
    assert share == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / 4000) ** 0.5)  # four standard deviations


def test_documents_keep_their_columns_and_gain_some(tmp_path):
    extracted(tmp_path, [document("Bom dia.\nOlá  a todos", url="http://www.a.pt/1", timestamp="20090102000000")])
    totals = made(tmp_path, validation=0.0)
    table = pq.read_table(tmp_path / "6_store/documents/part-00000.parquet")
    assert table.schema.names == STORED_DOCUMENT_SCHEMA.names
    (row,) = table.to_pylist()
    assert (row["host"], row["year"], row["num_characters"], row["num_words"], row["split"]) == (
        *("a.pt", 2009, 21, 5),
        "train",
    )
    assert row["sha256"] == hashlib.sha256("Bom dia.\nOlá  a todos".encode()).hexdigest()
    assert (totals["kept"], totals["sentences"], totals["texts"]) == (1, None, {"train": 1, "validation": 0})


def test_sentences_know_their_capture(tmp_path):
    extracted(tmp_path, ["Um texto.", "Dois."], ["Três. Quatro."])
    sentences(tmp_path, [("d0", "Um texto."), ("d1", "Dois.")], [("d2", "Três."), ("d2", "Quatro.")])
    assert made(tmp_path)["sentences"] == 4
    rows = [row for shard in kept(tmp_path / "6_store/sentences") for row in shard]
    assert [(row["url"], row["text"], row["position"]) for row in rows] == [
        *(("http://a.pt/0", "Um texto.", 0), ("http://a.pt/1", "Dois.", 1)),
        *(("http://a.pt/2", "Três.", 0), ("http://a.pt/2", "Quatro.", 1)),
    ]
    by_document = {row["id"]: row["split"] for shard in kept(tmp_path / "6_store/documents") for row in shard}
    assert all(row["split"] == by_document[row["document_id"]] for row in rows)


def test_sentences_of_other_documents_are_refused(tmp_path):
    extracted(tmp_path, ["Um texto."])
    sentences(tmp_path, [("d7", "Um texto.")])
    with raises_code("data.unreadable", "d7"):
        made(tmp_path)
    shutil.rmtree(tmp_path / "5_sentences")
    sentences(tmp_path, [("d0", "Um texto.")], [])
    with raises_code("corpus.not_finished"):
        made(tmp_path)
    shutil.rmtree(tmp_path / "5_sentences")
    with raises_code("config.conflict", "store.unit", "sentences"):
        made(tmp_path, unit="sentences")


def test_sentences_of_an_earlier_cleaning_are_refused(tmp_path):
    extracted(tmp_path, ["Escreva a ana@a.pt."])
    sentences(tmp_path, [("d0", "Escreva a ana@a.pt.")])
    made(tmp_path)
    # The same documents by their ids, with other texts: of the old ones nothing may come into the corpus.
    shutil.rmtree(tmp_path / "3_extract")
    extracted(tmp_path, ["Escreva a <EMAIL>."])
    with raises_code("corpus.not_finished"):
        made(tmp_path)


def test_exported_tables_hold_few_bytes_in_a_row_group(tmp_path):
    # 40 texts of 1 MB: a row group ends at 4 MiB of them.
    extracted(tmp_path, [f"{number:07d} " * 131_072 for number in range(40)])
    made(tmp_path, validation=0.0)
    with pq.ParquetFile(tmp_path / "6_store/texts/train.parquet") as table:
        sizes = [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
    assert sizes == [4] * 10


TEXTS = ["Um, dois.\n\nTrês.", 'Com "aspas" e\nduas linhas', "ção"]


def test_texts_are_read_by_training_and_by_the_tokenizer(tmp_path):
    extracted(tmp_path, TEXTS[:2], TEXTS[2:])
    made(tmp_path, validation=0.0)
    (path,) = (tmp_path / "6_store/texts").iterdir()
    assert path.name == "train.parquet"
    assert read_table(str(path))["text"].to_pylist() == TEXTS
    assert list(iterate_texts([str(path)], "text")) == TEXTS


def test_each_split_has_a_file(tmp_path):
    extracted(tmp_path, [f"texto {number}" for number in range(40)])
    counts = made(tmp_path, validation=0.5)["texts"]
    assert sum(counts.values()) == 40
    assert min(counts.values()) > 5
    for split, count in counts.items():
        result = pq.read_table(tmp_path / f"6_store/texts/{split}.parquet")
        expected = [row for row in kept(tmp_path / "6_store/documents")[0] if row["split"] == split]
        assert result.num_rows == count
        assert result.to_pylist() == [{"id": row["id"], "text": row["text"]} for row in expected]


def test_sentences_can_be_the_texts(tmp_path):
    extracted(tmp_path, ["Um texto. Dois."])
    sentences(tmp_path, [("d0", "Um texto."), ("d0", "Dois.")])
    made(tmp_path, validation=0.0, unit="sentences")
    rows = pq.read_table(tmp_path / "6_store/texts/train.parquet").to_pylist()
    assert rows == [{"id": "d0", "text": "Um texto."}, {"id": "d0", "text": "Dois."}]


def test_any_number_of_workers_gives_the_same_files(tmp_path):
    for workers in (1, 3):
        work = tmp_path / str(workers)
        extracted(work, *([f"texto {shard} {number}" for number in range(30)] for shard in range(4)))
        made(work, workers=workers, validation=0.3)
    assert content(tmp_path / "1/6_store") == content(tmp_path / "3/6_store")


def test_finished_work_is_not_repeated_and_changed_work_is(tmp_path):
    extracted(tmp_path, TEXTS)
    first = made(tmp_path, validation=0.0)
    mark = tmp_path / "6_store/texts/mark"
    mark.touch()
    assert made(tmp_path, validation=0.0) == first
    assert mark.exists()
    made(tmp_path, validation=0.999)
    assert [path.name for path in (tmp_path / "6_store/texts").iterdir()] == ["validation.parquet"]
    assert (tmp_path / "6_store/documents/stage.json").exists()


def test_an_interrupted_export_is_made_again(tmp_path):
    extracted(tmp_path, TEXTS)
    made(tmp_path)
    before = content(tmp_path / "6_store")
    (tmp_path / "6_store/stage.json").unlink()
    shutil.move(tmp_path / "6_store/texts", tmp_path / "6_store/.texts.99999999.tmp")
    made(tmp_path)
    assert content(tmp_path / "6_store") == before


def test_other_files_are_not_touched(tmp_path):
    extracted(tmp_path, TEXTS)
    (tmp_path / "6_store").mkdir()
    (tmp_path / "6_store/mine.txt").touch()
    with raises_code("output.foreign", "6_store"):
        made(tmp_path)


def test_nothing_is_dropped_here(tmp_path):
    extracted(tmp_path, TEXTS)
    made(tmp_path)
    assert dropped(tmp_path / "6_store/documents") == []
