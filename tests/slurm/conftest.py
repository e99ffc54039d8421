"""A toy Slurm of three nodes for all tests of this folder, and a folder in which commands run as for a user."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from tiny import tiny_model  # noqa: E402
from world import CONFIG, write_data  # noqa: E402

from paratune.cluster import toy  # noqa: E402
from paratune.errors import MissingDependency  # noqa: E402

SITE = """\
time: "30:00"
save_before_s: 60
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def cluster() -> Iterator[toy.ToyCluster]:
    folder = Path(tempfile.mkdtemp(prefix="paratune-slurm-", dir="/tmp"))  # sockets have short names
    try:
        running = toy.start(folder, 3)
    except MissingDependency as error:
        shutil.rmtree(folder)
        pytest.skip(f"{error}; make test-slurm installs it")
    before = dict(os.environ)
    os.environ.update(running.environment)
    # Jobs inherit it, as on a cluster.
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PARATUNE_CACHE=str(folder / "cache"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent / "e2e"), os.environ.get("PYTHONPATH")]))
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    yield running
    toy.stop(running)
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def world(cluster: toy.ToyCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model/`, `data.csv`, `c.yaml` (30 steps), `site.yaml`; its name has a space and a quote, as some do."""
    folder = tmp_path_factory.mktemp("slurm") / "my $work"
    folder.mkdir()
    tiny_model(folder / "model")
    write_data(folder / "data.csv")
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "site.yaml").write_text(SITE)
    return folder


@pytest.fixture
def brake(world: Path) -> Iterator[Path]:
    """The file that slows down runs of outside:Slow; removed at the end. Without it these runs are short."""
    path = world / "brake"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def paratune(world: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the command line in the folder."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-P", "-m", "paratune", *arguments],
            cwd=world,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run
