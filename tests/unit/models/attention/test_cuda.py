"""CUDA kernels without a GPU: their choice, their arguments, and the way without them."""

import threading
from types import SimpleNamespace

import pytest
import torch

from paratune.models.attention import cpu, cuda, kernels
from paratune.models.attention.kernels import PackedRowEnds

KERNELS = ("flash", "efficient")
AMPERE, TURING = (8, 0), (7, 5)
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


@pytest.fixture(autouse=True)
def _nothing_refused(monkeypatch):
    monkeypatch.setattr(cuda, "_refused", set())
    monkeypatch.setattr(cuda, "_worked", set())


@pytest.fixture
def both(monkeypatch):
    monkeypatch.setattr(cuda, "has_signature", lambda kernel: True)


@pytest.mark.parametrize(
    ("dtype", "head_width", "window", "capability", "kernel"),
    [
        (BF16, 64, None, AMPERE, "flash"),
        (F16, 32, 65, AMPERE, "flash"),
        (BF16, 64, None, TURING, "efficient"),
        (BF16, 64, 65, TURING, "rows"),
        (BF16, 264, None, AMPERE, "efficient"),
        (BF16, 20, None, AMPERE, "rows"),
        (F32, 64, None, AMPERE, "efficient"),
        (F32, 20, None, TURING, "efficient"),
        (F32, 64, 65, AMPERE, "rows"),
        (F32, 30, None, AMPERE, "rows"),
        (F64, 64, None, AMPERE, "rows"),
    ],
)
@pytest.mark.usefixtures("both")
def test_the_kernel_by_dtype_width_window_and_device(dtype, head_width, window, capability, kernel):
    assert cuda.choose_kernel(dtype, head_width, window, capability) == kernel


def test_missing_or_different_operators_are_not_called(monkeypatch):
    monkeypatch.setattr(cuda, "has_signature", lambda kernel: kernel == "efficient")
    assert cuda.choose_kernel(BF16, 64, None, AMPERE) == "efficient"
    monkeypatch.setattr(cuda, "has_signature", lambda kernel: False)
    assert cuda.choose_kernel(BF16, 64, None, AMPERE) == "rows"


def test_the_installed_torch_has_the_expected_signatures():
    assert cuda.has_signature("flash")
    assert cuda.has_signature("efficient")


@pytest.mark.parametrize("change", ["missing", "renamed", "one more", "gone"])
@pytest.mark.parametrize(
    ("kernel", "name"), [(kernel, name) for kernel in KERNELS for name in kernels.SIGNATURES[kernel]]
)
def test_signatures_of_both_passes_are_compared(monkeypatch, kernel, name, change):
    names = list(kernels.SIGNATURES[kernel][name])
    if change == "renamed":
        names[4] = "offsets"
    if change == "one more":
        names.append("needed")
    if change == "gone":
        names.remove("scale")
    arguments = [SimpleNamespace(name=name, has_default_value=lambda: False) for name in names]
    operator = SimpleNamespace(default=SimpleNamespace(_schema=SimpleNamespace(arguments=arguments)))
    assert kernels.has_signature.__wrapped__(kernel)
    monkeypatch.setattr(torch.ops.aten, name, None if change == "missing" else operator)
    assert not kernels.has_signature.__wrapped__(kernel)


CU_SEQLENS = torch.tensor([0, 5, 6, 46], dtype=torch.int32)


def packed(dtype, **kwargs):
    xs = [torch.randn(46, 2, 8, dtype=dtype) for _ in range(3)]
    return xs, cuda.attend(*xs, CU_SEQLENS, 40, scale=0.3, **kwargs)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_kernel_whose_first_call_fails_is_not_used_again_and_is_logged_once(monkeypatch, caplog, dtype, window):
    # CPU tensors: both operators do refuse them.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: AMPERE)
    for _ in range(2):
        xs, got = packed(dtype, window=window)
        want = cpu.attend(*xs, (5, 1, 40), scale=0.3, window=window)
        torch.testing.assert_close(
            got, want, rtol=2e-2 if dtype == BF16 else 1e-5, atol=1e-2 if dtype == BF16 else 1e-6
        )
    expected = {(F32, None): 1, (F32, 3): 0, (BF16, None): 2, (BF16, 3): 1}
    assert len([line for line in caplog.messages if "kernel failed" in line]) == expected[dtype, window]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_errors_of_the_device_are_raised(monkeypatch, kind):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: AMPERE)

    def full(*args):
        raise kind("CUDA out of memory")

    monkeypatch.setattr(cuda, "_by_kernel", full)
    with pytest.raises(kind):
        packed(F32)
    assert not cuda._refused


@pytest.mark.usefixtures("both")
def test_later_errors_of_a_working_kernel_are_raised(monkeypatch):
    # One rank would continue with another kernel than the others.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: AMPERE)
    calls = []

    def second_fails(kernel, query, *others):
        calls.append(kernel)
        if len(calls) == 2:
            raise RuntimeError("cuBLAS was out of sorts")
        return query

    monkeypatch.setattr(cuda, "_by_kernel", second_fails)
    packed(F32)
    with pytest.raises(RuntimeError, match="out of sorts"):
        packed(F32)
    packed(F32)
    assert calls == ["efficient"] * 3


def named(monkeypatch, name, outputs):
    """Let an operator return `outputs` and note its arguments by their names in its schema."""
    schema, calls = getattr(torch.ops.aten, name).default._schema, []

    def operator(*args, **kwargs):
        assert {argument.name for argument in schema.arguments if argument.kwarg_only} >= set(kwargs)
        calls.append(dict(zip([argument.name for argument in schema.arguments], args, strict=False)) | kwargs)
        calls[-1]["deterministic"] = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        )
        return outputs(*args) if callable(outputs) else outputs

    monkeypatch.setattr(torch.ops.aten, name, operator)
    return calls


@pytest.fixture
def tried(monkeypatch):
    """Call a kernel forward and backward with operators that note what they are given."""

    def call(kernel, window=None, deterministic=True):
        forward, backward = kernels.SIGNATURES[kernel]
        shape = (46, 2, 8) if kernel == "flash" else (1, 46, 2, 8)
        has_backward = tuple(torch.full((1,), float(number)) for number in range(1, 4))
        returned = tuple(torch.full(shape, float(x), dtype=BF16) for x in (1, 2, 3, 4))
        calls = [
            named(monkeypatch, forward, (torch.zeros(shape, dtype=BF16), *has_backward, None)),
            named(monkeypatch, backward, returned[:3] if kernel == "flash" else returned),
        ]
        xs = [torch.randn(46, 2, 8, dtype=BF16, requires_grad=True) for _ in range(3)]
        with cuda.attention_settings(deterministic=deterministic):
            out = cuda._by_kernel(kernel, *xs, PackedRowEnds(CU_SEQLENS, CU_SEQLENS, 40, 40, 0.3, 0.1, window))
            gradients = torch.autograd.grad(out, xs, torch.ones(46, 2, 8, dtype=BF16)) if deterministic else ()
        return xs, out, gradients, [call for (call,) in calls[: 1 + deterministic]]

    return call


@pytest.mark.parametrize(("kernel", "window"), [("flash", None), ("flash", 65), ("efficient", None)])
def test_the_arguments_of_a_kernel_fit_its_schema(tried, kernel, window):
    _, out, gradients, calls = tried(kernel, window)
    assert out.shape == (46, 2, 8)
    assert [float(gradient.mean()) for gradient in gradients] == [1.0, 2.0, 3.0]
    assert {gradient.shape for gradient in gradients} == {(46, 2, 8)}
    for call in calls:
        assert call["dropout_p"] == 0.1
        assert call["scale"] == 0.3
        if kernel == "flash":
            assert call["cum_seq_q"] is CU_SEQLENS
            assert call["cum_seq_k"] is CU_SEQLENS
            assert call["max_q"] == call["max_k"] == 40
            assert call["is_causal"] is False
            # |i - j| < 65 is 64 to each side, both ends counted.
            assert call["window_size_left"] == call["window_size_right"] == (None if window is None else 64)
        else:
            assert call["query"].shape == (1, 46, 2, 8)
            assert call["bias"] is None
            assert call["cu_seqlens_q"] is CU_SEQLENS
            assert call["max_seqlen_q"] == call["max_seqlen_k"] == 40
            assert call["custom_mask_type"] == 0
    forward, backward = calls
    assert forward.get("compute_log_sumexp", True) is True
    state = ("rng_state", "unused") if kernel == "flash" else ("philox_seed", "philox_offset")
    assert [float(backward[name]) for name in ("logsumexp", *state)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
def test_only_the_backward_pass_is_deterministic(tried, kernel, before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        forward, backward = tried(kernel)[3]
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    # New memory is not filled with NaN: that would be kernels for nothing.
    assert backward["deterministic"] == (True, False, False)
    assert forward["deterministic"] == (*before, True)
    assert after == before
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_switches_are_restored_when_a_kernel_fails():
    with pytest.raises(RuntimeError, match="out of sorts"), kernels.deterministic():
        raise RuntimeError("out of sorts")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_threads_leave_the_switches_off():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with kernels.deterministic():
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=other)
    with kernels.deterministic():
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    leave.set()
    thread.join()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("kernel", KERNELS)
def test_atomics_are_allowed_where_the_run_allows_them(tried, kernel):
    """The operators' own backward pass is taken then, without Python."""
    _, out, _, (forward,) = tried(kernel, deterministic=False)
    assert out.grad_fn is None  # the operator was replaced by one without gradients
    assert forward["deterministic"] == (False, False, True)
    assert cuda._is_deterministic
