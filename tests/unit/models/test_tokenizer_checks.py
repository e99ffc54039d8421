"""Tokenizers that would fail at the first text are refused when they are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from tiny import SPECIAL, tiny_tokenizer
from tokenizer_kinds import own_tokenizer
from transformers import AlbertConfig, RoCBertConfig

from paratune.config.sections import ModelOptions
from paratune.models.tokenizer import load_tokenizer

LETTERS = {token: number for number, token in enumerate([*(token for token in SPECIAL if token != "[UNK]"), *"ab"])}
WORDPIECE = {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}


def save(folder: Path, **values: Any) -> ModelOptions:
    tiny_tokenizer(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": [], "post_processor": None} | values))
    return ModelOptions(name=str(folder))


@pytest.mark.parametrize(
    "model",
    [
        {**WORDPIECE, "vocab": LETTERS, "unk_token": "[UNK]"},
        {"type": "WordLevel", "vocab": LETTERS, "unk_token": "[UNK]"},
        {"type": "Unigram", "unk_id": None, "vocab": [[token, -1.0] for token in LETTERS], "byte_fallback": False},
    ],
    ids=lambda model: model["type"],
)
def test_a_vocabulary_without_its_unknown_token_is_refused(tmp_path: Path, model: dict[str, Any]):
    options = save(tmp_path, model=model)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"unk_token": None}))
    with raises_code("tokenizer.token_missing", str(tmp_path), source=str(tmp_path)):
        load_tokenizer(options)


def test_a_vocabulary_with_its_unknown_token_is_loaded(tmp_path: Path):
    vocabulary = LETTERS | {"[UNK]": len(LETTERS)}
    assert load_tokenizer(save(tmp_path, model={**WORDPIECE, "vocab": vocabulary, "unk_token": "[UNK]"})) is not None


@pytest.mark.parametrize("limit", ["abc", [3], 0, -1, 2, None])
def test_a_limit_without_room_for_text_is_refused(tmp_path: Path, limit: Any):
    tiny_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": limit}))
    if limit is None:  # transformers takes it for no limit
        assert load_tokenizer(ModelOptions(name=str(tmp_path))).model_max_length > 10**9
        return
    with raises_code("data.max_length_unfit", str(path), value=limit):
        load_tokenizer(ModelOptions(name=str(tmp_path)))


def test_a_tokenizer_that_makes_more_than_tokens_is_refused(tmp_path: Path):
    RoCBertConfig().save_pretrained(tmp_path)
    own_tokenizer("roc_bert", [], tmp_path).save_pretrained(tmp_path)
    with raises_code("tokenizer.more_inputs", value=["input_pronunciation_ids", "input_shape_ids"]):
        load_tokenizer(ModelOptions(name=str(tmp_path)))


@pytest.mark.parametrize("file", ["spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model"])
def test_a_vocabulary_that_cannot_be_converted_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
):
    AlbertConfig().save_pretrained(tmp_path)
    (tmp_path / file).write_bytes(b"")
    monkeypatch.setattr("transformers.utils.is_sentencepiece_available", lambda: False)
    with raises_code("tokenizer.unsupported", "pip install sentencepiece", str(tmp_path), value=file):
        load_tokenizer(ModelOptions(name=str(tmp_path)))
    tiny_tokenizer(tmp_path)  # with tokenizer.json it is not read
    assert load_tokenizer(ModelOptions(name=str(tmp_path))).is_fast
