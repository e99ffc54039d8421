"""The time of operations on a CPU: operands outside of the caches, evicted code, gradients of embeddings."""

import pytest
import torch
from torch import nn

from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.kernels import pass_time
from paratune.planning.trace import Operation, Trace

KNOWN = {"product.fp32": 1e9, "batched.fp32": 1e9, "elementwise": 1e9, "gather": 1e9, "launch.forward": 1e-6}
MIB = 2**20


def on_cpu(values: dict[str, float], *operations: Operation) -> float:
    """Return the seconds of a forward pass on a CPU whose products have measured rates (curves)."""
    constants = {name: BoundedConstant(value, value, value, "test") for name, value in values.items()}
    for name in ("product.fp32", "batched.fp32"):
        constants[name] = BoundedConstant(1e9, 1e9, 1e9, "test", curve=((1.0, 1e9),))
    counted = dict.fromkeys(operations, 1)
    return pass_time(counted, Constants(constants), launch="launch.forward", tf32=False, is_cuda=False).total_s


def test_a_product_also_reads_operands_that_no_cache_contains() -> None:
    # 17 tokens x 8 rows, 384 to 1536 features: 160 MFLOP, and 0.2 + 2.4 + 0.8 MB at 10 GB/s.
    product = Operation(2 * 136 * 384 * 1536, 4 * (136 * 384 + 384 * 1536 + 136 * 1536), "float32", "addmm")
    warm, cold = (on_cpu(KNOWN | more, product) for more in ({}, {"operands": 10e9}))
    assert warm == pytest.approx(0.160432128 + 1e-6)
    assert cold - warm == pytest.approx(3_403_776 / 10e9)
    within_attention = product._replace(name="bmm")
    assert on_cpu(KNOWN | {"operands": 10e9}, within_attention) == pytest.approx(warm)


def test_code_is_loaded_again_after_an_operation_that_fills_the_cache() -> None:
    full, half = (Operation(0, num_bytes, "float32", "add") for num_bytes in (8 * MIB, MIB))
    hot = on_cpu(KNOWN, full, half)
    assert on_cpu(KNOWN | {"launch.evicted": 100e-6}, full, half) - hot == pytest.approx(1.5 * 100e-6)


def test_the_gradient_of_an_embedding_has_its_own_rate() -> None:
    backward = Operation(0, 1000, "float32", "embedding_dense_backward")
    assert on_cpu(KNOWN, backward) == pytest.approx(1000 / 1e9 + 1e-6)
    assert on_cpu(KNOWN | {"scatter": 1e8}, backward) == pytest.approx(1000 / 1e8 + 1e-6)


def test_an_embedding_reads_rows_and_its_gradient_writes_the_table() -> None:
    with torch.device("meta"):
        table, ids = nn.Embedding(1000, 16), torch.zeros(3, dtype=torch.long)
    with Trace(1) as trace:
        with trace.recording() as forward:
            out = table(ids)
        with trace.recording() as backward:
            out.sum().backward()
    rows, ids_bytes = 4 * 3 * 16, 8 * 3
    assert [each.num_bytes for each in forward.kernels if each.name == "embedding"] == [2 * rows + ids_bytes]
    written = [each.num_bytes for each in backward.kernels if each.name == "embedding_dense_backward"]
    assert written == [4 * 1000 * 16 + rows + ids_bytes]
