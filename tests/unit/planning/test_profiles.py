"""Few micro-batches are traced; the others follow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.config.strategy_sections import PipelineOptions, SingleOptions, strategy_options
from paratune.config.traits import TRAITS, strategy_traits
from paratune.errors import ConfigError
from paratune.models.task_model import PackedEntry
from paratune.planning import predict as profiles_module
from paratune.planning.job import PlannedJob, lengths_of_rows
from paratune.planning.predict import Profiles
from paratune.planning.profile import Shape
from paratune.planning.states import PredictionSetup
from paratune.precision import POLICIES

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
SETUP = PredictionSetup(SingleOptions(kind="single"), TRAITS["single"], POLICIES["fp32"], 1, 1, 1, 1)


def padded(rows: int, length: int = 12) -> Shape:
    return Shape((*(length,) * (rows - 1), length - 1))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the numbers of rows that are traced, and return this list."""
    num_rows: list[int] = []
    plain = profiles_module.profile

    def profile(config: Any, task: Any, shape: Shape, *args: Any, **options: Any) -> Any:
        num_rows.append(len(shape.lengths))
        return plain(config, task, shape, *args, **options)

    monkeypatch.setattr(profiles_module, "profile", profile)
    return num_rows


def test_only_two_and_six_rows_are_traced(traced: list[int]) -> None:
    job = PlannedJob(
        load_config(CONFIG).config, tiny_config(), lengths_of_rows(np.array([12] * 9)), 9, PackedEntry(), None
    )
    profiles = Profiles(job, is_cuda=True)
    batch_bytes = {rows: profiles.of(padded(rows), SETUP).batch_bytes for rows in (64, 32, 4, 2, 1, 64)}
    assert traced == [2, 6, 1]
    assert batch_bytes[64] == 2 * batch_bytes[32] == 16 * batch_bytes[4]


def test_rows_of_other_lengths_are_traced(traced: list[int]) -> None:
    job = PlannedJob(
        load_config(CONFIG).config, tiny_config(), lengths_of_rows(np.array([12] * 9)), 9, PackedEntry(), None
    )
    Profiles(job, is_cuda=True).of(Shape((12, 3, 12, 12, 12)), SETUP)
    assert traced == [5]


def test_a_model_that_cannot_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any, **options: Any) -> Any:
        raise RuntimeError("Cannot call numel() on tensor with symbolic sizes\nand more")

    monkeypatch.setattr(profiles_module, "profile", refuses)
    job = PlannedJob(
        load_config(CONFIG).config, tiny_config(), lengths_of_rows(np.array([12] * 9)), 9, PackedEntry(), None
    )
    with raises_code("plan.not_traced", "RuntimeError", "Cannot call numel() on tensor with symbolic sizes"):
        Profiles(job, is_cuda=True).of(padded(2), SETUP)

    def wrong(*args: Any, **options: Any) -> Any:
        raise ConfigError(
            "train.activation_checkpointing: 9 is more than the 2 blocks of this model", code="model.unsupported"
        )

    monkeypatch.setattr(profiles_module, "profile", wrong)
    with raises_code("model.unsupported", "9"):
        Profiles(job, is_cuda=True).of(padded(2), SETUP)


def test_the_division_of_a_model_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    plain = profiles_module.profile

    def profile(*args: Any, with_division: bool, **options: Any) -> Any:
        asked.append(with_division)
        return plain(*args, with_division=with_division, **options)

    monkeypatch.setattr(profiles_module, "profile", profile)
    pipeline = PipelineOptions(kind="pipeline")
    traits = strategy_traits("pipeline", strategy_options(pipeline))
    assert traits is not None
    setup = PredictionSetup(pipeline, traits, POLICIES["fp32"], 2, 2, 1, 2)
    job = PlannedJob(load_config(CONFIG).config, tiny_config(), lengths_of_rows(np.array([12])), 1, PackedEntry(), None)
    profiles = Profiles(job, is_cuda=True)
    divisions = [profiles.of(padded(rows), setup).division for rows in (1, 2, 6)]
    assert asked == [True, False, False]  # the third follows from two traces
    assert divisions[0].costs
    assert all(each is divisions[0] for each in divisions)


def test_weights_stay_in_the_dtype_of_their_file_where_autocast_has_it_and_the_strategy_leaves_them() -> None:
    loaded = load_config(CONFIG, ["train.freeze_encoder=true"]).config
    lengths, bf16 = lengths_of_rows(np.array([12])), torch.bfloat16
    job = PlannedJob(loaded, tiny_config(), lengths, 1, PackedEntry(), None, stored_dtype=bf16)
    profiles = Profiles(job, is_cuda=True)

    def held(kind: str, policy: str) -> set[str]:
        found = profiles.of(padded(2), replace(SETUP, traits=TRAITS[kind], precision=POLICIES[policy]))
        assert {parameter.stored_bytes for parameter in found.parameters} <= {None, 2}
        return {parameter.name for parameter in found.parameters if parameter.stored_bytes}

    frozen = held("single", "bf16")
    assert "hf.bert.encoder.layer.0.attention.self.query.weight" in frozen
    assert [name for name in frozen if "embeddings" in name or "LayerNorm" in name or "classifier" in name] == []
    assert held("deepspeed", "bf16") == held("single", "fp32") == held("single", "fp16") == set()
