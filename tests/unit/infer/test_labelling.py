"""Which rows are out whatever models say of them."""

import numpy as np

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.duplicates import text_hashes
from paratune.infer.labelling import Voice, classes_without_rows, refused_rows
from paratune.infer.pseudo import SelectionRule, class_opinion, decide
from paratune.infer.seen import SeenTexts


def samples(*texts):
    return Samples(list(texts), None, None, None, np.arange(len(texts)), None, {})


def voice(**seen):
    known = {name: SeenTexts(text_hashes(samples(*texts)), None) for name, texts in seen.items()}
    task = ClassificationTask(kind="classification", labels=["bad", "good"])
    asked = samples("a", "b", "c", "d", "a", "e")
    return Voice("m", task, Columns(text="text"), None, asked, np.zeros((6, 2)), known, {})


def test_texts_that_any_run_knows_are_out_by_the_set_that_is_looked_at_first():
    voices = [voice(train=["a"], hard=["b"]), voice(train=["d"], test=["b"], validation=["c"], harder=["d", "e"])]
    assert refused_rows(voices) == ["in_train", "in_test", "in_validation", "in_train", "in_train", "in_extra"]
    assert refused_rows([voice()]) == [None, None, None, None, "repeated", None]


def test_classes_without_a_kept_row_are_named_with_what_became_of_theirs():
    task = ClassificationTask(kind="classification", labels=["bad", "fair", "good", "best"])
    # Softmax of (3, 0, 0, 0): e^3 / (e^3 + 3) = 0.870; of (1, 0, 0, 0): e / (e + 3) = 0.475.
    surely, hardly = np.eye(4) * 3, np.eye(4)
    logits = np.stack([surely[0], surely[0], hardly[1], hardly[1], surely[1], surely[2]])
    opinion = class_opinion([logits])

    fates = decide(opinion, [None, None, None, None, "repeated", None], SelectionRule(0.8, None, limit=2))

    assert fates == ["kept", "kept", "below_threshold", "below_threshold", "repeated", "over_limit"]
    said = classes_without_rows(task, opinion, fates)
    assert said == (
        "no kept row has the label 'fair' (2 confidence below the threshold), 'good' (1 beyond --limit), "
        "'best' (no row was given it); training on both makes it rarer"
    )


def test_nothing_is_said_where_each_class_has_a_row():
    opinion = class_opinion([np.eye(2)])
    assert classes_without_rows(voice().task, opinion, ["kept", "kept"]) is None
    assert classes_without_rows(RegressionTask(kind="regression"), opinion, ["kept", "kept"]) is None
