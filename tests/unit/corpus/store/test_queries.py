"""Samples, searches and figures of a small corpus whose every number is written out here."""

import json
import re

import pytest
from corpus_documents import document, extracted
from raised import raises_code

from paratune.commands import corpus_look
from paratune.console import Display
from paratune.corpus.finished import finished_stages
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import write_shard
from paratune.corpus.stage import Stage, begin, finish
from paratune.corpus.store.figures import corpus_figures, distribution
from paratune.corpus.store.queries import TextFilter, draw_dropped, draw_kept, search, word_pattern
from paratune.corpus.store.run import run_store
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


@pytest.mark.parametrize(
    ("phrase", "text", "is_found"),
    [
        ("acao", "uma ação.", True),
        ("AÇÃO", "acao", True),
        ("ação", "AÇÃO", True),
        ("ação", "ações", False),
        ("ação", "reação", False),
        ("o vento", "O  vento", True),
        ("o vento", "O\nvento", True),
        ("o vento", "o-vento", True),
        ("o vento", "o grande vento", False),
        ("2009", "em 2009,", True),
        ("200", "2009", False),
        ("a.b", "a b", True),
        ("αβ", "Αβ", True),
    ],
)
def test_words_are_found_whole(phrase, text, is_found):
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.execute("SELECT regexp_matches(?, ?)", [text, word_pattern(phrase)]).fetchone() == (is_found,)


def test_a_search_needs_all_words(work):
    assert ids(search(work, ["votacao"], TextFilter(), is_regex=False, limit=9)) == ["d0", "d3"]
    assert ids(search(work, ["parlamento", "votação"], TextFilter(), is_regex=False, limit=9)) == ["d0"]
    assert ids(search(work, ["parlamento"], TextFilter(), is_regex=False, limit=1)) == ["d0"]
    assert ids(search(work, [r"(?i)vota[cç][aã]o|VOTA.*ES"], TextFilter(), is_regex=True, limit=9)) == [
        "d0",
        "d1",
        "d3",
    ]
    (result,) = search(work, ["soprar"], TextFilter(), is_regex=False, limit=9)
    assert result == {
        "id": "d2",
        "url": "http://noticias.a.pt/2",
        "timestamp": "20090101000000",
        "found": "O vento parou de soprar.",
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2, 3, "xx vela yyy"),
        (80, 81, f"{'x' * 80} vela {'y' * 80}…"),
        (81, 80, f"…{'x' * 80} vela {'y' * 80}"),
    ],
)
def test_matches_have_marks_where_the_text_is_cut(tmp_path, before, after, expected):
    """80 characters are on each side of the word and the white space around it."""
    extracted(tmp_path, [document(f"{'x' * before} vela {'y' * after}")])
    (row,) = search(tmp_path, ["vela"], TextFilter(stage="extract"), is_regex=False, limit=9)
    assert row["found"] == expected


def test_an_invalid_expression_is_an_error(work):
    for asked in ([], ["..."]):
        with raises_code("cli.argument_missing"):
            search(work, asked, TextFilter(), is_regex=False, limit=1)
    with raises_code("cli.invalid_value"):
        search(work, ["(a"], TextFilter(), is_regex=True, limit=1)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, ["d0", "d1", "d2", "d3", "d4", "d5"]),
        ({"host": "a.pt"}, ["d0", "d2"]),
        ({"host": "www.A.pt"}, ["d0", "d2"]),
        ({"host": "noticias.a.pt"}, ["d2"]),
        ({"year": 2009}, ["d1", "d2", "d4"]),
        ({"year": 2009, "host": "b.pt"}, ["d1", "d4"]),
        ({"language": "gl"}, ["d3"]),
        ({"variety": "pt-BR"}, []),
        ({"stage": "clean/quality"}, ["d0", "d1", "d2", "d3"]),
        ({"stage": "clean/quality", "year": 2009}, ["d1", "d2"]),
    ],
)
def test_conditions_hold(work, conditions, expected):
    assert sorted(ids(draw_kept(work, TextFilter(**conditions), num=9, seed=0))) == expected


def test_samples_are_a_function_of_the_seed(work):
    drawn = {tuple(ids(draw_kept(work, TextFilter(), num=2, seed=seed))) for seed in range(30)}
    assert len(drawn) > 10
    assert drawn == {tuple(ids(draw_kept(work, TextFilter(), num=2, seed=seed))) for seed in range(30)}
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
    with raises_code("cli.unknown_name", "--reason simbols", "symbols"):
        draw_dropped(work, stage=None, reason="simbols", num=9, seed=0)
    with raises_code("cli.unknown_name", "--stage clean/qualiti", "clean/quality"):
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
    assert result["duplicates"] == [{"stage": "clean/quality", "reason": "near duplicate", "num": 1}]
    assert result["varieties"] == []
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
    # 1 1 2 3 8: mean 3, the third of five is 2; bounds are powers of two.
    result = distribution({1: 2, 2: 1, 3: 1, 8: 1})
    assert result["mean"] == 3
    assert result["quantiles"] == {"0": 1, "0.05": 1, "0.25": 1, "0.5": 2, "0.75": 3, "0.95": 8, "1": 8}
    assert result["histogram"] == [[1, 2, 2], [2, 4, 2], [4, 8, 0], [8, 16, 1]]
    assert distribution({0: 1, 1: 1})["histogram"] == [[0, 1, 1], [1, 2, 1]]
    assert distribution({}) == {"mean": None, "quantiles": {}, "histogram": []}


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
        draw_kept(tmp_path, TextFilter(), num=1, seed=0)
    assert ids(draw_kept(tmp_path, TextFilter(stage="extract"), num=1, seed=0)) == ["d0"]
    with raises_code("cli.unknown_name", "--stage"):
        search(tmp_path, ["dia"], TextFilter(stage="extrac"), is_regex=False, limit=1)


def test_the_commands_print_words_and_json(work, capsys):
    assert corpus_look.stats(work, json=True) == 0
    assert json.loads(capsys.readouterr().out)["documents"]["num"] == 6
    corpus_look.stats(work)
    text = capsys.readouterr().out
    for message in ("clean/quality", "near duplicate", "noticias.a.pt", "2008", "median"):
        assert message in text
    corpus_look.search(work, "soprar", limit=3)
    assert "http://noticias.a.pt/2" in capsys.readouterr().out
    corpus_look.sample(work, dropped=True, reason="symbols", num=3, seed=0)
    assert re.search(r"clean/quality  symbols  0.35\s+\$\$\$ compre já", capsys.readouterr().out)
    corpus_look.sample(work, where=corpus_look.TextOptions(variety="pt-BR"), num=3, seed=0)
    assert capsys.readouterr().out == "nothing found\n"
    with raises_code("cli.no_effect", "--year"):
        corpus_look.sample(work, where=corpus_look.TextOptions(year=2009), dropped=True, num=3, seed=0)
