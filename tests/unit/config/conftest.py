"""A whole configuration to spoil, and what loading it says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paratune.config.load import load_config
from paratune.errors import ConfigError

GOOD = """\
task:
  kind: classification
  labels: [negative, positive]
data:
  train: train.csv
  columns:
    text: sentence
    label: label
  split:
    validation: 0.2
model:
  name: some-model
train:
  epochs: 2
batch:
  global: 32
"""

Complain = Callable[..., str]


@pytest.fixture
def good_text() -> str:
    return GOOD


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A file with nothing wrong, named good.yaml."""
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def complain(tmp_path: Path) -> Complain:
    """Load the good text with pieces replaced and options set; return the text of the error, without the path."""

    def load(*overrides: str, swap: tuple[str, str] = ("", ""), text: str | None = None) -> str:
        path = tmp_path / "x.yaml"
        if swap[0]:
            assert GOOD.count(swap[0]) == 1, "the piece to replace must be there once"
        path.write_text(text if text is not None else GOOD.replace(*swap) if swap[0] else GOOD)
        with pytest.raises(ConfigError) as caught:
            load_config(path, overrides)
        return str(caught.value).replace(str(tmp_path) + "/", "")

    return load
