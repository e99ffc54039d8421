"""States by written-out arithmetic; tests/two_processes holds them to the tensors of real ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig

from paratune.config.strategy_sections import (
    DDPOptions,
    DeepSpeedOptions,
    HSDPOptions,
    SingleOptions,
    Zero1Options,
    Zero3Options,
)
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.models.task_model import find_blocks
from paratune.planning.build import build_model
from paratune.planning.kinds import KINDS, states_of_rank
from paratune.planning.profile import Parameter, Profile, parameters_of
from paratune.planning.states import GRADIENTS, EngineInputs, PredictionSetup, States
from paratune.planning.trace import Phase
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
PARAMETERS = (
    Parameter("embed.weight", (10, 4)),  # 40 numbers
    Parameter("a.weight", (4, 4), block=0),  # 16
    Parameter("a.bias", (4,), block=0),  # 4
    Parameter("frozen.weight", (4, 4), is_trained=False, has_gradient=False),  # 16
    Parameter("unused.weight", (2, 4), has_gradient=False),  # 8
)


def made(parameters: tuple[Parameter, ...] = PARAMETERS) -> Profile:
    return Profile(parameters, 1, 4, 0, 0, (0,), 0, Phase(), Phase())


def setup_of(strategy: Any, num_ranks: int) -> PredictionSetup:
    traits = strategy_traits(strategy.kind, strategy.model_dump(exclude={"kind"}))
    assert traits is not None
    return PredictionSetup(strategy, traits, POLICIES["fp32"], num_ranks, num_ranks, 1, 1)


def states(profile: Profile, setup: PredictionSetup) -> States:
    """Return the states of the rank with most, which `memory.peak` chooses too."""
    ranks = [states_of_rank(profile, setup, rank) for rank in range(setup.num_ranks)]
    return max(ranks, key=lambda of_rank: of_rank.totals)


def test_a_whole_model_with_frozen_and_unused_weights():
    # 84 numbers of 4 bytes; 60 trained with a gradient; two moments of those and a count for each of three tensors.
    expected = States(84 * 4, 60 * 4, 60 * 8 + 3 * 4)
    assert states(made(), setup_of(SingleOptions(kind="single"), 1)) == expected


def test_buckets_of_ddp_include_unused_parameters():
    assert states(made(), setup_of(DDPOptions(kind="ddp"), 2)).gradients == (60 + 8) * 4


def test_zero1_assigns_large_parameters_first():
    # With decay: 40 to rank 0, 16 to rank 1; without: 4 to rank 1.
    of_ranks = [states_of_rank(made(), setup_of(Zero1Options(kind="zero1"), 2), rank).optimizer for rank in (0, 1)]
    assert of_ranks == [40 * 8 + 4, 20 * 8 + 8]
    assert states(made(), setup_of(Zero1Options(kind="zero1"), 2)).optimizer == 40 * 8 + 4


def test_fsdp_pads_weights_and_gradients_and_no_moments():
    # Rows in chunks of ceil(10 / 4) = 3, 1, 1, 1 and 1: 12 + 4 + 1 + 4 + 4 numbers; 12 + 4 + 1 with a gradient.
    setup = setup_of(Zero3Options(kind="zero3"), 4)
    assert states(made(), setup) == States(25 * 4, 17 * 4, 17 * 8 + 3 * 4)
    # The last rank has one row of the ten.
    assert states_of_rank(made(), setup, 3) == States(25 * 4, 17 * 4, (4 + 4 + 1) * 8 + 3 * 4)


def test_offload_moves_all_states():
    on_device = states(made(), setup_of(HSDPOptions(kind="hsdp", shard_size=2), 4))
    on_host = states(made(), setup_of(HSDPOptions(kind="hsdp", shard_size=2, cpu_offload=True), 4))
    assert on_host.totals == on_device.totals[::-1]
    assert on_host.totals[0] == 0


LARGE = {
    # 35 layers 4,224 wide: 12 D^2 + 13 D a layer, with an MLP of 4 D, and embeddings of 2,048 tokens and 512 positions.
    "hidden_size": 4224,
    "num_hidden_layers": 35,
    "num_attention_heads": 32,
    "intermediate_size": 4 * 4224,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
}


def test_states_of_figure_1_of_the_zero_paper():
    # Figure 1 of Rajbhandari et al., SC 2020: 7.5e9 parameters, 64 ranks, Adam, weights and gradients of 2 bytes and
    # K = 12. It is what DeepSpeed's own fp16 takes with several micro-batches, for which stage 1 keeps whole gradients;
    # stage 0 of it, which paratune has not, is one rank of stage 1.
    policy = POLICIES["fp16"].with_weights("fp16")
    with torch.device("meta"):
        model = build_model(BertConfig(**LARGE), TASK, policy, None)
    parameters = parameters_of(model, find_blocks(model), list(model.parameters()), {})
    paper_model = Profile(parameters, 35, 2, 0, 0, (), 0, Phase(), Phase())
    assert paper_model.num_parameters == pytest.approx(7.5e9, rel=0.005)
    ways = []
    for stage, num_ranks in ((1, 1), (1, 64), (2, 64), (3, 64)):
        strategy = DeepSpeedOptions(kind="deepspeed", stage=stage, param_dtype="fp16")
        setup = replace(setup_of(strategy, num_ranks), precision=policy, grad_accum_steps=2)
        held = states(paper_model, setup)
        gradients = KINDS["deepspeed"].engine_memory(EngineInputs(paper_model, setup, held, 1)).always[GRADIENTS]
        ways.append(held.weights + gradients + held.optimizer)
    billions = [size / paper_model.num_parameters * 7.5 for size in ways]
    # Of weights that a part reaches into, stage 2 keeps the gradient whole: 0.23 GB are a 64th of the model, and here
    # up to 0.36. Stage 3 keeps weights whole that have up to 100,000 numbers. Neither is in the paper's arithmetic.
    assert billions[0] == pytest.approx(120.0, abs=0.05)
    assert billions[1] == pytest.approx(31.4, abs=0.05)
    assert billions[2] == pytest.approx(16.6, abs=0.3)
    assert billions[3] == pytest.approx(1.9, abs=0.05)


def test_weights_of_16_bits_have_states_in_fp32():
    # 84 numbers, of which 68 are trained; on one rank.
    policy = POLICIES["bf16"].with_weights("bf16")
    profile_of = replace(made(), weight_bytes=2)
    local_step = replace(setup_of(Zero3Options(kind="zero3", param_dtype="bf16"), 1), precision=policy)
    assert states(profile_of, local_step) == States(84 * 4, 60 * 4, 60 * 8 + 3 * 4)
    strategy = DeepSpeedOptions(kind="deepspeed", stage=2, param_dtype="bf16")
    counted = states(profile_of, replace(setup_of(strategy, 1), precision=policy))
    # Two groups, with decay 64 numbers and without 4: copies in 2 bytes, in 4, two moments and a count for each group.
    assert counted == States(84 * 2, 68 * 2, 68 * 12 + 2 * 4)
