"""Masks without waiting for the device, compared with those of transformers."""

from types import SimpleNamespace

import pytest
import torch
from architectures import CONFIGS, model_of, rows
from transformers import T5Config, T5ForSequenceClassification
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paratune.models.attention import register as masks
from paratune.models.task_model import TaskModel

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


def ours(is_full, name="sdpa"):
    """Return what a model finds under our name."""
    return ALL_MASK_ATTENTION_FUNCTIONS[masks.attention_name(name, torch.device("cpu"), is_full=is_full)]


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.usefixtures("on_a_gpu")
def test_padding_is_masked(window):
    torch.testing.assert_close(made(ours(False), PADDED, window), reference_mask(PADDED, window))


@pytest.mark.usefixtures("on_a_gpu")
def test_no_mask_without_padding():
    assert made(ours(True), FULL) is None
    # A window is needed all the same.
    actual = made(ours(True), FULL, 1)
    torch.testing.assert_close(actual.expand(2, 1, 4, 4), reference_mask(FULL, 1))


@pytest.mark.usefixtures("on_a_gpu")
def test_causal_models_mask_padding_and_later_tokens():
    size = {"batch_size": 2, "q_length": 4, "kv_length": 4, "device": torch.device("cpu")}
    options = {"mask_function": causal_mask_function, "allow_is_causal_skip": True, "local_size": None}
    before = torch.ones(4, 4, dtype=torch.bool).tril()
    actual = ours(False)(**size, **options, attention_mask=PADDED)
    torch.testing.assert_close(actual, before & PADDED[:, None, None, :])
    # None: PyTorch's attention gets the argument is_causal
    assert ours(True)(**size, **options, attention_mask=FULL) is None


@pytest.mark.usefixtures("on_a_gpu")
def test_eager_attention_gets_the_same_mask_as_numbers():
    least = torch.finfo(torch.float32).min
    actual = made(ours(False, "eager"), PADDED)
    torch.testing.assert_close(actual, torch.where(reference_mask(PADDED), 0.0, least))
    assert made(ours(True, "eager"), FULL) is None


def test_on_the_cpu_masks_are_those_of_transformers():
    for name in ("sdpa", "eager", "flex_attention", None):
        assert masks.attention_name(name, torch.device("cpu"), is_full=True) == name
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


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_entries_of_transformers_stay(monkeypatch, attention):
    """Also inside of a pass, for other models of the process."""
    seen = []
    model = model_of(CONFIGS["bert"](), "classification").eval()
    model._attention = attention
    model.hf.get_input_embeddings().register_forward_hook(lambda *_: seen.append(dict(ALL_MASK_ATTENTION_FUNCTIONS)))
    masks._register()
    before = dict(ALL_MASK_ATTENTION_FUNCTIONS), dict(ALL_ATTENTION_FUNCTIONS)
    assert (before[0]["sdpa"], before[0]["eager"]) == (sdpa_mask, eager_mask)
    expected = model(rows([3, 4], "classification"))
    monkeypatch.setattr(masks, "ON_DEVICE", ("cpu",))
    assert torch.equal(model(rows([3, 4], "classification")), expected)
    assert model.hf.config._attn_implementation == f"paratune_{attention}"
    assert seen == [before[0]] * 2
    assert (dict(ALL_MASK_ATTENTION_FUNCTIONS), dict(ALL_ATTENTION_FUNCTIONS)) == before


def test_parts_of_a_model_with_a_copy_of_the_configuration_get_the_name_too(monkeypatch):
    monkeypatch.setattr(masks, "ON_DEVICE", ("cpu",))
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=100, **sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    model = TaskModel(T5ForSequenceClassification(config), "classification")
    batch = rows([3, 4], "classification")
    batch.input_ids[[0, 1], [2, 3]] = 1
    model(batch)
    stacks = (model.hf.config, model.hf.transformer.encoder.config, model.hf.transformer.decoder.config)
    assert {config._attn_implementation for config in stacks} == {"paratune_sdpa"}
