import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from archive import write_warc
from filelock import FileLock
from raised import check_shown, raises_code

from paratune.commands.corpus import sample
from paratune.commands.corpus_run import STAGES, build_corpus
from paratune.records import read_json

FOLDERS = ["1_index", "2_fetch", "3_extract", "4_clean", "5_sentences", "6_store"]
TEXTS = [
    "O rio nasce na serra e corre para o mar. As margens são altas e verdes. Na vila há uma ponte de pedra.",
    "A biblioteca abre às nove horas da manhã. Quem quiser pode levar três livros para casa. O cartão não custa nada.",
    "O comboio parte da linha quatro. A viagem dura quase três horas. Na vila há uma ponte de pedra.",
]


@pytest.fixture
def config(tmp_path):
    header = [("Content-Type", "text/plain; charset=utf-8")]
    records = [(f"http://a.pt/{n}", "20140103030321", "200 OK", header, text.encode()) for n, text in enumerate(TEXTS)]
    write_warc(tmp_path / "a.warc.gz", records)
    settings = {
        "work": str(tmp_path / "work"),
        "index": {"warcs": [str(tmp_path / "a.warc.gz")]},
        "clean": {"skip": ["language", "variety", "quality"]},
        "sentences": {"scorer": "none"},
    }
    (tmp_path / "corpus.json").write_text(json.dumps(settings))
    return tmp_path / "corpus.json"


def test_all_stages_run_in_order(config, tmp_path, capsys):
    build_corpus(config, only=None, workers=None, as_json=True)
    totals = json.loads(capsys.readouterr().out)
    assert [warning["code"] for warning in totals.pop("warnings")] == ["corpus.empty_split"]
    assert list(totals) == ["index", "fetch", "extract", "clean", "sentences", "store"]
    assert [folder for folder, _ in STAGES.values()] == FOLDERS
    assert [totals[name]["kept"] for name in totals] == [3, 3, 3, 3, 8, 3]
    assert totals["sentences"]["dropped"] == {"duplicate": 1}
    (path,) = (tmp_path / "work/5_sentences").glob("part-*")
    assert pq.read_table(path)["text"].to_pylist()[:2] == [
        "O rio nasce na serra e corre para o mar.",
        "As margens são altas e verdes.",
    ]
    assert (tmp_path / "work" / "report.html").exists()


def test_only_repeats_one_stage(config, tmp_path, capsys):
    build_corpus(config, only=None, workers=None, as_json=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*/stage.json")}
    build_corpus(config, only="sentences", workers=None, as_json=True)
    changed = [path.parent.name for path, then in before.items() if path.stat().st_mtime_ns != then]
    assert changed == ["5_sentences"]
    assert read_json(tmp_path / "work/5_sentences/stage.json")["kept"] == 8


def test_a_second_command_in_the_same_folder_is_refused(config, tmp_path):
    (tmp_path / "work").mkdir()
    with FileLock(tmp_path / "work/lock"), raises_code("run.in_use"):
        build_corpus(config, only=None, workers=None, as_json=True)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["lock"]
    build_corpus(config, only="index", workers=None, as_json=True)


@pytest.mark.parametrize(
    ("only", "missing"), [("fetch", "index"), ("extract", "fetch"), ("clean", "extract"), ("store", "clean")]
)
def test_a_stage_without_its_input_names_the_previous_stage(config, only, missing):
    with raises_code("corpus.not_finished", f"--only {missing}", name=missing):
        build_corpus(config, only=only, workers=None, as_json=True)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kept": 3}'])
@pytest.mark.parametrize("record", ["2_fetch/stage.json", "4_clean/5_duplicates/stage.json", "5_sentences/begun.json"])
def test_a_damaged_record_gives_path_and_remedy(config, tmp_path, record, damage):
    build_corpus(config, only=None, workers=None, as_json=True)
    path = tmp_path / "work" / record
    before, then = path.read_bytes(), sorted((tmp_path / "work/6_store/documents").glob("part*"))
    made = [entry.read_bytes() for entry in then]
    path.write_text(damage)
    (tmp_path / "work/5_sentences/stage.json").unlink()  # so that begun.json is read
    deleted = path.parent if path.name == "begun.json" else path
    with raises_code("corpus.damaged", path, deleted) as output:
        build_corpus(config, only=None, workers=None, as_json=True)
    assert "\n" not in str(output.value)
    shutil.rmtree(deleted) if deleted.is_dir() else deleted.unlink()
    build_corpus(config, only=None, workers=None, as_json=True)
    assert path.read_bytes() == before
    assert [entry.read_bytes() for entry in then] == made


def test_texts_are_not_wrapped_without_a_terminal(config, tmp_path, capsys):
    build_corpus(config, only=None, workers=None, as_json=True)
    capsys.readouterr()
    sample(tmp_path / "work", num=9, seed=0)
    printed = capsys.readouterr().out.splitlines()
    assert set(TEXTS) < set(printed)
    assert max(map(len, TEXTS)) > 80


SKIP = ["lines", "variety", "quality", "duplicates", "personal"]
"""Steps that are left out, so that `language` drops everything."""


@pytest.mark.parametrize(
    ("section", "options", "named"),
    [
        ("extract", {"min_characters": 1000}, ["extract", "short 3"]),
        ("index", {"mimes": ["text/html"]}, ["index", "mime 3"]),
        ("clean", {"skip": SKIP, "language": {"keep": ["fi"]}}, ["language 3", "keep is fi;"]),
        ("clean", {"skip": SKIP, "language": {"min_score": 1}}, ["language unsure 3", "keep is pt, the default"]),
    ],
    ids=["extract", "index", "language", "default-language"],
)
def test_an_empty_corpus_gives_a_warning_with_what_emptied_it(config, capsys, section, options, named):
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {section: {**settings.get(section, {}), **options}}))
    for only in (None, section):
        build_corpus(config, only=only, workers=None, as_json=True)
        check_shown(capsys.readouterr().err, "corpus.empty", config, *named)


def warnings_of(config, capsys):
    build_corpus(config, only=None, workers=None, as_json=True)
    listed = json.loads(capsys.readouterr().out)["warnings"]
    return {warning["code"]: warning for warning in listed if warning["code"] != "corpus.empty_split"}


def test_a_cut_archive_and_captures_without_a_file_give_warnings(config, tmp_path, capsys):
    assert warnings_of(config, capsys) == {}
    whole = (tmp_path / "a.warc.gz").read_bytes()
    (tmp_path / "a.warc.gz").write_bytes(whole[:-40])
    assert list(warnings := warnings_of(config, capsys)) == ["corpus.archive_cut"]
    assert warnings["corpus.archive_cut"]["facts"] == {"name": "a.warc.gz"}
    lines = [f"a {2014 + n}0103030321 http://b.pt/{n} text/plain 200 D{n} - - 9 {n} b{n}.warc.gz\n" for n in range(5)]
    (tmp_path / "b.cdx").write_text("".join(lines))
    settings = json.loads(config.read_text())
    settings["index"]["files"] = [str(tmp_path / "b.cdx")]
    config.write_text(json.dumps(settings))
    warning = warnings_of(config, capsys)["corpus.no_source"]
    assert warning["facts"]["num"] == 5
    assert warning["facts"]["url"] in {f"http://b.pt/{n}" for n in range(5)}
    assert re.search(r"5 captures.*\bb\d\.warc\.gz", warning["message"])


@pytest.mark.parametrize(
    ("setting", "kept", "last"),
    [
        ({}, 1, "^2 captures.*dropped.*keep"),
        ({"other_digest": "drop"}, 1, "^2 captures.*dropped.*keep"),
        ({"other_digest": "keep"}, 3, "^2 captures.*kept.*drop"),
    ],
)
def test_captures_with_another_digest_are_counted_in_the_last_line(config, tmp_path, capsys, setting, kept, last):
    header = [("Content-Type", "text/plain; charset=utf-8")]
    pages = [(f"http://a.pt/{n}", "20140103030321", "200 OK", header, text.encode()) for n, text in enumerate(TEXTS)]
    write_warc(tmp_path / "a.warc", pages)
    whole = (tmp_path / "a.warc").read_bytes()
    (tmp_path / "a.warc").write_bytes(whole.replace(b"levar", b"LEVAR").replace(b"linha", b"LINHA"))
    index = {"warcs": [str(tmp_path / "a.warc")]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"fetch": setting, "index": index}))
    build_corpus(config, only=None, workers=None, as_json=False)
    build_corpus(config, only=None, workers=None, as_json=False)  # all stages are finished
    assert re.search(last, capsys.readouterr().out.strip().splitlines()[-1])
    totals = read_json(tmp_path / "work/2_fetch/stage.json")
    assert totals["kept"] == kept


@pytest.mark.parametrize("bytes_left", [b"", b"PAR1 torn"])
def test_a_damaged_table_is_named_and_can_be_rebuilt(config, tmp_path, capsys, bytes_left):
    build_corpus(config, only=None, workers=None, as_json=True)
    damaged = tmp_path / "work/3_extract/part-00000.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(bytes_left)
    refused = ("corpus.damaged", "3_extract/part-00000.parquet")
    with raises_code(*refused):
        build_corpus(config, only="clean", workers=None, as_json=True)
    with raises_code(*refused):
        sample(config, stage="extract", num=1, seed=1, json=True)
    shutil.rmtree(damaged.parent)
    build_corpus(config, only=None, workers=None, as_json=True)
    assert damaged.read_bytes() == whole
