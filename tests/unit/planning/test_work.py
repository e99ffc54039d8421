"""The time of operations on a CPU: threads, gradients of embeddings."""

import pytest
import torch
from torch import nn

from paratune.planning.constants import Bounded, Constants
from paratune.planning.trace import Operation, Trace
from paratune.planning.work import pass_seconds

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
