"""Attention of packed rows as an operator of PyTorch: its results, and one graph for a compiled block."""

from dataclasses import replace
from types import MethodType

import pytest
import torch
from architectures import CONFIGS, model_of, rows
from torch._subclasses.fake_tensor import FakeTensorMode

from paratune.batch.packing import pack
from paratune.models.attention import cpu, cuda, kernels, operator
from paratune.models.attention.kernels import PackedRowEnds
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import find_blocks

operator.define()
LENGTHS = (5, 1, 40, 12)
ENDS = torch.tensor([0, *LENGTHS]).cumsum(0).int()


def tensors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(58, 2, 8, dtype=dtype, generator=generator).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("window", [None, 4])
def test_outputs_and_gradients_equal_those_of_the_inner_function(dropout, window):
    actual = []
    for attend in (
        lambda xs: cpu.attend(*xs, LENGTHS, scale=0.3, dropout=dropout, window=window),
        lambda xs: operator.packed_attention(*xs, ENDS, 40, 0.3, dropout, window),
    ):
        xs = tensors()
        torch.manual_seed(5)
        out = attend(xs)
        after = torch.rand(3)
        gradients = torch.autograd.grad(out, xs, torch.ones_like(out).cumsum(0))
        actual.append([out, after, *gradients, torch.rand(3)])
    for expected, tensor in zip(*actual, strict=True):
        assert torch.equal(tensor, expected)


@pytest.mark.filterwarnings("ignore")  # of what checks an operator
def test_the_operators_pass_opcheck():
    op = torch.ops.paratune.packed_attention.default
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, (*tensors(), ENDS, 40, 0.3, 0.0, None), test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shapes_on_a_gpu(monkeypatch, dtype):
    """The kernels' own shapes forward; gradients have the strides of q, k and v where flash makes them."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with FakeTensorMode():
        q, k, v = (torch.empty(2, 58, 8, dtype=dtype, device="cuda").transpose(0, 1) for _ in range(3))
        ends = torch.empty(5, dtype=torch.int32, device="cuda")
        options = (ends, 40, 0.3, 0.1, None)
        outputs = torch.ops.paratune.packed_attention(q, k, v, *options)
        kernel = "flash" if dtype == torch.bfloat16 else "efficient"
        expected = kernels.forward(
            kernel, q, k, v, PackedRowEnds(ends, ends, 40, 40, 0.3, 0.1, None), has_backward=True
        )
        gradients = torch.ops.paratune.packed_attention_backward(outputs[0], q, k, v, *outputs, *options)
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in expected]
    strides = (8, 464, 1) if kernel == "flash" else (16, 8, 1)
    assert {(x.shape, x.stride(), x.dtype) for x in gradients} == {((58, 2, 8), strides, dtype)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_uses_its_kernels_in_forward_and_backward(monkeypatch, dtype):
    monkeypatch.setattr(operator, "_kernel", lambda query, window: "flash" if dtype == torch.bfloat16 else "efficient")
    monkeypatch.setattr(
        kernels, "forward", lambda kernel, q, *_, has_backward: (q + 1, *(q.new_empty(n) for n in (1, 2, 3)))
    )
    received = []

    def backward(kernel, grad, inputs, outputs, rows):
        received.append((kernel, [len(x) for x in outputs], rows.max_q, torch.are_deterministic_algorithms_enabled()))
        return tuple(torch.full_like(x, number) for number, x in enumerate(inputs))

    monkeypatch.setattr(kernels, "backward", backward)
    xs = tensors(dtype)
    for is_deterministic in (True, False):
        with cuda.attention_settings(deterministic=is_deterministic):
            out = operator.packed_attention(*xs, ENDS, 40, 0.3, 0.1, None)
            gradients = torch.autograd.grad(out, xs, torch.ones_like(out))
        assert [float(x.mean()) for x in gradients] == [0, 1, 2]
    kernel = "flash" if dtype == torch.bfloat16 else "efficient"
    assert received == [(kernel, [58, 1, 2, 3], 40, True), (kernel, [58, 1, 2, 3], 40, False)]


FAST = ("bert", "distilbert", "eurobert")


@pytest.mark.filterwarnings("ignore")  # of dynamo
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS]
)
def test_a_block_is_one_graph(name):
    """With `fullgraph` a second graph is an error; graphs are for the first number of tokens, and for any."""
    torch._dynamo.reset()
    model, kind = model_of(CONFIGS[name](), "classification"), "classification"
    enable_packed_batches(model)
    if model.packed_readers:
        pytest.skip("it has its own attention, which is not compiled")
    model.entry = replace(model.entry, shortens=False)
    batches = [pack(rows(lengths, kind, pad=model.hf.config.pad_token_id)) for lengths in ([5, 1, 40], [6, 30])]
    expected = [gradients_of(model, batch) for batch in batches]
    graphs, blocks = [], find_blocks(model)

    def count(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "packed_attention" in str(node.target)])
        return graph.forward

    compiled = {kind: torch.compile(kind.forward, fullgraph=True, backend=count) for kind in map(type, blocks)}
    for block in blocks:
        block.forward = MethodType(compiled[type(block)], block)
    for batch, want in zip(batches, expected, strict=True):
        for gradient, other in zip(gradients_of(model, batch), want, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-7)
    assert 1 <= len(graphs) <= 4
    assert {len(calls) for calls in graphs} == {1}


def gradients_of(model, batch):
    model.zero_grad()
    torch.manual_seed(2)
    model.loss_sum(model(batch), batch).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
