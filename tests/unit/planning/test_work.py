"""The time of operations on a CPU: threads, gradients of embeddings."""

import pytest
import torch
from torch import nn

from paratune.planning.constants import Bounded, Constants
from paratune.planning.trace import Operation, Trace
from paratune.planning.work import pass_seconds, share_of_rate

KNOWN = {"product.fp32": 1e9, "batched.fp32": 1e9, "elementwise": 1e9, "gather": 1e9, "launch.forward": 1e-6}


def on_cpu(values: dict[str, float], *operations: Operation, speedup: float = 1.0) -> float:
    """Return the seconds of a forward pass on a CPU."""
    constants = Constants({name: Bounded(value, value, value) for name, value in values.items()})
    options = {"launch": "launch.forward", "tf32": False, "is_cuda": False, "threads_speedup": speedup}
    return sum(pass_seconds(dict.fromkeys(operations, 1), constants, **options))


def test_threads_shorten_operations_and_not_their_calls() -> None:
    product = Operation(2 * 10**9, 1000, "float32", "addmm")
    assert on_cpu(KNOWN, product) == pytest.approx(2 + 1e-6)
    assert on_cpu(KNOWN, product, speedup=1.6) == pytest.approx(2 / 1.6 + 1e-6)


def test_tiles_and_a_short_inner_dimension_cost_a_part_of_the_rate() -> None:
    units = {"units": 108.0, "depth": 250.0}
    constants = Constants({name: Bounded(value, value, value) for name, value in units.items()})

    def share(rows: int, columns: int, inner: int) -> float:
        return share_of_rate(Operation(2 * rows * columns * inner, 0, "bfloat16", "mm", rows, columns), constants)

    # 32 x 8 tiles of 128 x 128 on 108 multiprocessors are 3 waves, of which 256 of 324 places are used.
    assert share(4096, 1024, 1750) == pytest.approx(256 / 324 * 1750 / 2000)
    # 129 rows need as many tiles as 256; an inner dimension of 250 reaches half.
    assert share(129, 128, 250) == pytest.approx(share(256, 128, 250) * 129 / 256)
    assert share(128 * 108, 128, 250) == pytest.approx(0.5)
    assert share_of_rate(Operation(100, 0, "bfloat16", "mm"), constants) == 1.0  # its shape is unknown


def test_products_in_16_bits_depend_on_their_shape_and_fused_attention_has_its_own_rate() -> None:
    known = KNOWN | {"product.bf16": 1e9, "product.fp32": 1e9, "batched.bf16": 1e9, "units": 1, "depth": 128}
    product = Operation(2 * 128**3, 0, "bfloat16", "mm", 128, 128)  # one tile, half of the rate
    assert on_cpu(known, product) == pytest.approx(2 * 2 * 128**3 / 1e9 + 1e-6)
    assert on_cpu(known, product._replace(dtype="float32")) == pytest.approx(2 * 128**3 / 1e9 + 1e-6)
    fused = Operation(10**9, 0, "bfloat16", "_scaled_dot_product_flash_attention_backward")
    assert on_cpu(known, fused) == pytest.approx(1 + 1e-6)
    assert on_cpu(known | {"fused.bf16": 4e9}, fused) == pytest.approx(0.25 + 1e-6)


def test_a_trace_counts_rows_and_columns_of_products() -> None:
    with torch.device("meta"):
        layer, rows = nn.Linear(16, 8), torch.zeros(3, 5, 16)
    with Trace(1) as trace, trace.recording() as forward:
        layer(rows)
    products = [(each.rows, each.columns, each.flops) for each in forward.kernels if each.flops]
    assert products == [(15, 8, 2 * 15 * 8 * 16)]


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
