"""Rows by PyTorch's function: the results of tiles, with one call for consecutive rows of equal length."""

import pytest
import torch

from paratune.models.attention import cpu, rows
from paratune.models.attention.rows import attend_rows


@pytest.mark.parametrize("window", [None, 3, 40])
@pytest.mark.parametrize("lengths", [(5, 0, 1, 40), (6,) * 5, (9, 9, 0, 9, 4, 9, 9, 1, 1)], ids=str)
def test_rows_equal_the_tiles(lengths, window):
    # Slices of a fused projection: tokens are not next to each other.
    qkv = torch.randn(sum(lengths), 3, 2, 8, dtype=torch.float64, requires_grad=True)
    got = attend_rows(*qkv.unbind(1), lengths, scale=0.3, window=window)
    want = cpu.attend_tiles(*qkv.unbind(1), lengths, scale=0.3, window=window)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    first, other = (torch.autograd.grad(x.square().sum(), qkv) for x in (got, want))
    torch.testing.assert_close(first, other, rtol=0, atol=1e-12)


def test_one_call_for_consecutive_rows_of_equal_length(monkeypatch):
    shapes = []

    def attend(query, key, value, **kwargs):
        shapes.append(tuple(query.shape))
        return query

    monkeypatch.setattr(rows, "scaled_dot_product_attention", attend)
    x = torch.randn(41, 2, 8)
    assert torch.equal(attend_rows(x, x, x, (7, 7, 7, 0, 7, 5, 5, 1, 1, 1), scale=1.0), x)
    assert shapes == [(4, 2, 7, 8), (2, 2, 5, 8), (3, 2, 1, 8)]


def test_attend_rows_applies_dropout():
    xs = [torch.ones(20, 2, 8) for _ in range(3)]
    assert not torch.equal(attend_rows(*xs, (5, 15), scale=1.0, dropout=0.5), torch.ones(20, 2, 8))
