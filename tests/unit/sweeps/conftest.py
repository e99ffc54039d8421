"""A small matrix file in a folder of its own."""

from pathlib import Path

import pytest

MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {max_steps: 3}
  batch: {global: 4}
axes:
  train.learning_rate: [1e-4, 1e-5]
  run.seed: [41, 42]
"""


@pytest.fixture
def matrix_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    Path("data.csv").write_text("text,label\nx,a\n")
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX)
    return path
