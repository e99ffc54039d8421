"""LAMB against the algorithm of the paper, written out with NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from paratune.config.sections import Train
from paratune.engine import lamb
from paratune.engine.lamb import Lamb, whole_norms
from paratune.engine.optim import OptimizerFactory


def written_out(x, gradients, *, lr, betas, eps, decay, adapts=True):
    """You et al. 2020, algorithm 2, line by line; phi(z) = z."""
    beta1, beta2 = betas
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        r = m_hat / (np.sqrt(v_hat) + eps)
        ratio = np.linalg.norm(x) / np.linalg.norm(r + decay * x) if adapts else 1.0
        x = x - lr * ratio * (r + decay * x)
    return x


def test_one_step_by_hand():
    # x = (3, 4), g = (1, -1): after one step m^ = g and v^ = g^2, so r = (1, -1) / (1 + 1) with eps = 1. With a decay
    # of 0.5, r + 0.5 x = (0.5 + 1.5, -0.5 + 2) = (2, 1.5), whose norm is 2.5; |x| = 5, and so the ratio is 2.
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    weight.grad = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    Lamb([weight], lr=0.1, betas=(0.9, 0.99), eps=1.0, weight_decay=0.5).step()
    torch.testing.assert_close(weight.data, torch.tensor([[3 - 0.1 * 2 * 2, 4 - 0.1 * 2 * 1.5]], dtype=torch.float64))


@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_follow_the_formula_of_the_paper(dtype: torch.dtype, num_steps: int):
    draw = np.random.default_rng(0)
    shapes = {"weight": (3, 4), "other.weight": (2, 5), "norm.weight": (4,), "bias": (4,)}
    begin = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    gradients = {name: [draw.normal(size=shape) for _ in range(num_steps)] for name, shape in shapes.items()}
    train = Train(optimizer="lamb", learning_rate=0.02, betas=[0.8, 0.95], eps=1e-6, weight_decay=0.1)
    parameters = {name: nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in begin.items()}
    optimizer = OptimizerFactory(train, 10)(parameters.items())
    for step in range(num_steps):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step], dtype=dtype)
        optimizer.step()
    settings = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6}
    for name, parameter in parameters.items():
        is_matrix = len(shapes[name]) > 1
        # Biases and norms: no decay and no trust ratio, as in the authors' code.
        expected = written_out(begin[name], gradients[name], decay=0.1 * is_matrix, adapts=is_matrix, **settings)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=tolerance, atol=1e-7 * tolerance)


@pytest.mark.parametrize(("value", "gradient"), [(0.0, 1.0), (2.0, 0.0)])
def test_the_trust_ratio_is_1_if_a_norm_is_0(value: float, gradient: float):
    weight = nn.Parameter(torch.full((2, 2), value, dtype=torch.float64))
    weight.grad = torch.full((2, 2), gradient, dtype=torch.float64)
    Lamb([weight], lr=0.25, eps=1e-6, weight_decay=0.0).step()
    # r is g / (|g| + eps).
    expected = value - 0.25 * gradient / (gradient + 1e-6)
    torch.testing.assert_close(weight.data, torch.full((2, 2), expected, dtype=torch.float64))


def test_a_parameter_without_gradient_does_not_change():
    used, unused = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = Lamb([used, unused], lr=0.1)
    used.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(unused.data, torch.ones(2, 2))
    assert list(optimizer.state) == [used]
    assert not torch.equal(used.data, torch.ones(2, 2))
    # A later first gradient is corrected for being the first.
    used.grad, unused.grad = torch.ones(2, 2), torch.ones(2, 2)
    optimizer.step()
    expected = written_out(np.ones((2, 2)), [np.ones((2, 2))], lr=0.1, betas=(0.9, 0.999), eps=1e-6, decay=0.01)
    np.testing.assert_allclose(unused.detach().numpy(), expected, rtol=1e-6)


def test_updates_in_parts_give_the_same_weights(monkeypatch: pytest.MonkeyPatch):
    def trained() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        parameters = [nn.Parameter(torch.randn(3, size, generator=generator)) for size in (1, 5, 9, 2, 2)]
        optimizer = Lamb(parameters, lr=0.1)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    together = trained()
    monkeypatch.setattr(lamb, "PART_NUMBERS", 7)
    assert all(torch.equal(result, expected) for result, expected in zip(together, trained(), strict=True))


def test_a_part_has_no_more_numbers_than_allowed_unless_one_parameter_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lamb, "PART_NUMBERS", 7)
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 3, 3, 9, 7)]
    assert [[len(parameter) for parameter in part] for part in lamb._in_parts(parameters)] == [[3, 3], [3], [9], [7]]


def test_a_closure_is_called_with_gradients_on():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([weight], lr=0.1)

    def closure() -> float:
        loss = (weight**2).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(weight.detach().max()) < 1.0


def test_each_tensor_has_its_own_norm():
    norms = whole_norms([torch.tensor([3.0, 4.0]), torch.zeros(0), torch.tensor([[1.0], [1.0]])])
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.0, math.sqrt(2)]))


def test_a_loaded_step_count_moves_to_the_host():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([weight], lr=0.1)
    weight.grad = torch.ones(2, 2)
    optimizer.step()

    class Elsewhere:
        device = torch.device("cuda")

        def cpu(self) -> torch.Tensor:
            return torch.tensor(6.0)

    optimizer.state[weight]["step"] = Elsewhere()
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert optimizer.state[weight]["step"] == 7.0
