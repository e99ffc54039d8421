import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sentence_documents
from patience import PATIENCE_S
from pydantic import ValidationError
from raised import raises_code
from sentence_documents import DISPLAY, make_corpus, sentence

from paratune.corpus.sentences.ngram import corpus_half, load_ngram, ngram_perplexity
from paratune.corpus.sentences.run import run_sentences
from paratune.corpus.settings import CleanPart, SentenceSettings

SHARDS = [
    [f"{sentence(1)} Sem fim\n{sentence(2)}", f"{sentence(3)} {sentence(1)}"],
    [sentence(3), *(sentence(n) for n in range(10, 20))],
    [],
]


def folder_of(corpus):
    return Path(corpus.work) / "5_sentences"


def kept(corpus):
    return [pq.read_table(path).to_pylist() for path in sorted(folder_of(corpus).glob("part-*.parquet"))]


def dropped(corpus):
    result = [pq.read_table(path).to_pylist() for path in sorted(folder_of(corpus).glob("dropped-*.parquet"))]
    return [(item["id"], item["reason"], item["detail"]) for shard in result for item in shard]


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_first_occurrence_of_a_sentence_is_kept(tmp_path):
    corpus = make_corpus(tmp_path, SHARDS, scorer="none")
    totals = run_sentences(corpus, 1, DISPLAY)
    result = kept(corpus)
    assert [(row["document_id"], row["position"], row["text"]) for row in result[0]] == [
        ("0-0", 0, sentence(1)),
        ("0-0", 2, sentence(2)),
        ("0-1", 0, sentence(3)),
    ]
    assert [row["document_id"] for row in result[1]] == [f"1-{n}" for n in range(1, 11)]
    assert result[2] == []
    assert {row["perplexity"] for row in result[0]} == {None}
    assert dropped(corpus) == [
        ("0-0", "few words", "Sem fim"),
        ("0-1", "duplicate", sentence(1)),
        ("1-0", "duplicate", sentence(3)),
    ]
    assert (totals["kept"], totals["dropped"]) == (13, {"duplicate": 2, "few words": 1})


def test_each_half_is_scored_by_the_model_of_the_other(tmp_path):
    corpus = make_corpus(tmp_path, SHARDS)
    run_sentences(corpus, 1, DISPLAY)
    for row in kept(corpus)[1]:
        path = folder_of(corpus) / f"model/ngram-{1 - corpus_half(row['document_id'])}.arpa"
        expected = ngram_perplexity(load_ngram(str(path), str(path)), row["text"])
        assert row["perplexity"] == pytest.approx(expected, rel=1e-6)


def test_sentences_above_the_threshold_are_dropped(tmp_path):
    odd = "Xpto zzz qwerty foobar baz."
    shards = [[*(sentence(n) for n in range(40)), odd]]
    corpus = make_corpus(tmp_path, shards)
    run_sentences(corpus, 1, DISPLAY)
    worst = max(kept(corpus)[0], key=lambda row: row["perplexity"])
    assert worst["text"] == odd
    limited = make_corpus(tmp_path, shards, max_perplexity=worst["perplexity"] * 0.99)
    totals = run_sentences(limited, 1, DISPLAY)
    assert (totals["kept"], totals["dropped"]) == (40, {"perplexity": 1})
    assert dropped(limited) == [("0-40", "perplexity", f"{worst['perplexity']:.1f} {odd}")]


def test_a_changed_threshold_repeats_only_the_last_step(tmp_path):
    corpus = make_corpus(tmp_path, SHARDS)
    run_sentences(corpus, 1, DISPLAY)
    steps = [path for path in folder_of(corpus).rglob("*") if path.is_file() and path.parent != folder_of(corpus)]
    before = {path: path.stat().st_mtime_ns for path in steps}
    run_sentences(make_corpus(tmp_path, SHARDS, max_perplexity=1.1), 1, DISPLAY)
    assert {path: path.stat().st_mtime_ns for path in steps} == before
    run_sentences(make_corpus(tmp_path, SHARDS, min_words=5), 1, DISPLAY)
    assert (folder_of(corpus) / "split/stage.json").stat().st_mtime_ns not in before.values()


def test_other_files_to_learn_from_make_other_perplexities(tmp_path):
    path = tmp_path / "a.txt"
    result = []
    for text in (sentence(1), "Hoje chove muito em Lisboa."):
        path.write_text(text)
        corpus = make_corpus(tmp_path, SHARDS, clean=CleanPart(files=[str(path)]))
        run_sentences(corpus, 1, DISPLAY)
        result.append(kept(corpus)[0][0]["perplexity"])
    assert result[1] > 2 * result[0]


def test_the_page_is_made_from_the_json(tmp_path):
    corpus = make_corpus(tmp_path, SHARDS)
    run_sentences(corpus, 1, DISPLAY, page=lambda result: f"<p>{result['num_sentences']}")
    assert (folder_of(corpus) / "perplexity.html").read_text() == "<p>13"
    run_sentences(make_corpus(tmp_path / "empty", []), 1, DISPLAY)


@pytest.mark.slow
def test_workers_change_no_file(tmp_path):
    for workers in (1, 2):
        run_sentences(make_corpus(tmp_path, SHARDS, str(workers)), workers, DISPLAY)
    assert content(tmp_path / "1/5_sentences") == content(tmp_path / "2/5_sentences")


@pytest.mark.slow
def test_repeated_kills_do_not_change_the_files(tmp_path):
    whole, killed = (make_corpus(tmp_path, SHARDS, name) for name in ("whole", "killed"))
    run_sentences(whole, 1, DISPLAY)
    (tmp_path / "killed.json").write_text(killed.model_dump_json())
    command = [sys.executable, sentence_documents.__file__, str(tmp_path / "killed.json"), "11"]
    codes = []
    while not codes or codes[-1] != 0:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        codes.append(done.returncode)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert len(codes) < 20
    assert len(codes) > 4
    left = {name: result for name, result in content(tmp_path / "killed/5_sentences").items() if ".tmp" not in name}
    assert left == content(tmp_path / "whole/5_sentences")


def test_without_documents_the_stage_before_is_named(tmp_path):
    corpus = make_corpus(tmp_path, SHARDS)
    (next(iter((tmp_path / "work").rglob("stage.json")))).unlink()
    with raises_code("corpus.not_finished", name="clean"):
        run_sentences(corpus, 1, DISPLAY)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_words": 5, "max_words": 4}, "min_words 5 is above max_words 4"),
        ({"scorer": "none", "max_perplexity": 3.0}, "no effect with scorer none"),
        ({"scorer": "none", "thresholds": [3.0]}, "no effect with scorer none"),
        ({"scorer": "none", "clean": CleanPart(max_words=9)}, "no effect with scorer none"),
    ],
)
def test_settings_without_effect_are_refused(options, expected):
    with pytest.raises(ValidationError, match=expected):
        SentenceSettings(**options)
