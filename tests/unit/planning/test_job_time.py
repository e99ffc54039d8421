"""The time of a whole job against arithmetic written out."""

from pathlib import Path

import pytest

from paratune.config.load import load_config
from paratune.planning.figure_range import FigureRange
from paratune.planning.job_time import job_time

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"


def seconds(*overrides: str, num_steps: int = 300) -> FigureRange:
    config = load_config(CONFIG, overrides).config
    return job_time(
        config,
        FigureRange(1000.0, 800.0, 1500.0),
        num_steps=num_steps,
        steps_per_epoch=100.0,
        num_samples=10_000,
        num_tokens=2_000_000,
        forward_share=0.25,
        weight_bytes=1_000_000_000,
        state_bytes=3_000_000_000,
        data_world_size=2,
    )


def test_job_time_adds_startup_evaluations_and_checkpoints() -> None:
    # 1000 s of steps, 25 s to start, 1 s to read 1 GB, 2 s for the tokens of train and as many again for the split's
    # quarter (a fifth of the rows: 0.25 of those trained on), 3 evaluations of a quarter of the rows at a quarter of
    # a step (1000 / 3 x 0.25 x 0.25 each), 3 checkpoints of 3 GB and a model of 1 GB at 0.5 GB/s.
    predicted = seconds("data.split={validation: 0.2}", "evaluate.every=epoch", "checkpoint.every=epoch")
    assert predicted.value == pytest.approx(1000 + 25 + 1 + 2 * 1.25 + 3 * (1000 / 3 * 0.25 * 0.25) + 10 / 0.5)
    assert predicted.low < 0.9 * predicted.value
    assert predicted.high > 1.4 * predicted.value


def test_evaluations_and_checkpoints_follow_their_steps() -> None:
    base = seconds(
        "data.split={validation: 0.2}", "evaluate.every=steps", "evaluate.steps=300", "checkpoint.every=never"
    ).value
    often = seconds(
        "data.split={validation: 0.2}", "evaluate.every=steps", "evaluate.steps=30", "checkpoint.every=never"
    ).value
    assert often - base == pytest.approx(9 * 1000 / 3 * 0.25 * 0.25)  # 10 evaluations in place of 1
    saved = seconds(
        "data.split={validation: 0.2}",
        "evaluate.every=steps",
        "evaluate.steps=300",
        "checkpoint.every=steps",
        "checkpoint.steps=50",
    ).value
    assert saved - base == pytest.approx(5 * 3 / 0.5)  # 6 checkpoints in place of 1


def test_a_teacher_is_applied_once_to_all_training_rows(tmp_path: Path) -> None:
    # By one of 2 processes: 2 times a quarter of an epoch of 1000 / 3 s for a student of its size, 1 GB; a missing
    # teacher counts as such a one. The file of 5 MB adds 0.005 of that.
    (tmp_path / "model.safetensors").write_bytes(bytes(5_000_000))
    base = seconds("data.split={validation: 0.2}").value
    taught = seconds("data.split={validation: 0.2}", f"distil.teacher=[{tmp_path},{tmp_path / 'absent'}]").value
    assert taught - base == pytest.approx(2 * 1000 / 3 * 0.25 * 1.005)
