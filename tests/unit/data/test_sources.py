"""Several training files as one, and pseudo-labelled rows: counted, and never used for evaluation."""

import csv

import numpy as np
import pyarrow as pa
import pytest
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.config.sections import Columns, Data
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.duplicates import repeats
from paratune.data.encode import TokenizeOptions
from paratune.data.load import is_pseudo, load_samples, samples_fingerprint, source_records
from paratune.tasks import load_extra_splits, make_recipe

TASK = ClassificationTask(kind="classification", labels=["bad", "good"])


def write(path, rows, header):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(), *rows])
    return str(path)


@pytest.fixture
def files(tmp_path):
    received = [(f"film {number}", ("bad", "good")[number % 2], f"q{number % 10}") for number in range(40)]
    made = [(f"guess {number}", "good", f"q{number % 10}", "true", "0.9") for number in range(15)]
    return [
        write(tmp_path / "given.csv", received, "text label question"),
        write(tmp_path / "made.csv", made, "text label question pseudo confidence"),
    ]


def load(train, task=TASK, columns=None, **data):
    section = Data(train=train, columns=columns or Columns(text="text", label="label"), **data)
    return {name: samples for name, (_, samples) in load_samples(section, task).items()}


def test_files_are_read_in_order_and_rows_have_their_file(files):
    train = load(files)["train"]
    assert len(train) == 55
    assert train.texts[40] == "guess 0"
    assert train.rows[38:43].tolist() == [38, 39, 0, 1, 2]
    assert train.sources[39:41] == files
    assert train.pseudo.sum() == 15
    assert source_records(train) == [
        {"source": files[0], "num_rows": 40, "num_pseudo": 0},
        {"source": files[1], "num_rows": 15, "num_pseudo": 15},
    ]
    # The fingerprint is that of the rows, in one file or in two.
    assert samples_fingerprint(train, TASK) != samples_fingerprint(load(files[0])["train"], TASK)
    assert load(files[0])["train"].sources is None


def test_pseudo_labelled_rows_are_only_in_train_and_do_not_change_other_parts(files):
    split = {"validation": 0.2, "test": 0.1, "seed": 3, "stratify": True}
    alone, both = load(files[0], split=split), load(files, split=split)
    assert {name: len(part) for name, part in both.items()} == {"train": 28 + 15, "validation": 8, "test": 4}
    for name in ("validation", "test"):
        assert both[name].texts == alone[name].texts
        assert not both[name].pseudo.any()
    assert both["train"].texts[:28] == alone["train"].texts


def test_pseudo_labelled_rows_of_held_out_groups_are_dropped_and_counted(files):
    parts = load(files, split={"validation": 0.2, "group_by": "question"})
    held_out = set(parts["validation"].groups)
    assert not held_out & set(parts["train"].groups)
    # 15 rows of ten questions: 2 of q0 to q4, 1 of the others.
    expected = sum(2 if int(group[1:]) < 5 else 1 for group in held_out)
    assert parts["train"].num_dropped == {"pseudo_of_held_out_group": expected}
    assert parts["train"].pseudo.sum() == 15 - expected


def test_pseudo_labels_in_an_evaluation_set_are_an_error(files):
    with raises_code("data.pseudo_labels", "15", "0"):
        load(files[0], validation=files[1])
    with raises_code("data.split_empty", key="data.split"):
        load(files[1], split={"validation": 0.2})


def test_problems_name_the_file_with_the_problem(files, tmp_path):
    bad = write(tmp_path / "bad.csv", [("a film", "fine")], "text label")
    with raises_code("data.label_unseen", "1"):
        load([files[0], bad])
    short = write(tmp_path / "short.csv", [("a film",)], "text")
    with raises_code("data.column_missing", "short"):
        load([files[0], short])
    empty = write(tmp_path / "empty.csv", [("", "bad"), ("a", "bad")], "text label")
    assert load([empty, files[0], empty.replace("empty", "given")], missing="drop")["train"].num_dropped == {"text": 1}


def test_only_true_and_false_mark_pseudo_labels(tmp_path):
    assert is_pseudo(pa.table({"pseudo": [True, False, None]})).tolist() == [True, False, False]
    assert is_pseudo(pa.table({"pseudo": ["TRUE", ""]})).tolist() == [True, False]
    # A column of the user's own, of names.
    assert not is_pseudo(pa.table({"pseudo": ["true", "Mark Twain"]})).any()
    assert not is_pseudo(pa.table({"text": ["true"]})).any()


def test_targets_of_several_files_are_one_array(tmp_path):
    first = write(tmp_path / "a.csv", [("x", "1")], "text label")
    second = write(tmp_path / "b.csv", [("y", "2.5")], "text label")
    labels = load([first, second], task=RegressionTask(kind="regression"))["train"].labels
    assert labels.dtype == np.float32
    assert labels.tolist() == [1.0, 2.5]


def test_an_extra_set_with_pseudo_labels_is_an_error(files, tmp_path):
    recipe = make_recipe(TASK)
    data = Data(train=files[0], columns=Columns(text="text", label="label"), extra={"other": files[1]})
    how = TokenizeOptions(tiny_tokenizer(), 16, need_token_type_ids=True, cache_dir=tmp_path / "cache")
    with raises_code("data.pseudo_labels", "made.csv", "data.extra.other", "15"):
        load_extra_splits(recipe, data, how)


def test_each_rater_of_a_training_text_is_a_row_of_its_part(tmp_path):
    rows = [(f"essay {number}", number % 9, "" if number % 2 else number % 5, f"t{number}") for number in range(20)]
    rows += [("essay 0", 1, 1, "t0")]
    file = write(tmp_path / "a.csv", rows, "text one two topic")
    columns = Columns(text="text", label=["one", "two"])
    split = {"validation": 0.2, "test": 0.2, "group_by": "topic"}

    def parts(how, **options):
        task = RegressionTask(kind="regression", raters=how)
        found = load(file, task=task, columns=columns, split=split, **options)
        return found, {name: samples_fingerprint(samples, task) for name, samples in found.items()}

    (each, of_each), (mean, of_mean) = parts("each"), parts("mean")
    expected = []
    for text, label, ratings in zip(mean["train"].texts, mean["train"].labels, mean["train"].ratings, strict=True):
        rated = [rating for rating in ratings.tolist() if rating == rating]
        assert label == sum(rated) / len(rated)
        expected += [(text, rating) for rating in rated]
    assert list(zip(each["train"].texts, each["train"].labels.tolist(), strict=True)) == expected
    for name in ("validation", "test"):
        assert each[name].labels.tolist() == mean[name].labels.tolist()
        assert not set(each[name].texts) & set(each["train"].texts)
        assert of_each[name] == of_mean[name]
    assert of_each["train"] != of_mean["train"]
    # Rows of the file are limited, and texts that repeat are left out, before a text has a row for each rater.
    limited, _ = parts("each", max_rows={"train": 3})
    assert len(set(limited["train"].texts)) == 3 < len(limited["train"])
    once, _ = parts("each", drop_duplicates=True)
    is_in_train = "essay 0" in each["train"].texts
    assert once["train"].num_dropped == ({"duplicate": 1} if is_in_train else {})
    counted = repeats(each["train"])
    assert (counted.num_rows, counted.num_conflicting_rows) == ((1, 2) if is_in_train else (0, 0))


def test_raters_that_change_places_are_other_data(tmp_path):
    first = write(tmp_path / "a.csv", [("x", "1", "2")], "text one two")
    second = write(tmp_path / "b.csv", [("x", "2", "1")], "text one two")
    task, columns = RegressionTask(kind="regression", raters="mean"), Columns(text="text", label=["one", "two"])
    samples = [load(file, task=task, columns=columns)["train"] for file in (first, second)]
    assert samples[0].labels.tolist() == samples[1].labels.tolist()
    assert len({samples_fingerprint(own, task) for own in samples}) == 2
    joined = load([first, second], task=task, columns=columns)["train"]
    assert joined.ratings.tolist() == [[1.0, 2.0], [2.0, 1.0]]
