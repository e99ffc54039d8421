"""Cutting splits: exact sizes, every row once, classes in proportion, groups whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raises_code
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold, train_test_split

from paratune.config.sections import SplitOptions
from paratune.data.splits import largest_remainder, split_rows


def assert_every_row_once(parts, num_rows):
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(num_rows))


def test_sizes_follow_the_shares():
    parts = split_rows(1000, SplitOptions(validation=0.1, test=0.2), None, None)
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 700, "validation": 100, "test": 200}
    assert_every_row_once(parts, 1000)


def test_largest_remainder_by_hand():
    # Quotas 5.6, 0.7, 0.7: two seats are left after 5, 0, 0; the remainders .7 come before .6.
    assert largest_remainder(7, [0.8, 0.1, 0.1]) == [5, 1, 1]
    # Both remainders are one half, and the last bit of 0.7 does not matter: the earlier part gets the row.
    assert largest_remainder(5, [0.6999999999999998, 0.1, 0.2]) == [4, 0, 1]
    assert largest_remainder(0, [0.5, 0.5]) == [0, 0]


def test_a_cut_depends_only_on_the_seed():
    split = SplitOptions(validation=0.2, seed=3)
    first = split_rows(50, split, None, None)["validation"]
    assert np.array_equal(first, split_rows(50, split, None, None)["validation"])
    assert not np.array_equal(first, split_rows(50, SplitOptions(validation=0.2, seed=4), None, None)["validation"])


def test_the_cut_of_a_seed_never_changes():
    # The words of Philox are fixed by NumPy's promise; these rows were written down when the function was made.
    assert split_rows(20, SplitOptions(validation=0.2), None, None)["validation"].tolist() == [0, 3, 5, 9]


def test_stratified_counts_are_exact_as_in_scikit_learn():
    labels = np.asarray([0] * 70 + [1] * 20 + [2] * 10)
    parts = split_rows(100, SplitOptions(validation=0.1, test=0.1, stratify=True), labels, None)
    assert [np.bincount(labels[rows]).tolist() for rows in parts.values()] == [[56, 16, 8], [7, 2, 1], [7, 2, 1]]
    theirs, _ = train_test_split(np.arange(100), test_size=0.2, stratify=labels, random_state=0)
    assert np.bincount(labels[theirs]).tolist() == [56, 16, 8]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 11), min_size=30, max_size=120),
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
    st.integers(0, 99),
    st.booleans(),
)
def test_groups_are_never_divided(numbers, validation, test, seed, stratify):
    groups = [f"g{number}" for number in numbers]
    if len(set(groups)) < 3:
        return
    labels = np.asarray(numbers) % 2
    parts = split_rows(
        len(groups), SplitOptions(validation=validation, test=test, seed=seed, stratify=stratify), labels, groups
    )
    assert_every_row_once(parts, len(groups))
    owners = [{groups[row] for row in rows} for rows in parts.values()]
    assert sum(map(len, owners)) == len(set(groups))


@pytest.mark.parametrize("stratify", [False, True])
def test_group_cuts_are_close_to_the_shares(stratify):
    rng = np.random.default_rng(0)
    groups = [f"g{number}" for number in rng.integers(0, 200, 2000)]
    labels = (rng.random(2000) < 0.2).astype(np.int64)
    parts = split_rows(2000, SplitOptions(validation=0.1, test=0.2, stratify=stratify), labels, groups)
    largest = max(groups.count(group) for group in set(groups))
    for name, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        assert abs(len(parts[name]) - 2000 * share) <= largest
        if stratify:
            assert labels[parts[name]].mean() == pytest.approx(labels.mean(), abs=0.03)


@pytest.mark.parametrize(
    ("num_rows", "split", "groups", "refused"),
    [
        (3, {"validation": 0.1}, None, ("data.split_empty", "3 rows", "0", "1")),
        (100, {"validation": 0.6, "test": 0.4}, None, ("data.split_empty",)),
        (4, {"validation": 0.5}, ["a", "a", "a", "a"], ("data.split_empty", "4 rows", "1")),
    ],
)
def test_empty_parts_are_an_error(num_rows, split, groups, refused):
    with raises_code(*refused):
        split_rows(num_rows, SplitOptions(**split), None, groups)


def test_stratifying_needs_classes():
    with raises_code("data.split_conflict", key="data.split.stratify"):
        split_rows(4, SplitOptions(validation=0.5, stratify=True), np.zeros(4, dtype=np.float32), None)


def test_folds_are_those_of_scikit_learn():
    labels, groups = np.arange(60) % 3, [f"g{number % 11}" for number in range(60)]
    cases = [
        (SplitOptions(folds=5, seed=3), KFold, None),
        (SplitOptions(folds=5, seed=3, stratify=True), StratifiedKFold, None),
        (SplitOptions(folds=5, seed=3, group_by="film"), GroupKFold, groups),
        (SplitOptions(folds=5, seed=3, group_by="film", stratify=True), StratifiedGroupKFold, groups),
    ]
    for split, maker, of_rows in cases:
        theirs = maker(5, shuffle=True, random_state=3).split(np.zeros(60), labels, of_rows)
        held_out = []
        for fold, (train, validation) in enumerate(theirs):
            parts = split_rows(60, split.model_copy(update={"fold": fold}), labels, of_rows)
            assert parts.keys() == {"train", "validation"}
            assert parts["train"].tolist() == train.tolist()
            assert parts["validation"].tolist() == validation.tolist()
            held_out += validation.tolist()
        assert sorted(held_out) == list(range(60))


def test_more_folds_than_groups_or_rows_of_every_class_are_refused():
    with raises_code("data.split_empty", value=5):
        split_rows(8, SplitOptions(folds=5, fold=0, group_by="film"), None, list("aabbccdd"))
    with raises_code("data.split_empty", value=5):
        split_rows(8, SplitOptions(folds=5, fold=0, stratify=True), np.arange(8) % 2, None)
    # A class with fewer rows than folds: scikit-learn only warns, and a fold without it is logged elsewhere.
    split_rows(8, SplitOptions(folds=3, fold=0, stratify=True), np.asarray([0] * 6 + [1] * 2), None)


def test_with_a_validation_share_the_fold_is_the_test_set():
    groups = [str(at % 12) for at in range(60)]
    split = SplitOptions(folds=4, fold=1, validation=0.25, group_by="prompt")
    parts = split_rows(60, split, None, groups)
    assert_every_row_once(parts, 60)
    folds = GroupKFold(4, shuffle=True, random_state=0).split(np.zeros(60), None, groups)
    assert np.array_equal(parts["test"], list(folds)[1][1])
    # Three of twelve groups are the test set; 25% of 45 rows are 11.25, and groups have 5.
    own = {name: {groups[row] for row in rows} for name, rows in parts.items()}
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 35, "validation": 10, "test": 15}
    assert not own["train"] & own["validation"]
    assert not own["test"] & (own["train"] | own["validation"])


def test_the_rows_of_a_value_are_held_out():
    groups = ["1", "2", "1", "2", "3"] * 4
    parts = split_rows(20, SplitOptions(held_out=2, group_by="type"), None, groups)
    assert {name: rows.tolist() for name, rows in parts.items()} == {
        "train": [at for at in range(20) if groups[at] != "2"],
        "test": [at for at in range(20) if groups[at] == "2"],
    }
    labels = np.asarray([0, 0, 1, 1, 1] * 4)
    cut = split_rows(20, SplitOptions(held_out="2", group_by="type", validation=0.4), labels, groups)
    assert np.array_equal(cut["test"], parts["test"])
    assert_every_row_once(cut, 20)
    # 40% of 12 rows; groups are no matter there, so that one of two values can be held out, too.
    assert {name: len(rows) for name, rows in cut.items()} == {"train": 7, "validation": 5, "test": 8}
    two = split_rows(4, SplitOptions(held_out="a", group_by="type", validation=0.5), None, ["a", "b", "b", "a"])
    assert {name: len(rows) for name, rows in two.items()} == {"train": 1, "validation": 1, "test": 2}


@pytest.mark.parametrize(("groups", "num_test"), [(["Task 1", "Task 2"], 0), (["Task", "Task"], 2)])
def test_a_value_of_no_row_or_of_all_cannot_be_held_out(groups, num_test):
    value = "Task" if num_test else "Task1"
    with raises_code("data.split_empty", value, f"{num_test} of 2", key="data.split.held_out", value=value):
        split_rows(2, SplitOptions(held_out=value, group_by="type"), None, groups)
