"""The commands around tokenizers: what they print, and what they refuse before anything is read."""

import json
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.tokenizer import tokenizer_train


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("o jogador marcou um golo\num jogo, um golo\n" * 10, encoding="utf-8")
    return str(path)


def train(texts: str, output: Path, **options) -> None:
    options = {"column": "text", "json": True, **options}
    tokenizer_train(texts, out=output, vocab_size=60, **options)


def test_a_tokenizer_is_trained(tmp_path: Path, texts: str, capsys):
    train(texts, tmp_path / "mine")
    made = json.loads(capsys.readouterr().out)
    assert made["num_texts"] == 20


def test_existing_tokenizers_are_replaced_only_with_overwrite(tmp_path: Path, texts: str):
    train(texts, tmp_path / "mine")
    with raises_code("output.exists", "--out", "--overwrite"):
        train(texts, tmp_path / "mine")
    train(texts, tmp_path / "mine", overwrite=True)
    (tmp_path / "mine" / "tokenizer_training.json").unlink()
    with raises_code("output.foreign"):
        train(texts, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "tokenizer.json").exists()


def test_parent_folders_of_the_output_are_created(tmp_path: Path, texts: str):
    train(texts, tmp_path / "a" / "b" / "mine")
    assert (tmp_path / "a" / "b" / "mine" / "tokenizer.json").is_file()


def test_an_output_below_a_file_is_refused_before_anything_is_read(tmp_path: Path, texts: str):
    (tmp_path / "a").write_text("")
    with raises_code("output.not_writable", "--out", "mine"):
        train("no such file", tmp_path / "a" / "b" / "mine")
