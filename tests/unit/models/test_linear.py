"""Products by oneDNN equal `nn.Linear` in every place where a layer may be called."""

import copy
from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from torch import Tensor, nn

from paratune.models import linear
from paratune.models.linear import OneDnnLinear, is_onednn_faster, use_onednn

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    return lambda maker="AuthenticAMD": write_vendor(maker, tmp_path, monkeypatch)


def write_vendor(maker: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cpuinfo").write_text(f"vendor_id\t: {maker}\nmodel name\t: a processor\n")
    monkeypatch.setattr(linear, "_CPUINFO", folder / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    is_onednn_faster.cache_clear()


@pytest.fixture(autouse=True)
def forget():
    yield
    is_onednn_faster.cache_clear()


def both(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias, dtype=dtype)
    ours = copy.deepcopy(plain)
    ours.__class__ = OneDnnLinear
    return plain, ours


@pytest.fixture
def onednn_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "SMALL", 0)


@pytest.mark.usefixtures("onednn_always")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (7, 24), (1, 513, 24), (2, 3, 5, 24)])
def test_outputs_and_gradients_equal_a_plain_layer(shape: tuple[int, ...], bias: bool):
    layers = both(bias)
    x, weights = torch.randn(shape), torch.randn((*shape[:-1], 40))
    results: list[list[Tensor]] = []
    for layer in layers:
        received = x.clone().requires_grad_(True)
        out = layer(received)
        (out * weights).sum().backward()
        results.append([out.detach(), received.grad, *(parameter.grad for parameter in layer.parameters())])
    assert len(results[0]) == 3 + bias
    for first, other in zip(*results, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("num_tokens", "features_in", "features_out", "expected"),
    [(150, 32, 64, 0), (2048, 128, 64, 1), (2047, 128, 64, 0), (4, 256, 2, 1), (4, 2, 256, 1), (4, 255, 2, 0)],
)
def test_small_products_of_narrow_layers_use_pytorch(
    num_tokens: int, features_in: int, features_out: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    # 2048 * 128 * 64 = 2^24 multiplications are not small; a layer with 256 features is not narrow.
    num_calls = 0

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(linear, "_product", product)
    OneDnnLinear(features_in, features_out)(torch.zeros(num_tokens, features_in))
    assert num_calls == expected


@pytest.mark.usefixtures("onednn_always")
def test_gradients_are_computed_only_where_required():
    _, ours = both(bias=True)
    ours.weight.requires_grad_(False)
    x = torch.randn(5, 24, requires_grad=True)
    ours(x).sum().backward()
    assert ours.weight.grad is None
    torch.testing.assert_close(x.grad, ours.weight.sum(0).expand(5, 24))
    torch.testing.assert_close(ours.bias.grad, torch.full((40,), 5.0))


@pytest.mark.usefixtures("onednn_always")
@pytest.mark.parametrize("rows", [0, 3])
def test_without_gradients_and_without_rows(rows: int):
    plain, ours = both(bias=True)
    x = torch.randn(1, rows, 24)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), plain(x))
    assert ours(x).shape == (1, rows, 40)


@pytest.mark.usefixtures("onednn_always")
def test_other_dtypes_use_pytorch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "_product", lambda *_: pytest.fail("oneDNN was called"))
    plain, ours = both(bias=True, dtype=torch.float64)
    x = torch.randn(3, 24, dtype=torch.float64)
    assert torch.equal(ours(x), plain(x))
    plain, ours = both(bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(torch.randn(3, 24)).dtype == torch.bfloat16


def test_layers_change_only_on_amd_processors(amd):
    model = tiny_model().eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    names, before = list(model.state_dict()), model(ids).logits
    amd("GenuineIntel")
    assert use_onednn(model) == 0
    amd()
    assert use_onednn(model) == 2 * 6 + 2  # two layers of six, the pooler and the head
    assert all(type(module) is not nn.Linear for module in model.modules())
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(ids).logits, before)
    assert use_onednn(model) == 0


def test_without_the_operator_layers_do_not_change(amd, monkeypatch: pytest.MonkeyPatch):
    amd()

    def missing(*_: object) -> Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(linear, "_product", missing)
    assert not is_onednn_faster()
    is_onednn_faster.cache_clear()
    monkeypatch.setattr(linear, "_CPUINFO", Path("/nowhere"))
    assert not is_onednn_faster()
