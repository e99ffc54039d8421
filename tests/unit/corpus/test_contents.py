"""Samples and figures of a small corpus whose every number is written out here."""

import json
import re

import pytest
from corpus_documents import document, extracted
from raised import raises_code

from paratune.commands import corpus
from paratune.console import Display
from paratune.corpus.contents import corpus_figures, distribution, draw_dropped, draw_kept, finished_stages
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, write_shard
from paratune.corpus.stage import Stage, begin, finish
from paratune.corpus.store import run_store
from paratune.records import read_json, write_json

STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
TEXTS = {
    "d0": ("http://www.a.pt/0", "2008", "A votação no Parlamento.\nFoi ontem.", "pt"),
    "d1": ("http://b.pt/1", "2009", "VOTAÇÕES e parlamento", "pt"),
    "d2": ("http://noticias.a.pt/2", "2009", "O vento parou de soprar.", "pt"),
    "d3": ("http://xa.pt/3", "2010", "Nada, por agora: o ponto de votacao", "gl"),
}
BAD = {"d4": ("http://b.pt/4", "2009", "$$$ compre já $$$", "pt"), "d5": ("http://b.pt/5", "2010", "x", "pt")}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A corpus whose quality step dropped two of six documents; a row of another stage was dropped without an id."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        document(text, url=url, timestamp=f"{year}0101000000", language=language) | {"id": name}
        for name, (url, year, text, language) in {**TEXTS, **BAD}.items()
    ]
    index = Stage("index", folder / "1_index", DOCUMENT_SCHEMA, list, {}, [])
    begin(index)
    write_shard(index.folder, 0, DOCUMENT_SCHEMA, [DroppedRow("http://b.pt/logo.png", "mime", "image/png")])
    finish(index, 1)
    extracted(folder, rows[:3], rows[3:])
    record = read_json(folder / "3_extract/stage.json")
    write_json(folder / "3_extract/stage.json", {**record, "input": _output(index.folder)})
    stage = Stage("quality", folder / "4_clean/4_quality", DOCUMENT_SCHEMA, list, {}, _output(folder / "3_extract"))
    begin(stage)
    lost = [
        DroppedRow(rows[4]["url"], "symbols", "0.35", "d4"),
        DroppedRow(rows[5]["url"], "near duplicate", "d1", "d5"),
    ]
    write_shard(stage.folder, 0, DOCUMENT_SCHEMA, rows[:3])
    write_shard(stage.folder, 1, DOCUMENT_SCHEMA, [rows[3], *lost])
    finish(stage, 2)
    # The steps of the cleaning are left out; one is as if it had run.
    run_store(Corpus.model_validate({"work": str(folder), "clean": {"skip": STEPS}}), 1, Display(speaks=False))
    return folder


def _output(folder):
    return read_json(folder / "stage.json")["output"]


def ids(rows):
    return [row["id"] for row in rows]


def test_kept_rows_are_those_of_the_stage(work):
    assert sorted(ids(draw_kept(work, stage=None, num=9, seed=0))) == ["d0", "d1", "d2", "d3", "d4", "d5"]
    assert sorted(ids(draw_kept(work, stage="clean/quality", num=9, seed=0))) == ["d0", "d1", "d2", "d3"]


def test_samples_are_a_function_of_the_seed(work):
    drawn = {tuple(ids(draw_kept(work, stage=None, num=2, seed=seed))) for seed in range(30)}
    assert len(drawn) > 10
    assert drawn == {tuple(ids(draw_kept(work, stage=None, num=2, seed=seed))) for seed in range(30)}
    firsts = [first for first, _ in drawn]
    assert set(firsts) == {"d0", "d1", "d2", "d3", "d4", "d5"}


def test_dropped_rows_have_their_text(work):
    rows = {row["url"]: row for row in draw_dropped(work, stage=None, reason=None, num=9, seed=0)}
    assert len(rows) == 3
    assert rows["http://b.pt/4"] == {
        "stage": "clean/quality",
        "id": "d4",
        "url": "http://b.pt/4",
        "reason": "symbols",
        "detail": "0.35",
        "text": "$$$ compre já $$$",
    }
    assert rows["http://b.pt/logo.png"]["text"] is None
    assert ids(draw_dropped(work, stage="clean/quality", reason="near duplicate", num=9, seed=0)) == ["d5"]
    assert draw_dropped(work, stage="extract", reason=None, num=9, seed=0) == []
    with raises_code("cli.invalid_value", "--reason simbols", "symbols"):
        draw_dropped(work, stage=None, reason="simbols", num=9, seed=0)
    with raises_code("cli.invalid_value", "--stage clean/qualiti", "clean/quality"):
        draw_dropped(work, stage="clean/qualiti", reason=None, num=9, seed=0)


def test_figures(work):
    result = corpus_figures(work)
    funnel = {item["stage"]: (item["kept"], item["dropped"], item["is_stale"]) for item in result["funnel"]}
    assert funnel == {
        "index": (0, {"mime": 1}, False),
        "extract": (6, {}, False),
        "clean/quality": (4, {"near duplicate": 1, "symbols": 1}, False),
        "store/documents": (6, {}, False),
    }
    documents = result["documents"]
    # 6 + 3 + 5 + 7 + 4 + 1 words.
    assert (documents["num"], documents["num_words"], documents["num_hosts"]) == (6, 26, 4)
    assert documents["num_characters"] == sum(len(text) for _, _, text, _ in {**TEXTS, **BAD}.values())
    assert documents["by_language"] == [
        {"value": "pt", "num": 5, "num_words": 19},
        {"value": "gl", "num": 1, "num_words": 7},
    ]
    assert [(value["value"], value["num"]) for value in documents["by_year"]] == [(2008, 1), (2009, 3), (2010, 2)]
    assert [(entry["value"], entry["num"]) for entry in documents["by_host"]][:2] == [("b.pt", 3), ("a.pt", 1)]
    assert documents["words"]["quantiles"]["0.5"] == 4  # of 1 3 4 5 6 7, the third
    assert result["sentences"] is None


def test_spreads():
    # 1 1 2 3 8: mean 3, the third of five is 2.
    result = distribution({1: 2, 2: 1, 3: 1, 8: 1})
    assert result["mean"] == 3
    assert result["quantiles"] == {"0": 1, "0.05": 1, "0.25": 1, "0.5": 2, "0.75": 3, "0.95": 8, "1": 8}
    assert distribution({}) == {"mean": None, "quantiles": {}}


def test_a_stage_is_stale_when_the_one_before_was_made_anew(tmp_path):
    extracted(tmp_path, ["a"])
    corpus = Corpus.model_validate({"work": str(tmp_path), "clean": {"skip": STEPS}})
    run_store(corpus, 1, Display(speaks=False))
    source = _output(tmp_path / "3_extract")
    folder = tmp_path / "2_fetch"
    stage = Stage("fetch", folder, DOCUMENT_SCHEMA, list, {}, [])
    begin(stage)
    assert [finished_stage.is_stale for finished_stage in finished_stages(tmp_path)] == [True, True]
    record = read_json(tmp_path / "3_extract/stage.json")
    (tmp_path / "1_index").mkdir()
    (tmp_path / "1_index/stage.json").write_text(json.dumps({**record, "stage": "index", "output": "abc"}))
    (tmp_path / "3_extract/stage.json").write_text(json.dumps({**record, "input": ["abc", 1]}))
    assert [item.is_stale for item in finished_stages(tmp_path)] == [False, False, False]
    (tmp_path / "3_extract/stage.json").write_text(json.dumps({**record, "input": ["abc", 1], "output": "other"}))
    assert source != "other"
    assert [value.is_stale for value in finished_stages(tmp_path)] == [False, False, True]


def test_there_must_be_something(tmp_path):
    with raises_code("corpus.not_finished"):
        corpus_figures(tmp_path)
    extracted(tmp_path, ["Bom dia"])
    with raises_code("corpus.not_finished"):
        draw_kept(tmp_path, stage=None, num=1, seed=0)
    assert ids(draw_kept(tmp_path, stage="extract", num=1, seed=0)) == ["d0"]
    with raises_code("cli.invalid_value", "--stage"):
        draw_kept(tmp_path, stage="extrac", num=1, seed=0)


def test_the_commands_print_words_and_json(work, capsys):
    corpus.stats(work, json=True)
    assert json.loads(capsys.readouterr().out)["documents"]["num"] == 6
    corpus.stats(work)
    text = capsys.readouterr().out
    for message in ("clean/quality", "near duplicate", "noticias.a.pt", "2008", "median"):
        assert message in text
    corpus.sample(work, dropped=True, reason="symbols", num=3, seed=0)
    assert re.search(r"clean/quality  symbols  0.35\s+\$\$\$ compre já", capsys.readouterr().out)
    corpus.sample(work, stage="index", num=3, seed=0)
    assert capsys.readouterr().out == "nothing found\n"
