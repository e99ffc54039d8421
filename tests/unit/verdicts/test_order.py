"""Comparisons of speed under a drift of the machine: adjusted, or "cannot tell"."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from fake_run import make_run
from numpy.testing import assert_allclose

from paratune.verdicts import Group, judge
from paratune.verdicts.estimate import holm
from paratune.verdicts.order import RunTime, is_confounded, num_overlapping, order_model, run_time
from paratune.verdicts.speeds import compare_speeds, ratio

START = datetime(2026, 11, 1, tzinfo=UTC)
RNG = np.random.default_rng(3)


def stamped(name, rate, place, *, minutes=10, load=None):
    """Return a run that began as the one at `place`, and took 9 of 10 minutes."""
    began = START + timedelta(minutes=minutes * place)
    values = {
        "run__created": began.isoformat(),
        "summary__finished": (began + timedelta(minutes=0.9 * minutes)).isoformat(),
    }
    if load is not None:
        values |= {
            "summary__utilisation__kind": "cpu",
            "summary__utilisation__mean": 0.5,
            "summary__utilisation__machine_mean": 0.5 + load,
        }
    return make_run(name, place, rate, **values)


def in_order(names, change, drift, noise=0.002, loads=None):
    """Return a group for each name, of runs in this order: logarithms of rates fall by `drift` from run to run."""
    rng = np.random.default_rng(len(names))
    groups = {}
    for place, name in enumerate(names):
        log = change.get(name, 0.0) - drift * place + noise * rng.normal()
        load = None if loads is None else loads[place]
        groups.setdefault(name, []).append(stamped(f"{name}{place}", 100 * np.exp(log), place, load=load))
    return [Group(name, tuple(runs)) for name, runs in groups.items()]


def speed(groups):
    return judge(groups, "a")[0].speed


def test_the_adjusted_change_is_that_of_least_squares_with_a_slope():
    names = "abaabb"
    found = speed(in_order(names, {"b": 0.05}, 0.02))
    rates = {run.name: run.summary.throughput.samples_per_s for g in in_order(names, {"b": 0.05}, 0.02)
             for run in g.runs}  # fmt: skip
    y = np.log([rates[f"{name}{place}"] for place, name in enumerate(names)])
    design = np.stack([np.ones(6), np.array([name == "b" for name in names]), np.arange(6)], axis=1)
    solution, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    error = np.sqrt(residual[0] / 3 * np.linalg.inv(design.T @ design)[1, 1])
    assert found.order.is_adjusted
    assert_allclose(np.log1p(found.change), solution[1])
    assert found.estimate.standard_error == pytest.approx(error)
    assert found.estimate.degrees_of_freedom == pytest.approx(3)
    assert np.log1p(found.order.total) == pytest.approx(5 * solution[2])


def test_a_change_that_a_drift_could_explain_is_not_told():
    # 1% a run in all six; the later three are 3 places later: 3% slower without any change.
    found = speed(in_order("aaabbb", {}, 0.01))
    assert (found.outcome, found.code) == ("cannot tell", "order_confounded")
    assert (found.order.is_confounded, found.order.is_adjusted, found.order.p_value < 0.05) == (True, True, True)
    assert np.log1p(found.order.bias) == pytest.approx(-0.03, abs=0.01)


def test_a_change_that_is_larger_than_any_drift_is_told():
    verdict = judge(in_order("aaabbb", {"b": 0.25}, 0.0), "a")[0]
    assert (verdict.speed.outcome, verdict.speed.is_better) == ("different", True)
    assert verdict.speed.order.is_confounded
    assert len(verdict.notes) == 2  # adjusted, and that all of one side came first


def test_runs_in_turn_without_a_drift_are_not_adjusted():
    found = speed(in_order("ababba", {"b": 0.05}, 0.0))
    assert (found.outcome, found.order.is_adjusted, found.order.is_confounded) == ("different", False, False)
    assert judge(in_order("ababba", {"b": 0.05}, 0.0), "a")[0].notes == ()


def test_a_drift_does_not_hide_a_change_of_runs_in_turn():
    found = speed(in_order("abbaab", {"b": 0.05}, 0.03))
    assert (found.outcome, found.order.is_adjusted) == ("different", True)
    assert found.change == pytest.approx(np.expm1(0.05), abs=0.01)


def test_sessions_apart_by_hours_are_blocks():
    groups = []
    for name, change in (("a", 0.0), ("b", 0.05)):
        logs = change + np.array([0.0, 0.001, -0.2, -0.201]) + 0.001 * RNG.normal(size=4)
        places = [0, 2, 100, 102] if name == "a" else [1, 3, 101, 103]
        groups.append(
            Group(name, tuple(stamped(f"{name}{p}", 100 * np.exp(log), p) for p, log in zip(places, logs, strict=True)))
        )
    found = speed(groups)
    assert found.order.covariates == ("session",)
    assert found.order.total == pytest.approx(np.expm1(-0.2), abs=0.01)
    assert (found.outcome, found.change) == ("different", pytest.approx(np.expm1(0.05), abs=0.005))


def test_the_load_of_other_programs_is_a_covariate_of_many_runs():
    loads = [0.0, 0.3, 0.1, 0.4, 0.2, 0.0, 0.4, 0.1, 0.3, 0.2]
    groups = in_order("ababababab", {"b": 0.02}, 0.0, loads=loads)
    groups = [
        Group(g.label, tuple(
            stamped(run.name, run.summary.throughput.samples_per_s * np.exp(-0.5 * loads[int(run.name[1:])]),
                    int(run.name[1:]), load=loads[int(run.name[1:])]) for run in g.runs))
        for g in groups
    ]  # fmt: skip
    verdict = judge(groups, "a")[0]
    assert verdict.speed.order.covariates == ("order", "load")
    assert verdict.speed.change == pytest.approx(np.expm1(0.02), abs=0.01)
    assert verdict.speed.order.load_difference == pytest.approx(np.mean(loads[1::2]) - np.mean(loads[::2]))


def test_runs_at_the_same_time_are_not_confounded():
    first, second = [RunTime(0, 10, None), RunTime(0, 10, None)], [RunTime(5, 15, None), RunTime(5, 15, None)]
    assert not is_confounded(first, second)
    assert is_confounded(first, [RunTime(10, 20, None)])
    assert is_confounded([RunTime(10, 20, None)], first)


def test_records_without_time_stamps_have_no_order():
    assert run_time(make_run("a", 1, 100.0)) is None
    base = Group("a", tuple(make_run(f"a{n}", n, 100.0 + n) for n in range(3)))
    assert speed([base, *in_order("bbb", {}, 0.0)]).order is None


def test_too_few_runs_have_no_model():
    times = [[RunTime(place, place + 0.5, None) for place in side] for side in ((0, 1), (2,))]
    assert order_model([[0.0, 0.1], [0.2]], times) is None


def test_one_configuration_after_the_other_is_regressed_on_powers_of_the_place():
    # A drift in the form of a u over nine places, without noise: no change is left.
    places = np.arange(9)
    logs = [(0.05 * ((places[side] - 4) / 4) ** 2).tolist() for side in (slice(0, 3), slice(3, 6), slice(6, 9))]
    times = [[RunTime(3 * at + n, 3 * at + n + 0.5, None) for n in range(3)] for at in range(3)]
    model = order_model(logs, times)
    assert (model.names, model.is_confounded, model.freedom) == (("order",) * 3, True, 3)
    adjusted = [np.mean(np.asarray(some) - model.columns[place] @ model.slopes) for place, some in enumerate(logs)]
    assert_allclose(adjusted, adjusted[0], atol=1e-12)
    # In turn, a straight line is enough.
    in_turn = [[RunTime(at + 3 * n, at + 3 * n + 0.5, None) for n in range(3)] for at in range(3)]
    assert order_model(logs, in_turn).names == ("order",)
    # Of 2 x 2 degrees of freedom two are left: a cube is one power too many.
    assert order_model(logs[:2], times[:2]).names == ("order", "order")


def test_the_size_of_a_drift_is_that_of_the_run_that_differs_most():
    # Slower in the middle and fast again: 0 from the first to the last run.
    rates = 100 * np.exp(-0.1 + 0.1 * ((np.arange(9) - 4) / 4) ** 2)
    groups = [
        Group(name, tuple(stamped(f"{place}", rates[place], place) for place in own))
        for name, own in (("a", (0, 1, 2)), ("b", (3, 4, 5)), ("c", (6, 7, 8)))
    ]
    found = judge(groups, "a")[0].speed
    assert found.order.total == pytest.approx(np.expm1(-0.1))


def test_runs_that_share_a_host_at_the_same_time_are_counted():
    def time(began, ended, *hosts):
        return RunTime(began, ended, None, frozenset(hosts))

    assert num_overlapping([time(0, 100, "a"), time(50, 150, "a"), time(160, 200, "a")]) == 2
    assert num_overlapping([time(0, 100, "a"), time(50, 150, "b")]) == 0
    assert num_overlapping([time(0, 100, "a", "b"), time(50, 150, "b", "c"), time(0, 300, "c")]) == 3
    # Whole seconds, and one run begins while another one ends.
    assert num_overlapping([time(0, 100, "a"), time(98, 200, "a")]) == 0
    assert num_overlapping([time(0, 100), time(0, 100)]) == 0  # no host is recorded
    assert run_time(stamped("a", 1.0, 0)).hosts == frozenset()


@pytest.mark.parametrize("shape", [lambda x: -0.05 * x, lambda x: 0.2 * (x - 0.5) ** 2])
@pytest.mark.parametrize("num", [2, 9])
def test_one_configuration_after_the_other_under_a_drift_is_rarely_called_different(shape, num):
    # Before: a line alone left 15.8% false "different" of the u, and covered 75.6% (9 x 3).
    rng = np.random.default_rng(11)
    false = covered = 0
    for _ in range(300):
        rates = 100 * np.exp(0.01 * rng.normal(size=3 * num) + shape(np.linspace(0, 1, 3 * num)))
        groups = [
            Group(str(at), tuple(stamped(f"{p}", rates[p], p) for p in range(3 * at, 3 * at + 3))) for at in range(num)
        ]
        sides = [(rates[:3].tolist(), rates[3 * at : 3 * at + 3].tolist()) for at in range(1, num)]
        measured = [ratio("speed", groups[0], other, *own) for other, own in zip(groups[1:], sides, strict=True)]
        estimates = [one.estimate for one in compare_speeds(groups[0], groups[1:], sides, measured)]
        covered += np.mean([low <= 0 <= high for low, high in (one.interval() for one in estimates)])
        false += min(holm([one.p_different() for one in estimates])) <= 0.05
    assert covered / 300 >= 0.92
    assert false / 300 <= 0.08
