"""Dropout and addition as one function: the same bits in forward, one rounding less in backward."""

import pytest
import torch
from architectures import CONFIGS, model_of, rows
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.bert.modeling_bert import BertConfig, BertOutput

from paratune.batch.packing import pack
from paratune.models.activation_checkpointing import checkpoint_blocks
from paratune.models.packed import enable_packed_batches
from paratune.models.residual import fuse_residuals
from paratune.models.task_model import TaskModel, find_blocks

HALF = [torch.bfloat16, torch.float16]
CHANGED = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie"), 4),
    **dict.fromkeys(("data2vec-text", "roc-bert", "deberta-v2", "deberta-v3"), 4),
}
"""Two layers with two outputs each; the others compute something else between dropout and norm."""


class NativeDropout(nn.Dropout):
    """What `nn.Dropout` calls on CUDA."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.native_dropout(input, self.p, True)[0] if self.training and self.p else input


class Names(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def output_layer(p: float = 0.25, width: int = 16) -> BertOutput:
    layer = BertOutput(BertConfig(hidden_size=width, intermediate_size=24, hidden_dropout_prob=p)).train()
    layer.dropout.__class__ = NativeDropout
    return layer


def with_native_dropout(name: str) -> TaskModel:
    torch.manual_seed(0)
    model = model_of(CONFIGS[name](), "classification")
    enable_packed_batches(model)
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = NativeDropout
    return model.train()


def trained(model: TaskModel, dtype: torch.dtype | None) -> tuple[Tensor, dict[str, Tensor]]:
    batch = pack(rows([5, 1, 20, 12], "classification", pad=model.hf.config.pad_token_id or 0))
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = model.loss_sum(model(batch), batch)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", CONFIGS)
def test_output_layers_are_found_in_every_architecture(name):
    model = model_of(CONFIGS[name](), "classification")
    names = list(model.state_dict())
    assert fuse_residuals(model) == CHANGED.get(name, 0)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("dtype", HALF)
def test_the_gradient_is_rounded_once(dtype):
    layer = output_layer(p=0.25)
    fuse_residuals(layer)
    x, residual, weights = torch.randn(7, 24), torch.randn(7, 16, requires_grad=True), torch.randn(7, 16)
    inner = {}
    layer.dense.register_forward_hook(lambda _module, _args, out: inner.update(hidden=out, grad=out.retain_grad()))
    layer.LayerNorm.register_forward_hook(lambda _module, args, _out: inner.update(total=args[0]))
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x, residual)
    (out * weights).sum().backward()
    torch.manual_seed(3)
    dropped, mask = torch.native_dropout(inner["hidden"].detach(), 0.25, True)
    assert torch.equal(inner["total"], dropped + residual)
    # 1 / (1 - 0.25); the product in float32, then one rounding.
    assert torch.equal(inner["hidden"].grad, (residual.grad * mask * torch.tensor(4 / 3)).to(dtype))


@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("name", CHANGED)
def test_training_equals_separate_dropout_and_addition(name, checkpoints):
    apart, exact, together = (with_native_dropout(name) for _ in range(3))
    fuse_residuals(together)
    for model in (apart, exact, together) if checkpoints else ():
        checkpoint_blocks(find_blocks(model), 1)
    loss, expected = trained(apart, torch.bfloat16)
    got, gradients = trained(together, torch.bfloat16)
    _, wide = trained(exact.double(), None)
    assert torch.equal(got, loss)
    assert gradients.keys() == expected.keys()

    def distance(actual: dict[str, Tensor]) -> float:
        """Root of the mean square over all gradients, as a part of that of float64's."""
        squares = sum(float((actual[key] - wide[key]).square().sum()) for key in wide)
        return (squares / sum(float(grad.square().sum()) for grad in wide.values())) ** 0.5

    # Masks are the same in both, so that only roundings differ from float64, whose masks are the same too.
    assert 0 < distance(gradients) < 1.1 * distance(expected) < 0.02


@pytest.mark.parametrize(
    ("dtype", "p", "trains"),
    [(None, 0.25, True), (torch.bfloat16, 0.0, True), (torch.bfloat16, 1.0, True), (torch.bfloat16, 0.25, False)],
    ids=["fp32", "no dropout", "all dropped", "evaluation"],
)
def test_other_cases_do_not_change(dtype, p, trains):
    layer = output_layer(p).train(trains)
    x, residual = torch.randn(7, 24), torch.randn(7, 16)

    def run() -> list[Tensor]:
        layer.zero_grad()
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            out = layer(x, residual)
        out.square().sum().backward()
        return [out, *(parameter.grad.clone() for parameter in layer.parameters())]

    expected = run()
    fuse_residuals(layer)
    assert all(torch.equal(*pair) for pair in zip(run(), expected, strict=True))


def test_a_frozen_layer_passes_the_gradient_of_the_residual():
    layer = output_layer().requires_grad_(False)
    fuse_residuals(layer)
    residual = torch.randn(7, 16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), Names() as names:
        layer(torch.randn(7, 24), residual).sum().backward()
    assert residual.grad is not None
    assert "addcmul" not in names.called


def test_the_backward_pass_has_one_kernel_where_it_had_two():
    def called(fuses: bool) -> list[str]:
        layer = output_layer()
        if fuses:
            fuse_residuals(layer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(torch.randn(7, 24), torch.randn(7, 16))
        with Names() as names:
            out.sum().backward()
        return [name for name in names.called if name in ("_to_copy", "native_dropout_backward", "addcmul")]

    # At the end the gradients of the weight and of the bias are cast.
    assert called(fuses=False)[:2] == ["_to_copy", "native_dropout_backward"]
    assert called(fuses=True)[0] == "addcmul"
    assert len(called(fuses=True)) == len(called(fuses=False)) - 1


def test_a_second_derivative_raises():
    layer = output_layer()
    fuse_residuals(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.randn(7, 24), torch.randn(7, 16))
    with pytest.raises(RuntimeError, match="out="):
        torch.autograd.grad(out.sum(), [layer.dense.weight], create_graph=True)
