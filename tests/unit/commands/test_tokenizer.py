"""The commands around tokenizers: what they print, and what they refuse before anything is read."""

import json
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.tokenizer import compare_command, train_command
from paratune.tokenizer.train import TokenizerRecipe


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text("o jogador marcou um golo\num jogo, um golo\n" * 10, encoding="utf-8")
    return str(path)


def train(texts: str, output: Path, **options) -> int:
    options = {"column": "text", "overwrite": False, "as_json": True, **options}
    return train_command([texts], output, TokenizerRecipe(vocab_size=60), **options)


def test_a_tokenizer_is_trained_and_compared(tmp_path: Path, texts: str, capsys):
    assert train(texts, tmp_path / "mine") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["num_texts"] == 20
    assert compare_command([str(tmp_path / "mine")], [texts], column="text", limit=2, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)["tokenizers"][0]
    assert (found["num_texts"], found["num_words"], found["unknown_share"]) == (2, 9, 0)


def test_nothing_is_replaced_unless_asked(tmp_path: Path, texts: str):
    train(texts, tmp_path / "mine")
    with raises_code("output.exists", "--output", "--overwrite"):
        train(texts, tmp_path / "mine")
    assert train(texts, tmp_path / "mine", overwrite=True) == 0
    (tmp_path / "mine" / "tokenizer_training.json").unlink()
    with raises_code("output.foreign"):
        train(texts, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "tokenizer.json").exists()


def test_folders_above_the_output_are_made(tmp_path: Path, texts: str):
    assert train(texts, tmp_path / "a" / "b" / "mine") == 0
    assert (tmp_path / "a" / "b" / "mine" / "tokenizer.json").is_file()


def test_an_output_below_a_file_is_refused_before_anything_is_read(tmp_path: Path, texts: str):
    (tmp_path / "a").write_text("")
    with raises_code("output.not_writable", "--output", "mine"):
        train("no such file", tmp_path / "a" / "b" / "mine")


def test_comparing_asks_for_each_once(texts: str):
    with raises_code("cli.named_twice"):
        compare_command(["a", "a"], [texts], column="text", limit=1, as_json=True)
    with raises_code("cli.out_of_range", option="--limit", value=0):
        compare_command(["a"], [texts], column="text", limit=0, as_json=True)
