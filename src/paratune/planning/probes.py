"""Short measurements of kernels of this machine, in this process: FLOP/s and bytes/s.

Linear layers, dropout and attention are those of the training. Functions return constants by their names in
`planning.constants`. On CUDA no result has been checked yet: the calls have run only on meta tensors that imitate CUDA
tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from paratune.data.loader import Collator, PackedCollator
from paratune.data.token_store import TokenStore
from paratune.models.attention import cpu
from paratune.models.dropout import use_cheap_dropout
from paratune.models.linear import use_onednn
from paratune.planning.clock import REPEATS, Call, CallSeconds, measure
from paratune.planning.constants import BoundedConstant
from paratune.planning.target import MeasuredDevice, cpu_target
from paratune.planning.work import ADAMW_PASSES

_HEAD_WIDTH = 64
_VOCABULARY, _WIDTH = 30_522, 256


def kernel_figures(target: MeasuredDevice, arithmetics: Sequence[str]) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the constants of kernels, of products in `arithmetics` of `devices.ARITHMETICS`."""
    for arithmetic in arithmetics:
        with _arithmetic(arithmetic) as dtype:
            yield f"product.{arithmetic}", _products(target, dtype)
            yield f"batched.{arithmetic}", _batched(target, dtype)
    for name, passes in _RATES.items():
        yield name, _rate_of(passes, target)
    yield from _embeddings(target)
    yield from _adamw(target)
    yield "loader", _loader(target if not target.is_cuda else cpu_target())
    if target.is_cuda:
        yield "host_link", _copies(target)
        host = cpu_target()
        updated, num_bytes = _updates(host.sizes.weights, host)
        yield "adamw.host", constant_at_one_size(ADAMW_PASSES * num_bytes / updated.fastest_s, updated, is_rate=True)
    else:
        yield "operands", _operands(target)
        yield from _scores(target)


@contextmanager
def _arithmetic(arithmetic: str) -> Iterator[torch.dtype]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "tf32" else "highest")
    try:
        yield {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}.get(arithmetic, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


def constant_with_curve(points: Sequence[tuple[float, float, CallSeconds]]) -> BoundedConstant:
    """Return a rate as a curve, from (size of one operation, bytes or FLOP of the call, its time)."""
    rates = sorted((size, work / measured.fastest_s) for size, work, measured in points)
    curve = tuple((size, rate) for at, (size, rate) in enumerate(rates) if at == 0 or size > rates[at - 1][0])
    assert all(a < b for (a, _), (b, _) in pairwise(curve))
    value, spread = curve[-1][1], max(measured.spread for _, _, measured in points)
    source = f"measured: fastest of {REPEATS} at {len(points)} sizes, median up to {spread:.0%} slower"
    return BoundedConstant(value, value / max(1.05, 1 + spread), value * 1.05, source, curve)


def constant_at_one_size(value: float, measured: CallSeconds, *, is_rate: bool) -> BoundedConstant:
    """Return a constant that was measured at one size."""
    slower, source = max(1.05, 1 + measured.spread), f"fastest of {REPEATS}, median {measured.spread:.0%} slower"
    below, above = (slower, 1.05) if is_rate else (1.05, slower)
    return BoundedConstant.around(value, below, above, f"measured: {source}")


def _products(target: MeasuredDevice, dtype: torch.dtype) -> BoundedConstant:
    """Return the rate of a linear layer's three products, forward and backward."""

    def calls() -> Iterator[tuple[float, float, Call]]:
        for tokens, wide, out in ((1, 8, 8), *target.sizes.products):
            options: dict[str, Any] = {"device": target.device, "dtype": dtype}
            layer = nn.Sequential(nn.Linear(wide, out, bias=False, **options))
            if not target.is_cuda:
                use_onednn(layer)
            x = torch.randn(tokens, wide, requires_grad=True, **options)
            flops = 2.0 * tokens * wide * out
            yield flops, 3 * flops, partial(_forward_and_backward, layer, x, torch.randn(tokens, out, **options))

    return _rate_without_launching(calls(), target)


def _forward_and_backward(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> None:
    x.grad = None
    if isinstance(layer, nn.Module):
        layer.zero_grad(set_to_none=True)
    torch.autograd.backward(layer(x), grad)


def _batched(target: MeasuredDevice, dtype: torch.dtype) -> BoundedConstant:
    points, num_heads = [], target.sizes.num_heads
    for length in target.sizes.lengths:
        heads = torch.randn(num_heads, length, _HEAD_WIDTH, device=target.device, dtype=dtype)
        scores = torch.randn(num_heads, length, length, device=target.device, dtype=dtype)
        flops = 2.0 * num_heads * length**2 * _HEAD_WIDTH

        def call(heads: Tensor = heads, scores: Tensor = scores) -> None:
            torch.bmm(heads, heads.mT)
            torch.bmm(scores, heads)
            torch.bmm(scores.mT, heads)

        points.append((flops, 3 * flops, measure(call, target.clock)))
    return constant_with_curve(points)


Passes = Callable[[Tensor], tuple[Callable[[], object], int]]
"""Returns for a tensor the function to time, and how often this reads or writes the bytes of the tensor."""


def _rate_of(passes: Passes, target: MeasuredDevice) -> BoundedConstant:
    def calls() -> Iterator[tuple[float, float, Call]]:
        for numbers in (_WIDTH, *target.sizes.numbers):
            x = torch.randn(numbers // _WIDTH, _WIDTH, device=target.device)
            call, count = passes(x)
            yield count * x.nbytes / 2, float(count * x.nbytes), call

    return _rate_without_launching(calls(), target)


def _rate_without_launching(calls: Iterable[tuple[float, float, Call]], target: MeasuredDevice) -> BoundedConstant:
    """Return the rate of (size of one operation, bytes or FLOP of the call, call), on a CPU without launching.

    There the time of the first call, which is tiny, is subtracted, because a prediction adds `launch`. The clock of a
    GPU does not include launching; a prediction takes the longer of `kernel` and the time by rate.
    """
    (_, _, tiny), *points = [(size, work, measure(call, target.clock)) for size, work, call in calls]
    if target.is_cuda:
        return constant_with_curve(points)
    return constant_with_curve([(size, work, measured.without(tiny)) for size, work, measured in points])


def _elementwise(x: Tensor) -> tuple[Callable[[], object], int]:
    other = torch.randn_like(x)
    return lambda: (x + other, x * 0.5), 5


def _activation(x: Tensor) -> tuple[Callable[[], object], int]:
    gelu = torch.ops.aten.gelu, torch.ops.aten.gelu_backward
    return lambda: (gelu[0](x), gelu[1](x, x)), 5


def _softmax(x: Tensor) -> tuple[Callable[[], object], int]:
    y, back = x.softmax(-1), torch.ops.aten._softmax_backward_data
    return lambda: (x.softmax(-1), back(x, y, -1, x.dtype)), 5


def _norm(x: Tensor) -> tuple[Callable[[], object], int]:
    leaf, weight = x.clone().requires_grad_(), torch.ones(_WIDTH, device=x.device, requires_grad=True)

    def call() -> None:
        leaf.grad = weight.grad = None
        torch.autograd.backward(functional.layer_norm(leaf, (_WIDTH,), weight, weight), x)

    return call, 5


def _dropout(x: Tensor) -> tuple[Callable[[], object], int]:
    layer = nn.Sequential(nn.Dropout(0.1)).train()
    if x.device.type == "cpu":
        use_cheap_dropout(layer)
    leaf = x.clone().requires_grad_()
    return lambda: _forward_and_backward(layer, leaf, x), 4


_RATES: dict[str, Passes] = {
    "elementwise": _elementwise,
    "activation": _activation,
    "softmax": _softmax,
    "norm": _norm,
    "dropout": _dropout,
    "random": lambda x: (lambda: x.bernoulli_(0.9), 2),
}


def _operands(target: MeasuredDevice) -> BoundedConstant:
    """Return the rate at which products read weights, and write their gradients, that no cache contains.

    Passes of many layers, one after the other, compared with as many passes of one layer. Each reads its weight twice
    and writes its gradient once.
    """
    tokens, wide, out, count = target.sizes.cold
    layers = [nn.Sequential(nn.Linear(wide, out, bias=False)) for _ in range(count)]
    for layer in layers:
        use_onednn(layer)
    x, grad = torch.randn(tokens, wide, requires_grad=True), torch.randn(tokens, out)

    def passes(used: Sequence[nn.Module]) -> None:
        for layer in used:
            _forward_and_backward(layer, x, grad)

    warm = measure(lambda: passes([layers[0]] * count), target.clock)
    cold = measure(lambda: passes(layers), target.clock)
    num_bytes = 3.0 * count * wide * out * x.element_size()
    return constant_at_one_size(num_bytes / cold.without(warm).fastest_s, cold, is_rate=True)


def _embeddings(target: MeasuredDevice) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the rates of an embedding, forward and backward, for tables of several widths."""
    forward, backward, device = [], [], target.device
    for width in target.sizes.widths:
        layer = nn.Embedding(_VOCABULARY, width, device=device)
        ids = torch.randint(0, _VOCABULARY, (target.sizes.num_ids,), device=device)
        grad = torch.randn(target.sizes.num_ids, width, device=device)

        def both(layer: nn.Embedding = layer, ids: Tensor = ids, grad: Tensor = grad) -> None:
            layer.weight.grad = None
            torch.autograd.backward(layer(ids), grad)

        there = measure(lambda: layer(ids), target.clock)  # noqa: B023
        back = measure(both, target.clock).without(there)
        # As a trace counts them: rows are read and written, and the backward pass writes the whole table.
        rows, table = float(2 * grad.nbytes + ids.nbytes), float(layer.weight.nbytes + grad.nbytes + ids.nbytes)
        forward.append((rows, rows, there))
        backward.append((table, table, back))
    yield "gather", constant_with_curve(forward)
    yield "scatter", constant_with_curve(backward)


def _adamw(target: MeasuredDevice) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the rate of the optimizer phase from large tensors, and the host's seconds per tensor from small ones."""
    measured, num_bytes = _updates(target.sizes.weights, target)
    yield "adamw", constant_at_one_size(ADAMW_PASSES * num_bytes / measured.fastest_s, measured, is_rate=True)
    count = 100
    measured, _ = _updates([64] * count, target, on_host=True)
    yield "adamw.tensor", constant_at_one_size(measured.fastest_s / count, measured, is_rate=False)


def _updates(sizes: Sequence[int], target: MeasuredDevice, *, on_host: bool = False) -> tuple[CallSeconds, int]:
    """Time norm, clipping, update and freeing of gradients, as in `strategies.whole.clip_and_step`.

    `sizes` are the elements of each weight; `on_host` times the host instead of the device.

    Returns:
        The time, and the bytes of the weights.
    """
    weights = [nn.Parameter(torch.randn(size, device=target.device)) for size in sizes]
    optimizer = AdamW(weights, fused=True)

    def call() -> None:
        norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        optimizer.grad_scale, optimizer.found_inf = torch.clamp(norm, min=1.0).float(), None  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times, seconds = [], target.clock.host_s if on_host else target.clock.device_s
    for _ in range(1 + REPEATS):
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.01)
        times.append(seconds(call, 1))
    return CallSeconds.of_times(times[1:]), sum(weight.nbytes for weight in weights)


def _loader(host: MeasuredDevice) -> BoundedConstant:
    """Return the seconds for a sample of a packed batch: reading and joining tokens, masks and positions."""
    rows, length, size = 512, 128, 32
    store = TokenStore(
        tokens=np.ones(rows * length, np.uint16),
        type_ids=None,
        offsets=np.arange(rows + 1, dtype=np.int64) * length,
        full_lengths=np.full(rows, length, np.int32),
        max_length=length,
        fingerprint="",
    )
    collate = PackedCollator(Collator(store, np.zeros(rows, np.int64), pad_token_id=0))
    indices = np.arange(size, dtype=np.int64) * (rows // size)
    measured = measure(lambda: collate(indices, float(size)), host.clock)
    sample_s = measured.fastest_s / size
    source = f"measured: packed batches of {size} rows of {length} tokens, median {measured.spread:.0%} slower"
    # Longer rows, and files that are read for the first time, take longer.
    return BoundedConstant(sample_s, sample_s / 2, sample_s * 4 * (1 + measured.spread), source)


def _copies(target: MeasuredDevice) -> BoundedConstant:
    """Return the rate of copies from and to pinned memory of the host."""
    host = torch.empty(1 << 26, dtype=torch.uint8).pin_memory()
    there = torch.empty(1 << 26, dtype=torch.uint8, device=target.device)

    def call() -> None:
        there.copy_(host, non_blocking=True)
        host.copy_(there, non_blocking=True)

    measured = measure(call, target.clock)
    return constant_at_one_size(2 * host.nbytes / measured.fastest_s, measured, is_rate=True)


def _scores(target: MeasuredDevice) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the rates of attention of packed rows on a CPU besides its products: for scores, and for copies of rows.

    Seconds are a sum of two parts that grow with scores and with tokens, forward and backward: least squares over
    lengths, each measurement weighing the same.
    """
    sums, left, spreads = [], [], []
    for length, rows in ((64, 8), (128, 4), (256, 2), (512, 1)):
        entries, rows_bytes = 4.0 * rows * 12 * length**2, 8.0 * 4 * rows * length * 12 * _HEAD_WIDTH
        q, k, v = (torch.randn(rows * length, 12, _HEAD_WIDTH, requires_grad=True) for _ in range(3))
        grad = torch.randn(rows * length, 12, _HEAD_WIDTH)

        def forward(q: Tensor = q, k: Tensor = k, v: Tensor = v, lengths: Sequence[int] = (length,) * rows) -> Tensor:
            return cpu.attend_tiles(q, k, v, lengths, scale=0.125, dropout=0.1)

        there = measure(forward, target.clock)
        both = measure(lambda: torch.autograd.backward(forward(), grad), target.clock)  # noqa: B023
        product = _tile_products_s(length, 12 * rows, target)
        for seconds, num_products, row in (
            (there.fastest_s, 2, (entries, 0.0, rows_bytes, 0.0)),
            (both.fastest_s - there.fastest_s, 5, (0.0, entries, 0.0, rows_bytes)),
        ):
            rest = max(0.1 * seconds, seconds - num_products * product)
            sums.append([num_bytes / rest for num_bytes in row])
            left.append(1.0)
        spreads.append(both)
    solution = np.linalg.lstsq(np.array(sums), np.array(left), rcond=None)[0]
    spread = max(spreads, key=lambda measured: measured.spread)
    for name, seconds in zip(("scores", "scores_backward", "rows", "rows_backward"), solution, strict=True):
        yield name, constant_at_one_size(1 / max(float(seconds), 1e-12), spread, is_rate=True)


def _tile_products_s(length: int, num_heads: int, target: MeasuredDevice) -> float:
    """Return the seconds of one product of scores and values for so many heads, tile by tile in the cache."""
    together = min(num_heads, max(1, cpu.TILE // length**2))
    scores, heads = torch.randn(together, length, length), torch.randn(together, length, _HEAD_WIDTH)
    out = torch.empty(together, length, _HEAD_WIDTH)
    seconds = measure(lambda: torch.bmm(scores, heads, out=out), target.clock).fastest_s
    return seconds * num_heads / together
