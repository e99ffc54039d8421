"""Attention of a tiny batch, padded to one length, compared with the definition row by row."""

import numpy as np
import pytest
import torch

from paratune.models.attention import cpu, dense_batches
from paratune.models.dropout import MaskSource

K = 8
SCALE = K**-0.5
LENGTHS = [(1,), (8,), (7, 7, 7, 7), (0, 5, 0, 17, 24, 0), (3, 1, 30)]


def inputs(num_tokens, num_heads=3, dtype=torch.float64, size=1.0):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(num_tokens, num_heads, K, dtype=dtype, generator=generator) * size).requires_grad_()
        for _ in range(3)
    ]


def reference_attention(query, key, value, lengths, masks=None, keep_scale=1.0):
    """Eager attention of each row; `masks` is (rows with tokens, H, L, L)."""
    outs, number = [], 0
    for q, k, v in zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True):
        P = (torch.einsum("ihk,jhk->hij", q, k) * SCALE).softmax(-1)
        if masks is not None and len(q):
            P = P * masks[number][:, : len(q), : len(q)] * keep_scale
            number += 1
        outs.append(torch.einsum("hij,jhk->ihk", P, v))
    return torch.cat(outs)


def attended(xs, lengths, dropout=0.0):
    assert dense_batches.find_places(tuple(lengths), xs[0].shape[1], None) is not None
    return cpu.attend_tiles(*xs, lengths, scale=SCALE, dropout=dropout)


def with_gradients(out, xs):
    weights = torch.linspace(-1, 1, out.numel()).bfloat16().view(out.shape)
    return [out, *torch.autograd.grad(out, xs, weights.to(out.dtype))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_outputs_and_gradients_in_float64(lengths):
    xs = inputs(sum(lengths))
    got, want = with_gradients(attended(xs, lengths), xs), with_gradients(reference_attention(*xs, lengths), xs)
    for tensor, other in zip(got, want, strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_dropout_applies_the_drawn_masks(lengths):
    xs, H, L = inputs(sum(lengths)), 3, -(-max(lengths) // 8) * 8
    torch.manual_seed(4)
    got = attended(xs, lengths, dropout=0.1)
    torch.manual_seed(4)
    source, rows = MaskSource(0.1), sum(length > 0 for length in lengths)
    masks = torch.from_numpy(source.draw(rows * H * L * L)).view(rows, H, L, L)
    want = reference_attention(*xs, lengths, masks, source.keep_scale)
    for tensor, other in zip(with_gradients(got, xs), with_gradients(want, xs), strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_one_query_of_each_row(dropout):
    lengths, H, L = (3, 1, 20), 3, 24
    (_, key, value), query = inputs(24), torch.randn(3, H, K, dtype=torch.float64, requires_grad=True)
    xs, starts = [query, key, value], torch.tensor([0, 3, 4])
    places = dense_batches.find_places(lengths, H, None)
    torch.manual_seed(4)
    source = MaskSource(dropout) if dropout else None
    got = dense_batches.attend(*xs, places, scale=SCALE, masks=source, is_first=True)
    whole = torch.zeros(24, H, K, dtype=torch.float64).index_copy(0, starts, query)
    masks, keep_scale = None, 1.0
    if source is not None:
        torch.manual_seed(4)
        drawn = torch.from_numpy(MaskSource(dropout).draw(3 * H * L)).view(3, H, 1, L)
        masks, keep_scale = drawn.expand(-1, -1, L, -1), source.keep_scale
    want = reference_attention(whole, key, value, lengths, masks, keep_scale)[starts]
    for tensor, other in zip(with_gradients(got, xs), with_gradients(want, xs), strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-12)


def test_half_precision_is_computed_in_float32():
    lengths = (5, 20)
    xs = inputs(25, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in xs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attended(xs, lengths)
    for tensor, other in zip(
        with_gradients(got, xs), with_gradients(reference_attention(*exact, lengths), exact), strict=True
    ):
        assert tensor.dtype == torch.bfloat16
        # One rounding, of the result: 8 bits of mantissa.
        torch.testing.assert_close(tensor.double(), other, rtol=2**-8, atol=1e-5)


def test_large_scores_and_infinite_rows_do_not_affect_other_rows():
    xs = inputs(12, dtype=torch.float32, size=50.0)
    assert attended(xs, (4, 8)).isfinite().all()
    with torch.no_grad():
        for x in xs:
            x[0] = float("nan")
    tensors = with_gradients(attended(xs, (4, 8), dropout=0.2)[4:], xs)
    assert tensors[0].isfinite().all()
    assert all(tensor[4:].isfinite().all() for tensor in tensors[1:])


def test_a_second_derivative_raises():
    xs = inputs(5)
    with pytest.raises(RuntimeError, match="out="):
        torch.autograd.grad(attended(xs, (2, 3)).square().sum(), xs, create_graph=True)


def test_the_limits_of_tiny_batches():
    find = dense_batches.find_places
    assert find((8,), 3, 4) is None  # a window
    assert find((0, 0), 3, None) is None
    # 16 heads of 64 x 64 scores are 2^16.
    assert find((64,), 16, None) is not None
    assert find((64,), 17, None) is None
    # Two heads of two rows padded to 128: 65,536 scores, where blocks of 128 and of 8 have 32,896: 32,640 more.
    assert find((128, 8), 2, None) is not None
    # With four rows padded to 96: 73,728; 2 of 96 and 2 of 8 have 36,992 and are too many in all.
    assert find((96, 96, 8, 8), 2, None) is None
    # Eight rows padded to 48, 36,864, and blocks of 48 and 7 x 8 have 5,504: 31,360 more; of 56, 42,336 more.
    assert find((48, *[8] * 7), 2, None) is not None
    assert find((56, *[8] * 7), 2, None) is None


def test_places_restore_the_order_of_tokens():
    lengths, H = (3, 0, 9, 1), 2
    places = dense_batches.find_places(lengths, H, None)
    tokens = torch.arange(13 * H)
    assert torch.equal(tokens[places.sources][places.targets], tokens)
    assert places.shape == (3 * H, 16)
    is_key = np.repeat([3, 9, 1], H)[:, None] > np.arange(16)
    assert np.array_equal(places.bias[:, 0] == 0, is_key)
