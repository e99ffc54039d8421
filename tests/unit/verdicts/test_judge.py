import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_run import make_run, with_noise_scale, write_classes
from scipy import stats

from paratune.verdicts import Differs, Group, Margin, judge
from paratune.verdicts.estimate import dunnett
from paratune.verdicts.sequential import FIRST_SHARE
from paratune.verdicts.speeds import changes_of

RNG = np.random.default_rng(17)
NUM = 400
LABELS = RNG.integers(0, 2, NUM)
HARD = RNG.random(NUM) < 0.1
"""Samples that all models find hard, so that runs agree on most."""


def runs_of(name, rates, *, seeds=None, folder=None, accuracies=None, **values):
    """Return a run for each rate; with a folder, with predictions that are right as often as `accuracies` say."""
    made = []
    for place, rate in enumerate(rates):
        seed = place + 1 if seeds is None else seeds[place]
        place_of = folder / f"{name}{place}" if folder is not None else None
        known = dict(values)
        if accuracies is not None:
            known["summary__scores__test"] = {"accuracy": accuracies[place]}
            known["summary__scores__test__accuracy"] = accuracies[place]
        run = make_run(f"{name}{place}", seed, rate, **({"folder": place_of} if place_of else {}), **known)
        made.append(run)
    return Group(name, tuple(made))


def predicted(name, folder, wrong, *, seeds=None):
    """Return runs that are wrong on so many of the samples that are not hard, and on all hard ones."""
    made = []
    for place, count in enumerate(wrong):
        seed = place + 1 if seeds is None else seeds[place]
        right = ~HARD
        right[np.random.default_rng(seed).permutation(np.flatnonzero(~HARD))[:count]] = False
        accuracy = write_classes(folder / f"{name}{place}", right, LABELS)
        scores = {"summary__scores__test": {"accuracy": accuracy}, "summary__scores__test__accuracy": accuracy}
        made.append(make_run(f"{name}{place}", seed, 100.0, folder / f"{name}{place}", **scores))
    return Group(name, tuple(made))


def speed_of(base, other, **options):
    return judge([base, other], base.label, **options)[0].speed


def test_speed_of_two_configurations_is_welchs_test_also_of_equal_seeds():
    first, second = [100.0, 104.0, 98.0], [127.0, 131.0, 126.0]
    found = speed_of(runs_of("a", first), runs_of("b", second))
    expected = stats.ttest_ind(np.log(second), np.log(first), equal_var=False)
    ends = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.expm1(ends.low), math.expm1(ends.high)))
    assert found.p_different == pytest.approx(expected.pvalue / FIRST_SHARE)
    assert found.change == pytest.approx((127 * 131 * 126 / (100 * 104 * 98)) ** (1 / 3) - 1)
    assert (found.outcome, found.is_better, found.estimate.is_paired, found.scope) == ("different", True, False, "runs")
    assert found.num_runs == (3, 3)


def test_a_run_without_a_partner_counts_in_the_speed_and_not_in_scores():
    base = runs_of("a", [100, 101, 102, 150], accuracies=[0.8, 0.82, 0.81, 0.9])
    verdict = judge([base, runs_of("b", [110, 111, 113], accuracies=[0.83, 0.84, 0.86])], "a")[0]
    assert verdict.speed.num_runs == (4, 3)
    assert verdict.quality[0].num_runs == (3, 3)
    assert verdict.notes == ("not in the scores, because the other side has no run of that seed: a3",)


def test_a_seed_without_a_partner_is_in_no_score():
    base = runs_of("a", [100, 101, 102], accuracies=[0.80, 0.82, 0.50])
    found = judge([base, runs_of("b", [100, 101], accuracies=[0.83, 0.86])], "a")[0].quality[0]
    # (0.80 + 0.82) / 2, and not with the 0.50 of seed 3: 0.845 - 0.81 = 0.035.
    assert (found.baseline, found.value, found.change) == pytest.approx((0.81, 0.845, 0.035))
    assert (found.estimate.is_paired, found.num_runs) == (True, (2, 2))


@pytest.mark.parametrize(
    ("first", "second", "who"), [([100], [120], "one run each"), ([100], [1, 2], "one run on one")]
)
def test_one_run_has_no_interval_and_says_why(first, second, who):
    found = speed_of(runs_of("a", first), runs_of("b", second))
    assert (found.low, found.outcome) == (None, "n/a")
    assert found.change is not None
    assert found.reason.startswith(who)


def test_a_rate_that_is_not_recorded_is_named():
    found = speed_of(runs_of("a", [100, 101]), runs_of("b", [None, 100]))
    assert (found.change, found.reason) == (None, "unknown for b0")


def test_equal_speed_is_inside_of_the_margin():
    base, other = runs_of("a", [100.0, 100.2, 99.9, 100.1]), runs_of("b", [100.1, 100.1, 100.2, 100.0])
    assert speed_of(base, other).outcome == "equal"
    found = speed_of(base, other, margins={"speed": Margin(0.0005, is_share=True)})
    assert (found.outcome, found.runs_to_equal.low > 4) == ("cannot tell", True)


def test_a_small_difference_that_is_there_counts_as_equal():
    base, other = runs_of("a", [100.0, 100.0, 100.0, 100.01]), runs_of("b", [101.0, 101.0, 101.0, 101.0])
    found = speed_of(base, other)
    assert found.p_different < 0.001
    assert found.outcome == "equal"


def test_several_configurations_are_corrected_for_their_number():
    base = runs_of("a", [100.0, 102.0, 99.0])
    one = runs_of("b", [103.5, 106.0, 103.9])
    alone = speed_of(base, one)
    assert alone.outcome == "different"
    others = [runs_of(name, [98.0, 103.0, 100.5]) for name in "cdefghijklmnopqrstuvwxyz"]
    among = judge([base, one, *others], "a")[0]
    statistic = math.log1p(among.speed.change) / among.speed.estimate.standard_error
    p_value = 2 * stats.t.sf(statistic, among.speed.estimate.degrees_of_freedom)
    assert 0.002 < p_value < 0.05
    corrected = dunnett([p_value / FIRST_SHARE, *[1.0] * 24], [0.5] * 25, among.speed.estimate.degrees_of_freedom)[0]
    assert among.speed.p_different == pytest.approx(corrected, rel=0.02)
    assert corrected < 25 * p_value / FIRST_SHARE  # of Holm
    assert (among.speed.outcome, among.num_compared) == ("cannot tell", 25)
    assert among.speed.low > 0


def test_quality_is_over_seeds_and_samples_where_predictions_are_there(tmp_path):
    base = predicted("a", tmp_path, [10, 12, 11, 9])
    other = predicted("b", tmp_path, [30, 33, 29, 31])
    found = judge([base, other], "a")[0].quality[0]
    assert (found.measure, found.scope, found.estimate.num_rows) == ("accuracy", "seeds and samples", NUM)
    assert (found.outcome, found.is_better) == ("different", False)
    assert found.change == pytest.approx((42 - 123) / 4 / NUM)
    of_seeds = judge([without_predictions(base), without_predictions(other)], "a")[0].quality[0]
    assert of_seeds.scope == "seeds"
    assert of_seeds.change == pytest.approx(found.change)
    assert of_seeds.estimate.standard_error < found.estimate.standard_error
    assert "over seeds on these samples, not over other samples: a0 has no predictions.test.parquet" in of_seeds.reason


def without_predictions(group):
    return Group(group.label, tuple(replace(run, folder=Path("nowhere")) for run in group.runs))


def test_runs_that_predict_the_same_are_equal(tmp_path):
    base, other = predicted("a", tmp_path, [10, 12, 11]), predicted("b", tmp_path, [10, 12, 11])
    found = judge([base, other], "a")[0].quality[0]
    assert (found.change, found.low, found.high, found.outcome) == (0, 0, 0, "equal")


@pytest.mark.parametrize("second", [[0.93, 0.91], [0.92, 0.90]])
def test_seeds_that_differ_by_the_same_without_predictions_tell_nothing(second):
    base, other = runs_of("a", [100, 101], accuracies=[0.92, 0.90]), runs_of("b", [100, 101], accuracies=second)
    found = judge([base, other], "a")[0].quality[0]
    assert (found.outcome, found.low) == ("n/a", None)
    assert found.change == pytest.approx(second[0] - 0.92)
    assert "the same change in all seeds" in found.reason
    assert "a0 has no predictions.test.parquet" in found.reason


def test_three_seeds_without_any_change_are_equal():
    scores = [0.92, 0.90, 0.91]
    verdict = judge([runs_of(name, [100, 101, 102], accuracies=scores) for name in "ab"], "a")[0]
    assert (verdict.quality[0].outcome, verdict.quality[0].scope) == ("equal", "seeds")


def test_one_row_says_nothing_of_others(tmp_path):
    base, other = predicted("a", tmp_path, [10, 12, 11]), predicted("b", tmp_path, [30, 33, 29])
    for group in (base, other):
        for run in group.runs:
            write_classes(run.folder, np.ones(1, dtype=bool), LABELS[:1])
    found = judge([base, other], "a")[0].quality[0]
    assert (found.scope, found.outcome) == ("seeds", "different")
    assert "predictions.test.parquet of a0 has a single row, from which no interval can be computed" in found.reason


def test_what_cannot_be_told_is_no_test_among_several(tmp_path):
    base, other = predicted("a", tmp_path, [10, 12, 11]), predicted("b", tmp_path, [20, 23, 24])
    alone = judge([base, other], "a")[0].quality[0]
    among = judge([base, other, predicted("c", tmp_path, [80])], "a")
    assert among[0].quality[0].p_different == alone.p_different
    assert (among[1].quality[0].outcome, among[1].quality[0].p_different) == ("cannot tell", None)


def test_one_seed_has_an_interval_over_samples_and_cannot_tell(tmp_path):
    base, other = predicted("a", tmp_path, [10]), predicted("b", tmp_path, [80])
    found = judge([base, other], "a")[0].quality[0]
    assert (found.scope, found.outcome, found.as_dict()["is_paired"]) == ("samples", "cannot tell", None)
    assert found.high < 0
    assert found.reason.startswith("one seed each: how far another seed would be from it is not known; the interval is")
    found = judge([without_predictions(base), without_predictions(other)], "a")[0].quality[0]
    assert (found.low, found.outcome) == (None, "n/a")
    assert "and none over samples: a0 has no predictions.test.parquet" in found.reason


def test_repeats_of_one_seed_are_no_seeds(tmp_path):
    base = predicted("a", tmp_path, [10, 10, 10], seeds=[1, 1, 1])
    other = predicted("b", tmp_path, [30, 30, 30], seeds=[1, 1, 1])
    found = judge([base, other], "a")[0].quality[0]
    assert (found.num_runs, found.scope) == ((1, 1), "samples")


def test_other_rows_are_not_paired(tmp_path):
    base, other = predicted("a", tmp_path, [10, 12, 11]), predicted("b", tmp_path, [30, 33, 29])
    write_classes(tmp_path / "b2", np.ones(NUM // 2, dtype=bool), LABELS[: NUM // 2])
    found = judge([base, other], "a")[0].quality[0]
    assert found.scope == "seeds"
    assert "b2 and a0 were scored on other rows" in found.reason


@pytest.mark.parametrize("text", [b"", b"PAR1nonsense"])
def test_damaged_predictions_are_named(tmp_path, text):
    base, other = predicted("a", tmp_path, [10, 12]), predicted("b", tmp_path, [30, 33])
    (tmp_path / "b1" / "predictions.test.parquet").write_bytes(text)
    found = judge([base, other], "a")[0].quality[0]
    assert found.scope == "seeds"
    assert "predictions.test.parquet of b1 cannot be read" in found.reason


def test_the_validation_set_counts_where_a_run_has_no_test_scores():
    scores = {"summary__scores__validation": {"accuracy": 0.9}, "summary__scores__validation__accuracy": 0.9}
    base = runs_of("a", [100, 101], accuracies=[0.9, 0.91], **scores)
    other = runs_of("b", [100, 101], **scores)
    verdict = judge([base, other], "a")[0]
    assert verdict.split == "validation"
    assert [found.value for found in verdict.quality] == [0.9]


def test_runs_without_scores_have_no_quality():
    verdict = judge([runs_of("a", [100, 101]), runs_of("b", [110, 112])], "a")[0]
    assert (verdict.quality, verdict.split) == ((), None)
    assert "quality n/a" in verdict.sentence


def test_what_is_not_the_same_experiment_has_no_verdict():
    base, other = runs_of("a", [100, 101], accuracies=[0.9, 0.9]), runs_of("b", [150, 151], accuracies=[0.8, 0.8])
    verdict = judge([base, other], "a", differs={"b": Differs(refused=("the training data",))})[0]
    for found in (verdict.speed, *verdict.quality):
        assert (found.change, found.low, found.outcome) == (None, None, "n/a")
        assert found.reason == "not the same experiment: they differ in the training data"
    assert "no verdict" in verdict.sentence


def test_other_batches_are_compared_by_goodput():
    # Noise scale 100, batches of 32 and 64: a sample of the larger one is worth (100 + 32) / (100 + 64). That of the
    # baseline is worth one, whatever its own noise scale is.
    base = runs_of("a", [100.0, 101.0, 99.0], summary__noise_scale__value=7.0)
    noise = {"value": 100.0, "trace": 200.0, "squared_norm": 2.0, "num_steps": 10}
    other = runs_of("b", [160.0, 163.0, 158.0], run__batch__global_batch_size=64, summary__noise_scale=noise)
    other = with_noise_scale(other, None, [1])
    verdict = judge([base, other], "a", differs={"b": Differs(allowed=("the batch",), batch=True)})[0]
    rate = (160 * 163 * 158 / (100 * 101 * 99)) ** (1 / 3)
    assert verdict.speed.measure == "goodput"
    assert verdict.speed.change == pytest.approx(rate * 132 / 164 - 1)
    assert verdict.notes == ("the noise scale of all runs together is used for b1, whose own cannot be estimated",)


def test_goodput_is_held_against_the_reference_batch_of_the_baseline():
    # m0 = 16: with a noise scale of 100 a sample is worth 116/132 in batches of 32 and 116/164 in those of 64.
    base = runs_of(
        "a", [100.0, 101.0, 99.0], summary__noise_scale__value=100.0, run__config__measure__reference_batch=16
    )
    other = runs_of("b", [160.0, 163.0, 158.0], run__batch__global_batch_size=64, summary__noise_scale__value=100.0)
    verdict = judge([base, other], "a", differs={"b": Differs(allowed=("the batch",), batch=True)})[0]
    rate = (160 * 163 * 158 / (100 * 101 * 99)) ** (1 / 3)
    assert verdict.speed.change == pytest.approx(rate * (116 / 164) / (116 / 132) - 1)
    # Of a baseline with another noise scale it is another change: 316/332 instead of 116/132.
    base = with_noise_scale(base, 300.0)
    verdict = judge([base, other], "a", differs={"b": Differs(allowed=("the batch",), batch=True)})[0]
    assert verdict.speed.change == pytest.approx(rate * (116 / 164) / (316 / 332) - 1)


def test_other_batches_without_a_noise_scale_are_not_compared():
    # That of the baseline is of no use: the others may have trained another model.
    base = runs_of("a", [100, 101], summary__noise_scale__value=100.0)
    why = "one micro-batch in a step"
    other = runs_of("b", [160, 161], run__batch__global_batch_size=64, summary__noise_scale__reason=why)
    verdict = judge([base, other], "a", differs={"b": Differs(allowed=("the batch",), batch=True)})[0]
    assert verdict.speed.change is None
    assert verdict.speed.code == "unknown_noise_scale"
    assert f"b0 ({why})" in verdict.speed.reason


def test_any_figure_has_its_ratio():
    base, other = runs_of("a", [100, 101]), runs_of("b", [100, 101])
    (found,) = changes_of(base, [other], "memory", [([2.0, 2.0], [3.0, 3.0])], is_speed=False)
    assert (found.baseline, found.value) == pytest.approx((2.0, 3.0))
    assert (found.change, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_share_of_nothing_is_no_margin():
    base = runs_of("a", [100, 101], accuracies=[0.0, 0.0])
    other = runs_of("b", [100, 101], accuracies=[0.1, 0.2])
    found = judge([base, other], "a", {"accuracy": Margin(0.01, is_share=True)})[0].quality[0]
    assert (found.outcome, found.margin) == ("n/a", None)
    assert "which is 0" in found.reason


def test_a_verdict_is_plain_data():
    import json

    verdict = judge([runs_of("a", [100, 101]), runs_of("b", [110, 112])], "a")[0]
    found = json.loads(json.dumps(verdict.as_dict()))
    assert (found["label"], found["baseline"], found["runs"]) == ("b", "a", ["b0", "b1"])
    assert found["speed"]["measure"] == "speed"


def clustered(name, folder, wrong, clusters):
    """Return runs that are wrong on so many whole clusters of samples."""
    made = []
    for place, count in enumerate(wrong):
        numbers = np.random.default_rng(place).permutation(clusters.max() + 1)[:count]
        run = folder / f"{name}{place}"
        accuracy = write_classes(run, ~np.isin(clusters, numbers), LABELS, clusters=clusters)
        scores = {"summary__scores__test": {"accuracy": accuracy}, "summary__scores__test__accuracy": accuracy}
        made.append(make_run(f"{name}{place}", place + 1, 100.0, run, **scores))
    return Group(name, tuple(made))


def test_rows_that_belong_together_are_resampled_together(tmp_path):
    clusters = np.repeat(np.arange(20), 20)
    base, other = clustered("a", tmp_path, [1, 2, 1], clusters), clustered("b", tmp_path, [3, 4, 3], clusters)
    verdict = judge([base, other], "a")[0]
    found = verdict.quality[0]
    assert (found.estimate.num_rows, found.estimate.num_clusters, found.scope) == (NUM, 20, "seeds and samples")
    assert any("20 clusters" in note for note in verdict.notes)
    alone = clustered("c", tmp_path, [3, 4, 3], np.arange(NUM))
    assert judge([base, alone], "a")[0].quality[0].scope == "seeds"  # other clusters: other rows


def test_extreme_numbers_of_a_record_give_numbers_or_nothing():
    rng = np.random.default_rng(3)
    extremes = [1e308, 5e-324, 1e-300, 1e70, 9e59, 2e-60, 1e-40, 1.0, 1.5]
    for trial in range(60):
        groups = []
        for name in "abc":
            runs = []
            for number in range(rng.integers(1, 4)):
                values = {"run__task__kind": "regression", "run__task__metrics": ["rmse"]}
                values["summary__scores__test"] = {"rmse": rng.choice(extremes).item()}
                values |= {f"summary__noise_scale__{key}": rng.choice(extremes).item() for key in NOISE}
                batch = 64 if trial % 2 and name == "b" else 32
                values["run__batch__global_batch_size"] = batch
                runs.append(make_run(f"{name}{number}", number, rng.choice(extremes).item(), **values))
            groups.append(Group(name, tuple(runs)))
        differs = {"b": Differs(batch=bool(trial % 2))}
        for verdict in judge(groups, "a", {"rmse": Margin(0.01, is_share=True)}, differs=differs):
            json.dumps(verdict.as_dict(), allow_nan=False)
            assert verdict.sentence
    assert judge([runs_of("a", [1e308, 1e308]), runs_of("b", [5e-324, 1.0])], "a")[0].speed.code == "unknown_value"


NOISE = ("value", "trace", "squared_norm", "num_steps")
