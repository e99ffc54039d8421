"""The formula by written-out arithmetic, and beside what a trace finds."""

from typing import Any

import pytest
import torch
from transformers import BertConfig

from paratune.config.sections import Train
from paratune.config.strategy_sections import PipelineOptions, SingleOptions, Zero3Options
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.planning.approximate import approximate
from paratune.planning.memory import peak
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.setup import PredictionSetup
from paratune.precision import POLICIES, Precision

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
CONFIG = BertConfig(vocab_size=1000, max_position_embeddings=64, pad_token_id=0, **SIZES)
HALF = Precision("all in 16 bits", torch.bfloat16, None)
ROWS, LENGTH = 4, 64


def approximated(precision: Precision = POLICIES["fp32"], **options: Any) -> Profile:
    return approximate(CONFIG, TASK, Shape((LENGTH,) * ROWS), precision, why="for the test", **options)


def test_layer_in_16_bits_has_the_bytes_of_the_paper() -> None:
    # s b h (34 + 5 a s / h) with s = 64, b = 4, h = 64, a = 4, four times.
    layer = 64 * 4 * 64 * 34 + 5 * 4 * 64**2 * 4
    assert approximated(HALF).saved_by_block == (layer,) * 4
    # A block that is computed again keeps its input, 2 bytes each.
    assert approximated(HALF, activation_checkpointing=2).saved_by_block == (2 * 64 * 4 * 64, layer) * 2


def test_formula_is_near_the_trace_of_eager_attention() -> None:
    shape = Shape((LENGTH,) * ROWS)
    traced = profile(CONFIG, TASK, shape, POLICIES["fp32"], attention="eager")
    by_formula = approximated()
    assert by_formula.saved_bytes == pytest.approx(traced.saved_bytes, rel=0.1)
    assert [(parameter.name, parameter.shape, parameter.block) for parameter in by_formula.parameters] == [
        (parameter.name, parameter.shape, parameter.block) for parameter in traced.parameters
    ]
    assert by_formula.forward.flops == pytest.approx(traced.forward.flops, rel=0.05)
    assert not traced.is_approximate
    assert by_formula.is_approximate


@pytest.mark.parametrize(
    "strategy",
    [SingleOptions(kind="single"), Zero3Options(kind="zero3"), PipelineOptions(kind="pipeline", stages=2)],
)
@pytest.mark.parametrize("every", [None, 1])
def test_peak_by_formula_is_near_the_traced_peak(strategy: Any, every: int | None) -> None:
    traits = strategy_traits(strategy.kind, strategy.model_dump(exclude={"kind"}))
    assert traits is not None
    num_ranks = max(1, traits.min_world_size)
    setup = PredictionSetup(strategy, traits, POLICIES["fp32"], num_ranks, num_ranks, ROWS, 4)
    options: dict[str, Any] = {"activation_checkpointing": every, "with_division": True}
    traced = profile(CONFIG, TASK, Shape((LENGTH,) * ROWS), POLICIES["fp32"], attention="eager", **options)
    terms = ("weights", "gradients", "optimizer", "activations", "gathered_weights")
    by_formula, expected = (peak(profile, setup).terms for profile in (approximated(**options), traced))
    assert sum(by_formula.get(name, 0) for name in terms) == pytest.approx(
        sum(expected.get(name, 0) for name in terms), rel=0.15
    )


def test_a_frozen_encoder_keeps_nothing() -> None:
    profile = approximated(train=Train(freeze_encoder=True))
    assert sum(profile.saved_by_block) == 0
    assert {parameter.block for parameter in profile.parameters if parameter.is_trained} == {None}
