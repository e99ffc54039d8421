"""Packed training with dropout is padded training with dropout, when both drop the same: masks fixed for each token.

Every architecture that takes packed rows, with the kernels of the CPU: the tiles of packed attention, the short last
layer, DeBERTa's own attention. Expected values are those of transformers' eager attention on the padded batch.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import CONFIGS, PAIRS, model_of, rows
from torch import Tensor

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.models import blocks
from paratune.models.attention import cpu
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel

LENGTHS = [5, 1, 40, 12, 200]
"""The last is longer than `cpu.SHORT`."""
P = 0.25
"""A multiple of 2^-16, so that all scale alike."""


class Fixed:
    """Dropout whose masks are functions of the call's number, the token and the width alone.

    Calls are counted by kind, of hidden states and of attention; packed rows make as many as padded ones.
    """

    def __init__(self, batch: Batch, num_heads: int) -> None:
        self.B, self.S = batch.input_ids.shape
        self.lengths = tuple(batch.attention_mask.sum(1).tolist())
        self.slots = pack(batch).slots
        self.H = num_heads
        self.num_hidden = self.num_attention = self.row = 0

    def of_hidden(self, num_rows: int, width: int) -> Tensor:
        self.num_hidden += 1
        return self._random(1000 + self.num_hidden, (num_rows, width))

    def of_attention(self) -> Tensor:
        """Return the masks of the next layer's attention, (B, H, S, S)."""
        self.num_attention += 1
        return self._random(self.num_attention, (self.B, self.H, self.S, self.S))

    @staticmethod
    def _random(seed: int, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= P

    def __call__(self, value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return value
        assert p == P
        return value * (self._mask(value).to(value.dtype) / (1 - p))

    def _mask(self, value: Tensor) -> Tensor:
        shape, n = value.shape, value.shape[:-1].numel()
        if shape == (self.B, self.H, self.S, self.S):
            return self.of_attention()
        if shape == (self.B, self.H, 1, self.S):  # the short last layer: the queries of first tokens
            return self.of_attention()[:, :, :1]
        length = self.lengths[self.row]
        if shape == (self.H, length, length):  # DeBERTa's attention, row by row
            if self.row == 0:
                self.kept = self.of_attention()
            mask = self.kept[self.row, :, :length, :length]
            self.row = (self.row + 1) % self.B
            return mask
        if n == len(self.slots):
            return self.of_hidden(self.B * self.S, shape[-1])[self.slots].view(shape)
        if shape[:2] == (1, self.B):  # the short last layer
            return self.of_hidden(self.B * self.S, shape[-1])[:: self.S].view(shape)
        return self.of_hidden(n, shape[-1]).view(shape)  # padded tokens, rows, labelled tokens, places of DeBERTa

    def source(self, window: int | None) -> "_Source":
        return _Source(self, window)


class _Source:
    """A `MaskSource` of one layer's attention: gives the tiles their part of the masks."""

    keep_scale = 1 / (1 - P)

    def __init__(self, fixed: Fixed, window: int | None) -> None:
        whole, H = fixed.of_attention(), fixed.H
        self._masks = []
        starts = torch.tensor([0, *fixed.lengths]).cumsum(0).tolist()
        for block, its_tiles in cpu.plan(fixed.lengths, H, window):
            padded = torch.zeros(len(block.lengths), H, block.padded, block.padded, dtype=torch.bool)
            for place, (span, length) in enumerate(zip(block.spans, block.lengths, strict=True)):
                padded[place, :, :length, :length] = whole[starts.index(span.start), :, :length, :length]
            self._masks += [padded.flatten(0, 1)[tile.g, tile.i, tile.j] for tile in its_tiles]

    def draw(self, num_entries: int) -> Any:
        mask = self._masks.pop(0)
        assert mask.numel() == num_entries
        return mask.flatten().numpy()


def loss_and_gradients(model: TaskModel, batch: Batch, fixed: Fixed, patch: Callable[[Fixed], None]) -> list[Tensor]:
    patch(fixed)
    model.zero_grad()
    loss = model.loss_sum(model(batch), batch)
    loss.backward()
    assert fixed.num_attention == 2
    return [loss.detach(), *(item.grad.clone() for item in model.parameters() if item.grad is not None)]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_same_masks_give_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, name: str, kind: str):
    config = CONFIGS[name]()
    for key, value in config.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, P)
    model = model_of(config, kind)
    enable_packed_batches(model)
    assert model.entry is not None
    model.train()
    model._attention = None if name.startswith("deberta") else "eager"
    real = cpu.attend

    def patch(fixed: Fixed) -> None:
        def attend(*received: Any, window: int | None = None, **more: Any) -> Tensor:
            with monkeypatch.context() as inner:
                inner.setattr(cpu, "MaskSource", lambda p: fixed.source(window))
                return real(*received, window=window, **more)

        monkeypatch.setattr(torch.nn.functional, "dropout", fixed)
        monkeypatch.setattr(blocks, "dropout", fixed)
        monkeypatch.setattr(cpu, "attend", attend)

    batch = rows(LENGTHS, kind, pad=model.hf.config.pad_token_id)
    expected, actual = (loss_and_gradients(model, item, Fixed(batch, 2), patch) for item in (batch, pack(batch)))
    assert len(actual) == len(expected) > 10
    for first, other in zip(actual, expected, strict=True):
        assert float((first - other).abs().max()) <= 1e-6 * max(1.0, float(other.abs().max()))
