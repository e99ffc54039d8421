"""The floating-point operations that a model needs for samples: of its matrix products, forward and backward.

Floor 3. Counted and not looked up: a copy of the model without data (on the meta device) is run once, and each matrix
product tells its size. Three of these sizes are prime numbers that no weight of the model has, the samples B, their
tokens S and the labelled tokens M of a masked LM, so that a product's operations say by their factors how it grows:
48 B S D^2 with the tokens, 12 B S^2 D with the pairs of tokens of a sample. What is frozen takes part as far as
gradients pass through it. Activations that are computed twice (activation checkpointing) count once, and what is done
once for a whole batch, such as DeBERTa's projections of relative positions, not at all. Norms, softmax, dropout and
embeddings are no matrix products.

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
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from paratune.batch import Batch
from paratune.models.task_model import TaskModel

_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)


@dataclass(frozen=True)
class ModelWork:
    """Floating-point operations of forward and backward passes, by what they grow with."""

    per_sample: int
    per_token: int
    per_pair: Mapping[int | None, int]
    """For each pair of tokens of a sample that attend to each other: i and j with |i - j| < the key, None for all. A
    model that looks back only is counted as if it looked ahead too, as in the source."""
    per_label: int
    """For each token that a masked LM hides."""

    def flops(self, lengths: npt.NDArray[np.int64], num_labels: float = 0.0) -> float:
        """Return the operations for samples of these lengths in tokens, without padding."""
        pairs = sum(each * num_pairs(lengths, window) for window, each in self.per_pair.items())
        return float(
            self.per_sample * len(lengths) + self.per_token * int(lengths.sum()) + pairs + self.per_label * num_labels
        )


def num_pairs(lengths: npt.NDArray[np.int64], window: int | None) -> int:
    """Return the pairs (i, j) of tokens of each sample with |i - j| < window, summed; each with itself included."""
    if window is None:
        return int((lengths**2).sum())
    # w - 1 neighbours on each side, without those that the ends cut off.
    reach = np.minimum(lengths, window)
    return int((lengths * (2 * reach - 1) - reach * (reach - 1)).sum())


def without_data(model: TaskModel) -> TaskModel:
    """Return a copy of a model whose tensors are on the meta device, in evaluation mode; the model is as it was."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        is_weight = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_weight else empty
    return copy.deepcopy(model, memo).eval()


def count_work(model: TaskModel) -> ModelWork:
    """Count what a model of `without_data` needs.

    Raises:
        ValueError: Its work is no sum of parts that grow with samples, tokens and pairs; the text says why.
        Exception: What the model's own code raises without data.
    """
    num_samples, length, num_labels = _sizes(model)
    model.head_takes_labelled = model.head_reads == "labelled"
    batch = _batch(num_samples, length, num_labels if model.head_takes_labelled else None)
    found: Counter[tuple[int, int, int]] = Counter()
    products = _Products()
    with products:
        model(batch).sum().backward()
    for flops in products.flops:
        found[_power(flops, num_samples), _power(flops, length), _power(flops, num_labels)] += flops
    samples, tokens, pairs = (found.pop((1, power, 0), 0) for power in (0, 1, 2))
    labels = found.pop((0, 0, 1), 0)
    strange = {key: flops for key, flops in found.items() if key[0] > 0 or key[2] > 0}
    if strange:
        raise ValueError("some of its products grow with neither tokens nor pairs of tokens")
    if tokens <= samples:
        raise ValueError("its work does not grow with the length of samples")
    return ModelWork(
        per_sample=samples // num_samples,
        per_token=tokens // (num_samples * length),
        per_pair=_by_window(model, pairs // (num_samples * length**2)),
        per_label=labels // num_labels,
    )


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of each matrix product; code that looks whether a mask hides nothing is told so."""

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
    """Return samples, tokens of each and labelled tokens: primes that divide no size of the model."""
    sizes = {size for tensor in [*model.parameters(), *model.buffers()] for size in tensor.shape}
    config = model.hf.config.to_dict() if hasattr(getattr(model.hf, "config", None), "to_dict") else {}
    sizes |= {value for value in config.values() if type(value) is int and value > 0}
    free = [prime for prime in _PRIMES if all(size % prime for size in sizes)]
    if len(free) < 3:
        raise ValueError("its sizes have too many small prime factors")
    return free[1], free[0], free[2]  # the smallest is the length, for which there may be few positions


def _power(value: int, prime: int) -> int:
    power = 0
    while value and value % prime == 0:
        value, power = value // prime, power + 1
    return power


def _batch(num_samples: int, length: int, num_labels: int | None) -> Batch:
    """Return a batch without padding and without data."""
    ids_BS = torch.zeros(num_samples, length, dtype=torch.int64, device="meta")
    places: Tensor | None = None if num_labels is None else ids_BS.new_zeros(num_labels)
    return Batch(
        input_ids=ids_BS,
        row_weight=torch.ones(num_samples, device="meta"),
        index=ids_BS[:, 0],
        num_samples=num_samples,
        num_tokens=ids_BS.numel(),
        num_padded_tokens=ids_BS.numel(),
        loss_denominator=1.0,
        attention_mask=torch.ones_like(ids_BS),
        max_seqlen=length,
        labels=None if places is None else ids_BS,
        label_places=places,
    )


def _by_window(model: TaskModel, per_pair: int) -> dict[int | None, int]:
    """Share the work of pairs among layers with and without a window; all of them are as wide.

    On the meta device each computes all pairs; what it needs are those within its window.
    """
    layers = [module for module in model.hf.modules() if hasattr(module, "is_causal")]
    windows = Counter(getattr(layer, "sliding_window", None) for layer in layers) or Counter({None: 1})
    total = sum(windows.values())
    return {window: per_pair * number // total for window, number in windows.items()}
