"""Do packed and padded training draw the same dropout, in law? Masks against theirs, gradients side by side.

    OMP_NUM_THREADS=1 python benchmarks/dropout_draws.py

Every figure is a z: a difference divided by its standard error, a standard normal number where nothing is wrong. Of
many, the largest is printed beside the one that chance alone makes as large in one of twenty such rows (`allowed`).
Gradients of keys' biases are left out: the softmax does not change with these, and what is there is rounding.
"""

import argparse
import math
from itertools import combinations, pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from machine import machine_lines
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.engine.optim import seed_step
from paratune.models.dropout import MaskSource, use_cheap_dropout
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel

P = 0.1
ENTRIES = 1 << 16
"""Entries of a mask."""
SOURCES = 14
"""Mask sources of a step that are looked at; a model of 6 layers has 19."""
LENGTHS = (3, 40, 17, 64, 9, 28)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="steps whose masks are compared")
    parser.add_argument("--draws", type=int, default=1500, help="times that each side computes its gradient")
    options = parser.parse_args()
    print("\n".join([*machine_lines(), ""]))
    print("| masks | z's | mean | standard deviation | largest | allowed |\n| --- | --- | --- | --- | --- | --- |")
    for name, zs in _of_masks(options.steps).items():
        print(_line(name, zs))
    print("\n| packed less padded | z's | mean | standard deviation | largest | allowed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, zs in _of_gradients(options.draws).items():
        print(_line(name, zs))


def _line(name: str, zs: np.ndarray[Any, Any]) -> str:
    zs = zs[np.isfinite(zs)]
    allowed = NormalDist().inv_cdf(1 - 0.025 / len(zs))
    cells = [name, len(zs), f"{zs.mean():+.3f}", f"{zs.std():.3f}", f"{np.abs(zs).max():.2f}", f"{allowed:.2f}"]
    return f"| {' | '.join(map(str, cells))} |"


def _of_masks(num_steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return z's of the masks of steps as a run seeds them: their share, and products of neighbours of many kinds."""
    found: dict[str, list[float]] = {
        name: []
        for name in (
            "share of a mask",
            "neighbours 1 to 64 entries apart",
            "sources of one step",
            "one source in two steps that follow",
            "two ranks in one step",
            "two seeds in one step",
        )
    }
    share, scale = 1 - round(P * 65536) / 65536, math.sqrt(ENTRIES)
    sigma = math.sqrt(share * (1 - share))

    def z(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
        return float((one * other).mean() * math.sqrt(len(one)))

    def of_step(seed: int, step: int, rank: int) -> list[np.ndarray[Any, Any]]:
        seed_step(seed, step, rank)
        return [(MaskSource(P).draw(ENTRIES) - share) / sigma for _ in range(SOURCES)]

    steps = [of_step(1, step, 0) for step in range(num_steps)]
    for masks in steps:
        found["share of a mask"] += [float(mask.mean() * scale) for mask in masks]
        found["neighbours 1 to 64 entries apart"] += [z(m[lag:], m[:-lag]) for m in masks[:2] for lag in range(1, 65)]
        found["sources of one step"] += [z(*pair) for pair in combinations(masks, 2)]
    for one, other in pairwise(steps):
        found["one source in two steps that follow"] += [z(*pair) for pair in zip(one, other, strict=True)]
    for step, masks in enumerate(steps):
        for name, others in (("ranks", of_step(1, step, 1)), ("seeds", of_step(2, step, 0))):
            found[f"two {name} in one step"] += [z(*pair) for pair in zip(masks, others, strict=True)]
    return {name: np.asarray(zs) for name, zs in found.items()}


def _of_gradients(num_draws: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return z's of the gradients of one batch, drawn again and again: packed by our kernels, padded by PyTorch's."""
    batch = _rows()
    sides = {}
    for name, rows in (("packed", pack(batch)), ("padded", batch)):
        model = _model()
        assert model.entry is not None
        assert model.entry.shortens
        rest = [_draw(model, rows, step, rank=name == "padded") for step in range(num_draws)]
        sides[name] = tuple(torch.stack(each) for each in zip(*rest, strict=True))
    found: dict[str, np.ndarray[Any, Any]] = {}
    for at, what in enumerate(
        ("loss", "logits", "gradient, 20 entries of each weight", "squared norm of each gradient")
    ):
        one, other = (side[at].double() for side in sides.values())
        found[f"{what}: mean"] = _z_of_means(one, other)
        found[f"{what}: variance"] = _z_of_means(_centred_squares(one), _centred_squares(other))
    return found


def _centred_squares(draws: Tensor) -> Tensor:
    return (draws - draws.mean(0)).square()


def _z_of_means(one: Tensor, other: Tensor) -> np.ndarray[Any, Any]:
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return ((one.mean(0) - other.mean(0)) / error).flatten().numpy()


def _draw(model: TaskModel, rows: Batch, step: int, *, rank: int) -> tuple[Tensor, ...]:
    model.zero_grad()
    seed_step(7, step, rank)  # the two sides draw independently
    logits = model(rows)
    loss = model.loss_sum(logits, rows)
    loss.backward()
    trained = {name: each.grad for name, each in model.named_parameters() if not name.endswith("key.bias")}
    gradients = [each.flatten() for each in trained.values() if each is not None]
    entries = [each[:: max(1, len(each) // 20)][:20] for each in gradients]
    norms = torch.stack([each.square().sum() for each in gradients])
    return loss.detach().view(1), logits.detach().flatten(), torch.cat(entries), norms


def _model() -> TaskModel:
    """Return a model whose attention is far from even, and whose dropout is that of BERT."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    model = TaskModel(BertForSequenceClassification(config), "classification")
    enable_packed_batches(model)
    use_cheap_dropout(model)
    return model.train()


def _rows() -> Batch:
    mask_BS = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids_BS = torch.randint(5, 200, mask_BS.shape, generator=torch.Generator().manual_seed(1)) * mask_BS
    return Batch(
        input_ids=ids_BS,
        row_weight=torch.ones(len(LENGTHS)),
        index=torch.arange(len(LENGTHS)),
        num_samples=len(LENGTHS),
        num_tokens=sum(LENGTHS),
        num_padded_tokens=ids_BS.numel(),
        loss_denominator=1.0,
        attention_mask=mask_BS,
        max_seqlen=max(LENGTHS),
        labels=torch.arange(len(LENGTHS)) % 2,
    )


if __name__ == "__main__":
    main()
