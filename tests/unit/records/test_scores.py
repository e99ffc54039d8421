"""Scores: both layouts of a recorded confusion matrix, damaged ones, and evaluations as text."""

import pytest

from paratune.metrics.classification import confusion_record
from paratune.records.scores import (
    MAX_DENSE_CLASSES,
    Confusion,
    evaluation_text,
    extreme_slices,
    ordered_scores,
    read_confusion,
    scores_text,
)

COUNTS = {(0, 0): 3, (0, 1): 1, (1, 1): 2, (2, 0): 4}


@pytest.mark.parametrize("num_classes", [3, MAX_DENSE_CLASSES, MAX_DENSE_CLASSES + 1, 20_000])
def test_a_record_gives_the_matrix_back(num_classes):
    matrix = Confusion(num_classes, COUNTS)
    labels, given = zip(*(pair for pair, count in COUNTS.items() for _ in range(count)), strict=True)
    value = confusion_record(labels, given, num_classes)
    assert isinstance(value, list) == (num_classes <= MAX_DENSE_CLASSES)
    assert read_confusion(value) == matrix
    assert matrix.row_sums == {0: 4, 1: 2, 2: 4}
    assert matrix.confused == [(2, 0, 4), (0, 1, 1)]


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "x", [[1, 2]], [["a"]], [[-1]], [[True]], {}, {"num_classes": 2}),
        {"num_classes": 2, "counts": [[0, 2, 1]]},
        {"num_classes": 2, "counts": [[0, 1]]},
        {"num_classes": 2, "counts": [[0, -1, 1]]},
        {"num_classes": "2", "counts": []},
    ],
)
def test_a_damaged_record_is_none(value):
    assert read_confusion(value) is None


BINARY = {"accuracy": 0.834, "f1": 0.8291, "f1_macro": 0.83, "precision": 0.9, "loss": 0.412}


def line(metric: str | None, *, is_best: bool, best: dict[str, float] | None) -> list[str]:
    event = {"step": 1120, "epoch": 1.0, "split": "validation", "scores": BINARY, "is_best": is_best}
    return evaluation_text(event, num_steps=3360, metric=metric, best=best).split("; ")


def test_the_selecting_metric_is_first_and_only_a_repeated_f1_is_left_out():
    assert list(ordered_scores(BINARY, "precision")) == ["precision", "accuracy", "f1", "f1_macro", "loss"]
    many_classes = BINARY | {"f1": 0.83}
    assert list(ordered_scores(many_classes, None)) == ["accuracy", "f1_macro", "precision", "loss"]
    assert list(ordered_scores(many_classes, "f1")) == ["f1", "accuracy", "f1_macro", "precision", "loss"]


def test_a_line_has_the_loss_and_two_metrics():
    assert scores_text(BINARY, "f1_macro") == "loss 0.412, f1_macro 0.83, accuracy 0.834"
    assert scores_text({"rmse": None}, "rmse") == "rmse n/a"


@pytest.mark.parametrize(
    ("metric", "is_best", "best", "values"),
    [
        ("accuracy", True, {"step": 1120, "value": 0.834}, ["best", "accuracy", "kept"]),
        ("accuracy", False, {"step": 40, "value": 0.841}, ["not kept", "accuracy", "0.841", "40"]),
        ("accuracy", False, None, ["not kept", "accuracy"]),
    ],
)
def test_a_line_shows_whether_the_evaluation_is_the_best(metric, is_best, best, values):
    scores, state = line(metric, is_best=is_best, best=best)
    assert scores == "step 1,120/3,360, epoch 1.00: validation loss 0.412, accuracy 0.834, f1 0.8291"
    assert [value for value in values if value not in state] == []
    assert ("not kept" in state) == (not is_best)


def test_without_a_selecting_metric_no_evaluation_is_the_best():
    assert len(line(None, is_best=False, best=None)) == 1


def test_of_many_slices_a_table_has_the_highest_and_lowest_that_are_large_enough():
    values = [float(at % 7 + at / 1000) for at in range(60)]
    assert extreme_slices(values[:50], [1] * 50) == list(range(50))
    by_value = sorted(range(60), key=lambda at: -values[at])
    assert extreme_slices(values, [1] * 60) == by_value[:10] + by_value[-10:]
    # 30 slices have 10 rows, or 3: the others are extreme by chance. An unknown figure is at no end.
    large = [at for at in by_value if at % 2]
    for most in (10, 3):
        assert extreme_slices(values, [most - 1 + at % 2 for at in range(60)]) == large[:10] + large[-10:]
    assert extreme_slices([*values, 99.0], [*range(20, 80), 9]) == by_value[:10] + by_value[-10:]
    assert extreme_slices([None, *values[1:]], [1] * 60) == [at for at in by_value if at][:10] + by_value[-11:-1]
    assert extreme_slices([1.0] + [None] * 60, [1] * 61) == [0]
