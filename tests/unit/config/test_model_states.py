"""Bytes of model states by the traits of a strategy, held to figure 1 of the paper on ZeRO."""

from types import SimpleNamespace

import pytest

from paratune.config.model_states import NumberBytes, adam_bytes, model_state_bytes, shard_count
from paratune.config.traits import strategy_traits

PARAMETERS = 7_500_000_000


@pytest.mark.parametrize(
    ("kind", "options", "gb"),
    [
        # Rajbhandari et al., SC 2020, figure 1: 7.5e9 parameters, 64 ranks, K = 12.
        ("ddp", {}, 120.0),
        ("zero1", {}, 31.4),
        ("zero2", {}, 16.6),
        ("zero3", {}, 1.9),
        ("deepspeed", {"stage": 0}, 120.0),
        ("deepspeed", {"stage": 1}, 31.4),
        ("deepspeed", {"stage": 2}, 16.6),
        ("deepspeed", {"stage": 3}, 1.9),
        # 120 / 8: all states shared by the ranks of a group, and by the stages of a pipeline.
        ("hsdp", {"shard_size": 8}, 15.0),
        ("hsdp", {}, 15.0),
        ("pipeline", {"stages": 8}, 15.0),
    ],
)
def test_states_are_those_of_figure_1(kind: str, options: dict[str, int], gb: float):
    traits = strategy_traits(kind, options)
    assert traits is not None
    num_shards = shard_count(traits, 64, ranks_per_node=8)
    states = model_state_bytes(PARAMETERS, shards=traits.shards, num_shards=num_shards, numbers=NumberBytes(2, 2, 12))
    assert states / 1e9 == pytest.approx(gb, abs=0.05)


def test_states_in_full_precision_are_four_numbers_a_parameter():
    assert (adam_bytes(), adam_bytes(8)) == (NumberBytes(4, 4, 8), NumberBytes(8, 8, 16))
    assert model_state_bytes(10) == 40 + 40 + 80


def test_frozen_weights_have_neither_gradients_nor_moments():
    assert model_state_bytes(10, num_trained=3) == 40 + 12 + 24


def test_uneven_shards_are_rounded_up():
    states = model_state_bytes(10, shards=("weights", "optimizer"), num_shards=3)
    assert states == 14 + 40 + 27  # 40 / 3 and 80 / 3


def test_one_shard_has_all_states():
    traits = SimpleNamespace(cuts_blocks=False, shards_within_node=False, shard_size=None)
    assert shard_count(traits, 1, 1) == 1  # type: ignore[arg-type]
    assert model_state_bytes(10, shards=("weights",), num_shards=1) == model_state_bytes(10)
