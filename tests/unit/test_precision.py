import pytest
import torch
from torch import nn

from paratune.config.sections import Config
from paratune.errors import ConfigError
from paratune.precision import POLICIES, precision_policy

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_there_is_a_policy_for_each_name_in_the_configuration():
    assert set(POLICIES) == set(Config.model_fields["precision"].annotation.__args__)


@pytest.mark.parametrize(
    ("name", "computed", "kept"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
        ("fp64", torch.float64, torch.float64),
    ],
)
def test_what_is_computed_and_kept(name: str, computed: torch.dtype, kept: torch.dtype):
    policy = POLICIES[name]
    layer = nn.Linear(2, 2).to(policy.param_dtype)
    with policy.autocast(CPU):
        outputs = layer(torch.ones(1, 2, dtype=policy.param_dtype))
    assert outputs.dtype == computed
    outputs.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.dtype == layer.weight.grad.dtype == kept


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_full_precision_is_never_warned_about(name: str):
    assert precision_policy(name, CPU, []) == (POLICIES[name], None)


@pytest.mark.parametrize("flags", [["avx512_bf16", "avx2"], ["amx_bf16"], ["bf16"], None])
def test_bf16_is_no_question_where_the_processor_has_it_or_nobody_knows(flags: list[str] | None):
    assert precision_policy("bf16", CPU, flags) == (POLICIES["bf16"], None)


def test_bf16_is_slow_on_other_processors():
    policy, warning = precision_policy("bf16", CPU, ["avx2", "avx512f"])
    assert policy is POLICIES["bf16"]
    assert warning is not None
    assert "bf16 will be slower than fp32 on this CPU" in warning


def test_bf16_is_refused_on_a_gpu_that_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ConfigError, match=r"needs a GPU of compute capability 8.0 or newer; Tesla T4 has 7.5: use"):
        precision_policy("bf16", GPU, None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert precision_policy("bf16", GPU, []) == (POLICIES["bf16"], None)
