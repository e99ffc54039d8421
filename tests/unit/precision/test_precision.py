import pytest
import torch
from raised import raises_code
from torch import nn

from paratune.config.sections import Config
from paratune.precision import POLICIES, precision_policy

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_there_is_a_policy_for_each_name_in_the_configuration():
    assert set(POLICIES) == set(Config.model_fields["precision"].annotation.__args__)


@pytest.mark.parametrize(
    ("name", "computed", "kept"),
    [
        ("fp32", torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32),
        ("fp16", torch.float16, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
        ("fp64", torch.float64, torch.float64),
    ],
)
def test_the_dtypes_of_each_policy(name: str, computed: torch.dtype, kept: torch.dtype):
    policy = POLICIES[name]
    layer = nn.Linear(2, 2).to(policy.param_dtype)
    with policy.autocast(CPU):
        outputs = layer(torch.ones(1, 2, dtype=policy.param_dtype))
    assert outputs.dtype == computed
    outputs.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.dtype == layer.weight.grad.dtype == policy.reduce_dtype == kept
    assert policy.scales_loss == (computed == torch.float16), "only fp16 has fewer exponents than fp32"


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_passes_with_16_bit_weights_need_no_autocast(name: str, dtype: torch.dtype):
    policy = POLICIES[name].with_weights(name)
    assert (policy.autocast_dtype, policy.pass_dtype, policy.compute_dtype) == (None, dtype, dtype)
    # The weights that are copied, and the sums, stay in fp32.
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.float32, torch.float32)
    assert policy.scales_loss == POLICIES[name].scales_loss
    assert policy.with_weights(name) == policy
    assert POLICIES[name].with_weights("fp32") is POLICIES[name]
    assert POLICIES[name].compute_dtype == dtype


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp64", "fp16"])
def test_16_bit_weights_must_have_the_dtype_of_the_policy(name: str):
    with raises_code("precision.conflict", name, "param_dtype", "precision: bf16"):
        POLICIES[name].with_weights("bf16")


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_full_precision_is_never_warned_about(name: str):
    assert precision_policy(name, CPU, []) == (POLICIES[name], None)


@pytest.mark.parametrize("flags", [["avx512_bf16", "avx2"], ["amx_bf16"], ["bf16"], None])
def test_bf16_causes_no_warning_if_the_cpu_supports_it_or_is_unknown(flags: list[str] | None):
    assert precision_policy("bf16", CPU, flags) == (POLICIES["bf16"], None)


def test_bf16_is_slow_on_other_processors():
    policy, warning = precision_policy("bf16", CPU, ["avx2", "avx512f"])
    assert policy is POLICIES["bf16"]
    assert warning is not None
    assert "bf16 will be slower than fp32 on this CPU" in warning


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fp16", ("4 to 300", "precision: fp32")),
        ("tf32", ("CPU", "precision: fp32")),
    ],
)
def test_gpu_precisions_are_refused_on_a_cpu(name: str, values: tuple[str, ...]):
    with raises_code("precision.needs_gpu", f"precision: {name}", *values):
        precision_policy(name, CPU, ["avx512_bf16", "amx_bf16"])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Make PyTorch believe in a GPU with a name and a capability."""

    def pretend(name: str, capability: tuple[int, int]) -> None:
        new = capability >= (8, 0)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: new)
        monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: new)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return pretend


@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_bf16_and_tf32_are_refused_on_a_gpu_that_has_none(gpu, name: str):
    gpu("Tesla T4", (7, 5))
    with raises_code("precision.needs_newer_gpu", name, "Tesla T4 has 7.5"):
        precision_policy(name, GPU, None)
    gpu("A100", (8, 0))
    assert precision_policy(name, GPU, []) == (POLICIES[name], None)


def test_fp16_is_warned_about_on_a_gpu_without_tensor_cores(gpu):
    gpu("Tesla P40", (6, 1))
    policy, warning = precision_policy("fp16", GPU, None)
    assert policy is POLICIES["fp16"]
    assert warning is not None
    assert "precision: fp16" in warning
    assert "Tesla P40 has 6.1" in warning
    gpu("Tesla T4", (7, 5))
    assert precision_policy("fp16", GPU, None) == (POLICIES["fp16"], None)


def test_tf32_is_refused_if_nvidia_tf32_override_is_0(gpu, monkeypatch: pytest.MonkeyPatch):
    gpu("A100", (8, 0))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with raises_code("precision.tf32_disabled", "tf32", "NVIDIA_TF32_OVERRIDE", "0"):
        precision_policy("tf32", GPU, None)


def switches() -> tuple[str, ...]:
    backends = torch.backends
    own = (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision)
    return (torch.get_float32_matmul_precision(), *own)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tf32", ("high", "tf32", "tf32", "tf32")),
        *((name, ("highest", "ieee", "ieee", "ieee")) for name in ("fp32", "fp16", "bf16", "fp64")),
    ],
)
def test_the_switches_of_float32_products_are_restored_after_a_run(name: str, expected: tuple[str, ...]):
    # "ieee" and "tf32" are PyTorch's own words: https://docs.pytorch.org/docs/stable/notes/cuda.html.
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        begun = switches()
        with POLICIES[name].switched():
            assert switches() == expected
        assert switches() == begun
    finally:
        torch.set_float32_matmul_precision(before)


def test_switches_set_directly_on_the_backend_are_restored():
    matmul = torch.backends.cuda.matmul
    try:
        matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            torch.get_float32_matmul_precision()
        with POLICIES["fp32"].switched():
            assert switches()[:2] == ("highest", "ieee")
        assert switches()[:2] == ("high", "tf32")
    finally:
        torch.set_float32_matmul_precision("highest")
