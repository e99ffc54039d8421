"""Which rows are out whatever models say of them."""

import numpy as np

from paratune.config.sections import ClassificationTask, Columns
from paratune.data.columns import Samples
from paratune.data.duplicates import text_hashes
from paratune.infer.labelling import Voice, refused_rows
from paratune.infer.seen import Seen


def samples(*texts):
    return Samples(list(texts), None, None, None, np.arange(len(texts)), None, {})


def voice(**seen):
    known = {name: Seen(text_hashes(samples(*texts)), None) for name, texts in seen.items()}
    task = ClassificationTask(kind="classification", labels=["bad", "good"])
    asked = samples("a", "b", "c", "d", "a", "e")
    return Voice("m", task, Columns(text="text"), None, asked, np.zeros((6, 2)), known, {})


def test_texts_that_any_run_knows_are_out_by_the_set_that_is_looked_at_first():
    voices = [voice(train=["a"], hard=["b"]), voice(train=["d"], test=["b"], validation=["c"], harder=["d", "e"])]
    assert refused_rows(voices) == ["in_train", "in_test", "in_validation", "in_train", "in_train", "in_extra"]
    assert refused_rows([voice()]) == [None, None, None, None, "repeated", None]
