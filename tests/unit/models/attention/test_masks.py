"""Masks without waiting for the device, compared with those of transformers."""

from types import SimpleNamespace

import pytest
import torch
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
)

from paratune.models.attention import masks

FULL = torch.ones(2, 4, dtype=torch.bool)
PADDED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)


def made(make, padding, window=None):
    function = sliding_window_bidirectional_mask_function(window) if window else bidirectional_mask_function
    size = {
        "batch_size": 2,
        "q_length": 4,
        "kv_length": 4,
        "q_offset": 0,
        "kv_offset": 0,
        "device": torch.device("cpu"),
    }
    options = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True, "local_size": window}
    return make(**size, **options, mask_function=function, attention_mask=padding)


def reference_mask(padding, window=None):
    i = torch.arange(4)
    meets = (i[:, None] - i).abs() < 100 if window is None else (i[:, None] - i).abs() <= window
    return (meets & padding[:, None, None, :]).expand(2, 1, 4, 4)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As if masks lay on a device that is not to be asked: a look at one raises."""
    monkeypatch.setattr(masks, "ON_DEVICE", ("cpu",))

    def look(self, *args, **kwargs):
        raise AssertionError("the host waits for the device")

    monkeypatch.setattr(torch.Tensor, "all", look)


def ours(name="sdpa"):
    """Return what a model finds under a name of transformers."""
    return ALL_MASK_ATTENTION_FUNCTIONS[name]


def block(is_full):
    return masks.masks_without_sync(torch.device("cpu"), is_full=is_full)


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.usefixtures("on_a_gpu")
def test_padding_is_masked(window):
    with block(False):
        torch.testing.assert_close(made(ours(), PADDED, window), reference_mask(PADDED, window))


@pytest.mark.usefixtures("on_a_gpu")
def test_no_mask_without_padding():
    with block(True):
        assert made(ours(), FULL) is None
        # A window is needed all the same.
        actual = made(ours(), FULL, 1)
    torch.testing.assert_close(actual.expand(2, 1, 4, 4), reference_mask(FULL, 1))


@pytest.mark.usefixtures("on_a_gpu")
def test_nested_forward_passes_have_their_own_masks():
    with block(False), block(True):
        assert made(ours(), FULL) is None
    with block(False):
        torch.testing.assert_close(made(ours(), FULL), reference_mask(FULL))


@pytest.mark.usefixtures("on_a_gpu")
def test_causal_models_mask_padding_and_later_tokens():
    size = {"batch_size": 2, "q_length": 4, "kv_length": 4, "device": torch.device("cpu")}
    options = {"mask_function": causal_mask_function, "allow_is_causal_skip": True, "local_size": None}
    before = torch.ones(4, 4, dtype=torch.bool).tril()
    with block(False):
        actual = ours()(**size, **options, attention_mask=PADDED)
    torch.testing.assert_close(actual, before & PADDED[:, None, None, :])
    with block(True):  # None: PyTorch's attention gets the argument is_causal
        assert ours()(**size, **options, attention_mask=FULL) is None


@pytest.mark.usefixtures("on_a_gpu")
def test_eager_attention_gets_the_same_mask_as_numbers():
    least = torch.finfo(torch.float32).min
    with block(False):
        actual = made(ours("eager"), PADDED)
    torch.testing.assert_close(actual, torch.where(reference_mask(PADDED), 0.0, least))
    with block(True):
        assert made(ours("eager"), FULL) is None


@pytest.mark.usefixtures("on_a_gpu")
def test_transformers_functions_are_restored():
    own = {name: ours(name) for name in masks.NAMES}
    assert own == {"sdpa": sdpa_mask, "eager": eager_mask}

    def fail():
        with block(True):
            assert all(ours(name) is not own[name] for name in masks.NAMES)
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fail()
    assert {name: ours(name) for name in masks.NAMES} == own


def test_on_the_cpu_masks_are_those_of_transformers():
    with block(True):
        assert ours() is sdpa_mask
    seen = []
    padding = SimpleNamespace(device=torch.device("cpu"))
    masks.make_mask(
        lambda *args, **kwargs: seen.append((args, kwargs)),
        True,
        2,
        attention_mask=padding,
        allow_is_bidirectional_skip=True,
    )
    assert seen == [((2,), {"attention_mask": padding, "allow_is_bidirectional_skip": True})]
