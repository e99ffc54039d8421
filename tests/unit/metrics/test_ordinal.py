import numpy as np
import pytest

from paratune.metrics.ordinal import NAMES, ordinal_scores

RANKS = [0, 1, 2, 3, 1]
LABELS = np.array([0, 2, 2, 1, 1])
LOGITS = np.array([[1.0 if rank > above else -1.0 for above in range(3)] for rank in RANKS])
"""Four classes."""


def test_scores_equal_the_definitions():
    actual = ordinal_scores(LOGITS, LABELS)
    # Distances 0, 1, 0, 2, 0.
    assert actual["accuracy"] == pytest.approx(3 / 5)
    assert actual["mae"] == pytest.approx(3 / 5)
    assert actual["within_one"] == pytest.approx(4 / 5)
    # Squared distances observed: 1 + 4 = 5. By chance: the sum over all 25 pairs of a label (0, 1, 1, 2, 2) and a
    # prediction (0, 1, 1, 2, 3) of their squared distance, over 5: labels 0: 15, 1 twice: 6 each, 2 twice: 7 each.
    assert actual["qwk"] == pytest.approx(1 - 5 / ((15 + 2 * 6 + 2 * 7) / 5))
    assert list(actual) == list(NAMES)


def test_kappa_counts_distances_on_the_whole_scale():
    # The same predictions when a fifth class could have been given: the weights' scale cancels.
    wider = np.concatenate([LOGITS, np.full((5, 1), -1.0)], axis=1)
    assert ordinal_scores(wider, LABELS)["qwk"] == pytest.approx(ordinal_scores(LOGITS, LABELS)["qwk"])


def test_undefined_scores_are_none():
    one_class = ordinal_scores(np.full((3, 2), -1.0), np.zeros(3, dtype=np.int64))
    assert one_class["accuracy"] == 1.0
    assert one_class["qwk"] is None
    assert one_class["spearman"] is None
    assert set(ordinal_scores(np.zeros((0, 2)), np.zeros(0)).values()) == {None}
    assert set(ordinal_scores(np.full((1, 2), np.nan), np.zeros(1)).values()) == {None}


def test_wrong_shapes_and_labels_are_an_error():
    with pytest.raises(ValueError, match=r"labels \(4,\)"):
        ordinal_scores(LOGITS, LABELS[:4])
    with pytest.raises(ValueError, match="0 to 3"):
        ordinal_scores(LOGITS, LABELS + 3)
