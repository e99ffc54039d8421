"""Group-sequential levels against published constants, an independent integration, and simulated experiments."""

import numpy as np
import pytest
from fake_run import make_run
from scipy import integrate, stats

from paratune.records.sweep import Look
from paratune.verdicts import Group, LookHistory, judge
from paratune.verdicts import sequential as module
from paratune.verdicts.sequential import FIRST_LOOK, FIRST_SHARE, last_level, sequential_p, spent_share


def looks(information, num_planned=None):
    """Return looks with these amounts of information."""
    return tuple((now, spent_share(now, information[0], num_planned)) for now in information)


def test_a_first_look_spends_its_share():
    assert last_level(0.05, looks((1.5,))) == pytest.approx(0.05 * FIRST_SHARE)
    assert sequential_p(0.02, looks((1.5,))) == pytest.approx(0.02 / FIRST_SHARE)
    assert sequential_p(0.02) == pytest.approx(0.02 / FIRST_SHARE)
    assert (sequential_p(0.9), sequential_p(0.0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("information", "num_planned", "part"),
    [
        ((1.0, 2.0), None, 0.3 / 2),  # f = 0.7, then 1 - 0.3/2
        ((1.5, 2.0), None, 0.3 / 4),  # f = 0.7, then 1 - 0.3/(4/3)
        ((5.0, 10.0), 10, 0.05),  # f = 0.9 at the end of the plan, then 1 - 0.1/2
    ],
)
def test_the_second_level_against_a_bivariate_normal(information, num_planned, part):
    # P(|Z1| < c1, |Z2| > c2) with correlation sqrt(I1/I2) has to be what f leaves for the second look.
    both = looks(information, num_planned)
    bounds = [stats.norm.isf(last_level(0.05, both[:number]) / 2) for number in (1, 2)]
    shared = np.sqrt(information[0] / information[1])
    spread = np.sqrt(1 - shared**2)

    def crossed(z):
        above, below = (bounds[1] - z * shared) / spread, (-bounds[1] - z * shared) / spread
        return stats.norm.pdf(z) * (stats.norm.sf(above) + stats.norm.cdf(below))

    assert integrate.quad(crossed, -bounds[0], bounds[0])[0] == pytest.approx(0.05 * part, rel=2e-3)


def test_planned_looks_are_those_of_lan_and_demets(monkeypatch):
    # Pocock-type spending, 5 equal looks, two-sided 0.05: critical values of ldbounds' manual and of Reboussin et al.,
    # Controlled Clinical Trials 21, 2000: 2.438, 2.427, 2.410, 2.397, 2.386.
    monkeypatch.setattr(module, "PLANNED_SHARE", 1.0)
    five = looks((1.0, 2.0, 3.0, 4.0, 5.0), 10)
    found = [stats.norm.isf(last_level(0.05, five[: number + 1]) / 2) for number in range(5)]
    assert found == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=0.002)


@pytest.mark.parametrize(("information", "num_planned"), [((1.5, 3.0), None), ((1.5, 2.0, 2.5), 10), ((1.5, 5, 8), 10)])
def test_a_sequential_p_value_is_5_percent_at_the_level_of_its_look(information, num_planned):
    some = looks(information, num_planned)
    assert sequential_p(last_level(0.05, some), some) == pytest.approx(0.05, rel=0.01)


def two_sides(num_runs):
    """Return the runs of two configurations, and a look at some of the first runs of each."""
    sides = [[make_run(f"{name}{number}", number, 1.0) for number in range(num_runs)] for name in "ab"]

    def look(of_a, of_b, *more):
        return Look("", (*(run.name for run in (*sides[0][:of_a], *sides[1][:of_b])), *more))

    return *sides, look


def test_looks_without_a_new_run_or_with_one_run_a_side_do_not_count():
    a, b, look = two_sides(5)
    found = LookHistory((look(1, 3), look(3, 3), look(3, 3, "c0"), look(4, 3))).at(a, b)
    assert [now for now, _ in found] == pytest.approx([1.5, 12 / 7, 2.5])
    assert [share for _, share in found] == pytest.approx([0.7, 1 - 0.3 * 1.5 * 7 / 12, 1 - 0.3 * 1.5 / 2.5])
    assert LookHistory((look(5, 5),)).at(a, b) == ((2.5, 0.7),)
    assert LookHistory().at(a[:1], b) == FIRST_LOOK


def test_what_was_spent_before_rounds_were_planned_is_not_spent_again():
    a, b, look = two_sides(6)
    found = LookHistory((look(3, 3),), num_planned=20).at(a, b)
    # 6 of 20 runs would have spent 0.9 ln(1 + (e - 1) 0.3) = 0.373 of it, and 0.7 is gone.
    assert found == ((1.5, 0.7), (3.0, 0.7))
    assert (last_level(0.05, found), sequential_p(1e-9, found)) == (0.0, 1.0)


def groups(a, b):
    return [Group(name, tuple(make_run(f"{name}{n}", n, rate) for n, rate in enumerate(rates))) for name, rates in
            (("a", a), ("b", b))]  # fmt: skip


def test_a_verdict_after_a_recorded_look_has_a_stricter_level_and_a_wider_interval():
    pair = groups([100, 101, 102, 100.5, 101.5, 100], [101.5, 102.5, 103, 102, 103.4, 102.5])
    first = judge(pair, "a")[0].speed
    history = LookHistory((Look("", ("a0", "a1", "a2", "b0", "b1", "b2")),))
    second = judge(pair, "a", history=history)[0].speed
    assert (first.look, second.look) == (1, 2)
    assert (first.level, second.level) == (pytest.approx(0.035), pytest.approx(last_level(0.05, looks((1.5, 3.0)))))
    assert second.p_different > first.p_different
    assert (second.high - second.low) > (first.high - first.low)
    assert second.interval_level == pytest.approx(1 - second.level)


def test_what_is_different_at_5_percent_only_says_that_it_is_a_first_look():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        a, b = rng.normal(0, 0.01, 4), rng.normal(0.015, 0.01, 4)
        if FIRST_SHARE * 0.05 < stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05:
            break
    speed = judge(groups(100 * np.exp(a), 100 * np.exp(b)), "a", margins=None)[0].speed
    assert (speed.outcome, speed.code) == ("cannot tell", "repeated_looks")


@pytest.mark.parametrize(
    ("schedule", "planned"),
    [((3, 6), None), ((3, 5, 8), None), pytest.param(tuple(range(3, 11)), 10, marks=pytest.mark.slow)],
)
def test_adding_runs_until_told_is_rarely_false(schedule, planned):
    # Without the correction 7.5%, 9.6% and 14.7% of 4,000 experiments: benchmarks/verdicts_202611.md.
    rng = np.random.default_rng(3)
    some = looks([n / 2 for n in schedule], planned)
    levels = [last_level(0.05, some[: place + 1]) for place in range(len(some))]
    trials, false = 2000, 0
    for _ in range(trials):
        runs = rng.normal(size=(2, schedule[-1]))
        false += any(
            stats.ttest_ind(runs[0, :n], runs[1, :n], equal_var=False).pvalue <= level
            for n, level in zip(schedule, levels, strict=True)
        )
    assert false / trials <= 0.055
