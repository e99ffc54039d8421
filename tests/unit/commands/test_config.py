"""`paratune config show|schema|init`."""

import json
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.config import init, schema, show
from paratune.config.load import load_config


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A configuration file that `config init` wrote."""
    path = tmp_path / "mine.yaml"
    init(path, train=str(_reviews(tmp_path)))
    assert f"paratune data {path}" in capsys.readouterr().out
    return path


def test_init_overwrites_no_file_and_needs_data(written: Path, tmp_path: Path):
    before = written.read_text()
    with raises_code("output.exists"):
        init(written, train="reviews.csv")
    assert written.read_text() == before
    with raises_code("output.no_folder"):
        init(tmp_path / "nowhere" / "mine.yaml", train=str(tmp_path / "reviews.csv"))
    with raises_code("cli.argument_missing", "--train"):
        init(tmp_path / "other.yaml")


def test_show_prints_a_configuration_that_loads_as_the_same(written: Path, tmp_path: Path, capsys):
    show(written, set_=["train.learning_rate=1e-4"])
    second = tmp_path / "again" / "mine.yaml"
    second.parent.mkdir()
    second.write_text(capsys.readouterr().out)
    assert load_config(second).values == load_config(written, ["train.learning_rate=1e-4"]).values


def test_show_as_json_contains_the_origin_of_values(written: Path, capsys):
    show(written, set_=["train.learning_rate=1e-4"], json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["train"]["learning_rate"] == 1e-4
    assert shown["origin"]["train.learning_rate"] == "--set"


def test_the_schema_is_json(capsys):
    schema()
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def _reviews(folder: Path) -> Path:
    path = folder / "reviews.csv"
    rows = [f"the film number {row},{('good', 'bad')[row % 2]}" for row in range(120)]
    path.write_text("\n".join(["review,sentiment", *rows]) + "\n")
    return path


def test_init_from_data_writes_a_short_file_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    _reviews(tmp_path)
    init(Path("my.yaml"), train="reviews.csv", model="google-bert/bert-base-uncased", json=True)

    shown = json.loads(capsys.readouterr().out)
    assert shown["task"] == "classification"
    assert len(Path("my.yaml").read_text().splitlines()) <= 24
    config = load_config(Path("my.yaml")).config
    assert config.task.labels == ["bad", "good"]
    assert (config.data.columns.text, config.data.columns.label) == ("review", "sentiment")
    assert (config.data.train, config.model.name) == ("reviews.csv", "google-bert/bert-base-uncased")
    assert config.batch.global_ == 8  # 120 rows: the largest power of two with 10 batches


def test_init_with_a_validation_file_splits_nothing(tmp_path: Path):
    train, validation = _reviews(tmp_path), tmp_path / "validation.csv"
    validation.write_text("review,sentiment\nan odd film,odd\na good one,good\n")
    init(tmp_path / "my.yaml", train=str(train), validation=str(validation))
    config = load_config(tmp_path / "my.yaml").config
    assert (config.data.validation, config.data.split) == (str(validation), None)
    assert config.task.labels == ["bad", "good", "odd"]


def test_init_reports_all_missing_files_at_once_and_writes_nothing(tmp_path: Path):
    with raises_code("data.not_found", "a.csv", "b.csv", "nowhere") as raised:
        init(tmp_path / "my.yaml", train=str(tmp_path / "a.csv"), test=str(tmp_path / "b.csv"), model="./nowhere")
    assert raised.value.codes == ("data.not_found", "data.not_found", "model.not_found")
    assert list(tmp_path.iterdir()) == []


def test_init_needs_data_or_the_template(tmp_path: Path):
    with raises_code("cli.argument_missing", option="--train"):
        init(tmp_path / "my.yaml", task="classification")
