"""The inputs of attention under autocast on a GPU, for every architecture, on tensors without data."""

import pytest
import torch
from architectures import CONFIGS, model_of, rows
from fake_cuda import moved, on_fake_cuda
from torch import nn

from paratune.batch.packing import pack
from paratune.models.attention import cuda
from paratune.models.attention.register import packed_attention
from paratune.models.packed import enable_packed_batches

NOT_ON_A_GPU = ("deberta-v2", "deberta-v3")
"""Their batches are bucketed there."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in NOT_ON_A_GPU])
def test_attention_gets_one_dtype_on_one_device(monkeypatch, name, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    kind = "classification"
    model = model_of(CONFIGS[name](), kind)
    enable_packed_batches(model)
    assert model.entry is not None
    received, real = [], cuda._by_kernel

    def seen(kernel, query, key, value, rows):
        received.append({(x.dtype, str(x.device)) for x in (query, key, value)})
        assert {str(rows.cu_seqlens_q.device), str(rows.cu_seqlens_k.device)} == {"cuda:0"}
        out = real(kernel, query, key, value, rows)
        assert (out.dtype, out.device, out.shape) == (value.dtype, value.device, query.shape)
        return out

    monkeypatch.setattr(cuda, "_by_kernel", seen)
    monkeypatch.setattr(cuda, "choose_kernel", lambda dtype, *_: "efficient" if dtype == torch.float32 else "flash")
    batch = pack(rows([5, 1, 40, 12], kind, pad=model.hf.config.pad_token_id))
    with on_fake_cuda(dtype):
        outputs = moved(model)(moved(batch))
    assert outputs.device.type == "cuda"
    assert received == [{(dtype or torch.float32, "cuda:0")}] * 2


class Encoder(nn.Module):
    is_causal = False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_and_keys_are_cast_to_the_dtype_of_values_on_the_cpu(dtype):
    query, key, value = (torch.randn(1, 2, 9, 8) for _ in range(3))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    out, _ = packed_attention(Encoder(), query, key, value.to(dtype), None, cu_seqlens=ends)
    lower = [x.to(dtype) for x in (query, key, value)]
    expected, _ = packed_attention(Encoder(), *lower, None, cu_seqlens=ends)
    assert out.dtype == dtype
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("which", "dtype"), [(0, torch.float32), (1, torch.float32), (2, torch.float32)])
def test_unequal_dtypes_raise_before_a_kernel_is_called(monkeypatch, which, dtype):
    monkeypatch.setattr(cuda, "_by_kernel", lambda *received: pytest.fail("the kernel was called"))
    tensors = [torch.randn(9, 2, 8, dtype=torch.bfloat16) for _ in range(3)]
    tensors[which] = tensors[which].to(dtype)
    with pytest.raises(ValueError, match=r"torch\.float32 on cpu"):
        cuda.attend(*tensors, torch.tensor([0, 4, 9], dtype=torch.int32), 5, scale=1.0)


@pytest.mark.parametrize("ends", [torch.tensor([0, 4, 9]), torch.empty(3, dtype=torch.int32, device="meta")])
def test_row_ends_of_another_dtype_or_device_raise(monkeypatch, ends):
    monkeypatch.setattr(cuda, "_by_kernel", lambda *received: pytest.fail("the kernel was called"))
    query = torch.randn(9, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=f"{ends.dtype} on {ends.device}"):
        cuda.attend(query, query, query, ends, 5, scale=1.0)
