"""Tests that packed and padded training draw dropout from the same distribution: by masks and by gradients.

    OMP_NUM_THREADS=1 python benchmarks/dropout_draws.py

Every figure is a z: a difference divided by its standard error, which follows a standard normal distribution if nothing
is wrong. Each row prints the largest z, and the value that the largest z exceeds by chance in one of twenty such rows
(`allowed`). Gradients of key biases are left out: the softmax does not depend on them, so they are only rounding.
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
"""Mask sources of a step that are compared; a model of 6 layers has 19."""
LENGTHS = (3, 40, 17, 64, 9, 28)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="steps whose masks are compared")
    parser.add_argument("--draws", type=int, default=1500, help="gradients of each side")
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
    """Return the z's of masks, seeded as in a run: the kept share, and products of several kinds of neighbours."""
    zs_by_name: dict[str, list[float]] = {
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
        zs_by_name["share of a mask"] += [float(mask.mean() * scale) for mask in masks]
        zs_by_name["neighbours 1 to 64 entries apart"] += [
            z(m[lag:], m[:-lag]) for m in masks[:2] for lag in range(1, 65)
        ]
        zs_by_name["sources of one step"] += [z(*pair) for pair in combinations(masks, 2)]
    for one, other in pairwise(steps):
        zs_by_name["one source in two steps that follow"] += [z(*pair) for pair in zip(one, other, strict=True)]
    for step, masks in enumerate(steps):
        for name, others in (("ranks", of_step(1, step, 1)), ("seeds", of_step(2, step, 0))):
            zs_by_name[f"two {name} in one step"] += [z(*pair) for pair in zip(masks, others, strict=True)]
    return {name: np.asarray(zs) for name, zs in zs_by_name.items()}


def _of_gradients(num_draws: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the z's of repeatedly drawn gradients of one batch: packed by our kernels, padded by PyTorch's."""
    batch = _rows()
    sides = {}
    for name, rows in (("packed", pack(batch)), ("padded", batch)):
        model = _model()
        assert model.entry is not None
        assert model.entry.shortens
        rest = [_draw(model, rows, step, rank=name == "padded") for step in range(num_draws)]
        sides[name] = tuple(torch.stack(draws) for draws in zip(*rest, strict=True))
    zs_by_name: dict[str, np.ndarray[Any, Any]] = {}
    for at, quantity in enumerate(
        ("loss", "logits", "gradient, 20 entries of each weight", "squared norm of each gradient")
    ):
        one, other = (side[at].double() for side in sides.values())
        zs_by_name[f"{quantity}: mean"] = _z_of_means(one, other)
        zs_by_name[f"{quantity}: variance"] = _z_of_means(_centred_squares(one), _centred_squares(other))
    return zs_by_name


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
    trained = {name: gradient.grad for name, gradient in model.named_parameters() if not name.endswith("key.bias")}
    gradients = [gradient.flatten() for gradient in trained.values() if gradient is not None]
    entries = [gradient[:: max(1, len(gradient) // 20)][:20] for gradient in gradients]
    norms = torch.stack([gradient.square().sum() for gradient in gradients])
    return loss.detach().view(1), logits.detach().flatten(), torch.cat(entries), norms


def _model() -> TaskModel:
    """Return a model with non-uniform attention and the dropout of BERT."""
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
