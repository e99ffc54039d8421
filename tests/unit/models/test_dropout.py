"""Cheap dropout: statistics and seeds of masks, and a module that behaves as `nn.Dropout`."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paratune.models import dropout
from paratune.models.dropout import CheapDropout, MaskSource, use_cheap_dropout

N = 1 << 20


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 2**-16, 0.999])
def test_the_share_of_kept_entries_is_within_five_sigma(p):
    torch.manual_seed(1)
    num_kept = int(MaskSource(p).draw(N).sum())
    sigma = math.sqrt(N * p * (1 - p))
    assert abs(num_kept - N * (1 - p)) < 5 * sigma


def test_neighbouring_entries_are_kept_independently():
    torch.manual_seed(2)
    mask = MaskSource(0.5).draw(N).astype(np.float64) - 0.5
    for lag in (1, 2, 3, 4, 64):
        # The mean of N products of +-1/2 has a standard deviation of 1/(4 sqrt(N)).
        assert abs((mask[lag:] * mask[:-lag]).mean()) < 5 / (4 * math.sqrt(N))


def test_the_scale_uses_the_rounded_probability():
    # 0.1 * 65536 = 6553.6: 6554 words of 65536 drop.
    assert MaskSource(0.1).keep_scale == 65536 / (65536 - 6554)
    assert MaskSource(0.5).keep_scale == 2.0
    assert MaskSource(1.0).keep_scale == 0.0
    assert not MaskSource(1.0).draw(100).any()
    assert MaskSource(0.0).draw(1000).all()


def test_every_word_below_the_threshold_drops_and_no_other(monkeypatch):
    source = MaskSource(0.1)
    words = np.arange(65536, dtype=np.uint16).view(np.uint64)
    monkeypatch.setattr(source, "_words", type("Words", (), {"random_raw": lambda self, count: words[:count]})())
    assert source.draw(65536).sum() == 65536 - 6554


def test_masks_depend_on_the_seed_of_torch_and_sources_differ():
    def draw():
        torch.manual_seed(7)
        return [MaskSource(0.5).draw(4096) for _ in range(3)]

    first, second = draw(), draw()
    for single, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(single, other)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        # Independent masks agree in half of 4096 entries, sigma 32.
        assert abs((first[a] == first[b]).sum() - 2048) < 5 * 32
    source = MaskSource(0.5)
    assert (source.draw(4096) != source.draw(4096)).any()


def test_words_are_those_of_sfc64_seeded_by_three_words_of_torch():
    torch.manual_seed(5)
    a, b, c = torch.empty(3, dtype=torch.int64).random_().tolist()
    torch.manual_seed(5)
    got = MaskSource(0.5)._words.random_raw(8).tolist()
    counter, wrap = 1, 2**64 - 1
    words = []
    for _ in range(12 + 8):  # PractRand, sfc64: 12 rounds before the first word
        word, counter = (a + b + counter) & wrap, counter + 1
        a, b = b ^ (b >> 11), (c + (c << 3)) & wrap
        c = (((c << 24) | (c >> 40)) + word) & wrap
        words.append(word)
    assert got == words[12:]


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7, 5), (3, dropout.CHUNK)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients_have_the_same_mask_and_scale(shape, dtype):
    layer = CheapDropout(0.25).train()
    x = torch.rand(shape, dtype=dtype).add_(1).requires_grad_()
    out = layer(x)
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert out.shape == x.shape
    assert out.dtype == dtype
    scale = torch.tensor(4 / 3, dtype=dtype)
    assert set(grad.flatten().tolist()) <= {0.0, scale.item()}
    torch.testing.assert_close(out, x * grad, rtol=0, atol=0)


def test_strided_input_and_gradient():
    x = torch.rand(6, 4).add_(1).t().requires_grad_()
    out = CheapDropout(0.5)(x)
    (grad,) = torch.autograd.grad(out, x, torch.full((6, 4), 3.0).t())
    torch.testing.assert_close(grad, torch.where(out.detach() != 0, 6.0, 0.0), rtol=0, atol=0)


def test_evaluation_and_zero_are_the_identity_and_draw_nothing():
    x = torch.rand(100, requires_grad=True)
    state = torch.get_rng_state()
    assert torch.equal(CheapDropout(0.1).eval()(x), x)
    assert torch.equal(CheapDropout(0.0).train()(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_in_place_dropout_changes_its_input():
    x = torch.ones(1000)
    out = CheapDropout(0.5, inplace=True).train()(x)
    assert out.data_ptr() == x.data_ptr()
    assert 0 < (x == 0).sum() < 1000


def test_checkpointing_draws_the_same_masks_again():
    layers = nn.Sequential(nn.Linear(64, 64), CheapDropout(0.5), nn.Linear(64, 64), CheapDropout(0.5))
    x = torch.randn(8, 64)

    def gradients(*, twice):
        torch.manual_seed(3)
        out = checkpoint(layers, x, use_reentrant=False) if twice else layers(x)
        return out, *torch.autograd.grad(out.square().sum(), list(layers.parameters()))

    for single, other in zip(gradients(twice=False), gradients(twice=True), strict=True):
        torch.testing.assert_close(single, other, rtol=0, atol=0)


def test_modules_change_class_and_names_stay():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.drop = nn.Linear(2, 2), nn.Dropout(0.3)
            self.again = self.drop
            self.inside = nn.Sequential(nn.Dropout(0.2), nn.Linear(2, 2))

    block = Block()
    block.inside.eval()
    names = list(block.state_dict())
    assert use_cheap_dropout(block) == 2
    assert list(block.state_dict()) == names
    assert isinstance(block.drop, CheapDropout)
    assert block.drop.p == 0.3
    assert block.drop.training
    assert block.again is block.drop
    assert isinstance(block.inside[0], CheapDropout)
    assert not block.inside[0].training
    assert use_cheap_dropout(block) == 0
