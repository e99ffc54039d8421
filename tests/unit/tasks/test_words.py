"""The recipe of token classification, compared with transformers' model and loss."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForTokenClassification

from paratune.batch.packing import round_up
from paratune.config.sections import Columns, ModelOptions
from paratune.config.task_sections import TokenClassificationTask
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import PackedCollator, eval_batches
from paratune.models.packed import enable_packed_batches
from paratune.precision import POLICIES
from paratune.tasks import make_recipe

TASK = TokenClassificationTask(kind="token_classification", labels=["O", "B-PER", "I-PER"])
TOKENIZER = tiny_tokenizer()
WORDS = [["zoe", "was", "good"], ["the", "film", "is", "very", "fine"], ["anna", "lena"]]
TAGS = [["B-PER", "O", "O"], ["O", "O", "O", "O", "O"], ["B-PER", "I-PER"]]


@pytest.fixture
def model(tmp_path):
    tiny_model(tmp_path / "model", dropout=0.0)
    recipe = make_recipe(TASK)
    return recipe.load_model(ModelOptions(name=str(tmp_path / "model")), TOKENIZER, POLICIES["fp32"], 0)


def split_of(tmp_path, words=WORDS, tags=TAGS, *, task=TASK, max_length=32, require_labels=True):
    columns = {"tokens": words} | ({"tags": tags} if require_labels else {})
    options = TokenizeOptions(TOKENIZER, max_length, need_token_type_ids=True, cache_dir=tmp_path)
    return make_recipe(task).load_split(
        "here", pa.table(columns), Columns(text="tokens", label="tags"), options, missing="refuse",
        require_labels=require_labels,
    )  # fmt: skip


def test_the_loss_equals_transformers_padded_and_packed(tmp_path, model):
    split = split_of(tmp_path)
    collator = make_recipe(TASK).collator(split, TOKENIZER)
    batch = collator(np.arange(3), collator.loss_denominator(np.arange(3)))
    theirs = model.hf.eval()(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids,
        labels=batch.labels,
    )  # fmt: skip
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    assert model.head_takes_labelled
    for made in (batch, PackedCollator(collator)(np.arange(3), batch.loss_denominator), round_up(
        PackedCollator(collator)(np.arange(3), batch.loss_denominator)
    )):  # fmt: skip
        outputs = model(made)
        assert (model.loss_sum(outputs, made) / made.loss_denominator).item() == pytest.approx(theirs.loss.item())
        rows = model.row_outputs(outputs, made)[:3]
        is_word = batch.labels >= 0
        assert torch.equal(rows[:, : is_word.shape[1]][is_word], theirs.logits.argmax(-1)[is_word].float())


def test_outputs_of_batches_of_other_lengths_have_the_same_width(tmp_path, model):
    collator = make_recipe(TASK).collator(split_of(tmp_path), TOKENIZER)
    widths = {model.row_outputs(model(batch), batch).shape[1] for batch in eval_batches(collator, batch_size=1)}
    assert len(widths) == 1


def outputs_of(split, tags):
    """Return row outputs that predict these tags."""
    labels = replace(make_recipe(TASK).collator(split, TOKENIZER), tags=tags)(np.arange(len(split.samples)), 1.0).labels
    return torch.where(labels >= 0, labels, -1).float().numpy()


def test_scores_details_and_files(tmp_path):
    split = split_of(tmp_path)
    recipe = make_recipe(TASK)
    # Predicted: the second person ends one word too early.
    given = [np.array([1, 0, 0]), np.zeros(5, dtype=int), np.array([1, 0])]
    outputs = outputs_of(split, given)
    assert recipe.scores(split, outputs) == pytest.approx({"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.9})
    assert recipe.details(split, outputs)["entities"]["PER"]["support"] == 2
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["label"] == [" ".join(tags) for tags in TAGS]
    assert written["prediction"][2] == "B-PER O"
    assert written["num_correct"] == [1, 0, 0]
    assert recipe.scores(split, np.full_like(outputs, np.nan))["f1"] is None


def test_words_without_a_token_count_as_wrong_and_give_a_warning(tmp_path):
    split, recipe = split_of(tmp_path, max_length=6), make_recipe(TASK)
    outputs = outputs_of(split, split.samples.tags)
    # Lost: good after [CLS] z ##o ##e was [SEP], fine after the film is very, lena after a ##n ##n ##a.
    assert recipe.scores(split, outputs)["accuracy"] == pytest.approx(7 / 10)
    assert recipe.prediction_columns(split, outputs, TOKENIZER)["prediction"][0] == ["B-PER", "O", None]
    ((warning, extra),) = recipe.warnings({"train": split})
    assert "3 of 10 words" in warning
    assert extra["code"] == "data.words_without_token"


def test_inside_tags_without_begin_give_a_warning(tmp_path):
    split = split_of(tmp_path, [["zoe", "was"]], [["I-PER", "O"]])
    ((warning, extra),) = make_recipe(TASK).warnings({"train": split})
    assert extra["code"] == "data.tags_without_begin"
    assert " 1 I- tags" in warning
    strict = TASK.model_copy(update={"strict": True})
    assert make_recipe(TASK).scores(split, outputs_of(split, split.samples.tags))["f1"] == 1.0
    assert make_recipe(strict).scores(split, outputs_of(split, split.samples.tags))["f1"] == 0.0


def test_transformers_loads_the_saved_model(tmp_path, model):
    model.hf.save_pretrained(tmp_path / "saved")
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "saved")
    assert list(again.config.id2label.values()) == TASK.labels


def test_prediction_needs_no_tags(tmp_path, model):
    split = split_of(tmp_path, require_labels=False)
    (batch,) = eval_batches(make_recipe(TASK).collator(split, TOKENIZER), batch_size=4)
    outputs = model.row_outputs(model(batch), batch)[batch.index.argsort()].numpy()
    given = make_recipe(TASK).prediction_columns(split, outputs, TOKENIZER)["prediction"]
    assert [len(tags) for tags in given] == [3, 5, 2]
    assert all(tag in TASK.labels for tags in given for tag in tags)
