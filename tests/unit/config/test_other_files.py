import gzip
import json
import pickle

import pytest
from raised import raises_code

from paratune.config.layers import refuse_other_file
from paratune.config.load import load_config

SETTINGS = {"output_dir": "out", "num_train_epochs": 3, "per_device_train_batch_size": 8}


@pytest.mark.parametrize(
    ("name", "content", "kind", "todo"),
    [
        ("a.csv", b"text,label\nfine,1\n", "data", "data.train"),
        ("a.yaml", b"text,label\nfine: really,1\n", "data", "data.train"),
        ("a.tsv", b"text\tlabel\nfine\t1\n", "data", "data.train"),
        ("a", b"text\tlabel\nfine\t1\n", "data", "data.train"),
        ("a.jsonl", b'{"text": "fine"}\n', "data", "data.train"),
        ("a.json", b'{"text": "fine"}\n{"text": "bad"}\n', "data", "data.train"),
        ("a.json", b'[\n{"text": "fine"}]\n', "data", "data.train"),
        ("training_args.json", json.dumps(SETTINGS, indent=1).encode(), "trainer", "paratune config from-trainer"),
        ("trainer_state.json", b'{"epoch": 1.0, "log_history": []}', "trainer", "paratune config from-trainer"),
        ("config.json", b'{"model_type": "bert", "hidden_size": 8}', "model", "model.name"),
        ("a.yaml", gzip.compress(b"task: mlm", mtime=0), "binary", "YAML"),
        ("training_args.bin", pickle.dumps({"lr": 1}), "binary", "YAML"),
        ("a.yaml", b"\x7fELF\0\0\0", "binary", "YAML"),
    ],
)
def test_another_file_is_recognised_and_not_printed(tmp_path, name, content, kind, todo):
    path = tmp_path / name
    path.write_bytes(content)
    with raises_code("config.other_file", path, todo, path=path, kind=kind) as raised:
        load_config(path)
    assert "fine" not in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) * 2 + 200


@pytest.mark.parametrize(
    "text",
    [
        "task: mlm\n",
        "# text, label\ntask: mlm\n",
        '{"task": "mlm",\n "data": {"train": "a.txt"}}\n',
        "---\ntask: mlm\n",
        "- a, b\n- c\n",
        "task mlm\ndata:\n",
        "{task: mlm, data: {train: a.txt}}\n",
        "",
    ],
)
def test_a_configuration_with_mistakes_is_accepted(tmp_path, text):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    refuse_other_file(path)


def test_a_file_that_cannot_be_opened_is_reported_by_the_reader_of_configurations(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("task: mlm\n")

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("io.open", refuse)
    refuse_other_file(path)
    with raises_code("config.file_unreadable", "Permission denied", path=path):
        load_config(path)


def test_a_file_that_extends_data_is_an_error_with_the_line(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nfine,1\n")
    path = tmp_path / "b.yaml"
    path.write_text("task: mlm\nextends: a.csv\n")
    with raises_code("config.extends", "a.csv", "data.train", line=2):
        load_config(path)


def test_a_file_of_one_text_is_shown_in_part(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("word " * 1000)
    with raises_code("config.syntax", "word word") as raised:
        load_config(path)
    assert len(str(raised.value)) < 300
