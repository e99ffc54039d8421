"""The recipe of multiple choice, compared with transformers' model and loss."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForMultipleChoice

from paratune.batch.packing import round_up
from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import MultipleChoiceTask
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import PackedCollator, eval_batches
from paratune.models.packed import enable_packed_batches
from paratune.precision import POLICIES
from paratune.tasks import make_recipe
from paratune.tasks.baseline import constant_baseline

TOKENIZER = tiny_tokenizer()
QUESTIONS = ["zoe was", "the film was", "it was"]
CHOICES = [["good", "bad", "fine"], ["bad", "very good", "one"], ["fine", "bad", "good"]]
COLUMNS = Columns(text="question", choices="options", label="answer")


@pytest.fixture
def model(tmp_path):
    tiny_model(tmp_path / "model", dropout=0.0)
    options = ModelOptions(name=str(tmp_path / "model"))
    return recipe().load_model(options, TOKENIZER, POLICIES["fp32"], 0)


def recipe(label_format=None):
    return make_recipe(MultipleChoiceTask(kind="multiple_choice", label_format=label_format))


def split_of(made, choices=CHOICES, labels=("B", "C", "A"), *, require_labels=True):
    table = pa.table({"question": QUESTIONS, "options": choices, "answer": list(labels)})
    options = TokenizeOptions(TOKENIZER, 32, need_token_type_ids=True, is_cached=False)
    return made.load_split("here", table, COLUMNS, options, missing="refuse", require_labels=require_labels)


def gradients(model):
    found = [parameter.grad.clone() for parameter in model.hf.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


def test_loss_and_gradients_equal_transformers_padded_and_packed(model):
    made = recipe()
    split = split_of(made)
    collator = made.collator(split, TOKENIZER)
    batch = collator(np.arange(3), 3)
    model.train()
    by_choice = {
        name: getattr(batch, name).view(3, 3, -1) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    theirs = model.hf(**by_choice, labels=batch.labels)
    theirs.loss.backward()
    expected = gradients(model)
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    packed = PackedCollator(collator)(np.arange(3), 3)
    for ours in (batch, packed, round_up(packed)):
        outputs = model(ours)
        assert outputs[:3].tolist() == [pytest.approx(row, abs=1e-5) for row in theirs.logits.tolist()]
        loss = model.loss_sum(outputs, ours) / ours.loss_denominator
        assert loss.item() == pytest.approx(theirs.loss.item(), rel=1e-5)
        loss.backward()
        for ours_of, theirs_of in zip(gradients(model), expected, strict=True):
            torch.testing.assert_close(ours_of, theirs_of, rtol=1e-4, atol=1e-5)


def test_the_bias_of_the_head_has_no_effect_and_is_not_trained(model):
    frozen = [name for name, parameter in model.hf.named_parameters() if not parameter.requires_grad]
    assert frozen == ["classifier.bias"]


def test_questions_with_fewer_choices_use_only_their_own(model):
    made = recipe()
    split = split_of(made, [["good", "bad"], CHOICES[1], ["fine", "bad"]])
    model.eval()
    rows = {}
    for batch in eval_batches(made.collator(split, TOKENIZER), batch_size=1):
        outputs = model.row_outputs(model(batch), batch)
        rows |= dict(zip(batch.index.tolist(), outputs.detach(), strict=True))
    assert [row.isinf().tolist() for _, row in sorted(rows.items())] == [
        [False, False, True],
        [False] * 3,
        [False, False, True],
    ]
    one = next(iter(eval_batches(made.collator(split_of(recipe(), CHOICES), TOKENIZER), batch_size=8)))
    assert model(one).isfinite().all()


def test_scores_baseline_and_files(tmp_path):
    made = recipe()
    train = split_of(made, labels="BBA")
    split = split_of(made, [["good", "bad"], CHOICES[1], CHOICES[2]])
    outputs = np.array([[0.0, 1.0, -np.inf], [3.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=np.float32)
    assert made.scores(split, outputs) == {"accuracy": pytest.approx(2 / 3)}
    assert made.scores(split, outputs * np.nan) == {"accuracy": None}
    made.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert (written["label"], written["prediction"]) == (["B", "C", "A"], ["B", "A", "A"])
    assert [len(row) for row in written["scores"]] == [2, 3, 3]
    assert written["scores"][0] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])
    baseline = constant_baseline("multiple_choice", made, {"train": train, "test": split})
    # Places in training: once A, twice B, never C.
    assert (baseline["value"], baseline["scores"]["test"]) == (1, {"accuracy": pytest.approx(1 / 3), "loss": None})
    known = split_of(made, labels="BAB")
    loss = constant_baseline("multiple_choice", made, {"train": train, "test": known})["scores"]["test"]["loss"]
    assert loss == pytest.approx(-np.log(2 / 3 * 1 / 3 * 2 / 3) / 3)


@pytest.mark.parametrize(
    ("how", "expected"), [("index", [1, 0]), ("number", [2, 1]), ("text", ["bad", "bad"]), (None, [1, 0])]
)
def test_predictions_have_the_format_of_labels(how, expected):
    made = recipe(how)
    split = split_of(made, require_labels=False)
    outputs = np.array([[0.0, 1.0, 0.5], [3.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert made.prediction_columns(split, outputs, TOKENIZER)["prediction"][:2] == expected


def test_transformers_loads_the_saved_model(tmp_path, model):
    model.hf.save_pretrained(tmp_path / "saved")
    again, info = AutoModelForMultipleChoice.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert type(again).__name__ == "BertForMultipleChoice"
    assert not info["missing_keys"]


def test_letters_of_more_than_26_choices():
    split = SimpleNamespace(samples=SimpleNamespace(choices=[]))
    assert recipe("letter")._shown(split, np.array([0, 25, 26, 52])) == ["A", "Z", "AA", "BA"]
