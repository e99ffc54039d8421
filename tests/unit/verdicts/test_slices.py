"""Scores by slice: which rows belong to a slice, what is scored of them, and where there is no interval."""

import numpy as np
import pyarrow as pa
import pytest
from raised import raises_code
from scipy import stats
from sklearn import metrics

from paratune.records.predictions import write_predictions
from paratune.records.scores import shown_metrics
from paratune.verdicts.slices import scored_task, slice_records, wilson

CLASSES = ("bad", "good")


def classes(folder, labels, predictions):
    columns = {"label": [CLASSES[one] for one in labels], "prediction": [CLASSES[one] for one in predictions]}
    write_predictions(folder, "test", rows=np.arange(len(labels)), ids=None, columns=columns)
    return scored_task("run", folder, "classification", CLASSES)


def numbers(folder, labels, predictions, kind="regression"):
    columns = {"label": labels, "prediction": predictions}
    write_predictions(folder, "test", rows=np.arange(len(labels)), ids=None, columns=columns)
    return scored_task("run", folder, kind)


def test_the_interval_of_a_share_is_wilsons():
    # scipy's is another implementation.
    for right, total in ((0, 12), (7, 20), (100, 100)):
        expected = stats.binomtest(right, total).proportion_ci(method="wilson")
        assert wilson(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_slices_of_a_column_have_the_scores_of_their_rows(tmp_path):
    labels = np.asarray([0, 1] * 20)
    predictions = np.where(np.arange(40) % 5 == 0, 1 - labels, labels)
    task = classes(tmp_path, labels, predictions)
    topic = np.asarray(["10"] * 16 + ["9"] * 20 + ["food"] * 4, dtype=object)
    found = slice_records(task, "test", ["topic"], {"topic": topic})["topic"]
    assert [(one["value"], one["num_rows"]) for one in found] == [("9", 20), ("10", 16), ("food", 4)]
    for one in found:
        mask = topic == one["value"]
        scores = {metric: score["value"] for metric, score in one["scores"].items()}
        assert scores["accuracy"] == pytest.approx((labels == predictions)[mask].mean())
        f1_macro = metrics.f1_score(labels[mask], predictions[mask], average="macro")
        assert scores["f1_macro"] == pytest.approx(f1_macro)
    # 16 of 20 right; fewer than 10 rows have no interval.
    assert found[0]["scores"]["accuracy"]["interval"] == pytest.approx(wilson(16, 20))
    assert found[2]["scores"]["accuracy"]["interval"] is None


def test_slices_by_label_have_the_recall_of_the_class_alone(tmp_path):
    task = classes(tmp_path, [0] * 10 + [1] * 30, [0] * 6 + [1] * 34)
    found = slice_records(task, "test", ["label"], {})["label"]
    assert [(one["value"], one["num_rows"]) for one in found] == [("bad", 10), ("good", 30)]
    assert [{metric: score["value"] for metric, score in one["scores"].items()} for one in found] == [
        {"recall": 0.6},
        {"recall": 1.0},
    ]
    assert found[0]["scores"]["recall"]["interval"] == pytest.approx(wilson(6, 10))
    # 30 of 30: an interval of no width would promise too much.
    assert found[1]["scores"]["recall"]["interval"] == pytest.approx((1 / (1 + 1.959964**2 / 30), 1.0), rel=1e-6)


def test_a_perfect_score_that_is_no_share_of_rows_has_no_interval(tmp_path):
    # F1 and Matthews correlation of 1 have pseudovalues of 1, but their rows are not right or wrong independently.
    found = slice_records(classes(tmp_path, [0, 1] * 10, [0, 1] * 10), "test", ["c"], {"c": np.full(20, "a")})["c"]
    intervals = {metric: score["interval"] for metric, score in found[0]["scores"].items()}
    assert found[0]["scores"]["matthews"]["value"] == 1.0
    assert (intervals["f1"], intervals["f1_macro"], intervals["matthews"]) == (None, None, None)
    assert intervals["accuracy"] == pytest.approx(wilson(20, 20))


def test_f1_over_all_classes_is_a_share_of_rows(tmp_path):
    # With one label per row, the F1 over all classes (micro) is the accuracy.
    found = slice_records(classes(tmp_path, [0, 1] * 10, [0, 1] * 10), "test", ["c"], {"c": np.full(20, "a")})["c"]
    scores = found[0]["scores"]
    assert "f1_micro" in scores, list(scores)
    assert scores["f1_micro"]["interval"] == pytest.approx(wilson(20, 20))


def test_recall_at_1_is_a_share_of_rows(tmp_path):
    columns = {"prediction": np.full(20, 0.5), "rank": np.ones(20, dtype=np.int64)}
    write_predictions(tmp_path, "test", rows=np.arange(20), ids=None, columns=columns)
    task = scored_task("run", tmp_path, "embedding", options={"loss": "multiple_negatives_ranking"})
    scores = slice_records(task, "test", ["c"], {"c": np.full(20, "a")})["c"][0]["scores"]
    assert scores["recall_at_1"]["interval"] == pytest.approx(wilson(20, 20))
    assert scores["mrr"] == {"value": 1.0, "interval": None}


def test_a_class_without_rows_is_a_slice_without_scores(tmp_path):
    task = classes(tmp_path, [0, 0], [0, 1])
    assert slice_records(task, "test", ["label"], {})["label"][1] == {
        "value": "good",
        "detail": None,
        "num_rows": 0,
        "scores": {},
    }


def test_several_classes_of_a_row_put_it_into_several_slices(tmp_path):
    columns = {"label": ["a|b", "a", "b", ""], "prediction": ["a", "a", "a", "b"]}
    write_predictions(tmp_path, "test", rows=np.arange(4), ids=None, columns=columns)
    task = scored_task("run", tmp_path, "multi_label", ("a", "b"), {"separator": "|"})
    found = slice_records(task, "test", ["label"], {})["label"]
    # a: both rows got it; b: none of its two rows did.
    assert [(one["value"], one["num_rows"], one["scores"]["recall"]["value"]) for one in found] == [
        *(("a", 2, 1.0), ("b", 2, 0.0))
    ]


def test_quartiles_of_lengths_keep_equal_lengths_together(tmp_path):
    task = classes(tmp_path, [0, 1] * 6, [0, 1] * 6)
    lengths = np.asarray([5, 5, 5, 5, 8, 9, 10, 11, 12, 13, 14, 90])
    found = slice_records(task, "test", ["length"], {"length": lengths})["length"]
    # The quartiles are 5, 9.5 ... of 12 values: 7.25, 9.5, 12.25.
    assert [(one["value"], one["detail"], one["num_rows"]) for one in found] == [
        ("Q1", "5 to 5 tokens", 4),
        ("Q2", "8 to 9 tokens", 2),
        ("Q3", "10 to 12 tokens", 3),
        ("Q4", "13 to 90 tokens", 3),
    ]
    same = slice_records(task, "test", ["length"], {"length": np.full(12, 7)})["length"]
    assert [(one["value"], one["num_rows"]) for one in same] == [("Q1", 12)]


def test_the_mean_error_of_a_slice_has_students_interval(tmp_path):
    random = np.random.default_rng(0)
    labels, predictions = random.normal(size=30), random.normal(size=30)
    task = numbers(tmp_path, labels, predictions)
    kind = np.asarray(["a"] * 12 + ["b"] * 18, dtype=object)
    one = slice_records(task, "test", ["kind"], {"kind": kind})["kind"][0]
    errors = np.abs(labels - predictions)[:12]
    expected = stats.t.interval(0.95, 11, loc=errors.mean(), scale=stats.sem(errors))
    assert one["scores"]["mae"]["interval"] == pytest.approx(expected)
    assert one["scores"]["pearson"]["value"] == pytest.approx(np.corrcoef(labels[:12], predictions[:12])[0, 1])


def test_intervals_stay_within_what_a_score_can_be(tmp_path):
    labels = np.linspace(0, 1, 12)
    predictions = labels + np.asarray([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 0])
    task = numbers(tmp_path, labels, predictions)
    (one,) = slice_records(task, "test", ["kind"], {"kind": np.full(12, "a", dtype=object)})["kind"]
    assert one["scores"]["mae"]["interval"][0] == 0.0
    assert one["scores"]["pearson"]["interval"][1] <= 1.0


def test_the_bias_of_a_slice_is_its_mean_error_with_students_interval(tmp_path):
    errors = np.asarray([0.5, -0.25, 0.75, 0.0, 0.5, 0.25, 0.5, -0.5, 0.25, 0.5])
    task = numbers(tmp_path, np.arange(10.0), np.arange(10.0) + errors)
    (one,) = slice_records(task, "test", ["kind"], {"kind": np.full(10, "a", dtype=object)})["kind"]
    assert one["scores"]["bias"]["value"] == pytest.approx(2.5 / 10)
    expected = stats.t.interval(0.95, 9, loc=0.25, scale=stats.sem(errors))
    assert one["scores"]["bias"]["interval"] == pytest.approx(expected)


def test_rows_with_one_target_have_no_correlation(tmp_path):
    task = numbers(tmp_path, [1.0, 1.0, 2.0, 2.0], [1.5, 0.5, 2.0, 3.0])
    found = slice_records(task, "test", ["label"], {})["label"]
    assert [(one["value"], one["scores"]["mae"]["value"]) for one in found] == [("1", 0.5), ("2", 0.5)]
    assert {one["scores"][name]["value"] for one in found for name in ("r2", "pearson", "spearman")} == {None}


def test_rows_with_one_label_have_no_kappa(tmp_path):
    # scikit-learn's kappa of them is 0 whatever was predicted, which is no score of this class.
    columns = {"label": ["low"] * 4 + ["high"] * 4, "prediction": ["low", "high"] * 4}
    write_predictions(tmp_path, "test", rows=np.arange(8), ids=None, columns=columns)
    task = scored_task("run", tmp_path, "ordinal", ("low", "middle", "high"))
    found = slice_records(task, "test", ["label"], {})["label"]
    assert [one["scores"].get("qwk", {}).get("value") for one in found] == [None] * 3
    # Half of the rows are two classes off.
    assert [one["scores"].get("mae", {}).get("value") for one in found] == [1.0, None, 1.0]


def test_questions_have_scores_from_0_to_100(tmp_path):
    columns = {"label": ["x"] * 10 + [""] * 10, "exact": [0.0] * 10 + [1.0] * 10, "f1": [0.5] * 10 + [1.0] * 10}
    columns["prediction"] = ["y"] * 10 + [""] * 10
    write_predictions(tmp_path, "test", rows=np.arange(20), ids=None, columns=columns)
    found = slice_records(scored_task("run", tmp_path, "qa"), "test", ["label"], {})["label"]
    assert [(one["value"], one["scores"]["exact"]["value"]) for one in found] == [("answer", 0.0), ("no answer", 100.0)]
    # Wilson, 0 of 10, in per cent.
    assert found[0]["scores"]["exact"]["interval"] == pytest.approx([0.0, 100 * wilson(0, 10)[1]])


def test_a_target_with_too_many_values_is_refused(tmp_path):
    task = numbers(tmp_path, np.arange(51.0), np.arange(51.0))
    with raises_code("data.too_many_values", "51", "50", num_values=51, limit=50):
        slice_records(task, "test", ["label"], {})


def test_the_bias_of_a_rater_is_of_rows_with_two_ratings(tmp_path):
    bias = np.asarray([1.0, 0.5, np.nan] * 10)
    columns = {"label": np.tile([5.5, 6.75, 5.0], 10), "prediction": np.tile([6.0, 7.0, 5.0], 10)}
    columns |= {f"bias_{name}": pa.array(own, from_pandas=True) for name, own in (("one", bias), ("two", -bias))}
    write_predictions(tmp_path, "test", rows=np.arange(30), ids=None, columns=columns)
    task = scored_task("run", tmp_path, "regression")
    topic = np.asarray(["art"] * 27 + ["food"] * 2 + ["none"], dtype=object)
    art, food, none = slice_records(task, "test", ["topic"], {"topic": topic})["topic"]
    # Student's interval of the 18 rows with two ratings.
    own = [1.0, 0.5] * 9
    expected = stats.t.interval(0.95, 17, np.mean(own), stats.sem(own))
    assert art["scores"]["bias_one"] == {"value": pytest.approx(0.75), "interval": pytest.approx(expected)}
    assert art["scores"]["bias_two"]["value"] == pytest.approx(-0.75)
    assert food["scores"]["bias_one"] == {"value": pytest.approx(0.75), "interval": None}
    assert none["scores"]["bias_one"] == {"value": None, "interval": None}
    assert shown_metrics("regression", [art]) == ["rmse", "bias", "bias_one", "bias_two"]
