"""Which rows are kept and why the others are not; numbers are written out."""

import json

import numpy as np
import pytest
from raised import raises_code

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.duplicates import text_hashes, write_text_hashes
from paratune.data.load import samples_fingerprint
from paratune.infer.pseudo import combine, decide, excluded_rows, seen_texts

TASK = ClassificationTask(kind="classification", labels=["bad", "good"])
NUMBERS = RegressionTask(kind="regression")


def samples(*texts):
    return Samples(list(texts), None, None, None, np.arange(len(texts)), None, {})


def outcomes(values, certainty, excluded=None, *, threshold=0.9, is_spread=False, agreed=None, **limits):
    excluded = [None] * len(values) if excluded is None else excluded
    agreed = np.ones(len(values), dtype=bool) if agreed is None else np.array(agreed)
    combined = np.array(values), np.array(certainty, dtype=float), agreed
    return decide(combined, excluded, is_spread=is_spread, threshold=threshold, **limits)


def test_models_of_classes_agree_and_their_probabilities_are_averaged():
    first = np.log([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
    second = np.log([[0.7, 0.3], [0.1, 0.9], [0.2, 0.8]])
    values, certainty, agreed = combine(TASK, [first, second])
    # Means: 0.8 0.2; 0.2 0.8; 0.4 0.6, where the first model predicts class 0.
    assert values.tolist() == [0, 1, 1]
    np.testing.assert_allclose(certainty, [0.8, 0.8, 0.6])
    assert agreed.tolist() == [True, True, False]


def test_numbers_are_averaged_with_the_sample_standard_deviation_as_spread():
    models = [np.array([[6.0], [5.0]]), np.array([[7.0], [5.0]]), np.array([[8.0], [5.0]])]
    values, spread, agreed = combine(NUMBERS, models)
    # (1 + 0 + 1) / 2 is 1.
    assert values.tolist() == [7.0, 5.0]
    assert spread.tolist() == [1.0, 0.0]
    assert agreed.all()


def test_a_certainty_equal_to_the_threshold_is_kept_but_disagreement_is_not():
    found = outcomes([0, 1, 0, 1], [0.9, 0.89, 0.99, float("nan")], agreed=[True, True, False, True])
    assert found == ["kept", "uncertain", "disagreement", "not_finite"]
    assert outcomes([6.5, 6.0], [0.2, 0.3], is_spread=True, threshold=0.2) == ["kept", "uncertain"]


def test_limits_keep_the_most_certain_rows_and_earlier_ones_of_equal_rows():
    rows = [0, 0, 0, 1, 1], [0.95, 0.97, 0.95, 0.91, 0.99]
    assert outcomes(*rows, max_per_class=2) == ["kept", "kept", "over_max_per_class", "kept", "kept"]
    assert outcomes(*rows, limit=3) == ["kept", "kept", "over_limit", "over_limit", "kept"]
    spread = outcomes([1.0, 2.0, 3.0], [0.3, 0.1, 0.2], is_spread=True, threshold=1.0, limit=2)
    assert spread == ["over_limit", "kept", "kept"]


def test_excluded_rows_do_not_count_for_limits():
    assert outcomes([0, 0, 0], [0.99, 0.98, 0.97], ["seen", None, None], limit=1) == ["seen", "kept", "over_limit"]


def test_predictions_that_are_not_finite_are_not_kept():
    numbers = combine(NUMBERS, [np.array([[1.0], [np.nan], [np.inf]]), np.array([[3.0], [1.0], [1.0]])])
    assert decide(numbers, [None] * 3, is_spread=True, threshold=2.0) == ["kept", "not_finite", "not_finite"]
    classes = combine(TASK, [np.array([[np.nan, 0.0], [9.0, 0.0]])])
    assert decide(classes, [None] * 2, is_spread=False, threshold=0.9) == ["not_finite", "kept"]


def test_texts_of_a_run_and_repeated_texts_are_excluded():
    texts = samples("a", "b", "c", "c", "b", "d")
    seen = text_hashes(samples("b", "e"))
    assert excluded_rows(texts, seen) == [None, "seen", None, "repeated", "seen", None]
    assert excluded_rows(texts, seen[:0]) == [None, None, None, "repeated", "repeated", None]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("text,label\na film,good\nb film,bad\n")
    test.write_text("text,label\nc film,good\n")
    write_text_hashes(folder / "train_texts.parquet", samples("a film", "b film"))
    columns = Columns(text="text", label="label").model_dump()
    config = {
        "task": {"kind": "classification", "labels": ["bad", "good"]},
        "data": {"train": str(train), "test": str(test), "columns": columns, "drop_duplicates": True},
    }
    data = {"train": {"fingerprint": "x"}, "validation": None, "test": {"fingerprint": "x"}}
    (folder / "run.json").write_text(json.dumps({"config": config, "data": data}))
    return folder


def hashes(*texts):
    return sorted(text_hashes(samples(*texts)).tolist())


def test_texts_of_a_run_come_from_its_folder_and_its_files(run):
    (run.parent / "train.csv").unlink()  # not needed: the run kept what it was trained on
    seen, unknown = seen_texts(run)
    assert sorted(seen.tolist()) == hashes("a film", "b film", "c film")
    assert list(unknown) == ["test"]  # the fingerprint in the record is another


def test_the_fold_that_is_the_validation_set_was_seen(run):
    record = json.loads((run / "run.json").read_text())
    (run.parent / "train.csv").write_text("text,label\na film,good\nb film,bad\nd film,bad\ne film,good\n")
    record["config"]["data"] |= {"test": None, "split": {"folds": 2, "fold": 0}}
    record["data"] = {"train": {}, "validation": {"fingerprint": "x"}, "test": None}
    (run / "run.json").write_text(json.dumps(record))
    seen, unknown = seen_texts(run)
    assert len(set(seen.tolist()) - set(hashes("a film", "b film"))) > 0
    assert list(unknown) == ["validation"]  # the fingerprint in the record is another
    record["config"]["data"]["split"] |= {"validation": 0.5}  # the fold is then the test set
    record["data"] |= {"test": {"fingerprint": "x"}}
    (run / "run.json").write_text(json.dumps(record))
    assert list(seen_texts(run)[1]) == ["validation", "test"]


def test_extra_sets_are_read_again_with_and_without_a_test(run):
    record = json.loads((run / "run.json").read_text())
    (run.parent / "extra.csv").write_text("text,label\nd film,bad\n")
    data = record["config"]["data"]
    data |= {"test": None, "extra": {"hard": str(run.parent / "extra.csv")}, "predict": {"test": "absent.csv"}}
    fingerprint = samples_fingerprint(Samples(["d film"], None, np.array([0]), None, np.arange(1), None, {}), TASK)
    record["data"] = {"train": {}, "validation": None, "hard": {"fingerprint": fingerprint}, "test": {}}
    (run / "run.json").write_text(json.dumps(record))
    seen, unknown = seen_texts(run)
    assert sorted(seen.tolist()) == hashes("a film", "b film", "d film")
    assert unknown == {}  # what was predicted was not scored
    (run.parent / "extra.csv").unlink()
    assert "extra.csv" in seen_texts(run)[1]["hard"]


def test_unknown_texts_have_a_reason(run, tmp_path):
    (tmp_path / "test.csv").unlink()
    (run / "train_texts.parquet").unlink()
    seen, unknown = seen_texts(run)
    assert (len(seen), list(unknown)) == (0, ["train", "test"])
    assert "test.csv" in unknown["test"]
    assert list(seen_texts(None)[1]) == ["train", "validation", "test"]
    (run / "run.json").write_text("{}")
    with raises_code("run.damaged"):
        seen_texts(run)
