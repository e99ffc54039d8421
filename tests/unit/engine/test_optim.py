import random

import pytest
import torch
from tiny import tiny_model
from torch import nn

from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory, seed_step


def test_the_rate_is_set_in_all_groups_of_all_optimizers():
    factory = OptimizerFactory(Train(learning_rate=2e-3, warmup_steps=4), 12)
    parameters = [("weight", nn.Parameter(torch.zeros(2, 2))), ("bias", nn.Parameter(torch.zeros(2)))]
    optimizers = [factory(parameters), factory(parameters)]
    for step, rate in {0: 0.0, 2: 1e-3, 4: 2e-3, 8: 1e-3, 11: 2e-3 / 8}.items():
        assert factory.set_learning_rate(step) == pytest.approx(rate)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        assert [group["lr"] for group in groups] == pytest.approx([rate] * 4)


def test_the_same_parameters_decay_as_in_the_trainer():
    from transformers import Trainer

    model = tiny_model()
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    optimizer = OptimizerFactory(Train(weight_decay=0.3), 10)(model.named_parameters())
    decay_of = {id(value): group["weight_decay"] for group in optimizer.param_groups for value in group["params"]}
    ours = {name: decay_of[id(value)] for name, value in model.named_parameters()}
    assert ours == {name: 0.3 if name in decayed else 0.0 for name in ours}
    assert 0 < len(decayed) < len(ours)


def test_frozen_parameters_and_empty_groups_are_left_out():
    weight, bias = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))
    weight.requires_grad_(False)
    optimizer = OptimizerFactory(Train(), 10)([("head.weight", weight), ("head.bias", bias)])
    assert [[id(value) for value in group["params"]] for group in optimizer.param_groups] == [[id(bias)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_update_follows_the_adamw_paper(dtype: torch.dtype):
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


def test_seeds_differ_in_the_bits_that_the_generator_uses():
    # PyTorch's generator on the CPU (mt19937) starts from the lowest 32 bits of the seed; neighbours must differ there.
    seeds = set()
    for step in range(200):
        for rank in range(20):
            seed_step(42, step, rank)
            seeds.add(torch.initial_seed() % 2**32)
    assert len(seeds) == 200 * 20


def test_seeding_does_not_change_other_generators():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    seed_step(5, 6, 7)
    assert random.random() == expected


def test_factors_of_the_rate_have_groups_of_their_own():
    weights = [("a.weight", torch.zeros(2, 2)), ("a.bias", torch.zeros(2)), ("b.weight", torch.zeros(3, 2))]
    parameters = [(name, nn.Parameter(value)) for name, value in weights]
    factory = OptimizerFactory(Train(learning_rate=0.1, weight_decay=0.3, schedule="constant"), 10, {"b.weight": 0.5})
    optimizer = factory(parameters)
    assert factory.set_learning_rate(3) == pytest.approx(0.1)
    found = [(group["lr"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    assert found == [(pytest.approx(0.1), 0.3, 1), (pytest.approx(0.1), 0.0, 1), (pytest.approx(0.05), 0.3, 1)]
