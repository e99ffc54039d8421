"""The step at which a checkpoint of Hugging Face's Trainer continues; transformers writes the files."""

import json
from pathlib import Path

import pytest
from raised import check_logged, raises_code
from transformers import TrainerState

from paratune.config.sections import Config
from paratune.training.steps import STATE_FILE, first_step


def config_of(folder: Path, *, continues: bool = True) -> Config:
    return Config.model_validate(
        {
            "task": {"kind": "regression"},
            "data": {"train": "a.csv", "columns": {"text": "t", "label": "l"}},
            "model": {"name": str(folder)},
            "batch": {"global": 2},
            "train": {"epochs": 1.0, "continue_trainer": continues},
        }
    )


def test_the_step_is_that_of_the_trainer_and_differences_are_named(tmp_path, caplog):
    TrainerState(global_step=500, max_steps=1500, epoch=1.25).save_to_json(str(tmp_path / STATE_FILE))
    assert first_step(config_of(tmp_path, continues=False), 1000, 400) == 0
    assert first_step(config_of(tmp_path), 1000, 400, logs=False) == 500
    assert caplog.records == []
    assert first_step(config_of(tmp_path), 1500, 400) == 500
    check_logged(caplog, "trainer.continued", 500)
    assert "1500" not in caplog.text  # as many steps as the Trainer planned, and the same epoch
    assert first_step(config_of(tmp_path), 1000, 500) == 500
    check_logged(caplog, "trainer.continued", 1500, 1000, "1.25", "1.00")


@pytest.mark.parametrize("content", [[], {}, {"global_step": "500"}, {"global_step": 0}, {"global_step": True}])
def test_a_state_without_a_step_is_damaged(tmp_path, content):
    (tmp_path / STATE_FILE).write_text(json.dumps(content))
    with raises_code("run.damaged", tmp_path):
        first_step(config_of(tmp_path), 1000, 400)


def test_other_folders_and_finished_trainings_are_refused(tmp_path):
    with raises_code("trainer.checkpoint", value=str(tmp_path)):
        first_step(config_of(tmp_path), 1000, 400)
    (tmp_path / STATE_FILE).write_text(json.dumps({"global_step": 1000}))
    with raises_code("trainer.checkpoint", step=1000, num_steps=1000):
        first_step(config_of(tmp_path), 1000, 400)
