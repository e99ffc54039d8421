"""The check of the attention kernel: correct kernels pass, wrong ones are reported with the difference."""

import time

import pytest
import torch

from paratune.models.attention import check, cpu, cuda
from paratune.models.attention.check import why_not

CPU = torch.device("cpu")
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tried(dtype=torch.float32, *, windows=(None, 65), num_heads=12, head_width=32):
    return why_not(CPU, dtype, num_heads=num_heads, head_width=head_width, windows=windows)


@pytest.mark.parametrize("head_width", [1, 20, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_tiles_pass_the_check(dtype, head_width):
    assert tried(dtype, head_width=head_width, windows=(None, 1, 65, 129, 600)) is None


def test_the_reference_attention_equals_pytorch():
    q, k, v = (torch.randn(12, 2, 8, dtype=torch.float64) for _ in range(3))
    got = check.reference_attention(q, k, v, lengths=(3, 9), scale=0.3, window=None)
    rows = [[x[at].transpose(0, 1) for x in (q, k, v)] for at in (slice(0, 3), slice(3, 12))]
    want = [torch.nn.functional.scaled_dot_product_attention(*row, scale=0.3).transpose(0, 1) for row in rows]
    torch.testing.assert_close(got, torch.cat(want), rtol=0, atol=1e-12)


@pytest.fixture
def broken(monkeypatch):
    """Set what is done to the arguments of the tiles before, or to what they return."""

    def set_to(change):
        right = cpu.attend_tiles
        monkeypatch.setattr(cpu, "attend_tiles", lambda *args, **kwargs: change(right, *args, **kwargs))

    return set_to


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", [-1, 1])
def test_a_window_wrong_by_one_is_detected(broken, dtype, side):
    def change(right, *args, window, **kwargs):
        return right(*args, window=window and window + side, **kwargs)

    broken(change)
    assert tried(dtype, windows=(None,)) is None
    assert "12 heads of 32, window 65 differs by" in tried(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_across_rows_is_detected(broken, dtype):
    broken(lambda right, q, k, v, lengths, **kwargs: right(q, k, v, (sum(lengths),), **kwargs))
    assert "differs by" in tried(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_scale_is_detected(broken, dtype):
    broken(lambda right, *args, scale, **kwargs: right(*args, scale=1.2 * scale, **kwargs))
    assert "differs by" in tried(dtype)


def test_wrong_gradients_are_detected(monkeypatch):
    def without_the_sum(grad, probabilities, dim, dtype, *, grad_input):
        return torch.mul(grad, probabilities, out=grad_input)

    monkeypatch.setattr(torch, "_softmax_backward_data", without_the_sum)
    assert "differs by" in tried()


def test_nan_is_detected(broken):
    broken(lambda right, *args, **kwargs: right(*args, **kwargs) * float("nan"))
    assert "differs by nan" in tried()


def test_a_missing_operator_is_reported(monkeypatch):
    monkeypatch.delattr(torch, "_softmax_backward_data")
    actual = tried()
    assert actual.startswith("attention of packed rows failed on cpu in torch.float32, 12 heads of 32: AttributeError")
    assert "_softmax_backward_data" in actual


def test_out_of_memory_is_raised(broken):
    def full(right, *args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    broken(full)
    with pytest.raises(torch.OutOfMemoryError):
        tried()


def test_the_check_draws_no_numbers_and_works_without_gradients():
    before = torch.get_rng_state()
    with torch.no_grad():
        assert tried() is None
    assert torch.equal(torch.get_rng_state(), before)


def test_other_devices_use_rows_and_cuda_its_kernels(monkeypatch):
    # Tensors of no device: what is called is all that can be seen.
    called = []
    monkeypatch.setattr(cuda, "attend", lambda *args, **kwargs: called.append(("cuda", args[3].tolist(), args[4])))
    monkeypatch.setattr(check, "attend_rows", lambda *args, **kwargs: called.append(("rows", args[3])))
    x = torch.empty(275, 2, 8, device="meta")
    check._attend([x] * 3, 0.3, None)

    class OnCuda:
        device = torch.device("cuda")

    monkeypatch.setattr(
        check.torch, "tensor", lambda data, *, dtype, device, real=torch.tensor: real(data, dtype=dtype)
    )
    check._attend([OnCuda()] * 3, 0.3, None)
    assert called == [("rows", (5, 200, 70)), ("cuda", [0, 5, 205, 275], 200)]


def test_the_check_is_fast():
    tried()
    # 15 ms on one core of 2026; the least of several, for others may use the machine.
    elapsed_s = []
    for _ in range(5):
        start = time.process_time()
        tried(head_width=64)
        elapsed_s.append(time.process_time() - start)
    assert min(elapsed_s) < 0.2
