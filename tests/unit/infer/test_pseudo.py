"""Which rows are kept and why the others are not; numbers are written out."""

import json
import shutil

import numpy as np
import pytest
from raised import raises_code

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask
from paratune.data.columns import Samples
from paratune.data.duplicates import text_hashes, write_text_hashes
from paratune.data.load import samples_fingerprint
from paratune.infer.pseudo import (
    CombinedPrediction,
    SelectionRule,
    combine_classes,
    combine_numbers,
    decide,
    histogram,
    seen_outcome,
)
from paratune.infer.seen import seen_texts

TASK = ClassificationTask(kind="classification", labels=["bad", "good"])


def logits(*shares):
    return np.log(np.array(shares))


def combined(values, certainty, *, is_spread=False, agreed=None):
    count = len(values)
    return CombinedPrediction(
        np.array(values),
        np.array(certainty, dtype=float),
        np.ones(count, dtype=bool) if agreed is None else np.array(agreed),
        is_spread,
    )


def test_models_of_classes_agree_and_their_probabilities_are_averaged():
    first = logits([0.9, 0.1], [0.3, 0.7], [0.6, 0.4])
    second = logits([0.7, 0.3], [0.1, 0.9], [0.2, 0.8])
    result = combine_classes([first, second])
    # Means: 0.8 0.2; 0.2 0.8; 0.4 0.6, where the first model predicts class 0.
    assert result.values.tolist() == [0, 1, 1]
    np.testing.assert_allclose(result.certainty, [0.8, 0.8, 0.6])
    assert result.agreed.tolist() == [True, True, False]


def test_numbers_are_averaged_with_the_sample_standard_deviation_as_spread():
    result = combine_numbers([np.array([[6.0], [5.0]]), np.array([[7.0], [5.0]]), np.array([[8.0], [5.0]])])
    # (1 + 0 + 1) / 2 is 1.
    assert result.values.tolist() == [7.0, 5.0]
    assert result.certainty.tolist() == [1.0, 0.0]
    assert result.is_spread


def test_a_certainty_equal_to_the_threshold_is_kept_but_disagreement_is_not():
    outcomes = decide(
        combined([0, 1, 0, 1], [0.9, 0.89, 0.99, float("nan")], agreed=[True, True, False, True]),
        [None] * 4,
        SelectionRule(0.9),
    )
    assert outcomes == ["kept", "below_threshold", "disagreement", "not_finite"]
    outcomes = decide(combined([6.5, 6.0], [0.2, 0.3], is_spread=True), [None, None], SelectionRule(0.2))
    assert outcomes == ["kept", "above_threshold"]


def test_limits_keep_the_most_certain_rows_and_earlier_ones_of_equal_rows():
    values = combined([0, 0, 0, 1, 1], [0.95, 0.97, 0.95, 0.91, 0.99])
    assert decide(values, [None] * 5, SelectionRule(0.9, max_per_class=2)) == [
        "kept",
        "kept",
        "over_max_per_class",
        "kept",
        "kept",
    ]
    assert decide(values, [None] * 5, SelectionRule(0.9, limit=3)) == [
        "kept",
        "kept",
        "over_limit",
        "over_limit",
        "kept",
    ]
    spread = combined([1.0, 2.0, 3.0], [0.3, 0.1, 0.2], is_spread=True)
    assert decide(spread, [None] * 3, SelectionRule(1.0, limit=2)) == ["over_limit", "kept", "kept"]


def test_excluded_rows_do_not_count_for_limits():
    values = combined([0, 0, 0], [0.99, 0.98, 0.97])
    assert decide(values, ["in_test", None, None], SelectionRule(0.9, limit=1)) == ["in_test", "kept", "over_limit"]


def test_the_histogram_counts_only_predicted_rows():
    bins = histogram(combined([0, 0, 1], [0.97, 1.0, 0.52]), np.array([True, True, False]))
    assert len(bins) == 20
    assert [bin_counts["num_rows"] for bin_counts in bins if bin_counts["num_rows"]] == [2]
    assert (bins[-1]["from"], bins[-1]["to"]) == (pytest.approx(0.95), 1.0)


def test_predictions_that_are_not_finite_are_counted_and_in_no_bin():
    numbers = combine_numbers([np.array([[1.0], [np.nan], [np.inf]]), np.array([[3.0], [1.0], [1.0]])])
    outcomes = decide(numbers, [None] * 3, SelectionRule(threshold=2.0))
    assert outcomes == ["kept", "not_finite", "not_finite"]
    bins = histogram(numbers, np.ones(3, dtype=bool))
    assert sum(bin_counts["num_rows"] for bin_counts in bins) == 1
    assert bins[-1]["to"] == pytest.approx(2**0.5)  # of 1 and 3
    classes = combine_classes([np.array([[np.nan, 0.0], [9.0, 0.0]])])
    assert decide(classes, [None] * 2, SelectionRule(threshold=0.9)) == ["not_finite", "kept"]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("text,label\na film,good\nb film,bad\n")
    test.write_text("text,label\nc film,good\n")
    samples = Samples(["a film", "b film"], None, None, None, np.arange(2), None, {})
    write_text_hashes(folder / "train_texts.parquet", samples)
    columns = Columns(text="text", label="label").model_dump()
    config = {
        "task": {"kind": "classification", "labels": ["bad", "good"]},
        "data": {"train": str(train), "test": str(test), "columns": columns},
    }
    data = {"train": {"fingerprint": "x"}, "validation": None, "test": {"fingerprint": "x"}}
    (folder / "run.json").write_text(json.dumps({"config": config, "data": data}))
    return folder


def hashes(*texts):
    return sorted(text_hashes(Samples(list(texts), None, None, None, np.arange(len(texts)), None, {})).tolist())


def test_texts_of_a_run_come_from_its_folder_and_its_files(run):
    (run.parent / "train.csv").unlink()  # not needed: the run kept what it was trained on
    seen = seen_texts(run)
    assert list(seen) == ["train", "test"]
    assert sorted(seen["train"].hashes.tolist()) == hashes("a film", "b film")
    assert seen["test"].hashes.tolist() == hashes("c film")
    assert seen["train"].unknown is None
    assert seen["test"].unknown is not None  # the fingerprint in the record is another


def test_extra_sets_are_read_again_with_and_without_a_test(run):
    record = json.loads((run / "run.json").read_text())
    (run.parent / "extra.csv").write_text("text,label\nd film,bad\n")
    data = record["config"]["data"]
    data |= {"test": None, "extra": {"hard": str(run.parent / "extra.csv")}, "predict": {"test": "absent.csv"}}
    fingerprint = samples_fingerprint(Samples(["d film"], None, np.array([0]), None, np.arange(1), None, {}), TASK)
    record["data"] = {"train": {}, "validation": None, "hard": {"fingerprint": fingerprint}, "test": {}}
    (run / "run.json").write_text(json.dumps(record))
    seen = seen_texts(run)
    assert list(seen) == ["train", "hard"]  # what was predicted was not scored
    assert seen["hard"].hashes.tolist() == hashes("d film")
    assert seen["hard"].unknown is None
    (run.parent / "extra.csv").unlink()
    assert "extra.csv" in seen_texts(run)["hard"].unknown
    assert seen_outcome("hard") == seen_outcome("extra") == "in_extra"


def test_unknown_texts_have_a_reason(run, tmp_path):
    (tmp_path / "test.csv").unlink()
    assert "cannot be read again" in seen_texts(run)["test"].unknown
    assert all("not a run" in texts.unknown for texts in seen_texts(None).values())
    (run / "run.json").write_text("{}")
    with raises_code("run.damaged"):
        seen_texts(run)
    shutil.rmtree(run)
