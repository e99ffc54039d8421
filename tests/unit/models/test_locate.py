"""The folder of a name: for a run folder, that of its model."""

from pathlib import Path

import pytest
from raised import raises_code
from tiny import tiny_config, tiny_model

from paratune.config.feasibility import num_layers
from paratune.config.sections import ModelOptions
from paratune.models.config import load_config
from paratune.models.load import require_weights
from paratune.models.locate import locate
from paratune.models.tokenizer import load_tokenizer
from paratune.records import RUN_FILE, write_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_json(tmp_path / RUN_FILE, {"kind": "full"})
    return tmp_path


def test_a_run_gives_the_folder_of_its_model(run: Path):
    tiny_model(run / "model")
    assert locate(str(run)) == str(run / "model")
    model = ModelOptions(name=str(run), tokenizer=str(run))
    assert load_config(model).hidden_size == tiny_config().hidden_size
    assert len(load_tokenizer(model)) == tiny_config().vocab_size
    assert num_layers(model) == tiny_config().num_hidden_layers
    require_weights(model)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("full", "run.not_finished"),
        ("probe", "run.not_finished"),
        ("form", "run.not_finished"),
        ("baseline", "baseline.no_model"),
    ],
)
def test_a_run_without_a_model_is_refused(run: Path, kind: str, code: str):
    write_json(run / RUN_FILE, {"kind": kind})
    with raises_code(code, run) as error:
        locate(str(run))
    assert ("--resume" in str(error.value)) == (kind == "full")
    assert num_layers(ModelOptions(name=str(run))) is None


def test_another_folder_does_not_change(tmp_path: Path):
    assert locate(str(tmp_path)) == str(tmp_path)
