"""The recipe of each kind of answer: its head, its scores and its files."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from raised import raises_code
from sklearn.utils.class_weight import compute_class_weight
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForSequenceClassification

from paratune.batch.packing import pack
from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import ClassificationTask, MultiLabelTask, OrdinalTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import Collator
from paratune.models.packed import enable_packed_batches
from paratune.precision import POLICIES
from paratune.tasks import make_recipe

SEVERAL = MultiLabelTask(kind="multi_label", labels=["praise", "question"], threshold=0.75)
ORDINAL = OrdinalTask(kind="ordinal", labels=["low", "middle", "high"])
COLUMNS = Columns(text="text", label="label")
TOKENIZER = tiny_tokenizer()


def split_of(task, labels, tmp_path: Path, *, require_labels: bool = True):
    table = pa.table({"text": ["good film", "bad book", "it is"], "label": labels})
    how = TokenizeOptions(tiny_tokenizer(), 16, cache_dir=tmp_path)
    return make_recipe(task).load_split("here", table, COLUMNS, how, missing="refuse", require_labels=require_labels)


@pytest.mark.parametrize(
    ("task", "names"),
    [(SEVERAL, ["praise", "question"]), (ORDINAL, ["above low", "above middle"])],
)
def test_the_head_is_one_that_transformers_reads(tmp_path, task, names):
    tiny_model(tmp_path / "model")
    model = make_recipe(task).load_model(
        ModelOptions(name=str(tmp_path / "model")), tiny_tokenizer(), POLICIES["fp32"], 0
    )
    model.hf.save_pretrained(tmp_path / "saved")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert list(again.config.id2label.values()) == names
    assert again.config.problem_type == "multi_label_classification"
    assert again.num_labels == 2


def test_sets_of_classes_are_scored_and_written(tmp_path):
    split = split_of(SEVERAL, [["praise"], [], ["question", "praise"]], tmp_path)
    recipe = make_recipe(SEVERAL)
    # Probabilities above 3/4 need a logit above ln 3 = 1.0986.
    outputs = np.array([[2.0, 1.0], [1.0, -1.0], [2.0, 2.0]], dtype=np.float32)
    assert recipe.scores(split, outputs)["accuracy"] == 1.0
    assert recipe.details(split, outputs) == {}
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["label"] == written["prediction"] == ["praise", "", "praise|question"]
    assert recipe.prediction_names() == list(recipe.prediction_columns(split, outputs, TOKENIZER))


def test_several_classes_are_joined_in_one_text():
    # The logistic function of 0 is one half, which is at least the threshold; that of -ln 3 is one quarter.
    logits = np.array([[0.0, 1000.0, -1000.0], [-np.log(3), -1.0, -2.0]])
    task = MultiLabelTask(kind="multi_label", labels=["a", "b", "c"], threshold=0.5, separator="|")
    columns = make_recipe(task).answer_columns(logits, by_name=False)
    assert columns["prediction"] == ["a|b", ""]
    assert columns["score_0"].tolist() == pytest.approx([0.5, 0.25])
    assert columns["score_1"][0] == 1.0
    lower = task.model_copy(update={"threshold": 0.2, "separator": "; "})
    columns = make_recipe(lower).answer_columns(logits, by_name=True)
    assert columns["prediction"] == ["a; b", "a; b"]
    assert list(columns) == ["prediction", "score_a", "score_b", "score_c"]


def test_numbers_are_written_as_they_are_and_as_they_are_reported():
    columns = make_recipe(RegressionTask(kind="regression")).answer_columns(np.float32([[1.5], [-2.0]]), by_name=False)
    assert (list(columns), columns["prediction"].tolist()) == (["prediction"], [1.5, -2.0])
    assert columns["prediction"].dtype == np.float64
    task = RegressionTask(kind="regression", round_to=0.5, range=[0.0, 9.0])
    columns = make_recipe(task).answer_columns(np.array([[6.3], [9.6]]), by_name=False)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "prediction": [6.3, 9.6],
        "reported": [6.5, 9.0],
    }


def test_constant_training_targets_have_a_warning(tmp_path):
    task = RegressionTask(kind="regression")
    recipe = make_recipe(task)
    same, other = (split_of(task, targets, tmp_path) for targets in ([6.5, 6.5, 6.5], [6.5, 6.5, 7.0]))
    ((warning, extra),) = recipe.warnings({"train": same, "test": same})
    assert extra["code"] == "data.labels_constant"
    assert warning.startswith("train: all 3 targets are 6.5, ")
    assert recipe.warnings({"train": other, "test": same}) == []


def test_a_null_set_is_missing_and_an_empty_set_is_not(tmp_path):
    with pytest.raises(ValueError, match=r"label \(column label\) in 1 of 3 rows: row 1 "):
        split_of(SEVERAL, [["praise"], None, []], tmp_path)


def test_ordinal_classes_are_scored_and_written(tmp_path):
    split = split_of(ORDINAL, ["low", "high", "middle"], tmp_path)
    recipe = make_recipe(ORDINAL)
    outputs = np.array([[-1.0, -2.0], [2.0, 1.0], [1.0, 2.0]], dtype=np.float32)
    actual = recipe.scores(split, outputs)
    assert (actual["accuracy"], actual["mae"], actual["within_one"]) == pytest.approx((2 / 3, 1 / 3, 1.0))
    assert recipe.details(split, outputs) == {"confusion": [[1, 0, 0], [0, 0, 1], [0, 0, 1]]}
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["label"] == ["low", "high", "middle"]
    assert written["prediction"] == ["low", "high", "high"]
    assert recipe.prediction_names() == list(recipe.prediction_columns(split, outputs, TOKENIZER))


def test_balanced_weights_come_from_the_training_rows_and_are_saved(tmp_path):
    task = ClassificationTask(kind="classification", labels=["a", "b"], class_weights="balanced")
    recipe, train = make_recipe(task), split_of(task, ["a", "b", "a"], tmp_path)
    recipe.resolve({"data": ("here", train.samples)}, "refuse")
    assert recipe.task.class_weights == "balanced"  # an evaluated file does not change them
    recipe.resolve({"train": ("here", train.samples)}, "refuse")
    # scikit-learn, compute_class_weight: 3 / (2 * 2) and 3 / (2 * 1)
    wanted = compute_class_weight("balanced", classes=np.array([0, 1]), y=train.labels)
    assert recipe.task.class_weights == pytest.approx(wanted.tolist()) == [0.75, 1.5]
    tiny_model(tmp_path / "model")
    model = recipe.load_model(ModelOptions(name=str(tmp_path / "model")), TOKENIZER, POLICIES["fp32"], 0)
    batch = recipe.collator(train, TOKENIZER)(np.arange(3), 3.0)
    outputs = torch.zeros(3, 2)
    assert model.loss_sum(outputs, batch).item() == pytest.approx(3.0 * math.log(2))  # 0.75 + 1.5 + 0.75 = 3


def test_weights_are_matched_by_name(tmp_path):
    task = ClassificationTask(kind="classification", labels={0: "no", 1: "yes"}, class_weights={"yes": 3.0, "no": 1.0})
    tiny_model(tmp_path / "model")
    options = ModelOptions(name=str(tmp_path / "model"))
    model = make_recipe(task).load_model(options, TOKENIZER, POLICIES["fp32"], 0)
    batch = Collator(split_of(task, [1, 0, 1], tmp_path).store, np.array([1, 0, 1]), 0)(np.arange(3), 3.0)
    assert model.objective.row_losses(torch.zeros(3, 2), batch).tolist() == pytest.approx(
        [3 * math.log(2), math.log(2), 3 * math.log(2)]
    )


def test_balanced_weights_need_every_class():
    task = ClassificationTask(kind="classification", labels=["a", "b", "c"], class_weights="balanced")
    samples = Samples(["x", "y"], None, np.array([0, 2]), None, np.arange(2), None, {})
    with raises_code("task.class_weights", "t.csv", "'b'"):
        make_recipe(task).resolve({"train": ("t.csv", samples)}, "refuse")


@pytest.mark.parametrize(("pooling", "pool"), [("mean", np.mean), ("max", np.max)])
def test_outputs_of_windows_are_pooled_before_the_loss(tmp_path, pooling, pool):
    """Expected: transformers' logits of each window, pooled by NumPy; the loss is that of the pooled logits."""
    hf = tiny_model(tmp_path / "model", dropout=0.0)
    task = ClassificationTask(kind="classification", labels=["no", "yes"], windows={"pooling": pooling})
    recipe, tokenizer = make_recipe(task), tiny_tokenizer()
    table = pa.table({"text": ["the film was very good and fine", "it is bad"], "label": ["yes", "no"]})
    options = TokenizeOptions(tokenizer, 6, need_token_type_ids=True, is_cached=False)
    columns = Columns(text="text", label="label")
    split = recipe.load_split("here", table, columns, options, missing="refuse", require_labels=True)
    assert split.store.num_sequences.tolist() == [2, 1]
    model = recipe.load_model(ModelOptions(name=str(tmp_path / "model")), tokenizer, POLICIES["fp32"], 0).eval()
    enable_packed_batches(model)
    assert model.entry is not None
    model.hf.load_state_dict(hf.state_dict())
    batch = recipe.collator(split, tokenizer)(np.arange(2), 2)
    theirs = hf.eval()(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
    ).logits.detach().numpy()  # fmt: skip
    expected = np.stack([pool(theirs[:2], axis=0), theirs[2]])
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(expected), torch.tensor([1, 0]))
    for made in (batch, pack(batch)):
        outputs = model(made)
        np.testing.assert_allclose(outputs.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
        assert (model.loss_sum(outputs, made) / 2).item() == pytest.approx(loss.item(), rel=1e-4)
    assert recipe.scores(split, expected)["accuracy"] is not None


@pytest.mark.parametrize(
    ("options", "grades", "agreement"),
    [
        ({}, [1.0, 3.0, 0.5], 2 / 3),  # 2.6 is 2.5, and not 3; 0.6 is limited to 1; 1.2 is 1
        ({"range": [0, 9]}, [1.0, 3.0, 0.5], 1 / 3),  # 0.6 is 0.5
        ({"round_to": 1.0}, None, 1.0),
        ({"grades": [0, 9, 1]}, [0, 9, 1], 1.0),
    ],
)
def test_the_scale_of_grades_is_that_of_the_training_data(tmp_path, options, grades, agreement):
    """Two rows are scored; their grades must not depend on which labels occur among them."""
    recipe = make_recipe(RegressionTask(kind="regression", **options))
    samples = {"train": ("train", samples_with([1.0, 2.5, 3.0])), "validation": ("validation", samples_with([9.0]))}
    recipe.resolve(samples, "refuse")
    assert recipe.task.grades == grades
    # As saved in paratune.json, and used for another file, which sets nothing.
    again = make_recipe(RegressionTask.model_validate(recipe.task.model_dump(mode="json")))
    again.resolve({"data": ("other", samples_with([1.0]))}, "refuse")
    assert again.task.grades == grades
    split = split_of(recipe.task, [3.0, 1.0, 1.0], tmp_path)
    scores = again.scores(split, np.array([[2.6], [0.6], [1.2]], dtype=np.float32))
    assert scores["exact_agreement"] == pytest.approx(agreement)


def samples_with(labels):
    values = np.asarray(labels, dtype=np.float32)
    return Samples(["a"] * len(values), None, values, None, np.arange(len(values)), None, {})


TARGETS = pa.table(
    {
        "text": ["good film", "bad book", "it is", "so", " "],
        "lexis": ["6.0", "5.5", "7", "", "4"],
        "grammar": [5.0, 6.5, 7.0, 5.0, 4.0],
    }
)
SEVERAL_TARGETS = Columns(text="text", label=["lexis", "grammar"])


def targets_split(tmp_path, task=None, table=TARGETS, columns=SEVERAL_TARGETS, missing="drop", **how):
    recipe = make_recipe(task or RegressionTask(kind="regression"))
    options = TokenizeOptions(TOKENIZER, 16, cache_dir=tmp_path)
    return recipe, recipe.load_split("here", table, columns, options, missing=missing, require_labels=True, **how)


def test_several_targets_are_outputs_with_scores_and_columns(tmp_path):
    recipe, split = targets_split(tmp_path, RegressionTask(kind="regression", round_to=0.5, start_at_mean=True))
    # A row without a text, and one that lacks a target, are dropped.
    assert split.labels.tolist() == [[6.0, 5.0], [5.5, 6.5], [7.0, 7.0]]
    assert split.num_dropped == {"text": 1, "label": 1}
    tiny_model(tmp_path / "model")
    options = ModelOptions(name=str(tmp_path / "model"), from_scratch=True)
    model = recipe.load_model(options, TOKENIZER, POLICIES["fp32"], 0)
    recipe.initialise(model, split)
    assert model.hf.classifier.bias.tolist() == pytest.approx([18.5 / 3, 18.5 / 3])
    model.hf.save_pretrained(tmp_path / "saved")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").config
    assert (list(again.id2label.values()), again.problem_type) == (["lexis", "grammar"], "regression")
    outputs = np.array([[6.2, 5.0], [5.5, 6.0], [6.0, 7.0]], dtype=np.float32)
    batch = recipe.collator(split, TOKENIZER)(np.arange(3), 3.0)
    # Means over both targets of the squared errors .04 and 0, 0 and .25, 1 and 0; transformers has the mean of all.
    losses = model.objective.row_losses(torch.from_numpy(outputs), batch).tolist()
    assert losses == pytest.approx([0.02, 0.125, 0.5], rel=1e-5)
    theirs = torch.nn.MSELoss()(torch.from_numpy(outputs), batch.labels)
    assert sum(losses) / 3 == pytest.approx(theirs.item())
    scores = recipe.scores(split, outputs)
    rmse = [(1.04 / 3) ** 0.5, (0.25 / 3) ** 0.5]
    assert [scores[f"rmse_{name}"] for name in ("lexis", "grammar")] == pytest.approx(rmse)
    assert scores["rmse"] == pytest.approx(sum(rmse) / 2)
    assert {f"qwk_{name}" for name in ("lexis", "grammar")} < scores.keys()
    columns = recipe.file_columns(split, outputs, TOKENIZER)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "label_lexis": [6.0, 5.5, 7.0],
        "label_grammar": [5.0, 6.5, 7.0],
        "prediction_lexis": pytest.approx([6.2, 5.5, 6.0]),
        "prediction_grammar": [5.0, 6.0, 7.0],
        "reported_lexis": [6.0, 5.5, 6.0],
        "reported_grammar": [5.0, 6.0, 7.0],
    }
    assert recipe.prediction_names() == list(columns)[2:]
    # As saved with the model: it knows its outputs before it reads a file.
    saved = RegressionTask.model_validate(recipe.task.model_dump(mode="json"))
    assert make_recipe(saved).make_head().num_outputs == 2


def test_a_score_that_one_target_lacks_has_no_mean(tmp_path):
    recipe, split = targets_split(tmp_path, table=TARGETS.set_column(2, "grammar", pa.array([5.0] * 5)))
    scores = recipe.scores(split, split.labels)
    assert (scores["r2"], scores["r2_lexis"], scores["r2_grammar"]) == (None, 1.0, None)
    assert scores["rmse"] == 0.0
    (warning,) = recipe.warnings({"train": split})
    assert warning[1]["code"] == "data.labels_constant"


def test_a_file_must_have_all_targets_of_a_model(tmp_path):
    task = RegressionTask(kind="regression", targets=["lexis", "grammar"])
    with raises_code("config.invalid_value", "1", "lexis", "grammar"):
        targets_split(tmp_path, task, columns=Columns(text="text", label="lexis"))
    with raises_code("data.value_missing", "lexis", "3"):
        targets_split(tmp_path, missing="refuse", table=TARGETS.slice(0, 4))
    with raises_code("data.empty", "lexis"):
        targets_split(tmp_path, table=TARGETS.slice(2, 2).set_column(2, "grammar", pa.array([None, 5.0])))


RATED = pa.table(
    {
        "text": ["good film", "bad book", "it is", "so", "and"],
        "one": ["6.0", "5.5", "", "7", " "],
        "two": [5.0, float("nan"), 7.0, 5.5, None],
    }
)
RATERS = RegressionTask(kind="regression", raters="mean")


def test_the_target_is_the_mean_of_the_raters_that_rated(tmp_path):
    columns = Columns(text="text", label=["one", "two"])
    recipe, split = targets_split(tmp_path, RATERS, RATED, columns)
    assert split.labels.tolist() == [5.5, 5.5, 7.0, 6.25]
    assert split.num_dropped == {"label": 1}
    assert recipe.heads() == []
    recipe.resolve({"train": ("here", split.samples)}, "drop")
    # All scores are multiples of 0.5, their mean 6.25 is not.
    assert recipe.task.grades == [5.0, 7.0, 0.5]
    outputs = np.array([[5.0], [6.0], [7.0], [6.0]], dtype=np.float32)
    written = recipe.file_columns(split, outputs, TOKENIZER)
    assert written["label"].tolist() == [5.5, 5.5, 7.0, 6.25]
    # The first rater minus the second, where both rated.
    assert written["bias_one"].to_pylist() == [1.0, None, None, 1.5]
    assert written["bias_two"].to_pylist() == [-1.0, None, None, -1.5]
    two, _, first, _, of_mean = recipe.details(split, outputs)["raters"]
    # Two rows have two ratings: 6 and 5, 7 and 5.5; the model has 5 and 6.
    assert two["rmse"] == pytest.approx(((1 + 1.5**2) / 2) ** 0.5)
    assert two["qwk"] is not None
    assert (first["who"], first["bias"]) == ("one and the others", 1.25)
    assert of_mean["bias"] == pytest.approx((-0.5 - 0.25) / 2)
    assert recipe.details(split, np.array([[5.0], [np.nan], [7.0], [6.0]])).keys() == {"length_bias"}
    # A file may have another column with one score.
    _, other = targets_split(tmp_path, RATERS, RATED.slice(3, 1), Columns(text="text", label="one"))
    assert (other.labels.tolist(), other.samples.ratings) == ([7.0], None)


def test_raters_without_a_number_are_refused(tmp_path):
    columns = Columns(text="text", label=["one", "two"])
    with raises_code("data.value_missing", "one + two", "4"):
        targets_split(tmp_path, RATERS, RATED, columns, missing="refuse")
    with raises_code("data.target_not_number", "one", "good"):
        targets_split(tmp_path, RATERS, RATED.set_column(1, "one", pa.array(["6", "good", "", "", ""])), columns)
    with raises_code("data.target_out_of_range", "two", "7"):
        limited = RATERS.model_copy(update={"range": [0, 6]})
        targets_split(tmp_path, limited, RATED.set_column(1, "one", pa.array(["6"] * 5)), columns)
    with raises_code("data.column_missing", "two"):
        targets_split(tmp_path, RATERS, RATED.drop_columns(["two"]), columns)
    with raises_code("data.empty", "one"):
        targets_split(tmp_path, RATERS, RATED.slice(4), columns)
