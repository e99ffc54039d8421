"""The last layer for first tokens gives the outputs and gradients of the whole layer."""

import pytest
import torch
from transformers import AutoConfig, AutoModel
from waits import attend_as_on_a_gpu, watched_for_waits

from paratune.models.attention import cuda
from paratune.models.attention.register import NAME, register
from paratune.models.blocks import attend_first, shorten_last_layer

LENGTHS = (5, 1, 40, 17)
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 99}
KINDS = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "max_position_embeddings": 66},
    "xlm-roberta": {"pad_token_id": 1, "max_position_embeddings": 66},
    "camembert": {"pad_token_id": 1, "max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "data2vec-text": {"pad_token_id": 1, "max_position_embeddings": 66},
}


def model_of(kind, **sizes):
    register()
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | KINDS.get(kind, {}) | sizes
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes)).double().train()
    model.set_attn_implementation(NAME)
    return model


def hidden(model, **kwargs):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 99, (1, sum(LENGTHS)), generator=generator)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None] + 2
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    packing = {"position_ids": positions, "cu_seqlens": cu_seqlens, "max_seqlen": max(LENGTHS)}
    return model(input_ids=ids, **packing, **kwargs).last_hidden_state, cu_seqlens[:-1].long()


def gradients(model, out):
    model.zero_grad()
    weights = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_and_gradients_equal_the_whole_layer(kind):
    model = model_of(kind)
    whole, first = hidden(model)
    want = whole[:, first]
    want_grads = gradients(model, want)
    assert shorten_last_layer(model.encoder.layer[-1])
    got, _ = hidden(model, first_tokens_only=True)
    assert got.shape == (1, len(LENGTHS), 16)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    got_grads = gradients(model, got)
    assert got_grads.keys() == want_grads.keys()
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_first_tokens_on_a_gpu_are_one_call_of_its_kernel(monkeypatch, kind):
    model = model_of(kind, hidden_size=32)
    whole, first = hidden(model.float())
    want = whole[:, first]
    want_grads = gradients(model, want)
    calls = attend_as_on_a_gpu(monkeypatch)
    ends, real = [], cuda._by_kernel
    monkeypatch.setattr(cuda, "_by_kernel", lambda *received: ends.append(received[-1]) or real(*received))
    shorten_last_layer(model.encoder.layer[-1])
    with watched_for_waits() as waits:
        got, _ = hidden(model, first_tokens_only=True)
    assert waits.found == []
    assert calls == [("efficient", 40, 0.0, None)] * 3
    assert [rows.max_q for rows in ends] == [40, 40, 1]
    assert ends[-1].cu_seqlens_q.tolist() == [0, 1, 2, 3, 4]
    assert ends[-1].cu_seqlens_q.dtype == torch.int32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    for name, grad in gradients(model, got).items():
        torch.testing.assert_close(grad, want_grads[name], rtol=1e-3, atol=1e-4, msg=name)


def test_first_tokens_on_a_gpu_without_a_kernel_are_computed_by_lengths(monkeypatch):
    model = model_of("bert")  # float64
    whole, first = hidden(model)
    calls = attend_as_on_a_gpu(monkeypatch)
    shorten_last_layer(model.encoder.layer[-1])
    got, _ = hidden(model, first_tokens_only=True)
    assert calls == []
    torch.testing.assert_close(got, whole[:, first], rtol=0, atol=1e-12)


def test_without_the_argument_all_tokens_are_computed():
    model = model_of("bert")
    want, _ = hidden(model)
    shorten_last_layer(model.encoder.layer[-1])
    torch.testing.assert_close(hidden(model)[0], want, rtol=0, atol=0)
    torch.testing.assert_close(hidden(model, first_tokens_only=False)[0], want, rtol=0, atol=0)


def test_dropout_is_active_only_in_training():
    model = model_of("bert", attention_probs_dropout_prob=0.5, num_hidden_layers=1)
    shorten_last_layer(model.encoder.layer[-1])
    single, other = (hidden(model, first_tokens_only=True)[0] for _ in range(2))
    assert not torch.equal(single, other)
    single, other = (hidden(model.eval(), first_tokens_only=True)[0] for _ in range(2))
    assert torch.equal(single, other)


def test_other_layers_do_not_change():
    layer = torch.nn.TransformerEncoderLayer(8, 2)
    assert not shorten_last_layer(layer)
    assert "forward" not in vars(layer)
    decoder = model_of("bert", is_decoder=True).encoder.layer[-1]
    assert not shorten_last_layer(decoder)


def test_one_query_equals_the_definition():
    # Row 1 is one token: its value. Row 2: scores 0 and ln 3 are probabilities 1/4 and 3/4.
    query = torch.tensor([[[1.0]], [[1.0]]])
    key = torch.tensor([5.0, 0.0, 3.0]).log().nan_to_num(neginf=0.0).view(3, 1, 1)
    value = torch.tensor([7.0, 4.0, 8.0]).view(3, 1, 1)
    out = attend_first(query, key, value, [1, 2], scale=1.0, p=0.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([7.0, 7.0]))


def test_half_precision_keeps_its_dtype():
    x = torch.randn(3, 2, 4, dtype=torch.bfloat16)
    assert attend_first(x[:1], x, x, [3], scale=0.5, p=0.1).dtype == torch.bfloat16
