"""Labels as public files have them: a column for each label, numbers with and without names, odd spellings."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raised import check_logged, raises_code

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, MultiLabelTask, TokenClassificationTask
from paratune.data.columns import Samples, TableReader
from paratune.data.guess import guess_options
from paratune.data.labels import class_ids
from paratune.data.read import read_table
from paratune.data.selection import select, select_words

FOLDER = Path(__file__).parent
RUDE = MultiLabelTask(kind="multi_label", labels=["rude", "spam", "late"])
NER = ["O", "B-PER", "B-LOC"]


def reader(source: Path | str, **columns: Any) -> TableReader:
    return TableReader(read_table(str(source)), Columns(**columns), "drop", "x")


def words(source: Path, labels: Any) -> Samples:
    task = TokenClassificationTask(kind="token_classification", labels=labels)
    return select_words(reader(source, text="words", label="ner"), task)


def test_a_column_for_each_label_is_a_set_of_labels():
    samples = select(reader(FOLDER / "flags.csv", text="remark", label=["rude", "spam", "late"], id="id"), RUDE)
    assert samples.labels is not None
    assert (samples.ids, samples.labels.tolist()) == (["7", "8", "9"], [[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    assert samples.num_dropped == {"label": 1}


def test_a_column_of_a_label_has_only_0_and_1():
    with raises_code("data.label_unfit", "row 0", "you owe me"):
        select(reader(FOLDER / "flags.csv", text="remark", label=["rude", "remark"]), RUDE)


@pytest.mark.parametrize(
    "rows", [[[0, 0, 1], [1, 0, 0]], [[0, 1, 1], [0, 0, 0]], [[1.0, 0.0, 0.0]], [[True, False, False]]]
)
def test_vectors_of_0_and_1_are_no_sets_of_labels(rows: list[list[Any]]):
    task = MultiLabelTask(kind="multi_label", labels=[0, 1, 2])
    table = pa.table({"text": ["a"] * len(rows), "y": rows})
    with raises_code("data.label_unfit"):
        select(TableReader(table, Columns(text="text", label="y"), "refuse", "x"), task)


def test_sets_of_the_numbers_0_and_1_are_labels():
    task = MultiLabelTask(kind="multi_label", labels=[0, 1, 2])
    table = pa.table({"text": ["a", "b", "c"], "y": [[0, 1], [1, 0], []]})
    samples = select(TableReader(table, Columns(text="text", label="y"), "refuse", "x"), task)
    assert samples.labels is not None
    assert samples.labels.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


def test_numbers_of_tags_are_positions_or_values():
    for labels in (NER, {0: "O", 1: "B-PER", 2: "B-LOC"}, {2: "B-LOC", 1: "B-PER", 0: "O"}):
        samples = words(FOLDER / "number_tags.jsonl", labels)
        assert samples.tags is not None
        names = list(labels.values()) if isinstance(labels, dict) else labels
        assert [[names[tag] for tag in row] for row in samples.tags] == [["B-PER", "O", "B-LOC"], ["O", "O"]]
    with raises_code("data.label_unseen", "2"):
        words(FOLDER / "number_tags.jsonl", ["O", "B-PER"])


@pytest.fixture(params=["parquet", "folder"])
def named(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Write numbers with names, as `datasets` does."""
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["fair", "foul"])
    features = {
        "text": datasets.Value("string"),
        "label": names,
        "words": datasets.Sequence(datasets.Value("string")),
        "ner": datasets.Sequence(datasets.ClassLabel(names=["B-LOC", "O", "B-PER"])),
    }
    rows = {
        "text": ["sun", "hail", "fog"],
        "label": [0, 1, -1],
        "words": [["Ana", "left", "Porto"]] * 3,
        "ner": [[2, 1, 0]] * 3,
    }
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    if request.param == "folder":
        data.save_to_disk(str(tmp_path / "saved"))
        return str(tmp_path / "saved")
    data.to_parquet(str(tmp_path / "a.parquet"))
    return str(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("labels", "ids", "dropped"),
    [
        (["foul", "fair"], [1, 0], {"label": 1}),
        ([1, 0, -1], [1, 0, 2], {}),
        ({0: "foul", 1: "fair", -1: "x"}, [0, 1, 2], {}),
    ],
)
def test_names_of_numbers_are_used_where_the_task_has_them(named: str, labels: Any, ids: list[int], dropped: Any):
    task = ClassificationTask(kind="classification", labels=labels)
    samples = select(reader(named, text="text", label="label"), task)
    assert samples.labels is not None
    assert (samples.labels.tolist(), samples.num_dropped) == (ids, dropped)


def test_names_of_numbers_are_tags_and_are_guessed(named: str):
    samples = words(Path(named), NER)
    assert samples.tags is not None
    assert samples.tags[0].tolist() == [1, 0, 2]
    table = read_table(named).select(["text", "label"])
    assert guess_options(table, "x", columns={}).values["task.labels"] == ["fair", "foul"]


def test_damaged_names_are_no_names(tmp_path: Path):
    for about in (b"{", b"[]", b'{"info": {"features": {"label": {"_type": "Value"}}}}'):
        table = pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata({b"huggingface": about})
        pq.write_table(table, tmp_path / "a.parquet")
        task = ClassificationTask(kind="classification", labels=[0, 1])
        assert np.array_equal(select(reader(tmp_path / "a.parquet", text="text", label="label"), task).labels, [1])


def test_a_text_that_stands_for_no_label_is_missing_where_it_is_no_class():
    columns = {"text": "sentence1", "text_pair": "sentence2", "label": "gold_label"}
    task = ClassificationTask(kind="classification", labels=["neutral", "entailment"])
    samples = select(reader(FOLDER / "no_agreement.jsonl", **columns), task)
    assert (samples.texts, samples.num_dropped) == (["A boat"], {"label": 1})
    task = ClassificationTask(kind="classification", labels=["neutral", "-"])
    samples = select(reader(FOLDER / "no_agreement.jsonl", **columns), task)
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 1]


def test_labels_that_look_like_one_or_like_none_are_a_warning(caplog: pytest.LogCaptureFixture):
    labels = ["good", "Good", "good ", "bad", "n/a"]
    task = ClassificationTask(kind="classification", labels=labels)
    class_ids(labels, range(5), task, "x")
    check_logged(caplog, "data.labels_alike", "'Good'", "'good '")
    check_logged(caplog, "data.label_na", "n/a")
    caplog.clear()
    class_ids(["+", "-"], range(2), ClassificationTask(kind="classification", labels=["-", "+"]), "x")
    tags = TokenClassificationTask(kind="token_classification", labels=["NA", "-"], scheme="none")
    class_ids(["NA", "-"], range(2), tags, "x")
    assert caplog.records == []
    merged = ClassificationTask(kind="classification", labels={label: label.strip().lower() for label in labels[:4]})
    class_ids(labels[:4], range(4), merged, "x")
    assert caplog.records == []
