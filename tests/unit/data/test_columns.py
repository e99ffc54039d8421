"""Selecting columns: configured columns, missing values, and wrong types."""

import numpy as np
import pyarrow as pa
import pytest
from raised import raises_code

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import TableReader
from paratune.data.json_tables import parse_json
from paratune.data.selection import select

CLASSES = ClassificationTask(kind="classification", labels=["bad", "good"])
NUMBERS = RegressionTask(kind="regression")


def take(columns, task=CLASSES, missing="refuse", *, names=None, **options):
    named = Columns(**(names or {"text": "text", "label": "label"}))
    return select(TableReader(pa.table(columns), named, missing, "here.csv", **options), task)


def test_texts_labels_and_ids_are_taken_in_the_order_of_the_file():
    samples = take(
        {"text": ["a", "b"], "other": ["x", "y"], "label": ["good", "bad"], "key": [7, None], "film": ["f", "g"]},
        names={"text": "text", "text_pair": "other", "label": "label", "id": "key"},
        group_by="film",
    )
    assert (samples.texts, samples.text_pairs) == (["a", "b"], ["x", "y"])
    assert samples.labels.dtype == np.int64
    assert samples.labels.tolist() == [1, 0]
    assert (samples.ids, samples.groups, samples.rows.tolist()) == (["7", ""], ["f", "g"], [0, 1])
    assert samples.num_dropped == {}
    assert len(samples) == 2


def test_columns_are_joined_by_the_separator():
    columns = {"title": ["T", "U"], "body": ["b", "c"], "label": ["bad", "bad"]}
    names = {"text": ["title", "body"], "label": "label", "separator": " | "}
    assert take(columns, names=names).texts == ["T | b", "U | c"]
    with raises_code("data.value_missing", "column title + body", "1 of 2 rows", "row 1"):
        take({**columns, "body": ["b", None]}, names=names)


def test_missing_values_are_refused_or_dropped_and_counted():
    columns = {
        "text": ["a", "", "  \n", None, "e", "f", "g"],
        "label": ["good", "good", "bad", "bad", None, " ", "bad"],
    }
    with raises_code("data.value_missing", "3 of 7 rows: rows 1, 2, 3", "rows 4, 5", "data.missing: drop"):
        take(columns)
    samples = take(columns, missing="drop")
    assert (samples.texts, samples.labels.tolist(), samples.rows.tolist()) == (["a", "g"], [1, 0], [0, 6])
    assert samples.num_dropped == {"text": 3, "label": 2}


def test_no_row_left_is_an_error_even_when_dropping():
    with raises_code("data.empty", source="here.csv"):
        take({"text": ["", None], "label": ["good", "bad"]}, missing="drop")


def test_absent_columns_suggest_the_nearest_name():
    with raises_code("data.column_missing", "columns.text names txt", "mean text", "columns.id names key"):
        take({"text": ["a"], "label": ["bad"]}, names={"text": "txt", "label": "label", "id": "key"})
    with raises_code("data.column_missing", "split.group_by names film"):
        take({"text": ["a"], "label": ["bad"]}, group_by="film")


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([5, 6], ("data.wrong_type", "int64", "5")),
        (["5", "6.5"], ("data.wrong_type", "5")),
        ([["a"], ["b"]], ("data.wrong_type", "here.csv", "text")),
    ],
)
def test_a_text_column_without_text_is_refused(values, refused):
    with raises_code(*refused):
        take({"text": values, "label": ["good", "bad"]})


def test_texts_of_any_arrow_string_type_are_read():
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert take({"text": pa.array(["a", "b"]).cast(kind), "label": ["good", "bad"]}).texts == ["a", "b"]


def test_prediction_ignores_labels_and_allows_numbers_as_texts():
    samples = take({"text": ["1984"]}, require_labels=False)
    assert (samples.texts, samples.labels) == (["1984"], None)


def test_missing_second_texts_are_reported_with_their_rows():
    columns = {"text": ["a", "b", "c"], "other": ["x", None, None], "label": ["good"] * 3}
    names = {"text": "text", "text_pair": "other", "label": "label"}
    with raises_code("data.value_missing", "text_pair", "other", "2 of 3 rows: rows 1, 2"):
        take(columns, names=names)
    assert take(columns, names=names, missing="drop").num_dropped == {"text_pair": 2}


def test_a_null_target_is_missing_and_a_nan_is_not():
    samples = take({"text": ["a", "b"], "label": [None, 0.5]}, NUMBERS, "drop")
    assert samples.labels.dtype == np.float32
    assert (samples.labels.tolist(), samples.num_dropped) == ([0.5], {"label": 1})
    with raises_code("data.target_not_finite", "1 of 2", "nan", "row 0"):
        take({"text": ["a", "b"], "label": [float("nan"), 0.5]}, NUMBERS, "drop")


def test_rows_without_a_group_are_an_error():
    with raises_code("data.value_missing", "film", "data.split.group_by", "1 of 2", "row 1"):
        take({"text": ["a", "b"], "label": ["bad", "bad"], "film": ["x", ""]}, group_by="film")


def test_take_selects_all_values_of_a_sample():
    columns = {"text": ["a", "b", "c"], "label": ["bad", "good", "bad"], "key": ["x", "y", "z"]}
    some = take(columns, names={"text": "text", "label": "label", "id": "key"}).take(np.asarray([2, 1]))
    assert (some.texts, some.labels.tolist(), some.ids, some.rows.tolist()) == (["c", "b"], [0, 1], ["z", "y"], [2, 1])


@pytest.mark.parametrize("value", ['{"b": 1}', "[1]"], ids=["object", "list"])
def test_objects_in_a_text_column_are_an_error(value: str):
    lines = f'{{"text": "a", "other": 1}}\n{{"text": {value}, "other": {value}}}\n'
    table = parse_json(lines, "a.jsonl")
    with raises_code("data.wrong_type", "a.jsonl, line 2", "column text"):
        TableReader(table, Columns(text="text"), "refuse", "a.jsonl").texts("text")
    # Columns that are not used may have any values, here as JSON.
    assert table["other"].to_pylist() == ["1", value]
