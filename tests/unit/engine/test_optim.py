import math
import random

import pytest
import torch
from tiny import tiny_model
from torch import nn
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory, schedule_factor, seed_step, warmup_steps


@pytest.mark.parametrize("num_warmup_steps", [0, 1, 7, 40])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedules_are_those_of_transformers_step_by_step(schedule: str, num_warmup_steps: int):
    num_steps = 40
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = {
        "linear": lambda: get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_steps),
        "cosine": lambda: get_cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_steps),
        "constant": lambda: get_constant_schedule_with_warmup(optimizer, num_warmup_steps),
    }[schedule]().lr_lambdas[0]
    for step in range(num_steps):
        ours = schedule_factor(schedule, step, num_steps=num_steps, num_warmup_steps=num_warmup_steps)
        assert ours == pytest.approx(theirs(step), rel=1e-12, abs=1e-12), step


def test_the_rate_goes_to_every_group_of_every_optimizer_and_is_told():
    factory = OptimizerFactory(Train(learning_rate=2e-3, warmup_steps=4), 12)
    parameters = [("weight", nn.Parameter(torch.zeros(2, 2))), ("bias", nn.Parameter(torch.zeros(2)))]
    optimizers = [factory(parameters), factory(parameters)]
    for step, rate in {0: 0.0, 2: 1e-3, 4: 2e-3, 8: 1e-3, 11: 2e-3 / 8}.items():
        assert factory.set_learning_rate(step) == pytest.approx(rate)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        assert [group["lr"] for group in groups] == pytest.approx([rate] * 4)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (Train(), 0),
        (Train(warmup_steps=7), 7),
        (Train(warmup_ratio=0.1), 11),  # 10.1, rounded up as the Trainer does
        (Train(warmup_ratio=0.0), 0),
    ],
)
def test_warmup_is_said_in_steps_or_as_a_share(train: Train, expected: int):
    assert warmup_steps(train, 101) == expected


def test_what_decays_is_what_decays_in_the_trainer():
    from transformers import Trainer

    model = tiny_model()
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    optimizer = OptimizerFactory(Train(weight_decay=0.3), 10)(model.named_parameters())
    decay_of = {id(value): group["weight_decay"] for group in optimizer.param_groups for value in group["params"]}
    ours = {name: decay_of[id(value)] for name, value in model.named_parameters()}
    assert ours == {name: 0.3 if name in decayed else 0.0 for name in ours}
    assert 0 < len(decayed) < len(ours)


def test_frozen_parameters_are_left_out_and_a_group_that_would_be_empty_too():
    weight, bias = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    weight.requires_grad_(False)
    optimizer = OptimizerFactory(Train(), 10)([("head.weight", weight), ("head.bias", bias)])
    assert [[id(value) for value in group["params"]] for group in optimizer.param_groups] == [[id(bias)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_update_is_that_of_the_adamw_paper(dtype: torch.dtype):
    # Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2, written out for one matrix.
    beta1, beta2, eps, decay = 0.8, 0.95, 1e-6, 0.1
    train = Train(learning_rate=0.01, betas=[beta1, beta2], eps=eps, weight_decay=decay, warmup_steps=2)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 4, generator=generator, dtype=dtype)
    weight = nn.Parameter(theta.clone())
    factory = OptimizerFactory(train, 5)
    optimizer = factory([("weight", weight)])
    assert optimizer.defaults["fused"] is True
    m = v = torch.zeros_like(theta)
    for t in range(1, 6):
        g = torch.randn(3, 4, generator=generator, dtype=dtype)
        alpha = factory.set_learning_rate(t - 1)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        theta = theta - alpha * (m_hat / (v_hat.sqrt() + eps) + decay * theta)
        weight.grad = g.clone()
        optimizer.step()
        torch.testing.assert_close(weight.data, theta, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)


def drop(seed: int, step: int, rank: int) -> tuple[bool, ...]:
    seed_step(seed, step, rank)
    return tuple((nn.functional.dropout(torch.ones(64), 0.5) == 0).tolist())


def test_dropout_is_a_function_of_seed_step_and_rank():
    places = [(seed, step, rank) for seed in (0, 1, 42, 2**32 - 1) for step in (0, 1, 2, 10_000) for rank in (0, 1, 7)]
    first = {place: drop(*place) for place in places}
    assert len(set(first.values())) == len(places)
    for place in reversed(places):
        torch.randn(5)  # whatever was drawn before does not matter
        assert drop(*place) == first[place]


def test_seeds_differ_where_the_generator_looks():
    # PyTorch's generator on the CPU (mt19937) starts from the lowest 32 bits of the seed; neighbours must differ there.
    seeds = set()
    for step in range(200):
        for rank in range(20):
            seed_step(42, step, rank)
            seeds.add(torch.initial_seed() % 2**32)
    assert len(seeds) == 200 * 20


def test_seeding_leaves_other_generators_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    seed_step(5, 6, 7)
    assert random.random() == expected


def test_a_cosine_ends_at_nothing_and_never_below():
    values = [schedule_factor("cosine", step, num_steps=9, num_warmup_steps=0) for step in range(12)]
    assert values[9] == pytest.approx(0.0, abs=1e-15)
    assert min(values) >= 0.0
    assert values[3] == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))
