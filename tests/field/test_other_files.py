"""Files that stand for the data, nested objects, and spreadsheets."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from raised import raises_code

from paratune.config.sections import Columns, FileReading
from paratune.config.task_sections import MultiLabelTask
from paratune.data.columns import TableReader
from paratune.data.read import read_table
from paratune.data.selection import select
from paratune.data.slices import column_texts
from paratune.data.tables import ENCODING

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "code"), [("pointer.csv", "data.not_data"), ("page.jsonl", "data.not_data"), ("empty.tsv", "data.empty")]
)
def test_a_file_that_is_no_data_is_named_for_what_it_is(name: str, code: str):
    with raises_code(code, name):
        read_table(str(FOLDER / name))


@pytest.mark.parametrize("name", ["texts.zip", "texts.csv"])
def test_an_archive_is_named_for_what_it_is(tmp_path: Path, name: str):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("texts.csv", "text\na\n")
    with raises_code("data.not_data", name):
        read_table(str(tmp_path / name))


def test_an_item_that_is_no_object_is_shown_as_it_is_written(tmp_path: Path):
    (tmp_path / "a.json").write_text('[["olá"]]', encoding="utf-8")
    with raises_code("data.unreadable", "item 0", "olá"):
        read_table(str(tmp_path / "a.json"))


def test_parts_of_objects_are_columns_by_their_path():
    task = MultiLabelTask(kind="multi_label", labels=["wind", "sea"])
    table = read_table(str(FOLDER / "nested.jsonl"))
    columns = Columns(text="review.body", label="topics.name", id="no")
    samples = select(TableReader(table, columns, "refuse", "x"), task)
    assert samples.labels is not None
    assert (samples.texts, samples.ids, samples.labels.tolist()) == (["dull", "bright"], ["3", "4"], [[1, 1], [0, 0]])
    columns = Columns(text="review.by.city", label="topics.name")
    samples = select(TableReader(table, columns, "drop", "x"), task)
    assert (samples.texts, samples.num_dropped) == (["Ovar"], {"text": 1})


def test_a_path_without_values_is_no_column():
    table = read_table(str(FOLDER / "nested.jsonl"))
    for path in ("review.boddy", "review.body.x", "revue.body", "no.x"):
        with raises_code("data.column_missing", path):
            TableReader(table, Columns(text=path), "refuse", "x", require_labels=False)


def test_objects_beside_texts_have_parts():
    table = read_table(str(FOLDER / "mixed_nested.jsonl"))
    reader = TableReader(table, Columns(text="review.body"), "drop", "x", require_labels=False)
    assert reader.texts("text") == ["dull", None, None, "bright"]


def test_slices_and_figures_name_parts_of_objects():
    table = read_table(str(FOLDER / "nested.jsonl"))
    assert column_texts(table, "review.by.city", range(table.num_rows), source="x") == ["Ovar", "(none)"]


def _write_texts(folder: Path, **texts: bytes) -> str:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt" if path.parent.name != "unsup" else "").write_bytes(text)
    return str(folder)


def test_folders_of_classes_have_texts_and_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = _write_texts(tmp_path / "train", pos__0_9=b"good\n\nvery", pos__1_8="olá".encode(), neg__0_2=b"bad")
    _write_texts(tmp_path / "train", unsup__0=b"who knows", urls=b"http://x")
    (tmp_path / "train/neg/.hidden").write_bytes(b"\0")
    (tmp_path / "train/neg/words.feat").write_bytes(b"\0")
    table = read_table(folder)
    assert table.to_pydict() == {
        "text": ["bad", "good\n\nvery", "olá", "who knows"],
        "label": ["neg", "pos", "pos", None],
    }
    assert ENCODING not in (table.schema.metadata or {})
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 0


def test_texts_of_a_folder_are_in_one_encoding_or_in_utf_8(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = _write_texts(tmp_path, a__1="à noite".encode("cp1252"), a__2="à noite".encode(), b__1="é".encode("cp1252"))
    table = read_table(folder)
    assert table.column("text").to_pylist() == ["à noite", "à noite", "é"]
    assert (table.schema.metadata or {})[ENCODING] == b"cp1252"
    assert len([record for record in caplog.records if getattr(record, "code", None) == "data.encoding"]) == 1
    with raises_code("data.encoding", str(Path("b", "1.txt"))):
        read_table(_write_texts(tmp_path / "x", b__1=b"\x81\x8d"))


@pytest.mark.parametrize(
    ("texts", "source", "expected"),
    [
        ({"train__pos__1": b"x", "test__pos__1": b"x", "train__urls": b"x"}, "", "train"),
        ({"pos__1": b"x"}, "pos", "pos"),
        ({"pos__1": b"x"}, "#train", ""),
        ({}, "", ""),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, texts: dict[str, bytes], source: str, expected: str):
    _write_texts(tmp_path, **texts)
    with raises_code("data.format", str(tmp_path / expected)):
        read_table(f"{tmp_path}{source}" if source.startswith("#") else str(tmp_path / source))


ARFF = """% a comment
@RELATION reviews

@attribute 'the text' string
@attribute Mood {glad,sad}
@attribute n numeric
@DATA
'it\\'s late, again', sad, 1
% another
'fine', glad,2

"""
XML = """<?xml version="1.0"?>
<reviews><review id="1"><text>it's &amp; late</text><mood>sad</mood></review>
<review id="2"><mood>glad</mood></review></reviews>
"""


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        (
            "it's.arff",
            ARFF,
            [{"the text": "it's late, again", "Mood": "sad", "n": "1"}, {"the text": "fine", "Mood": "glad", "n": "2"}],
        ),
        ("a.arff", '@attribute s string\n@data\n"x, y"\n', [{"s": "x, y"}]),
        (
            "a.xml",
            XML,
            [{"id": "1", "text": "it's & late", "mood": "sad"}, {"id": "2", "text": None, "mood": "glad"}],
        ),
    ],
)
def test_the_command_of_the_error_converts_the_file(tmp_path: Path, name: str, text: str, rows: list[dict[str, str]]):
    (tmp_path / name).write_text(text)
    with raises_code("data.format", name) as raised:
        read_table(str(tmp_path / name))
    command = f"{sys.executable}{str(raised.value).partition('python')[2]}"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    (made,) = tmp_path.glob("NEW.*")
    assert read_table(str(made)).to_pylist() == rows


def test_an_object_over_several_lines_is_a_row(tmp_path: Path):
    row = {"text": "the bus was late", "by": {"city": "Ovar"}, "spans": [{"start": 4, "end": 7}] * 2}
    (tmp_path / "a.json").write_text(json.dumps(row, indent=2))
    assert read_table(str(tmp_path / "a.json")).to_pylist() == [row]
    (tmp_path / "a.json").write_text(f"{json.dumps(row, indent=2)}\n" * 2)
    with raises_code("data.unreadable", "line 1", "jq -c"):
        read_table(str(tmp_path / "a.json"))


TABLE = pd.DataFrame({"text": ["a b", "c", "d"], "label": [1, 0, 1]})


@pytest.mark.parametrize("orient", ["split", "index", "columns", "table", "records"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_table_of_pandas_has_its_rows(tmp_path: Path, orient: Any, indent: int | None):
    TABLE.to_json(tmp_path / "a.json", orient=orient, indent=indent)
    table = read_table(str(tmp_path / "a.json"))
    assert table.select(["text", "label"]).to_pydict() == TABLE.to_dict("list")


def test_columns_of_lists_are_a_table_and_one_row_in_json_lines(tmp_path: Path):
    for name, rows in (("a.json", 3), ("a.jsonl", 1)):
        (tmp_path / name).write_text(json.dumps(TABLE.to_dict("list")))
        assert read_table(str(tmp_path / name)).num_rows == rows
    for row in ({"tokens": ["a", "b"], "id": "x"}, {"tokens": ["a", "b"], "tags": ["O", "O"]}):
        (tmp_path / "a.json").write_text(json.dumps(row))
        assert read_table(str(tmp_path / "a.json")).to_pylist() == [row]


def test_columns_with_numbers_for_names_are_not_rows(tmp_path: Path):
    TABLE.set_axis(["0", "1"], axis=1).to_json(tmp_path / "a.json")
    assert read_table(str(tmp_path / "a.json")).to_pydict() == {"0": ["a b", "c", "d"], "1": [1, 0, 1]}


@pytest.mark.parametrize(
    "text",
    [
        TABLE.set_axis(["x", "y", "z"]).to_json(orient="index"),
        TABLE.set_axis(["x", "y", "z"]).to_json(orient="columns"),
        TABLE.to_json(orient="values"),
        '{"r1": {"text": "a", "n": 1}, "r2": {"text": "b", "n": 1, "note": "c"}}',
        '{"version": 1, "rows": [{"text": "a"}, {"text": "b"}]}',
        '{"columns": ["a", "a"], "data": [[1, 2]]}',
        '{"columns": ["a", "b"], "data": [[1, 2], [3]]}',
    ],
)
def test_a_table_that_is_ambiguous_or_torn_is_refused(tmp_path: Path, text: str):
    (tmp_path / "a.json").write_text(text)
    with raises_code("data.unreadable", "a.json"):
        read_table(str(tmp_path / "a.json"))


@pytest.mark.parametrize("suffix", ["xlsx", "ods"])
def test_a_real_spreadsheet_has_its_cells(suffix: str):
    path = FOLDER / f"sheets.{suffix}"
    assert read_table(str(path)).to_pydict() == {
        "Rezension": ["Der Kaffee, heiß;\nder Kuchen nicht", "Köln", "ja"],
        "Note": ["7.5", "7", "True"],
        "am": ["2026-05-01", "", ""],
    }
    assert read_table(f"{path}#Juni", FileReading(header=False)).to_pydict() == {"1": ["a"], "2": ["1"]}


class Book:
    """Stands for a workbook of python-calamine."""

    sheet_names = ("May", "June")

    @classmethod
    def from_filelike(cls, file: Any) -> "Book":
        assert file.read() == b"PK sheet"
        return cls()

    def get_sheet_by_name(self, name: str) -> Any:
        rows = {"May": [["text", "n"], ["one, two\nlines", 7.0], ["", ""], ["x", 7.5]], "June": [["a", True]]}
        return SimpleNamespace(to_python=lambda: rows[name])


@pytest.mark.parametrize("name", ["a.xlsx", "a.xls", "a.ods"])
def test_a_sheet_is_a_table_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    path = tmp_path / name
    path.write_bytes(b"PK sheet")
    monkeypatch.setitem(sys.modules, "python_calamine", SimpleNamespace(CalamineWorkbook=Book))
    assert read_table(str(path)).to_pydict() == {"text": ["one, two\nlines", "x"], "n": ["7", "7.5"]}
    assert read_table(f"{path}#June", FileReading(header=False)).to_pydict() == {"1": ["a"], "2": ["True"]}
    with raises_code("data.split_unknown", "Jun", "June"):
        read_table(f"{path}#Jun")
    path.write_bytes(b"PK torn")
    with raises_code("data.unreadable", name):
        read_table(str(path))
