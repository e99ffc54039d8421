"""`paratune_packed` in transformers' models: packed and padded rows give equal results."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel

from paratune.models.attention.register import NAME, packed_attention, register

LENGTHS = (5, 1, 40, 17)
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 99}
ROPE = {"max_position_embeddings": 64, "pad_token_id": 0}
MODELS = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "modernbert": {**ROPE, "local_attention": 8, "global_attn_every_n_layers": 2}
    | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "eurobert": {**ROPE, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2},
}


def model_of(kind, implementation, **sizes):
    config = AutoConfig.for_model(kind, **SIZES | MODELS[kind] | sizes)
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").double()
    model.set_attn_implementation(implementation)
    return model


def hidden_and_gradients(model, *, packed):
    torch.manual_seed(1)
    rows = [torch.randint(4, 99, (length,)) for length in LENGTHS]
    offset = 2 if model.config.model_type == "roberta" else 0
    if packed:
        positions = torch.cat([torch.arange(length) for length in LENGTHS])[None] + offset
        cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        packing = {"position_ids": positions, "cu_seqlens": cu_seqlens, "max_seqlen": max(LENGTHS)}
        hidden = model(input_ids=torch.cat(rows)[None], **packing).last_hidden_state[0]
    else:
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
        mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask]
    weights = torch.randn(hidden.shape, dtype=hidden.dtype, generator=torch.Generator().manual_seed(2))
    (hidden * weights).sum().backward()
    return hidden, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", MODELS)
def test_packed_equals_padded(kind):
    register()
    register()
    want, want_grads = hidden_and_gradients(model_of(kind, "sdpa").eval(), packed=False)
    got, got_grads = hidden_and_gradients(model_of(kind, NAME).eval(), packed=True)
    # EuroBERT turns queries and keys by angles in float32, whatever the model's dtype.
    tolerance = 1e-6 if kind == "eurobert" else 1e-12
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    assert got_grads.keys() == want_grads.keys()
    for name, grad in got_grads.items():
        torch.testing.assert_close(grad, want_grads[name], rtol=10 * tolerance, atol=10 * tolerance, msg=name)


def test_dropout_is_active_only_in_training():
    register()
    model = model_of("bert", NAME, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    with torch.no_grad():
        first, other = (hidden(model.train()) for _ in range(2))
        assert not torch.equal(first, other)
        assert torch.equal(hidden(model.eval()), hidden(model))


def hidden(model):
    cu_seqlens = torch.tensor([0, 4, 9]).int()
    return model(input_ids=torch.arange(9)[None], cu_seqlens=cu_seqlens, max_seqlen=5).last_hidden_state


class Encoder(nn.Module):
    is_causal = False


class Decoder(nn.Module):
    is_causal = True


def call(module=None, **kwargs):
    x = torch.randn(1, 2, 9, 8)
    kwargs = {"attention_mask": None, "cu_seqlens": torch.tensor([0, 4, 9])} | kwargs
    return packed_attention(module or Encoder(), x, x, x, **kwargs)


def test_shape_and_no_probabilities():
    out, probabilities = call()
    assert out.shape == (1, 9, 2, 8)
    assert probabilities is None


def test_the_default_scale_depends_on_the_head_width():
    x = torch.randn(1, 2, 9, 8)
    args = (Encoder(), x, x, x, None)
    cu_seqlens = torch.tensor([0, 4, 9])
    default = packed_attention(*args, cu_seqlens=cu_seqlens)[0]
    torch.testing.assert_close(packed_attention(*args, scaling=8**-0.5, cu_seqlens=cu_seqlens)[0], default)
    assert not torch.equal(packed_attention(*args, scaling=1.0, cu_seqlens=cu_seqlens)[0], default)


@pytest.mark.parametrize(
    ("module", "kwargs", "match"),
    [
        (Decoder(), {}, "Decoder is causal"),
        (nn.Linear(1, 1), {}, "Linear is causal"),
        (Encoder(), {"is_causal": True}, "Encoder is causal"),
        (Encoder(), {"attention_mask": torch.ones(1, 9)}, "attention mask"),
        (Encoder(), {"softcap": 30.0, "head_mask": torch.ones(2)}, "softcap, head_mask"),
    ],
)
def test_unsupported_arguments_raise(module, kwargs, match):
    with pytest.raises(NotImplementedError, match=match):
        call(module, **kwargs)


def test_missing_lengths_are_an_error():
    with pytest.raises(ValueError, match="Encoder received no cu_seqlens"):
        call(cu_seqlens=None)


class Operators(TorchDispatchMode):
    """Notes the name of each operator."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_the_backward_pass_copies_no_gradient_into_zeros():
    xs = [torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3)]
    out, _ = packed_attention(Encoder(), *xs, None, cu_seqlens=torch.tensor([0, 4, 9], dtype=torch.int32), dropout=0.1)
    with torch.autograd.set_multithreading_enabled(False), Operators() as operators:
        torch.autograd.grad(out.sum(), xs)
    assert "bmm" in operators.names
    assert "select_backward" not in operators.names
