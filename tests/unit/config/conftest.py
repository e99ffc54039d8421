"""A valid configuration to change, and the error of loading the result."""

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

Reject = Callable[..., ConfigError]
Complain = Callable[..., str]


@pytest.fixture
def good_text() -> str:
    return GOOD


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A valid file named good.yaml."""
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def reject(tmp_path: Path) -> Reject:
    """Load the good text with a piece replaced and options set; return the error."""

    def load(*overrides: str, swap: tuple[str, str] = ("", ""), text: str | None = None) -> ConfigError:
        path = tmp_path / "x.yaml"
        if swap[0]:
            assert GOOD.count(swap[0]) == 1, "the piece to replace must occur once"
        path.write_text(text if text is not None else GOOD.replace(*swap) if swap[0] else GOOD)
        with pytest.raises(ConfigError) as caught:
            load_config(path, overrides)
        return caught.value

    return load


@pytest.fixture
def complain(tmp_path: Path, reject: Reject) -> Complain:
    """As `reject`; return the message of the error, without the path of the folder."""
    return lambda *overrides, **options: str(reject(*overrides, **options)).replace(f"{tmp_path}/", "")
