import gzip
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import raises_code

from paratune.corpus.inputs import read_texts

ROWS = [{"a": "um", "n": 1, "b": "dois, três"}, {"a": "qua\ntro", "n": 2, "b": None}]
TEXTS = ["um", "dois, três", "qua\ntro"]


def test_texts_are_read_from_all_kinds_of_files(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('a,n,b\num,1,"dois, três"\n"qua\ntro",2,\n', encoding="utf-8")
    (tmp_path / "a.tsv").write_text('a\tn\tb\num\t1\tdois, três\n"qua\ntro"\t2\t\n', encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    for path in sorted(tmp_path.iterdir()):
        assert [text for text in read_texts(path, ["a", "b"]) if text] == TEXTS
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("um\ndois, três\n".encode()))
    assert list(read_texts(tmp_path / "a.txt.gz", [])) == TEXTS[:2]


def test_lists_hold_texts_and_numbers_are_none(tmp_path):
    pq.write_table(pa.table({"a": [["um", "dois"], []], "n": [1, 2]}), tmp_path / "a.parquet")
    assert list(read_texts(tmp_path / "a.parquet", ["a", "n"])) == ["um", "dois"]
    # A column of numbers in CSV is text there.
    (tmp_path / "a.csv").write_text("n\n007\n")
    assert list(read_texts(tmp_path / "a.csv", ["n"])) == ["007"]


def test_the_index_of_a_table_and_the_types_of_other_columns_do_not_matter(tmp_path):
    table = pd.DataFrame({"a": ["um", "dois"], "n": [1, 2]}).set_index("a")
    table.to_parquet(tmp_path / "a.parquet")
    assert list(read_texts(tmp_path / "a.parquet", ["a"])) == ["um", "dois"]
    # Arrow guesses the type of n from the first MiB, where it is a number.
    rows = [f"{number},{'um' * 500}" for number in range(2000)]
    (tmp_path / "a.csv").write_text("\n".join(["n,a", *rows, "x,dois"]))
    assert list(read_texts(tmp_path / "a.csv", ["a"]))[-1] == "dois"


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "c1",
                    "qas": [
                        {"id": "1", "question": "q1", "answers": [{"text": "a1", "answer_start": 0}]},
                        {"id": "2", "question": "q2", "answers": [], "is_impossible": True},
                    ],
                },
                {"context": "c2", "qas": []},
            ],
        }
    ],
}


def test_json_in_the_layout_of_squad_has_its_texts_once(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(SQUAD))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(SQUAD).encode()))
    for name in ("a.json", "a.json.gz"):
        assert list(read_texts(tmp_path / name, ["context", "question"])) == ["c1", "q1", "q2", "c2"]
    assert list(read_texts(tmp_path / "a.json", ["title", "answers"])) == ["t", "a1"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "refused"),
    [
        ("a.json", b'[{"text": "a"}]', ["context"], ("data.column_missing", "context", "text")),
        ("a.json", b'{"data": [{"context": "a"}]}', ["contxt"], ("data.column_missing", "contxt", "context")),
        ("a.json", b'{"data": []}', [], ("data.column_missing",)),
        ("a.json", b'{"data"', ["context"], ("data.unreadable", "Expecting")),
        ("a.xml", b"x", ["a"], ("data.format",)),
        ("a.csv", b"text,label\na,b\n", ["txt"], ("data.column_missing",)),
        ("a.csv", b"text,label\na,b\n", [], ("data.column_missing",)),
        ("a.csv", b"a,b\n1,2,3\n", ["b"], ("data.unreadable", "3")),
        ("a.tsv", b"a\tb\n1\t2\n1\n", ["b"], ("data.unreadable", "1")),
        ("a.txt", b"a\n", ["text"], ("data.column_missing",)),
        ("a.txt", b"\xff\n", [], ("data.unreadable", "utf-8", "codec")),
        ("a.parquet", b"PAR", ["a"], ("data.unreadable", "Parquet")),
        ("a.jsonl", b'{"a": \n', ["a"], ("data.unreadable", "a.jsonl")),
        ("a.jsonl", b"[1, 2]\n", ["a"], ("data.column_missing", "0, 1")),
        ("a.jsonl", b"1\n", ["a"], ("data.column_missing",)),
        ("a.jsonl", b'{"a": "x"}\n[1]\n', ["a"], ("data.unreadable",)),
        ("a.jsonl", b'[1]\n{"a": "x"}\n', ["b"], ("data.column_missing",)),
        ("a.jsonl.gz", b"x", ["a"], ("data.unreadable",)),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, columns, refused):
    (tmp_path / name).write_bytes(content)
    with raises_code(*refused) as result:
        list(read_texts(tmp_path / name, columns))
    assert name in str(result.value)
