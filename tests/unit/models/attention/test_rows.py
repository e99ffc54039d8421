"""Row by row: the same as in tiles."""

import pytest
import torch

from paratune.models.attention import cpu
from paratune.models.attention.rows import attend_rows


@pytest.mark.parametrize("window", [None, 3])
def test_rows_equal_the_tiles(window):
    lengths = (5, 0, 1, 40)
    xs = [torch.randn(46, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    got = attend_rows(*xs, lengths, scale=0.3, window=window)
    want = cpu.attend_tiles(*xs, lengths, scale=0.3, window=window)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    one, other = (torch.autograd.grad(x.square().sum(), xs) for x in (got, want))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_rows_have_dropout():
    xs = [torch.ones(20, 2, 8) for _ in range(3)]
    assert not torch.equal(attend_rows(*xs, (5, 15), scale=1.0, dropout=0.5), torch.ones(20, 2, 8))
