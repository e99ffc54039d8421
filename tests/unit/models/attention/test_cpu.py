"""Packed attention on the CPU, compared with the definition row by row, and its dropout."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from paratune.models.attention import cpu
from paratune.models.dropout import MaskSource

K = 8
SCALE = K**-0.5
LENGTHS = [
    (1,),
    (512,),
    (1, 512, 1),
    (7, 7, 7, 7),
    (5, 200, 17, 16, 130, 33, 1, 64),
    (192, 193, 400),
    tuple(random.Random(3).randint(1, 90) for _ in range(32)),
    tuple(random.Random(4).randint(1, 512) for _ in range(6)),
]


def inputs(num_tokens, *, dtype, num_heads=3, size=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(num_tokens, num_heads, K, dtype=dtype, generator=generator) * size).requires_grad_()
        for _ in range(3)
    ]


def reference_attention(query, key, value, lengths, *, window=None, masks=None, keep_scale=1.0):
    """Eager attention of each row; `masks` has one (H, L, L) for each."""
    outs = []
    for row, (q, k, v) in enumerate(zip(*(x.split(list(lengths)) for x in (query, key, value)), strict=True)):
        scores = torch.einsum("ihk,jhk->hij", q, k) * SCALE
        if window is not None:
            i = torch.arange(len(q))
            scores = scores.masked_fill((i[:, None] - i).abs() >= window, float("-inf"))
        probabilities = scores.softmax(-1)
        if masks is not None:
            probabilities = probabilities * masks[row] * keep_scale
        outs.append(torch.einsum("hij,jhk->ihk", probabilities, v))
    return torch.cat(outs)


def both(lengths, *, dtype, size=1.0, **kwargs):
    """Return outputs and gradients of ours and of the reference, which is computed in float64."""
    ours = inputs(sum(lengths), dtype=dtype, size=size)
    exact = [x.detach().double().requires_grad_() for x in ours]
    got, want = cpu.attend_tiles(*ours, lengths, scale=SCALE, **kwargs), reference_attention(*exact, lengths, **kwargs)
    weights = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    got_grads = torch.autograd.grad(got, ours, weights.to(dtype))
    return [got, *got_grads], [want, *torch.autograd.grad(want, exact, weights)]


@pytest.mark.parametrize("window", [None, 1, 5, 65])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_outputs_and_gradients_in_float64(lengths, window):
    for got, want in zip(*both(lengths, dtype=torch.float64, window=window), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_outputs_and_gradients_in_float32(lengths):
    for got, want in zip(*both(lengths, dtype=torch.float32), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_beyond_the_range_of_exp(dtype, window):
    # Scores of thousands: exp(90) overflows in float32. The softmax is nearly one-hot, and its gradients are large.
    for got, want in zip(*both((50, 300, 1, 13), dtype=dtype, size=50.0, window=window), strict=True):
        assert got.isfinite().all()
        # Scores of 10^4 have an absolute error of 10^4 times the dtype's epsilon, and so have exponents of e.
        tolerance = 1e-10 if dtype == torch.float64 else 1e-2
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * want.abs().max().item())


def test_half_precision_is_computed_in_float32():
    lengths = (5, 200, 33)
    ours = inputs(sum(lengths), dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in ours]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = cpu.attend_tiles(*ours, lengths, scale=SCALE)
    want = reference_attention(*exact, lengths)
    assert got.dtype == torch.bfloat16
    # One rounding, of the result: 8 bits of mantissa.
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-6)
    grads = torch.autograd.grad(got, ours, torch.ones_like(got))
    for single, other in zip(grads, torch.autograd.grad(want, exact, torch.ones_like(want)), strict=True):
        assert single.dtype == torch.bfloat16
        torch.testing.assert_close(single.double(), other, rtol=2**-8, atol=1e-5)


@pytest.fixture
def drawn(monkeypatch):
    """The masks that are drawn, in turn."""
    actual = []

    class Kept(MaskSource):
        def draw(self, num_entries):
            actual.append(super().draw(num_entries))
            return actual[-1]

    monkeypatch.setattr(cpu, "MaskSource", Kept)
    return actual


def by_row(lengths, num_heads, window, drawn):
    """Return the masks of all tiles as one (H, L, L) for each row."""
    actual = {}
    entries = iter(np.concatenate(drawn).tolist())  # one tile after another, however many are drawn at a time
    starts = np.cumsum([0, *lengths]).tolist()
    for block, its_tiles in cpu.plan(tuple(lengths), num_heads, window):
        whole = torch.zeros(len(block.lengths) * num_heads, block.padded, block.padded, dtype=torch.bool)
        for tile in its_tiles:
            mask = torch.tensor(list(islice(entries, int(np.prod(tile.shape)))))
            whole[tile.g, tile.i, tile.j] = mask.view(tile.shape)
        for masks, span, length in zip(whole.unflatten(0, (-1, num_heads)), block.spans, block.lengths, strict=True):
            actual[starts.index(span.start)] = masks[:, :length, :length]
    return [actual[row] for row in range(len(lengths))]


@pytest.mark.parametrize("window", [None, 65])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_dropout_with_fixed_masks(drawn, lengths, window):
    H = 3
    ours = inputs(sum(lengths), dtype=torch.float64, num_heads=H)
    exact = [x.detach().requires_grad_() for x in ours]
    got = cpu.attend_tiles(*ours, lengths, scale=SCALE, dropout=0.1, window=window)
    masks = by_row(lengths, H, window, drawn)
    want = reference_attention(*exact, lengths, window=window, masks=masks, keep_scale=65536 / (65536 - 6554))
    weights = torch.randn_like(want)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    grads = zip(torch.autograd.grad(got, ours, weights), torch.autograd.grad(want, exact, weights), strict=True)
    for single, other in grads:
        torch.testing.assert_close(single, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("window", [None, 3])
def test_gradcheck(dropout, window):
    lengths = (3, 1, 4)

    def attend(*ours):
        torch.manual_seed(5)
        return cpu.attend_tiles(*ours, lengths, scale=SCALE, dropout=dropout, window=window)

    assert torch.autograd.gradcheck(attend, inputs(8, dtype=torch.float64, num_heads=2))


def test_masks_depend_on_the_seed_and_differ_between_calls_rows_and_heads(drawn):
    lengths, H = (300, 64, 64), 2
    xs = inputs(sum(lengths), dtype=torch.float32, num_heads=H)

    def attend():
        return cpu.attend_tiles(*xs, lengths, scale=SCALE, dropout=0.5)

    torch.manual_seed(1)
    first, second = attend(), attend()
    torch.manual_seed(1)
    assert torch.equal(attend(), first)
    assert not torch.equal(first, second)
    size = len(drawn) // 3
    rows = [by_row(lengths, H, None, drawn[at : at + size]) for at in (0, size)]
    masks = [head[:64, :64].flatten() for call in rows for row in call for head in row]
    assert len(masks) == 2 * 3 * H
    for at, single in enumerate(masks):
        for other in masks[:at]:
            # Independent masks agree in half of 4096 entries, sigma 32; 66 pairs.
            assert abs((single == other).sum().item() - 2048) < 6 * 32


def test_checkpointing_draws_the_same_masks_again():
    xs = inputs(70, dtype=torch.float64)

    def attend(*ours):
        return cpu.attend_tiles(*ours, (20, 50), scale=SCALE, dropout=0.3)

    actual = []
    for twice in (False, True):
        torch.manual_seed(2)
        out = checkpoint(attend, *xs, use_reentrant=False) if twice else attend(*xs)
        actual.append(torch.autograd.grad(out.square().sum(), xs))
    for single, other in zip(*actual, strict=True):
        torch.testing.assert_close(single, other, rtol=0, atol=0)


def test_strided_inputs_of_a_fused_projection():
    qkv = torch.randn(30, 3, 3, K, dtype=torch.float64, requires_grad=True)
    got = cpu.attend_tiles(*qkv.unbind(1), (10, 20), scale=SCALE)
    want = reference_attention(*qkv.unbind(1), (10, 20))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    # A gradient that is expanded, as that of a sum.
    single, other = (torch.autograd.grad(x.sum(), qkv)[0] for x in (got, want))
    torch.testing.assert_close(single, other, rtol=0, atol=1e-12)


def test_empty_rows_are_skipped():
    xs = inputs(30, dtype=torch.float64)
    got = cpu.attend_tiles(*xs, (10, 0, 20, 0), scale=SCALE)
    torch.testing.assert_close(got, cpu.attend_tiles(*xs, (10, 20), scale=SCALE), rtol=0, atol=0)


def test_lengths_must_sum_to_the_number_of_tokens():
    with pytest.raises(ValueError, match="sum to 29, but there are 30"):
        cpu.attend_tiles(*inputs(30, dtype=torch.float64), (10, 19), scale=SCALE)


@pytest.mark.parametrize("window", [None, 1, 65, 600])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_tiles_cover_each_pair_of_a_window_once(lengths, window):
    H = 12
    for block, its_tiles in cpu.plan(tuple(lengths), H, window):
        count = torch.zeros(len(block.lengths) * H, block.padded, block.padded, dtype=torch.int32)
        for tile in its_tiles:
            count[tile.g, tile.i, tile.j] += 1
            assert np.prod(tile.shape) <= max(cpu.TILE, cpu.MIN_QUERIES * block.padded)
        i = torch.arange(block.padded)
        meets = (i[:, None] - i).abs() < (window or 513)
        assert count.max() == 1
        assert (count[:, meets] == 1).all()


def test_the_mask_of_a_window_is_cached():
    lengths, window = tuple(range(200, 264, 2)), 65
    xs = inputs(sum(lengths), dtype=torch.float32)
    cpu._band.cache_clear()
    for _ in range(2):
        # Kept from an evaluation, it must serve training as well.
        with torch.inference_mode():
            cpu.attend_tiles(*xs, lengths, scale=SCALE, window=window)
        cpu.attend_tiles(*xs, lengths, scale=SCALE, window=window).sum().backward()
    # Rows of 200 to 256 tokens are one tile each, within 256 x 256; those of 258 to 262 within 512 x 512.
    assert cpu._band.cache_info().misses == 2


@pytest.mark.parametrize("window", [1, 5, 65, 200])
def test_the_mask_of_a_window_for_every_tile(window):
    for _, its_tiles in cpu.plan((130, 300, 3000), 2, window):
        for tile in its_tiles:
            i, j = torch.arange(tile.i.start, tile.i.stop), torch.arange(tile.j.start, tile.j.stop)
            got = cpu._outside(tile, window, torch.float32)
            assert torch.equal(got < 0, (i[:, None] - j).abs() >= window)


@pytest.mark.parametrize("kwargs", [{}, {"dropout": 0.1}, {"window": 5}])
def test_attend_rows_is_used_only_without_dropout_and_window(monkeypatch, kwargs):
    monkeypatch.setattr(cpu, "attend_tiles", lambda *args, **kwargs: "tiles")
    monkeypatch.setattr(cpu, "attend_rows", lambda *args, **kwargs: "rows")
    assert cpu.attend(*inputs(3, dtype=torch.float32), (3,), scale=SCALE, **kwargs) == ("tiles" if kwargs else "rows")
