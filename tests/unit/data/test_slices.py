"""The values by which a split is sliced, read from its files."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from pyarrow import parquet
from raised import raises_code

from paratune.data.columns import Samples
from paratune.data.slices import cluster_numbers, num_tokens, slice_values

KINDS = {"a.csv": pyarrow.csv.write_csv, "a.parquet": parquet.write_table}


class FakeStore:
    full_lengths = np.asarray([3, 4, 5], dtype=np.int64)
    examples = np.arange(3)


class FakeSplit:
    """What is asked of a split."""

    def __init__(self, source, rows, file_index=None, files=(), labels=None):
        rows = np.asarray(rows)
        texts = ["text"] * len(rows)
        self.samples = Samples(texts, None, labels, None, rows, None, {}, None, file_index, files)
        self.source, self.labels, self.num_rows = source, labels, len(rows)
        self.store = FakeStore()


@pytest.mark.parametrize("name", [*KINDS, "a.tsv", "a.jsonl"])
def test_column_values_follow_the_kept_rows(name, tmp_path):
    path = tmp_path / name
    if name.endswith("tsv"):
        path.write_text("text\ttopic\tyear\na\tfood\t1\nb\tart\t2\nc\t\t2\nd\tfood\t3\n")
    elif name.endswith("jsonl"):
        rows = [("food", 1), ("art", 2), (None, 2), ("food", 3)]
        lines = (json.dumps({"text": "a", "topic": topic, "year": year}) for topic, year in rows)
        path.write_text("\n".join(lines))
    else:
        KINDS[name](
            pa.table({"text": list("abcd"), "topic": ["food", "art", None, "food"], "year": [1, 2, 2, 3]}), path
        )
    actual = slice_values(FakeSplit(str(path), [3, 1, 2]), ["topic", "year", "length", "label"])
    assert {key: values.tolist() for key, values in actual.items()} == {
        "topic": ["food", "art", "(none)"],
        "year": ["3", "2", "2"],
        "length": [3, 4, 5],
    }


def test_columns_of_several_files(tmp_path):
    files = []
    for number, topics in enumerate((["x", "y"], ["z", "x"])):
        files.append(str(tmp_path / f"{number}.parquet"))
        parquet.write_table(pa.table({"topic": topics}), files[-1])
    split = FakeSplit(" + ".join(files), [1, 0, 1], np.asarray([0, 1, 1]), tuple(files))
    assert slice_values(split, ["topic"])["topic"].tolist() == ["y", "z", "x"]


def test_an_absent_column_lists_the_columns(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"text": ["a"], "topic": ["x"]}), path)
    with raises_code("data.column_missing", "topik", "topic", "text", "length", name="topik"):
        slice_values(FakeSplit(path, [0]), ["topik"])


def test_too_many_values_are_an_error(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"id": [str(number) for number in range(51)]}), path)
    with raises_code("data.too_many_values", "51", "50", name="id", num_values=51, limit=50):
        slice_values(FakeSplit(path, range(51)), ["id"])
    assert len(slice_values(FakeSplit(path, range(50)), ["id"])["id"]) == 50
    # A value that occurs twice makes groups: essays and their prompts.
    assert len(slice_values(FakeSplit(path, [*range(51), 0]), ["id"])["id"]) == 52
    with raises_code("data.too_many_values", "60", name="label"):
        slice_values(FakeSplit(path, range(60), labels=np.arange(60.0)), ["label"])


def test_tokens_of_a_question_are_the_sum_over_its_windows():
    split = FakeSplit("a", [0, 1])
    split.store.examples = np.asarray([0, 0, 1])
    assert num_tokens(split).tolist() == [7, 5]


def test_clusters_are_equal_values_of_a_column_numbered_by_their_first_row(tmp_path):
    (tmp_path / "a.csv").write_text("text,person\na,x\nb,y\nc,x\nd,z\n")
    split = FakeSplit(str(tmp_path / "a.csv"), [1, 2, 3, 0])
    assert cluster_numbers(split, "person").tolist() == [0, 1, 2, 1]
    assert cluster_numbers(split, None) is None
    with raises_code("data.column_missing", "persons", "person"):
        cluster_numbers(split, "persons")


def test_questions_about_one_passage_are_a_cluster():
    split = FakeSplit("a", [0, 1, 2])
    split.samples = replace(split.samples, text_pairs=["p", "q", "p"], answers=[(), (), ()])
    assert cluster_numbers(split, None).tolist() == [0, 1, 0]
    # A pair of texts that is classified is no question.
    split.samples = replace(split.samples, answers=None)
    assert cluster_numbers(split, None) is None
