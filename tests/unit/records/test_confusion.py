"""Both layouts of a recorded confusion matrix, and damaged ones."""

import pytest

from paratune.records.scores import MAX_DENSE_CLASSES, Confusion, read_confusion

COUNTS = {(0, 0): 3, (0, 1): 1, (1, 1): 2, (2, 0): 4}


@pytest.mark.parametrize("num_classes", [3, MAX_DENSE_CLASSES, MAX_DENSE_CLASSES + 1, 20_000])
def test_a_record_gives_the_matrix_back(num_classes):
    matrix = Confusion(num_classes, COUNTS)
    value = matrix.record()
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
