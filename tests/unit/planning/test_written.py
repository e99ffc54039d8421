"""The written configuration: its base, its options when it is read again, and refused paths."""

from pathlib import Path

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.config.sections import Config
from paratune.config.traits import Traits
from paratune.models.task_model import PackedEntry
from paratune.planning.enumerate import PlanRequest, list_options, resized
from paratune.planning.job import PlannedJob
from paratune.planning.lengths import lengths_of_rows
from paratune.planning.machine import find_machine
from paratune.planning.memory import Memory
from paratune.planning.predict import Prediction
from paratune.planning.written import check_writable, write_config

BASE = """
task: {kind: classification, labels: [no, yes]}
data: {train: rows.csv, columns: {text: text, label: label}}
model: {name: model}
train: {epochs: 1}
"""


def _no_traits(kind: str) -> Traits:
    raise AssertionError(kind)


def written(folder: Path, base: str, *overrides: str, strategy: str, size: int | None = None) -> tuple[Config, str]:
    """Return what the written file is read as, and its text."""
    source = folder / "configs" / "base.yaml"
    source.parent.mkdir()
    source.write_text(BASE + base)
    loaded = load_config(source, overrides)
    machine = find_machine("a100-40gb")
    job = PlannedJob(
        loaded.config, tiny_config(num_layers=4), lengths_of_rows(np.array([8] * 100)), 100, PackedEntry(), None
    )
    asked = PlanRequest((4,), (strategy,), ("bf16",))
    options, impossible = list_options(job, loaded, machine, asked, _no_traits)
    assert not impossible
    option = options[0] if size is None else resized(options[0], size)
    memory = Memory({"weights": 1}, {}, "backward")
    chosen = Prediction(option, memory, True, 1, None, None, None, None, None, machine)
    message = write_config(folder / "best.yaml", loaded, overrides, chosen)
    assert message.endswith(f"start it with: paratune train {folder / 'best.yaml'} --nproc 4")
    return load_config(folder / "best.yaml").config, (folder / "best.yaml").read_text()


def test_written_config_extends_the_planned_one(tmp_path: Path) -> None:
    config, text = written(tmp_path, "batch: {global: 64}", strategy="zero3", size=8)
    assert "extends: configs/base.yaml" in text
    assert text.startswith(f"# paratune plan {tmp_path / 'configs' / 'base.yaml'}: zero3 on 4 devices\n")
    assert (config.strategy.kind, config.precision, config.run.name) == ("zero3", "bf16", "best")
    assert (config.batch.global_, config.batch.micro_batch_size) == (64, 8)


def test_written_config_contains_the_overrides(tmp_path: Path) -> None:
    config, text = written(
        tmp_path, "batch: {global: 64}", "train.learning_rate=3e-5", "batch.global=32", strategy="ddp"
    )
    assert (config.train.learning_rate, config.batch.global_, config.batch.micro_batch_size) == (3e-5, 32, 8)
    assert "extends" in text


def test_options_of_the_previous_strategy_are_removed(tmp_path: Path) -> None:
    base = "batch: {global: 64}\nstrategy: {kind: deepspeed, stage: 3}"
    config, text = written(tmp_path, base, strategy="pipeline:4")
    assert config.strategy.model_dump() == {
        "kind": "pipeline",
        "stages": 4,
        "schedule": "1f1b",
        "chunks": None,
        "balance": "estimated",
    }
    assert "extends" not in text  # a mapping on top of a mapping would keep the stage
    assert "epochs: 1" in text


def test_strategy_without_options_replaces_one_with_options(tmp_path: Path) -> None:
    base = "batch: {global: 64}\nstrategy: {kind: deepspeed, stage: 3}"
    config, text = written(tmp_path, base, strategy="ddp")
    assert config.strategy.kind == "ddp"
    assert "extends" in text


def test_batch_per_device_stays_per_device(tmp_path: Path) -> None:
    config, _ = written(tmp_path, "batch: {per_device: 16, grad_accum_steps: 2}", strategy="ddp", size=8)
    assert (config.batch.per_device, config.batch.grad_accum_steps, config.batch.global_) == (8, 4, None)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("there.yaml", ("output.exists",)),
        ("best.json", ("output.format",)),
        ("nowhere/best.yaml", ("output.no_folder",)),
    ],
)
def test_unwritable_path_is_refused_first(tmp_path: Path, name: str, refused: tuple[str, ...]) -> None:
    (tmp_path / "there.yaml").write_text("kept")
    with raises_code(*refused):
        check_writable(tmp_path / name)
    assert (tmp_path / "there.yaml").read_text() == "kept"


def test_nothing_is_written_without_a_recommendation(tmp_path: Path) -> None:
    source = tmp_path / "base.yaml"
    source.write_text(BASE + "batch: {global: 64}")
    with raises_code("plan.nothing_to_write", option="--write"):
        write_config(tmp_path / "best.yaml", load_config(source), [], None)
    assert not (tmp_path / "best.yaml").exists()
