"""A folder with a tiny model, small files and a configuration, for each test; commands run in it as for a user."""

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness import Cli  # noqa: E402
from tiny import tiny_model  # noqa: E402
from world import CONFIG, write_data  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
# No empty entry: it would mean the working directory.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer, and the data, created once."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model(folder / "model")
    write_data(folder / "data.csv")
    return folder


@pytest.fixture
def world(tmp_path: Path, tiny_folder: Path) -> Path:
    """`model/`, `data.csv` (200 rows: id, text, label, score) and `c.yaml`; runs are in `runs/`, tokens in `cache/`."""
    (tmp_path / "model").symlink_to(tiny_folder / "model")
    shutil.copy(tiny_folder / "data.csv", tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def cli(world: Path) -> Cli:
    return Cli(world, {"PARATUNE_CACHE": str(world / "cache")})
