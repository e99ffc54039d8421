"""Gradients divided as AdamW divides them: written-out arithmetic, and weights that are left out."""

import math

import pytest
import torch
from torch import nn

from paratune.strategies.adam_preconditioner import AdamPreconditioner


def _preconditioner(step: int, moments: list[float], **options: float) -> tuple[AdamPreconditioner, nn.Parameter]:
    model = nn.Linear(len(moments), 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.5), eps=1.0)
    if step:
        optimizer.state[model.weight] = {"step": torch.tensor(float(step)), "exp_avg_sq": torch.tensor([moments])}
    return AdamPreconditioner(optimizer, model, model.parameters(), **options), model.weight


def test_a_gradient_is_divided_by_the_root_of_the_corrected_second_moment():
    # 1 - beta2^t = 1 - 0.5^5 = 31/32. v = 31/32 (4, 9): roots 2 and 3, plus eps 1: (9, 8) / (3, 4) = (3, 2).
    preconditioner, weight = _preconditioner(5, [4 * 31 / 32, 9 * 31 / 32])
    assert float(preconditioner.norm(weight, torch.tensor([[9.0, 8.0]]))) == pytest.approx(math.sqrt(13))


def test_a_number_without_a_gradient_so_far_is_left_out():
    preconditioner, weight = _preconditioner(5, [4 * 31 / 32, 0.0])
    assert float(preconditioner.norm(weight, torch.tensor([[9.0, 8.0]]))) == pytest.approx(3.0)


def test_the_estimate_is_unknown_in_the_first_five_updates():
    preconditioner, weight = _preconditioner(4, [1.0])
    assert math.isnan(float(preconditioner.norm(weight, torch.ones(1, 1))))
    preconditioner, weight = _preconditioner(0, [1.0])
    assert preconditioner.norm(weight, torch.ones(1, 1)) is None


def test_the_squared_norm_of_the_step_is_divided_among_copies():
    preconditioner, weight = _preconditioner(5, [4 * 31 / 32, 9 * 31 / 32], scale=2.0, num_copies=4)
    assert preconditioner.whole_squared_norm() == 0  # no gradient
    weight.grad = torch.tensor([[18.0, 16.0]])
    assert float(preconditioner.whole_squared_norm()) == pytest.approx(13 / 4)
    alone, weight = _preconditioner(5, [4 * 31 / 32, 9 * 31 / 32])
    weight.grad = torch.tensor([[9.0, 8.0]])
    assert float(alone.whole_squared_norm()) == pytest.approx(13)


def test_embeddings_are_left_out_unless_they_are_tied_to_an_output_layer():
    model = nn.ModuleDict({"words": nn.Embedding(3, 2), "places": nn.Embedding(4, 2), "head": nn.Linear(2, 3)})
    model["head"].weight = model["words"].weight
    preconditioner = AdamPreconditioner(torch.optim.AdamW(model.parameters()), model, model.parameters())
    assert preconditioner.includes(model["words"].weight)
    assert preconditioner.includes(model["head"].bias)
    assert not preconditioner.includes(model["places"].weight)
