"""Runs that are thrown away: how many, of which cells, and where."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from paratune.config.load import load_config
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.plan import plan_of
from paratune.sweeps.run import run_warm_up, warm_ups


def _warm_ups(path: Path, more: str) -> list[Cell]:
    path.write_text(path.read_text() + more)
    matrix = read_matrix(path)
    return [cell for _, cell in warm_ups(matrix, plan_of(matrix, cells_of(matrix), []).in_order())]


@pytest.mark.parametrize(
    ("more", "number"),
    [
        ("", 0),  # it is quality that is asked for
        ("repeats: 2\n", 1),
        ("probe: true\n", 1),
        ("probe: true\nwarmup_runs: 0\n", 0),
        ("warmup_runs: 3\n", 3),
    ],
)
def test_how_many(more: str, number: int, matrix_file: Path):
    assert len(_warm_ups(matrix_file, more)) == number


def test_one_for_each_model_and_data_on_most_devices(matrix_file: Path):
    axes = "  nproc: [1, 2]\n  data.num_workers: [0, 1]\n"
    axes += "  model: {a: {model.name: one}, b: {model.name: two}}\nwarmup_runs: 1\n"
    text = matrix_file.read_text().replace("  batch: {global: 4}\n", "  batch: {global: 4}\n  strategy: ddp\n")
    matrix_file.write_text(text)
    found = _warm_ups(matrix_file, axes)
    assert sorted((each.config.model.name, each.record.num_processes) for each in found) == [("one", 2), ("two", 2)]
    assert [each.name for each in found] == ["warmup-1-1", "warmup-2-1"]


def test_what_is_started(matrix_file: Path):
    text = matrix_file.read_text().replace("base:\n", "base:\n  trackers: {tensorboard: {}}\n")
    matrix_file.write_text(text)
    (warm_up,) = _warm_ups(matrix_file, "warmup_runs: 1\nenv: {A: 1}\n")
    Path("runs/m").mkdir(parents=True)
    started: list = []

    def start(words: Sequence[str], log: Path, environment: Mapping[str, str | None]) -> int:
        started.append((list(words), log, dict(environment)))
        return 7

    assert run_warm_up(Path("runs/m"), warm_up, start) == 7
    folder = Path("runs/m/warmup")
    words = ["train", str(folder / "warmup-1-1.yaml"), "--nproc", "1", "--overwrite"]
    assert started == [(words, folder / "log.txt", {"A": "1", "PARATUNE_RECORD_ENVIRONMENT": "A"})]
    config = load_config(folder / "warmup-1-1.yaml").config
    assert (config.run.folder, config.run.name) == ("runs/m/warmup", "warmup-1-1")
    assert (config.measure.probe, config.train.max_steps) == (True, 20)
    assert config.trackers.tensorboard is None
    assert config.data.split is not None  # of a full run all sets are read, so that their tokens are kept
