from pathlib import Path

import pytest
from raised import raises_code

from paratune.config.load import load_config
from paratune.training.steps import check_steps

FILE = """
task: {kind: classification, labels: [a, b]}
data:
  train: t.csv
  validation: v.csv
  columns: {text: t, label: l}
model: {name: m}
train: {epochs: 1}
batch: {global: 4}
"""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["train.warmup_steps=11"], "train.warmup_steps: 11"),
        (["evaluate.every=steps", "evaluate.steps=20"], "evaluate.steps: 20"),
        (["checkpoint.every=steps", "checkpoint.steps=30"], "checkpoint.steps: 30"),
    ],
)
def test_steps_beyond_the_end_of_a_run_are_refused(tmp_path: Path, settings: list[str], named: str):
    (tmp_path / "c.yaml").write_text(FILE)
    config = load_config(tmp_path / "c.yaml", settings).config
    with raises_code("config.no_effect", named, "10"):
        check_steps(config, 10)
    check_steps(config, 30)
