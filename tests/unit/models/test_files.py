"""Changed or missing files of a saved model are an error in all commands that read it."""

import json
import shutil
from pathlib import Path

import pytest
from raised import raises_code
from tiny import tiny_model, tiny_tokenizer
from transformers import BertTokenizer

from paratune.config.sections import ModelOptions
from paratune.infer.trained import NamedColumns, load_trained
from paratune.models.load import Head, load_model, require_weights
from paratune.models.locate import check_files, file_problems
from paratune.models.save import save_model
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.records.own import TASK_FILE


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    start = tmp_path / "start"
    tiny_model(start)
    tokenizer = tiny_tokenizer(start)
    head = Head("AutoModelForSequenceClassification", 2, ("a", "b"), "single_label_classification")
    model = load_model(ModelOptions(name=str(start)), "classification", head, tokenizer, POLICIES["fp32"], 0)
    tensors = {name: value.detach() for name, value in model.named_parameters()}
    save_model(tmp_path / "model", model, tokenizer, tensors, {"columns": {"text": "text"}})
    return tmp_path / "model"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def change_weight(folder: Path) -> None:
    flip(folder / "model.safetensors", -5)


def change_word(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"good"', '"gool"', 1))


def cut(folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(path.read_bytes()[:-2])


def delete_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


CASES = [
    (change_weight, "model.safetensors", "SHA-256"),
    (change_word, "tokenizer.json", "SHA-256"),
    (cut, "config.json", "bytes"),
    (delete_tokenizer, "tokenizer.json", "missing"),
]


@pytest.mark.parametrize(("damage", "name", "problem"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_changed_file_is_reported(saved: Path, damage, name: str, problem: str):
    check_files(saved)
    damage(saved)
    [(actual, text)] = file_problems(saved)
    assert actual == name
    assert problem in text


def test_using_or_training_a_saved_model_checks_its_files(saved: Path):
    model = ModelOptions(name=str(saved))
    load_trained(str(saved), NamedColumns(), "cpu")
    require_weights(model)
    change_weight(saved)
    for look in (lambda: load_trained(str(saved), NamedColumns(), "cpu"), lambda: require_weights(model)):
        with raises_code("model.changed", "model.safetensors"):
            look()


def test_a_change_on_purpose_is_allowed_by_deleting_its_entry(saved: Path):
    change_word(saved)
    record = json.loads((saved / TASK_FILE).read_text())
    del record["files"]["tokenizer.json"]
    (saved / TASK_FILE).write_text(json.dumps(record))
    check_files(saved)


@pytest.mark.parametrize("content", ["{}", '{"task": {}}', None])
def test_models_of_other_programs_and_older_versions_pass(saved: Path, content: str | None):
    delete_tokenizer(saved)
    (saved / TASK_FILE).unlink()
    if content is not None:
        (saved / TASK_FILE).write_text(content)
    check_files(saved)


@pytest.mark.parametrize("content", ["[]", '{"files": 1}', '{"files": {"config.json": 3}}', "{"])
def test_a_damaged_record_is_an_error(saved: Path, content: str):
    (saved / TASK_FILE).write_text(content)
    with raises_code("run.damaged", TASK_FILE):
        check_files(saved)


def test_a_tokenizer_without_vocabulary_files_is_an_error(tmp_path: Path):
    # transformers 5 makes a BertTokenizer of five special tokens of such a folder.
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good"]
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(tmp_path / "whole")
    load_tokenizer(ModelOptions(name=str(tmp_path / "whole")))
    shutil.copytree(tmp_path / "whole", tmp_path / "torn")
    (tmp_path / "torn" / "tokenizer.json").unlink()
    with raises_code("model.files_missing", "torn", "tokenizer.json", "vocab.txt"):
        load_tokenizer(ModelOptions(name=str(tmp_path / "torn")))
    (tmp_path / "torn" / "vocab.txt").write_text("\n".join(words))
    assert len(load_tokenizer(ModelOptions(name=str(tmp_path / "torn")))) == len(words)
