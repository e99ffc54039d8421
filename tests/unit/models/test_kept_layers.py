"""Compares a model with some of its layers to the whole model."""

from pathlib import Path

import pytest
import torch
from raised import raises_code
from tiny import tiny_config, tiny_model, tiny_tokenizer
from transformers import (
    AlbertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ModernBertConfig,
    T5Config,
)

from paratune.config.feasibility import num_layers
from paratune.config.sections import ModelOptions
from paratune.models.config import _check_kept as check_kept
from paratune.models.config import load_config
from paratune.models.load import Head, load_model
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES

HEAD = Head("AutoModelForSequenceClassification", 2, ("no", "yes"), "single_label_classification")


def loaded(folder: Path, kept: list[int] | None) -> TaskModel:
    options = ModelOptions(name=str(folder), keep_layers=kept)
    return load_model(options, "classification", HEAD, tiny_tokenizer(), POLICIES["fp32"], 0).eval()


def test_kept_layers_are_computed_one_after_the_other(tmp_path: Path):
    tiny_model(tmp_path, num_layers=4)
    whole, part = loaded(tmp_path, None).hf, loaded(tmp_path, [1, 3]).hf
    ids = torch.arange(5, 25).view(2, 10)
    hidden = whole.bert.embeddings(ids)
    for layer in (whole.bert.encoder.layer[1], whole.bert.encoder.layer[3]):
        hidden = layer(hidden)
    expected = whole.classifier(whole.bert.pooler(hidden))
    assert torch.equal(part(input_ids=ids).logits, expected)
    assert part.config.num_hidden_layers == 2


def test_saved_folder_loads_elsewhere_without_the_option(tmp_path: Path):
    tiny_model(tmp_path / "whole", num_layers=3)
    part = loaded(tmp_path / "whole", [0, 2])
    tensors = {name: value.detach() for name, value in part.state_dict().items()}
    save_model(tmp_path / "part", part, tiny_tokenizer(), tensors, {"task": {}})
    again = BertForSequenceClassification.from_pretrained(tmp_path / "part").eval()
    ids = torch.arange(5, 25).view(2, 10)
    assert torch.equal(again(input_ids=ids).logits, part.hf(input_ids=ids).logits)


def test_plans_and_checks_see_the_number_of_kept_layers(tmp_path: Path):
    tiny_model(tmp_path, num_layers=4)
    options = ModelOptions(name=str(tmp_path), keep_layers=[0, 1, 3])
    assert load_config(options).num_hidden_layers == 3
    assert num_layers(options) == 3


def test_other_names_of_the_number_of_layers(tmp_path: Path):
    sizes = {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64, "vocab_size": 200}
    DistilBertForSequenceClassification(DistilBertConfig(**sizes)).save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)
    part = loaded(tmp_path, [2]).hf
    assert part.config.n_layers == 1
    assert len(part.distilbert.transformer.layer) == 1


def test_layer_that_is_not_there_is_refused(tmp_path: Path):
    tiny_model(tmp_path)
    with raises_code("model.unsupported", key="model.keep_layers", value=2):
        loaded(tmp_path, [0, 2])


@pytest.mark.parametrize(
    "config", [AlbertConfig(), ModernBertConfig(), T5Config()], ids=lambda config: config.model_type
)
def test_models_whose_layers_differ_or_are_shared_are_refused(config):
    with raises_code("model.keep_layers", config.model_type, name="x"):
        check_kept(config, [0], "x")
    check_kept(tiny_config(), [0], "x")
