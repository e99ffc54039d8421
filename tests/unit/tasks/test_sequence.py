"""What a recipe makes of each kind of answer: its head, its scores, what it writes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForSequenceClassification

from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import MultiLabelTask, OrdinalTask, RegressionTask
from paratune.data.tokens import Tokenizing
from paratune.precision import POLICIES
from paratune.tasks import recipe_of

SEVERAL = MultiLabelTask(kind="multi_label", labels=["praise", "question"], threshold=0.75)
ORDINAL = OrdinalTask(kind="ordinal", labels=["low", "middle", "high"])
COLUMNS = Columns(text="text", label="label")
TOKENIZER = tiny_tokenizer()


def split_of(task, labels, tmp_path: Path, *, require_labels: bool = True):
    table = pa.table({"text": ["good film", "bad book", "it is"], "label": labels})
    how = Tokenizing(tiny_tokenizer(), 16, cache_dir=tmp_path)
    return recipe_of(task).load_split("here", table, COLUMNS, how, missing="refuse", require_labels=require_labels)


@pytest.mark.parametrize(
    ("task", "names"),
    [(SEVERAL, ["praise", "question"]), (ORDINAL, ["above low", "above middle"])],
)
def test_the_head_is_one_that_transformers_reads(tmp_path, task, names):
    tiny_model(tmp_path / "model")
    model = recipe_of(task).load_model(
        ModelOptions(name=str(tmp_path / "model")), tiny_tokenizer(), POLICIES["fp32"], 0
    )
    model.hf.save_pretrained(tmp_path / "saved")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert list(again.config.id2label.values()) == names
    assert again.config.problem_type == "multi_label_classification"
    assert again.num_labels == 2


def test_sets_of_classes_are_scored_and_written(tmp_path):
    split = split_of(SEVERAL, [["praise"], [], ["question", "praise"]], tmp_path)
    recipe = recipe_of(SEVERAL)
    # Probabilities above 3/4 need a logit above ln 3 = 1.0986.
    outputs = np.array([[2.0, 1.0], [1.0, -1.0], [2.0, 2.0]], dtype=np.float32)
    assert recipe.scores(split, outputs)["accuracy"] == 1.0
    assert recipe.details(split, outputs) == {}
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["label"] == written["prediction"] == ["praise", "", "praise|question"]
    assert recipe.prediction_names() == list(recipe.prediction_columns(split, outputs, TOKENIZER))


def test_targets_that_are_all_the_same_are_warned_of_where_they_are_trained_on(tmp_path):
    task = RegressionTask(kind="regression")
    recipe = recipe_of(task)
    same, other = (split_of(task, targets, tmp_path) for targets in ([6.5, 6.5, 6.5], [6.5, 6.5, 7.0]))
    (warning,) = recipe.warnings({"train": same, "test": same})
    assert warning.startswith("train: all 3 targets are 6.5, and there is nothing else to learn; is data.columns.label")
    assert recipe.warnings({"train": other, "test": same}) == []


def test_a_set_that_is_null_is_missing_and_one_that_is_empty_is_not(tmp_path):
    with pytest.raises(ValueError, match=r"label \(column label\) in 1 of 3 rows: row 1 "):
        split_of(SEVERAL, [["praise"], None, []], tmp_path)


def test_ordinal_classes_are_scored_and_written(tmp_path):
    split = split_of(ORDINAL, ["low", "high", "middle"], tmp_path)
    recipe = recipe_of(ORDINAL)
    outputs = np.array([[-1.0, -2.0], [2.0, 1.0], [1.0, 2.0]], dtype=np.float32)
    found = recipe.scores(split, outputs)
    assert (found["accuracy"], found["mae"], found["within_one"]) == pytest.approx((2 / 3, 1 / 3, 1.0))
    assert recipe.details(split, outputs) == {"confusion": [[1, 0, 0], [0, 0, 1], [0, 0, 1]]}
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["label"] == ["low", "high", "middle"]
    assert written["prediction"] == ["low", "high", "high"]
    assert recipe.prediction_names() == list(recipe.prediction_columns(split, outputs, TOKENIZER))
