"""Label values: which label of the task they match, and errors for the others."""

import logging

import numpy as np
import pytest
from raised import raises_code

from paratune.config.glue import GLUE
from paratune.config.task_sections import ClassificationTask, MultiLabelTask, OrdinalTask
from paratune.data.labels import (
    absence_warnings,
    as_number,
    check_range,
    class_counts,
    class_ids,
    encode,
    first_rows,
    label_sets,
    targets,
)
from paratune.errors import DataError


def ids(values, labels):
    task = ClassificationTask(kind="classification", labels=labels)
    return class_ids(values, range(len(values)), task, "here.csv, column label").tolist()


def test_class_counts_include_absent_classes():
    counts = class_counts(np.array([2, 0, 2]), ["a", "b", "c"])
    assert counts == {"a": 1, "b": 0, "c": 2}
    assert absence_warnings("test", counts) == ["test: no row has the label 'b'"]
    assert absence_warnings("test", {"a": 1}) == []


def sets(values, labels, **options):
    task = MultiLabelTask(kind="multi_label", labels=labels, **options)
    return label_sets(values, range(len(values)), task, "here.csv, column labels")


def test_sets_of_labels_are_lists_or_texts_with_a_separator():
    wanted = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert sets([["a", "c"], [], ["b", "b"], []], ["a", "b", "c"]).tolist() == wanted
    assert sets(["a| c ", "", "b", "  "], ["a", "b", "c"]).tolist() == wanted
    assert sets(["a;c", "", "b;b", ""], ["a", "b", "c"], separator=";").tolist() == wanted
    assert sets([[1, 3.0], 2, "3|1"], [1, 2, 3]).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert sets(["x|y"], {"x": "one", "y": "one", "z": "two"}).tolist() == [[1, 0]]


def test_unknown_labels_in_a_set_are_reported_with_their_row():
    with raises_code("data.label_unseen", "'d': row 1", "'b;c': row 2"):
        sets(["a", "a|d", "b;c"], ["a", "b", "c"])
    with raises_code("data.label_unseen", "'': row 0"):
        sets(["a||b"], ["a", "b"])
    with raises_code("data.label_unseen", "'null': row 0"):
        sets([["a", None]], ["a", "b"])


def test_the_kind_of_task_determines_the_encoding_of_labels():
    ordinal = OrdinalTask(kind="ordinal", labels=["low", "high"])
    assert encode(["high", "low"], [0, 1], ordinal, "here").tolist() == [1, 0]
    several = MultiLabelTask(kind="multi_label", labels=["low", "high"])
    assert encode(["high", ""], [0, 1], several, "here").tolist() == [[0, 1], [0, 0]]
    assert class_counts(np.array([[1, 0], [1, 1]]), ["low", "high"]) == {"low": 2, "high": 1}


def test_integers_match_in_any_notation():
    assert ids([0, "1", 1.0, "0.0", "1.00", 0.0], [0, 1]) == [0, 1, 1, 0, 1, 0]
    assert ids([1, "-1", -1.0], ["-1", "1"]) == [1, 0, 0]


def test_an_empty_label_is_not_that_of_unknown_values():
    with raises_code("data.label_unseen", "'b'"):
        ids(["a", "b"], {"": "none", "a": "A"})


def test_digits_with_leading_zeros_are_text():
    assert ids(["001", "01"], ["001", "01"]) == [0, 1]
    with raises_code("data.label_unseen", "'001'"):
        ids(["001"], [1])


def test_a_mapping_names_classes_and_equal_names_are_one_class():
    assert ids([1, 2, 4, 5], {1: "bad", 2: "bad", 4: "good", 5: "good"}) == [0, 0, 1, 1]
    assert ids(["pos", "neg"], {"neg": "negative", "pos": "positive"}) == [1, 0]


def test_booleans_match_true_and_false_or_one_and_zero():
    assert ids([True, False], ["false", "true"]) == [1, 0]
    assert ids([True, False], [0, 1]) == [1, 0]


def test_unseen_labels_are_listed_with_counts_and_rows():
    with pytest.raises(DataError) as caught:
        ids(["good", "maybe", "Good", "maybe"], ["good", "bad"])
    message = str(caught.value)
    assert "here.csv, column label: 3 labels are not among task.labels ('good', 'bad')" in message
    assert "'maybe': rows 1, 3" in message
    assert "'Good'; did you mean good?: row 2" in message


def test_many_unseen_numbers_suggest_regression():
    with raises_code("data.label_unseen", "task.kind: regression"):
        ids([number / 7 for number in range(30)], ["good", "bad"])
    with raises_code("data.label_unseen", "25"):
        ids([str(number / 7) for number in range(30)], ["good", "bad"])


def test_as_number_accepts_only_plain_numbers():
    assert [as_number(value) for value in (1, "2.5", " 3 ")] == [1.0, 2.5, 3.0]
    assert [as_number(value) for value in (True, "1_000", "", None, "x", 10**400)] == [None] * 6


@pytest.mark.parametrize(
    ("name", "values", "expected_text"),
    [
        ("rte", [1, 0], "0 = entailment, 1 = not_entailment;"),
        ("wnli", ["1"], "0 = not_entailment, 1 = entailment;"),
        ("rte", ["entailment"], None),
    ],
)
def test_the_classes_of_glue_numbers_are_logged(name, values, expected_text, caplog):
    caplog.set_level(logging.INFO, "paratune")
    task = ClassificationTask(kind="classification", glue=name, labels=GLUE[name].labels())
    class_ids(values, range(len(values)), task, "here.csv, column label")
    assert [expected_text in record.getMessage() for record in caplog.records] == ([True] if expected_text else [])


def test_labels_of_the_configuration_are_not_logged_as_glue(caplog):
    caplog.set_level(logging.INFO, "paratune")
    labels = {0: "not_entailment", 1: "entailment"}
    class_ids([0, 1], [0, 1], ClassificationTask(kind="classification", glue="rte", labels=labels), "here.csv")
    assert not caplog.records


def test_a_label_as_number_and_as_text_is_an_error():
    with raises_code("task.labels", value="1"):
        ids([1], [1, "1"])


def test_targets_are_numbers_or_texts_of_numbers():
    actual = targets([1, 0.25, "6.5", " -1e2 "], range(4), "here")
    assert actual.dtype == np.float32
    assert actual.tolist() == [1.0, 0.25, 6.5, -100.0]


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("positive", ("data.target_not_number", "1 of 2", "positive", "row 9")),
        ("6,5", ("data.target_not_number",)),
        ("1_000", ("data.target_not_number",)),
        (True, ("data.target_not_number",)),
        (float("inf"), ("data.target_not_finite", "inf", "row 9")),
        ("nan", ("data.target_not_finite", "nan")),
        (1e39, ("data.target_not_finite",)),  # beyond float32
    ],
)
def test_bad_targets_are_reported_with_their_row(value, refused):
    with raises_code(*refused):
        targets([1.0, value], [4, 9], "here")


def test_targets_outside_the_range_are_reported_with_their_rows():
    values = np.float32([0, 9, 95, -1])
    check_range(values[:2], [4, 5], (0.0, 9.0), "here.csv, column band")
    with raises_code("data.target_out_of_range", "2 of 4", "0", "95", "6"):
        check_range(values, [4, 5, 6, 7], (0.0, 9.0), "here.csv, column band")


def test_rows_are_listed_up_to_five():
    assert first_rows([3]) == "row 3 (counted from 0)"
    assert first_rows([1, 2, 3, 4, 5, 6, 7]) == "rows 1, 2, 3, 4, 5 and 2 more (counted from 0)"
