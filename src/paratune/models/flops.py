"""Counts the floating-point operations of a model for samples: those of its matrix products, forward and backward.

A copy of the model on the meta device runs once, and a dispatch mode records the operations of each matrix product. The
batch has B samples with S tokens each and M labelled tokens (masked LM), where B, S and M are prime numbers that divide
no size of the model. So the prime factors of a product's operations show how it grows: 48 B S D^2 grows with tokens,
12 B S^2 D with pairs of tokens of a sample. Frozen weights count as far as gradients pass through their products.
Activations that are computed twice (activation checkpointing) count once. Operations once per batch, such as DeBERTa's
projections of relative positions, do not count. Norms, softmax, dropout and embeddings are not matrix products.

Source: the sum is that of Chowdhery et al., PaLM, 2022, appendix B: 6 N + 12 L H Q T a token, with the T of each
sample and the weights N that take part in products (Kaplan et al. 2020, section 2.1); operators' own counts are those
of torch.utils.flop_counter.
"""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from paratune.models.task_model import TaskModel, trial_batch

_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)


@dataclass(frozen=True)
class ModelWork:
    """Floating-point operations of forward and backward passes, by the quantity they are proportional to."""

    per_sample: int
    per_token: int
    per_pair: Mapping[int | None, int]
    """By window: operations for each pair of tokens i, j of a sample with |i - j| < window; None for all pairs. Causal
    models count all pairs, too, as in the source."""
    per_label: int
    """For each hidden token of a masked LM."""

    def flops(self, lengths: npt.NDArray[np.int64], num_labels: float = 0.0) -> float:
        """Return the operations for samples with these lengths in tokens, without padding."""
        pairs = sum(flops_per_pair * num_pairs(lengths, window) for window, flops_per_pair in self.per_pair.items())
        return float(
            self.per_sample * len(lengths) + self.per_token * int(lengths.sum()) + pairs + self.per_label * num_labels
        )


def num_pairs(lengths: npt.NDArray[np.int64], window: int | None) -> int:
    """Return the number of pairs (i, j) of tokens with |i - j| < window, i = j included, summed over samples."""
    if window is None:
        return int((lengths**2).sum())
    # w - 1 neighbours on each side, minus those beyond the ends of the sample.
    reach = np.minimum(lengths, window)
    return int((lengths * (2 * reach - 1) - reach * (reach - 1)).sum())


def copy_on_meta_device(model: TaskModel) -> TaskModel:
    """Return a copy of a model with its tensors on the meta device, in evaluation mode; the model does not change."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        is_weight = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_weight else empty
    return copy.deepcopy(model, memo).eval()


def count_work(model: TaskModel) -> ModelWork:
    """Count the operations of a model from `copy_on_meta_device`.

    Raises:
        ValueError: The operations are not a sum of parts that grow with samples, tokens and pairs of tokens.
        Exception: An error of the model's own code on the meta device.
    """
    num_samples, length, num_labels = _sizes(model)
    model.head_takes_labelled = model.head_reads == "labelled"
    ids_BS = torch.zeros(num_samples, length, dtype=torch.int64, device="meta")
    ids, places = (ids_BS, ids_BS.new_zeros(num_labels)) if model.head_takes_labelled else (None, None)
    batch = trial_batch(ids_BS, torch.ones_like(ids_BS), labels=ids, label_places=places)
    flops_by_powers: Counter[tuple[int, int, int]] = Counter()
    products = _Products()
    with products:
        model(batch).sum().backward()
    for flops in products.flops:
        flops_by_powers[_power(flops, num_samples), _power(flops, length), _power(flops, num_labels)] += flops
    samples, tokens, pairs = (flops_by_powers.pop((1, power, 0), 0) for power in (0, 1, 2))
    labels = flops_by_powers.pop((0, 0, 1), 0)
    strange = {key: flops for key, flops in flops_by_powers.items() if key[0] > 0 or key[2] > 0}
    if strange:
        raise ValueError("some matrix products grow neither with tokens nor with pairs of tokens")
    if tokens <= samples:
        raise ValueError("the operations do not grow with the length of samples")
    # Layers have the same width, and share the operations of pairs. Here each computes all pairs, but only those within
    # its window count.
    layers = [module for module in model.hf.modules() if hasattr(module, "is_causal")]
    windows = Counter(getattr(layer, "sliding_window", None) for layer in layers) or Counter({None: 1})
    all_pairs = pairs // (num_samples * length**2)
    return ModelWork(
        per_sample=samples // num_samples,
        per_token=tokens // (num_samples * length),
        per_pair={window: all_pairs * number // windows.total() for window, number in windows.items()},
        per_label=labels // num_labels,
    )


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of each matrix product. Code that reads a Boolean from the device, such as the check
    whether a mask hides nothing, gets True: tensors have no values there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return True
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops.append(int(count(*args, **(kwargs or {}), out_val=out)))
        return out


def _sizes(model: TaskModel) -> tuple[int, int, int]:
    """Return B, S and M: primes that divide no size of the model."""
    sizes = {size for tensor in [*model.parameters(), *model.buffers()] for size in tensor.shape}
    config = model.hf.config.to_dict() if hasattr(getattr(model.hf, "config", None), "to_dict") else {}
    sizes |= {value for value in config.values() if type(value) is int and value > 0}
    free = [prime for prime in _PRIMES if all(size % prime for size in sizes)]
    if len(free) < 3:
        raise ValueError("the sizes of the model have too many small prime factors")
    return free[1], free[0], free[2]  # the smallest prime is the length, because a model may have few positions


def _power(value: int, prime: int) -> int:
    power = 0
    while value and value % prime == 0:
        value, power = value // prime, power + 1
    return power
