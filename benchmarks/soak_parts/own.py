"""Code of a user, which the kind `own-code` copies beside its configuration."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Head(nn.Module):
    """A weighted mean of the tokens, with dropout."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(config.hidden_size))
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        scores = (hidden @ self.query).masked_fill(~attention_mask, float("-inf"))
        return self.out(self.dropout((scores.softmax(dim=-1).unsqueeze(-1) * hidden).sum(dim=1)))


class Momentum(torch.optim.Optimizer):
    """Steps along the sign of a mean of gradients; its state is a tensor and a number."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                momentum = state.setdefault("momentum", torch.zeros_like(weight))
                state["num_steps"] = state.get("num_steps", 0) + 1
                momentum.lerp_(weight.grad, 0.1 + 0.5 / int(state["num_steps"]))
                weight.sub_(momentum.sign(), alpha=group["lr"])


class Callback:
    """Draws from the global generators, which must not change the training."""

    def on_step(self, state: Any) -> None:
        self.drawn = (random.random(), np.random.rand(), torch.rand(1))

    def on_evaluate(self, state: Any) -> None:
        with (state.folder / "own.txt").open("a") as file:
            file.write(f"{state.step}\n")


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.multi_margin_loss(outputs, labels, reduction="none")


def margin(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(abs(outputs[:, 1] - outputs[:, 0]).mean())


def steps_down(step: int, num_steps: int) -> float:
    return 0.5 ** (4 * step // num_steps)
