"""What `paratune predict` and `paratune evaluate` refuse at once, and how predictions find their rows."""

from pathlib import Path

import numpy as np
import pytest

from paratune.commands.infer import _at_rows, evaluate_command, predict_command
from paratune.errors import ConfigError, DataError


def _predict(output: Path, *, overwrite: bool = False) -> int:
    return predict_command(
        "no-model", "no-file", output, named={}, batch_size=8, device="cpu", overwrite=overwrite, as_json=False
    )


def test_an_output_that_cannot_be_written_is_said_before_the_work(tmp_path: Path):
    taken = tmp_path / "taken.csv"
    taken.write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.txt: its suffix must be one of \.csv, \.jsonl, \.parquet"):
        _predict(tmp_path / "out.txt")
    with pytest.raises(DataError, match=r"taken\.csv exists; choose another --output, or say --overwrite"):
        _predict(taken)
    with pytest.raises(DataError, match=r"nowhere is not a folder; make it first"):
        _predict(tmp_path / "nowhere" / "out.csv")
    # With --overwrite it goes on to read the input, which is not there.
    with pytest.raises(DataError, match="no-file"):
        _predict(taken, overwrite=True)
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_at_least_one_sample(size: int):
    with pytest.raises(ConfigError, match=f"--batch-size {size}: at least 1"):
        evaluate_command("no-model", "no-file", named={}, batch_size=size, device="cpu", as_json=False)


def test_predictions_stand_at_their_rows():
    placed = _at_rows(np.array([0.5, 0.25], dtype=np.float32), np.array([3, 1]), 4)
    assert placed.to_pylist() == [None, 0.25, None, 0.5]
    assert _at_rows(["b", "a"], np.array([1, 0]), 2).to_pylist() == ["a", "b"]
