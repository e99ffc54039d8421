from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from looping import tiny_run_config
from raised import raises_code
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from transformers import AutoModelForSequenceClassification, BertConfig, GPT2Config, RobertaConfig, T5Config

from paratune.config.sections import Config
from paratune.models.config import _POSITIONS_AFTER_PAD, max_positions, token_limit

SMALL = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def unlimited() -> Any:
    return tiny_tokenizer(max_length=10**30)


def test_positions_of_roberta_begin_after_the_padding_token():
    config = RobertaConfig(**SMALL, max_position_embeddings=12, pad_token_id=1)
    limit = max_positions(config, unlimited())
    assert limit == 10
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model(input_ids=torch.full((1, limit), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, limit + 1), 7))


def test_positions_of_other_models_begin_at_zero():
    config = BertConfig(**SMALL, max_position_embeddings=12, pad_token_id=0)
    assert max_positions(config, unlimited()) == 12
    assert max_positions(GPT2Config(n_positions=40), unlimited()) == 40


def test_the_limit_is_the_smaller_of_model_and_tokenizer_or_none():
    config = BertConfig(**SMALL, max_position_embeddings=64)
    assert max_positions(config, tiny_tokenizer(max_length=32)) == 32
    assert max_positions(T5Config(), tiny_tokenizer(max_length=32)) == 32
    assert max_positions(T5Config(), unlimited()) is None


def test_the_table_agrees_with_the_installed_transformers():
    # Their code calls this function; a type that is missing here would fail at its longest samples.
    known = transformers.models.auto.modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    folder = Path(transformers.__file__).parent / "models"
    actual = set()
    for model_type in known:
        name = model_type.replace("-", "_")
        for path in (folder / name / f"modeling_{name}.py", folder / name.split("_")[0] / f"modeling_{name}.py"):
            if path.is_file() and "create_position_ids_from_input_ids" in path.read_text("utf-8"):
                actual.add(model_type)
    assert actual == _POSITIONS_AFTER_PAD


def configured(folder: Path, max_length: int | None) -> Config:
    config = tiny_run_config(None)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"name": str(folder)}),
            "data": config.data.model_copy(update={"max_length": max_length}),
        }
    )


@pytest.mark.parametrize(("asked", "expected"), [(None, 48), (48, 48), (7, 7)])
def test_the_limit_is_the_option_or_that_of_the_model(tmp_path: Path, asked: int | None, expected: int):
    tiny_model(tmp_path, max_length=48)
    assert token_limit(configured(tmp_path, asked), unlimited()) == expected


def test_more_tokens_than_positions_are_an_error(tmp_path: Path):
    tiny_model(tmp_path, max_length=48)
    with raises_code("data.max_length_unfit", "max_length", "49", "48"):
        token_limit(configured(tmp_path, 49), unlimited())


def test_without_any_limit_one_must_be_set(tmp_path: Path):
    T5Config(decoder_start_token_id=0).save_pretrained(tmp_path)
    with raises_code("data.max_length_unfit", "max_length"):
        token_limit(configured(tmp_path, None), unlimited())
    assert token_limit(configured(tmp_path, 512), unlimited()) == 512


def test_the_limit_of_a_tokenizer_is_a_default_and_a_small_one_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    tiny_model(tmp_path, max_length=48)
    assert token_limit(configured(tmp_path, None), tiny_tokenizer(max_length=25)) == 25
    assert not caplog.records
    assert token_limit(configured(tmp_path, None), tiny_tokenizer(max_length=20)) == 20
    assert [(record.code, record.args[0], record.args[2]) for record in caplog.records] == [
        ("tokenizer.max_length_small", 20, 48)
    ]
    assert token_limit(configured(tmp_path, 48), tiny_tokenizer(max_length=20)) == 48
    with raises_code("data.max_length_unfit", "49", "48"):
        token_limit(configured(tmp_path, 49), tiny_tokenizer(max_length=20))
    assert len(caplog.records) == 1
