"""The recipe of a masked LM: its model with and without a head, scores, filled masks, and errors."""

import logging
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from raised import raises_code
from tiny import VOCABULARY, tiny_config, tiny_masked_lm, tiny_tokenizer
from transformers import AutoModelForMaskedLM, BertModel, pipeline

from paratune.config.metric_names import METRICS
from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import MaskedLMTask
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import eval_batches
from paratune.models.load import log_new_weights
from paratune.models.save import save_model
from paratune.precision import POLICIES
from paratune.tasks import make_recipe
from paratune.tasks.masked_lm import masked_lm_scores

TASK = MaskedLMTask(kind="mlm")
TEXTS = ["the good film", "one two three four five six", "a bad book and a good story"]
COLUMNS = Columns(text="text")
TOKENIZER = tiny_tokenizer()


def how(tmp_path: Path, tokenizer=None, max_length: int = 8) -> TokenizeOptions:
    return TokenizeOptions(tokenizer or tiny_tokenizer(), max_length, cache_dir=tmp_path / "cache")


def split_of(tmp_path: Path, texts: list[str], task=TASK, *, require_labels: bool = True):
    recipe = make_recipe(task)
    table = pa.table({"text": texts})
    return recipe, recipe.load_split(
        "here", table, COLUMNS, how(tmp_path), missing="drop", require_labels=require_labels
    )


def load(folder: Path, precision: str = "fp32", **options):
    return make_recipe(TASK).load_model(
        ModelOptions(name=str(folder)), tiny_tokenizer(), POLICIES[precision], 0, **options
    )


def outputs_of(recipe, split, model, batch_size: int = 2) -> np.ndarray:
    model.eval()
    row_outputs: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in eval_batches(recipe.collator(split, tiny_tokenizer()), batch_size=batch_size):
            actual = model.row_outputs(model(batch), batch)
            row_outputs |= dict(zip(batch.index.tolist(), actual.tolist(), strict=True))
    return np.array([row_outputs[row] for row in sorted(row_outputs)], dtype=np.float32)


def test_a_model_with_a_head_keeps_all_of_its_weights(tmp_path):
    hf = tiny_masked_lm(tmp_path / "model")
    model = load(tmp_path / "model", head_must_exist=True)
    assert model.new_weights == ()
    assert all(torch.equal(single, two) for single, two in zip(model.hf.parameters(), hf.parameters(), strict=True))


def test_a_missing_head_has_one_message_and_is_tied(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    encoder = BertModel(tiny_config())
    encoder.save_pretrained(tmp_path / "model")
    model = load(tmp_path / "model")
    log_new_weights(model, "some")
    (line,) = [record.getMessage() for record in caplog.records if "new weights" in record.getMessage()]
    assert "cls.predictions.bias, " in line
    assert "embeddings" not in line, "the decoder has the embeddings of the encoder"
    assert torch.equal(model.hf.get_output_embeddings().weight, encoder.embeddings.word_embeddings.weight)
    with raises_code("model.files_missing", "cls.predictions"):
        load(tmp_path / "model", head_must_exist=True)


def test_from_scratch_needs_only_a_configuration(tmp_path):
    tiny_config().save_pretrained(tmp_path / "model")
    made = [
        make_recipe(TASK).load_model(
            ModelOptions(name=str(tmp_path / "model"), from_scratch=True), tiny_tokenizer(), POLICIES["fp32"], seed
        )
        for seed in (1, 1, 2)
    ]
    first, again, other = (model.hf.get_output_embeddings().weight for model in made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first is made[0].hf.get_input_embeddings().weight


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_saved_model_is_tied_and_works_in_a_pipeline(tmp_path, precision):
    tiny_masked_lm(tmp_path / "model")
    model = load(tmp_path / "model", precision)
    assert model.hf.get_output_embeddings().weight is model.hf.get_input_embeddings().weight
    # As a strategy gives them: a tied weight once.
    tensors = {name: value.detach() for name, value in model.named_parameters()}
    save_model(tmp_path / "saved", model, tiny_tokenizer(), tensors, {})
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    ours, theirs = dict(model.hf.named_parameters()), dict(again.named_parameters())
    assert sorted(ours) == sorted(theirs)
    assert all(torch.equal(ours[name].float(), theirs[name].float()) for name in ours)

    text = "the [MASK] was very [MASK]"
    recipe, split = split_of(tmp_path, [text], require_labels=False)
    columns = recipe.prediction_columns(split, outputs_of(recipe, split, model.float()), TOKENIZER)
    fill = pipeline("fill-mask", model=str(tmp_path / "saved"), top_k=5)(text)
    assert columns["tokens"] == [[[guess["token_str"] for guess in mask] for mask in fill]]
    wanted = [[guess["score"] for guess in mask] for mask in fill]
    np.testing.assert_allclose(columns["scores"][0], wanted, rtol=1e-4)
    assert columns["prediction"] == [" ".join(mask[0]["token_str"] for mask in fill)]


def test_scores_agree_with_the_loss_of_transformers(tmp_path):
    tiny_masked_lm(tmp_path / "model")
    model, (recipe, split) = load(tmp_path / "model"), split_of(tmp_path, TEXTS)
    outputs = outputs_of(recipe, split, model)
    (batch,) = eval_batches(recipe.collator(split, tiny_tokenizer()), batch_size=100)
    loss = model.hf(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss
    scores = recipe.scores(split, outputs)
    assert scores["perplexity"] == pytest.approx(loss.double().exp().item(), rel=1e-5)
    # 3 + 6 + 7 words and 2 separators, 6 to a window: 5, 5 and 6 words, of which 0.75, 0.75 and 0.9 would be hidden.
    details = recipe.details(split, outputs)["windows"]
    assert (details["num_windows"], details["num_full_windows"], details["num_hidden_tokens"]) == (3, 3, 3)


def test_the_predictions_file_of_windows(tmp_path):
    recipe, split = split_of(tmp_path, ["the good film", "", *TEXTS[1:]])
    outputs = np.array([[2.5, 1, 1], [3.5, 1, 0], [4.0, 1, 0]], dtype=np.float32)
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written == {
        "index": [0, 2, 3],  # row 1 has no text
        "loss_sum": [2.5, 3.5, 4.0],
        "num_hidden": [1, 1, 1],
        "num_found": [1, 0, 0],
    }


def test_texts_without_a_mask_are_dropped_and_counted(tmp_path):
    recipe, split = split_of(tmp_path, ["good", "[MASK] film [MASK]", "", "a [MASK]"], require_labels=False)
    assert split.samples.rows.tolist() == [1, 3]
    assert split.num_dropped == {"text": 1, "mask": 1}
    outputs = np.zeros((3, 10), dtype=np.float32)
    outputs[:, 0] = [VOCABULARY.index(word) for word in ("good", "bad", "book")]
    columns = recipe.prediction_columns(split, outputs, TOKENIZER)
    assert columns["prediction"] == ["good bad", "book"]
    assert [len(masks) for masks in columns["tokens"]] == [2, 1]
    assert list(columns) == recipe.prediction_names()
    # As a set of `data.predict`.
    recipe.write_predictions(tmp_path, split, outputs, TOKENIZER)
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert (written["index"], written["prediction"]) == ([1, 3], ["good bad", "book"])


def test_an_unsuitable_tokenizer_is_an_error_before_data_is_read(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    for read in (
        lambda: make_recipe(TASK).load_splits(Data(train="nowhere.txt", columns=COLUMNS), how(tmp_path, tokenizer)),
        lambda: make_recipe(TASK).load_split(
            "here", None, COLUMNS, how(tmp_path, tokenizer), missing="drop", require_labels=True
        ),
    ):
        with raises_code("tokenizer.token_missing", key="task.kind"):
            read()


def test_text_without_maskable_tokens_is_an_error_or_a_warning(tmp_path):
    with raises_code("data.no_tokens", "UNK"):
        split_of(tmp_path, ["漢 字"])
    task = MaskedLMTask(kind="mlm", windows="documents")
    recipe, split = split_of(tmp_path, ["漢 字", TEXTS[1]], task)
    ((warning, extra),) = recipe.warnings({"train": split})
    assert extra["code"] == "data.windows_without_text"
    assert warning == "data: 1 windows have only special tokens; no token is hidden in them"


def test_splits_are_cut_by_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS * 4))
    data = Data.model_validate({"train": str(tmp_path / "a.txt"), "columns": {"text": "text"}, "split": {"test": 0.25}})
    splits = make_recipe(TASK).load_splits(data, how(tmp_path))
    assert {name: (split.num_rows, split.labels) for name, split in splits.items()} == {
        "train": (9, None),
        "test": (3, None),
    }
    assert splits["train"].num_samples == -(-(splits["train"].store.num_tokens - 2 * splits["train"].num_samples) // 6)


def test_all_hidden_tokens_have_the_same_weight():
    # Mean loss (2 + 10) / (1 + 3) = 3; 3 of 4 found.
    actual = masked_lm_scores([[2.0, 1, 0], [10.0, 3, 3]])
    assert actual == {"perplexity": pytest.approx(math.exp(3)), "accuracy": 0.75}
    assert (*actual, "loss") == METRICS["mlm"]


def test_the_perplexity_of_a_uniform_model_is_the_number_of_words():
    assert masked_lm_scores([[5 * math.log(30522), 5, 0]])["perplexity"] == pytest.approx(30522)


@pytest.mark.parametrize("loss", [1e4, math.nan, math.inf])
def test_unknown_and_infinite_scores_are_none(loss):
    assert masked_lm_scores(np.array([[loss, 1, 0]])) == {"perplexity": None, "accuracy": 0.0}


def test_without_hidden_tokens_scores_are_none():
    assert masked_lm_scores(np.zeros((2, 3))) == {"perplexity": None, "accuracy": None}
