"""Times of runs that were trained side by side: which of them are compared."""

import pytest
from fake_run import make_run

from paratune.verdicts import Group, judge
from paratune.verdicts.speeds import changes_of

ALONE = None
SAME = {"names": ["other"], "is_constant": True}
TWO = {"names": ["other", "third"], "is_constant": True}
CHANGING = {"names": ["other"], "is_constant": False}


def group(label, rate, neighbours):
    values = {} if neighbours is ALONE else {"summary__neighbours": neighbours}
    scores = {"test": {"accuracy": 0.8}}
    return Group(
        label,
        tuple(make_run(f"{label}{seed}", seed, rate + seed, summary__scores=scores, **values) for seed in range(3)),
    )


@pytest.mark.parametrize(
    ("of_base", "of_other", "is_compared"),
    [
        (ALONE, ALONE, True),
        (ALONE, {"names": [], "is_constant": True}, True),
        (SAME, SAME, True),
        (SAME, ALONE, False),
        (SAME, TWO, False),
        (CHANGING, CHANGING, False),
        (ALONE, CHANGING, False),
    ],
)
def test_speed_is_compared_between_runs_with_equally_many_neighbours(of_base, of_other, is_compared):
    base, other = group("a", 100.0, of_base), group("b", 200.0, of_other)
    (verdict,) = judge([base, other], "a")
    assert (verdict.speed.change is not None) == is_compared
    assert (verdict.speed.code == "neighbours") == (not is_compared)
    assert verdict.speed.value is not None
    assert verdict.quality[0].code != "neighbours"


@pytest.mark.parametrize(
    ("measure", "is_speed", "is_compared"),
    [("train_s", True, False), ("utilisation", False, False), ("peak_memory_largest_bytes", False, True)],
)
def test_memory_is_compared_all_the_same(measure, is_speed, is_compared):
    base, other = group("a", 100.0, SAME), group("b", 100.0, CHANGING)
    sides = [([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])]
    (found,) = changes_of(base, [other], measure, sides, is_speed=is_speed)
    assert (found.change is not None) == is_compared


def test_a_group_with_a_run_beside_another_one_is_not_alone():
    mixed = Group("a", (group("a", 100.0, ALONE).runs[0], group("a", 100.0, SAME).runs[1]))
    assert mixed.num_neighbours is None
