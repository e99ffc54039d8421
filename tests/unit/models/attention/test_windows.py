"""Attention within a window in one call: equal to that row by row, without a wait, with dropout."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from waits import watched_for_waits

from paratune.models.attention import cuda, windows
from paratune.models.attention.rows import attend_rows
from paratune.models.attention.windows import attend_windows

LENGTHS = ([5, 1, 40, 12], [200, 3, 70], [1], [64, 64], [130, 0, 65])


def ends(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def inputs(num_tokens: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(num_tokens, 3, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("window", [1, 2, 9, 65, 300])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_outputs_and_gradients_are_those_of_rows(lengths: list[int], window: int):
    xs, weights = inputs(sum(lengths)), torch.randn(sum(lengths), 3, 8)
    ours = attend_windows(*xs, ends(lengths), scale=0.3, dropout=0.0, window=window)
    theirs = attend_rows(*xs, lengths, scale=0.3, window=window)
    for got, want in zip(
        (ours, *torch.autograd.grad(ours, xs, weights)),
        (theirs, *torch.autograd.grad(theirs, xs, weights)),
        strict=True,
    ):
        assert (got - want).abs().max() <= 1e-6 * want.abs().max().clamp(min=1)


def test_dropout_drops_probabilities_of_its_share():
    # With values of 1 an output is the sum of the kept probabilities of a query, divided by 1 - p.
    xs = inputs(400, torch.float64)
    xs[2] = torch.ones_like(xs[2])
    out = attend_windows(*xs, ends([150, 250]), scale=0.0, dropout=0.25, window=33)
    num_keys = attend_rows(*xs, [150, 250], scale=0.0, window=33)
    assert torch.allclose(num_keys, torch.ones_like(num_keys))
    assert out.std() > 0.01
    assert float(out.detach().mean()) == pytest.approx(1.0, abs=0.01)  # 400 x 3 queries of about 65 keys: sd 0.0021


def test_memory_grows_with_tokens_and_not_with_the_longest_row(monkeypatch: pytest.MonkeyPatch):
    shapes = []
    real = windows.scaled_dot_product_attention

    def noted(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, **options: float) -> Tensor:
        shapes.append((tuple(q.shape), tuple(k.shape), tuple(attn_mask.shape)))
        return real(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(windows, "scaled_dot_product_attention", noted)
    attend_windows(*inputs(1000), ends([1000]), scale=0.3, dropout=0.0, window=65)
    # 16 chunks of 64 tokens, each with its two neighbours: 1,000 x 192 scores and not 1,000 x 1,000.
    assert shapes == [((16, 3, 64, 8), (16, 3, 192, 8), (16, 1, 64, 192))]


def test_the_mask_is_made_once_a_batch_and_follows_its_ends():
    cu_seqlens = ends([30, 40])
    first = windows._mask(cu_seqlens, (9, 8), 9)
    assert windows._mask(cu_seqlens, (9, 8), 9) is first
    assert windows._mask(cu_seqlens, (9, 8), 5) is not first
    before = windows._mask(cu_seqlens, (9, 8), 9)
    cu_seqlens[1] = 31
    changed = windows._mask(cu_seqlens, (9, 8), 9)
    assert not torch.equal(changed, before)
    assert torch.equal(changed, windows._mask(ends([31, 39]), (9, 8), 9))


@pytest.mark.parametrize(("window", "is_called"), [(9, True), (39, True), (40, False), (None, False)])
def test_a_card_without_windows_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, window: int | None, is_called: bool):
    """On compute capability 7.5 in half precision; a window of the longest row or more is none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(cuda, "_refused", set())
    monkeypatch.setattr(cuda, "_worked", set())
    kernels = []

    def by_kernel(kernel: str, query: Tensor, *others: object) -> Tensor:
        kernels.append(kernel)
        return query

    monkeypatch.setattr(cuda, "_by_kernel", by_kernel)
    xs, cu_seqlens = inputs(46, torch.bfloat16), ends([5, 1, 40])
    with watched_for_waits() as waits:
        out = cuda.attend(*xs, cu_seqlens, 40, scale=0.3, window=window)
        out.float().sum().backward()
    assert waits.found == []
    assert kernels == ([] if is_called else ["efficient"])
