"""Rows that are excluded before the predictions of models count."""

import numpy as np

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.duplicates import text_hashes
from paratune.infer.labelling import LabelModel, classes_without_rows, excluded_rows
from paratune.infer.pseudo import SelectionRule, combine_classes, decide
from paratune.infer.seen import SeenTexts


def samples(*texts):
    return Samples(list(texts), None, None, None, np.arange(len(texts)), None, {})


def label_model(**seen):
    known = {name: SeenTexts(text_hashes(samples(*texts)), None) for name, texts in seen.items()}
    task = ClassificationTask(kind="classification", labels=["bad", "good"])
    texts = samples("a", "b", "c", "d", "a", "e")
    return LabelModel("m", task, Columns(text="text"), None, texts, np.zeros((6, 2)), known, {})


def test_texts_of_any_runs_sets_are_excluded_with_the_first_set_as_outcome():
    label_models = [
        label_model(train=["a"], hard=["b"]),
        label_model(train=["d"], test=["b"], validation=["c"], harder=["d", "e"]),
    ]
    assert excluded_rows(label_models) == ["in_train", "in_test", "in_validation", "in_train", "in_train", "in_extra"]
    assert excluded_rows([label_model()]) == [None, None, None, None, "repeated", None]


def test_classes_without_a_kept_row_are_named_with_their_outcomes():
    task = ClassificationTask(kind="classification", labels=["bad", "fair", "good", "best"])
    # Softmax of (3, 0, 0, 0): e^3 / (e^3 + 3) = 0.870; of (1, 0, 0, 0): e / (e + 3) = 0.475.
    surely, hardly = np.eye(4) * 3, np.eye(4)
    logits = np.stack([surely[0], surely[0], hardly[1], hardly[1], surely[1], surely[2]])
    combined = combine_classes([logits])

    outcomes = decide(combined, [None, None, None, None, "repeated", None], SelectionRule(0.8, None, limit=2))

    assert outcomes == ["kept", "kept", "below_threshold", "below_threshold", "repeated", "over_limit"]
    warning = classes_without_rows(task, combined, outcomes)
    assert warning is not None
    for part in ("'fair' (2 confidence below the threshold)", "'good' (1 beyond --limit)", "'best' (never predicted)"):
        assert part in warning
    assert "bad" not in warning


def test_no_warning_if_each_class_has_a_kept_row():
    combined = combine_classes([np.eye(2)])
    assert classes_without_rows(label_model().task, combined, ["kept", "kept"]) is None
    assert classes_without_rows(RegressionTask(kind="regression"), combined, ["kept", "kept"]) is None
