"""From the data section of the configuration to splits."""

import csv
import hashlib
from dataclasses import replace

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.config.sections import Columns, Data, MaxRows
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.encode import TokenizeOptions
from paratune.data.load import load_samples, samples_fingerprint, split_records
from paratune.data.read import read_table
from paratune.data.slices import slice_values
from paratune.errors import Stopped
from paratune.tasks import make_recipe

CLASSES = ClassificationTask(kind="classification", labels={"bad": "negative", "good": "positive"})


def write_csv(path, rows, header=("text", "label")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture
def files(tmp_path):
    rows = [(f"film {number}", ("bad", "good")[number % 2]) for number in range(40)]
    return {
        "train": write_csv(tmp_path / "train.csv", rows),
        "test": write_csv(tmp_path / "test.csv", [("film one", "good"), ("", "bad"), ("film two", "bad")]),
    }


def load(tmp_path, task=CLASSES, **data):
    section = Data(columns=Columns(text="text", label="label"), **data)
    how = TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, cache_dir=tmp_path / "cache")
    return make_recipe(task).load_splits(section, how)


def test_splits_are_cut_and_read_in_order(tmp_path, files):
    splits = load(tmp_path, **files, split={"validation": 0.25, "stratify": True}, missing="drop")
    assert list(splits) == ["train", "validation", "test"]
    assert [split.num_rows for split in splits.values()] == [30, 10, 2]
    assert np.bincount(splits["validation"].labels).tolist() == [5, 5]
    for split in splits.values():
        assert len(split.store) == split.num_rows
        assert split.store.type_ids is not None
    rows = np.concatenate([splits["train"].samples.rows, splits["validation"].samples.rows])
    assert sorted(rows.tolist()) == list(range(40))
    assert splits["test"].num_dropped == {"text": 1}
    assert splits["test"].samples.rows.tolist() == [0, 2]


def test_samples_and_tokens_have_the_same_order(tmp_path, files):
    splits = load(tmp_path, train=files["train"], split={"validation": 0.25})
    for split in splits.values():
        tokens = np.split(split.store.tokens, split.store.offsets[1:-1])
        for index, text in enumerate(split.samples.texts):
            assert tokens[index].tolist() == tiny_tokenizer()(text)["input_ids"]
            assert text == f"film {split.samples.rows[index]}"
            assert split.labels[index] == split.samples.rows[index] % 2


def test_max_rows_draws_the_same_rows_in_file_order(tmp_path):
    # Sorted by label: the first 50 would be of one class.
    source = write_csv(
        tmp_path / "train.csv", [(f"film {number}", ("bad", "good")[number // 100]) for number in range(200)]
    )
    section = Data(
        train=source, columns=Columns(text="text", label="label"), split={"test": 0.25}, max_rows={"train": 50}
    )
    (_, train), (_, test) = load_samples(section, CLASSES).values()
    assert (len(train), len(test)) == (50, 50)
    assert set(train.labels.tolist()) == {0, 1}
    assert (np.diff(train.rows) > 0).all()
    assert not set(train.rows.tolist()) & set(test.rows.tolist())
    assert load_samples(section, CLASSES)["train"][1].texts == train.texts
    large = section.model_copy(update={"max_rows": MaxRows(train=1000)})
    assert len(load_samples(large, CLASSES)["train"][1]) == 150


def test_groups_stay_together(tmp_path):
    rows = [(f"film {number}", "good", f"g{number // 4}") for number in range(40)]
    source = write_csv(tmp_path / "train.csv", rows, ("text", "label", "film"))
    parts = load_samples(
        Data(
            train=source,
            columns=Columns(text="text", label="label"),
            split={"validation": 0.2, "test": 0.2, "group_by": "film"},
        ),
        CLASSES,
    )
    groups = [set(samples.groups) for _, samples in parts.values()]
    assert [len(group) for group in groups] == [6, 2, 2]
    assert not groups[0] & groups[1]
    assert not (groups[0] | groups[1]) & groups[2]


def test_dropped_rows_of_a_cut_file_are_counted_once(tmp_path):
    rows = [(f"film {number}" if number % 5 else "", "good") for number in range(20)]
    splits = load(tmp_path, train=write_csv(tmp_path / "t.csv", rows), split={"test": 0.25}, missing="drop")
    assert [(split.num_rows, split.num_dropped) for split in splits.values()] == [(12, {"text": 4}), (4, {})]


def test_a_cut_part_and_a_file_of_the_same_name_are_an_error(tmp_path, files):
    with raises_code("data.split_conflict", "data.test", "data.split.test"):
        load(tmp_path, **files, split={"test": 0.2}, missing="drop")


def test_a_configuration_without_files_is_an_error(tmp_path):
    with raises_code("config.required"):
        load(tmp_path)


def test_fingerprints_depend_on_texts_labels_and_names(files):
    def fingerprint(task=CLASSES, **changes):
        ((_, samples),) = load_samples(
            Data(train=files["train"], columns=Columns(text="text", label="label")), CLASSES
        ).values()
        for name, value in changes.items():
            object.__setattr__(samples, name, value)
        return samples_fingerprint(samples, task)

    actual = {
        fingerprint(),
        fingerprint(labels=np.zeros(40, dtype=np.int64)),
        fingerprint(texts=["x"] * 40),
        fingerprint(text_pairs=["x"] * 40),
        fingerprint(ClassificationTask(kind="classification", labels=["bad", "good"])),
        fingerprint(RegressionTask(kind="regression")),
    }
    assert len(actual) == 6
    assert fingerprint() == fingerprint()
    assert {len(value) for value in actual} == {len(hashlib.sha256().hexdigest())}


def test_the_record_has_the_fields_of_run_json(tmp_path, files):
    splits = load(tmp_path, train=files["train"])
    records = split_records(splits)
    assert (records["validation"], records["test"]) == (None, None)
    assert records["train"]["source"] == files["train"]
    assert records["train"]["fingerprint"] == splits["train"].fingerprint  # a resumed run compares it
    assert (records["train"]["num_rows"], records["train"]["num_truncated"]) == (40, 0)


def test_the_record_of_a_pattern_has_its_files(tmp_path, files):
    write_csv(tmp_path / "train2.csv", [("film two", "good"), ("film three", "bad")])
    pattern, names = str(tmp_path / "train*.csv"), [files["train"], str(tmp_path / "train2.csv")]
    splits = load(tmp_path, train=pattern, validation=str(tmp_path / "tes?.csv"), missing="drop")
    listed = load(tmp_path, train=names)
    records = split_records(splits)
    assert (records["train"]["source"], records["train"]["num_rows"]) == (pattern, 42)
    assert [part["source"] for part in records["train"]["sources"]] == names
    assert [part["num_rows"] for part in records["train"]["sources"]] == [40, 2]
    assert splits["train"].fingerprint == listed["train"].fingerprint
    # The name of the only file is in the record, and its columns can be read again.
    assert [part["source"] for part in records["validation"]["sources"]] == [files["test"]]
    assert slice_values(splits["validation"], ["text"])["text"].tolist() == ["film one", "film two"]


def test_progress_counts_all_splits_and_stop_raises(tmp_path, files):
    progress_calls = []
    how = TokenizeOptions(tiny_tokenizer(), 16, cache_dir=tmp_path / "cache")
    section = Data(train=files["train"], columns=Columns(text="text", label="label"), split={"test": 0.25})
    with pytest.raises(Stopped):
        make_recipe(CLASSES).load_splits(section, replace(how, stop=lambda: True))
    make_recipe(CLASSES).load_splits(
        section, replace(how, progress=lambda done, total: progress_calls.append((done, total)))
    )
    assert progress_calls == [(30, 40), (40, 40)]


def test_a_single_file_for_prediction_needs_no_label(tmp_path):
    source = write_csv(tmp_path / "new.csv", [("a film",), ("42",)], ("text",))
    how = TokenizeOptions(tiny_tokenizer(), 16, cache_dir=tmp_path / "cache")
    columns = Columns(text="text", label="label")
    recipe, table = make_recipe(CLASSES), read_table(source)
    split = recipe.load_split(source, table, columns, how, missing="refuse", require_labels=False)
    assert (split.num_rows, split.labels, split.store.type_ids) == (2, None, None)
