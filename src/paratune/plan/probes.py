"""Short measurements of what operations take on this machine, in this process: rates of kernels, costs of calling them.

Floor 2 and 3 give what training uses here: its linear layers, dropout and attention. Each function returns figures of
the machine by their names in `plan.constants`. On CUDA they have not been tried: no accelerator was at hand.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

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
from paratune.plan.constants import Constant
from paratune.plan.work import ADAMW_PASSES

REPEATS = 7
"""Of each measurement; the fastest counts, slower ones were disturbed (docs of Python's timeit): they are spread."""
_LEAST_S = 0.015
"""A repeat is at least so long: many calls of what is short."""
_PRODUCTS = ((128, 128, 128), (256, 256, 256), (512, 256, 1024), (512, 512, 2048), (1024, 768, 768), (1024, 768, 3072))
"""Tokens, features in and out of linear layers."""
_HEADS, _HEAD_WIDTH = 48, 64
_LENGTHS = (32, 64, 128, 256, 384)
_NUMBERS = (1 << 14, 1 << 16, 1 << 18, 1 << 21, 1 << 23)
"""Of tensors that are added, multiplied, ..."""
_VOCABULARY, _WIDTH = 30_522, 256
_WIDTHS = (64, 256, 768)
"""Of embeddings."""
_LARGE = (1 << 23, *(1 << 18,) * 16)
"""Numbers of weights that are updated, one as many as an embedding has."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one call."""

    fastest_s: float
    median_s: float

    def without(self, other: "Measured") -> "Measured":
        """Return what is left without the fastest time of another call, a fifth at least: the machine may be busy."""
        return Measured(*(max(0.2 * a, a - other.fastest_s) for a in (self.fastest_s, self.median_s)))

    @property
    def spread(self) -> float:
        """How much slower the median is than the fastest: 0 for none."""
        return self.median_s / self.fastest_s - 1


def measure(call: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> Measured:
    """Time a call, on CUDA with all that it puts into the queue."""
    call()
    once = seconds_of(call, 1, device)
    calls = max(1, min(10_000, round(_LEAST_S / max(once, 1e-9))))
    times = [seconds_of(call, calls, device) / calls for _ in range(repeats)]
    return Measured(min(times), statistics.median(times))


def seconds_of(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Return the seconds of so many calls, with all that they put into the queue of a device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return time.perf_counter() - begin


def _nothing() -> None:
    return


def kernel_figures(device: torch.device, arithmetics: Sequence[str]) -> Iterator[tuple[str, Constant]]:
    """Yield the figures of kernels, one at a time.

    Args:
        device: What is measured.
        arithmetics: In which products are measured, of `devices.ARITHMETICS`.
    """
    for arithmetic in arithmetics:
        with _computing_in(arithmetic) as dtype:
            yield f"product.{arithmetic}", _products(device, dtype)
            yield f"batched.{arithmetic}", _batched(device, dtype)
    yield "elementwise", _rate_of(_elementwise, device)
    yield "activation", _rate_of(_activation, device)
    yield "softmax", _rate_of(_softmax, device)
    yield "norm", _rate_of(_norm, device)
    yield "dropout", _rate_of(_dropout, device)
    yield "random", _rate_of(_random, device)
    yield "gather", _gather(device)
    yield from _adamw(device)
    yield "loader", _loader()
    if device.type == "cuda":
        yield "host_link", _copies(device)
        updated, num_bytes = _updates(_LARGE, torch.device("cpu"))
        yield "adamw.host", single(ADAMW_PASSES * num_bytes / updated.fastest_s, updated, is_rate=True)
    if device.type == "cpu":
        yield from _scores()


@contextmanager
def _computing_in(arithmetic: str) -> Iterator[torch.dtype]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "tf32" else "highest")
    try:
        yield {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}.get(arithmetic, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


def curve_of(points: Sequence[tuple[float, float, Measured]]) -> Constant:
    """Return a rate that depends on size, from (size of one operation, work of the call, its time)."""
    rates = sorted((size, work / measured.fastest_s) for size, work, measured in points)
    curve = tuple((size, rate) for at, (size, rate) in enumerate(rates) if at == 0 or size > rates[at - 1][0])
    assert all(a < b for (a, _), (b, _) in pairwise(curve))
    value = curve[-1][1]
    slower = 1 + max(measured.spread for _, _, measured in points)
    return Constant(value, value / max(1.05, slower), value * 1.05, _said(points), curve)


def _said(points: Sequence[tuple[float, float, Measured]]) -> str:
    spread = max(measured.spread for _, _, measured in points)
    return f"measured: fastest of {REPEATS} at {len(points)} sizes, median up to {spread:.0%} slower"


def single(value: float, measured: Measured, *, is_rate: bool) -> Constant:
    """Return a figure that was measured at one size."""
    factor = max(1.05, 1 + measured.spread)
    low, high = (value / factor, value * 1.05) if is_rate else (value / 1.05, value * factor)
    return Constant(value, low, high, f"measured: fastest of {REPEATS}, median {measured.spread:.0%} slower")


def _products(device: torch.device, dtype: torch.dtype) -> Constant:
    """Return the rate of a linear layer's three products, forward and backward."""
    points = []
    calling: Measured | None = None
    for tokens, wide, out in ((1, 8, 8), *_PRODUCTS):
        layer = nn.Sequential(nn.Linear(wide, out, bias=False, device=device, dtype=dtype))
        if device.type == "cpu":
            use_onednn(layer)
        x = torch.randn(tokens, wide, device=device, dtype=dtype, requires_grad=True)
        grad = torch.randn(tokens, out, device=device, dtype=dtype)
        flops = 2.0 * tokens * wide * out
        measured = measure(lambda: _there_and_back(layer, x, grad), device)  # noqa: B023
        if calling is None:
            calling = measured
        else:
            points.append((flops, 3 * flops, measured.without(calling)))
    return curve_of(points)


def _there_and_back(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> None:
    x.grad = None
    if isinstance(layer, nn.Module):
        layer.zero_grad(set_to_none=True)
    torch.autograd.backward(layer(x), grad)


def _batched(device: torch.device, dtype: torch.dtype) -> Constant:
    points = []
    for length in _LENGTHS:
        heads = torch.randn(_HEADS, length, _HEAD_WIDTH, device=device, dtype=dtype)
        scores = torch.randn(_HEADS, length, length, device=device, dtype=dtype)
        flops = 2.0 * _HEADS * length**2 * _HEAD_WIDTH

        def call(heads: Tensor = heads, scores: Tensor = scores) -> None:
            torch.bmm(heads, heads.mT)
            torch.bmm(scores, heads)
            torch.bmm(scores.mT, heads)

        points.append((flops, 3 * flops, measure(call, device)))
    return curve_of(points)


Passes = Callable[[Tensor], tuple[Callable[[], object], int]]
"""For a tensor: what is called, and how many times it reads or writes as many bytes as the tensor has."""


def _rate_of(passes: Passes, device: torch.device) -> Constant:
    points = []
    calling: Measured | None = None
    for numbers in (_WIDTH, *_NUMBERS):
        x = torch.randn(numbers // _WIDTH, _WIDTH, device=device)
        call, count = passes(x)
        measured = measure(call, device)
        if calling is None:  # what is left without any numbers is `launch`
            calling = measured
        else:
            points.append((count * x.nbytes / 2, float(count * x.nbytes), measured.without(calling)))
    return curve_of(points)


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
    return lambda: _there_and_back(layer, leaf, x), 4


def _random(x: Tensor) -> tuple[Callable[[], object], int]:
    return lambda: x.bernoulli_(0.9), 2


def _gather(device: torch.device) -> Constant:
    """Return the rate of an embedding, forward and backward, for tables of three widths."""
    points = []
    for width in _WIDTHS:
        layer = nn.Embedding(_VOCABULARY, width, device=device)
        ids = torch.randint(0, _VOCABULARY, (1024,), device=device)
        grad = torch.randn(1024, width, device=device)

        def call(layer: nn.Embedding = layer, ids: Tensor = ids, grad: Tensor = grad) -> None:
            layer.weight.grad = None
            torch.autograd.backward(layer(ids), grad)

        # As a trace counts them: the whole table is among the inputs of one, and the output of the other.
        num_bytes = float(layer.weight.nbytes + grad.nbytes + ids.nbytes)
        points.append((num_bytes, 2 * num_bytes, measure(call, device)))
    return curve_of(points)


def _adamw(device: torch.device) -> Iterator[tuple[str, Constant]]:
    """Yield the rate of the optimizer's phase for large tensors, and the seconds of a tensor for small ones."""
    measured, num_bytes = _updates(_LARGE, device)
    yield "adamw", single(ADAMW_PASSES * num_bytes / measured.fastest_s, measured, is_rate=True)
    count = 100
    measured, _ = _updates([64] * count, device)
    yield "adamw.tensor", single(measured.fastest_s / count, measured, is_rate=False)


def _updates(sizes: Sequence[int], device: torch.device) -> tuple[Measured, int]:
    """Time norm, clipping, update and letting go of gradients, as `strategies.whole.clip_and_step` has them.

    Returns:
        The time, and the bytes of the weights.
    """
    weights = [nn.Parameter(torch.randn(size, device=device)) for size in sizes]
    optimizer = AdamW(weights, fused=True)

    def call() -> None:
        norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        optimizer.grad_scale, optimizer.found_inf = torch.clamp(norm, min=1.0).float(), None  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = []
    for _ in range(1 + REPEATS):
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.01)
        times.append(seconds_of(call, 1, device))
    return Measured(min(times[1:]), statistics.median(times[1:])), sum(weight.nbytes for weight in weights)


def _loader() -> Constant:
    """Return the seconds of a packed batch's sample: tokens found, laid one behind the other, masks and positions."""
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
    measured = measure(lambda: collate(indices, float(size)), torch.device("cpu"))
    each = measured.fastest_s / size
    source = f"measured: packed batches of {size} rows of {length} tokens, median {measured.spread:.0%} slower"
    # Files that are read for the first time, and longer rows, take longer.
    return Constant(each, each / 2, each * 4 * (1 + measured.spread), source)


def _copies(device: torch.device) -> Constant:
    """Return the rate of copies from and to pinned memory of the host."""
    host, there = torch.empty(1 << 26, dtype=torch.uint8).pin_memory(), torch.empty(1 << 26, dtype=torch.uint8)
    there = there.to(device)

    def call() -> None:
        there.copy_(host, non_blocking=True)
        host.copy_(there, non_blocking=True)

    measured = measure(call, device)
    return single(2 * host.nbytes / measured.fastest_s, measured, is_rate=True)


def _scores() -> Iterator[tuple[str, Constant]]:
    """Yield what attention of packed rows takes on a CPU beside its products: for scores, and for copies of rows.

    Seconds are a sum of what grows with scores and of what grows with tokens, forward and backward: least squares over
    lengths, each measurement weighing the same.
    """
    device, sums, left, spreads = torch.device("cpu"), [], [], []
    for length, rows in ((64, 8), (128, 4), (256, 2), (512, 1)):
        entries, rows_bytes = 4.0 * rows * 12 * length**2, 8.0 * 4 * rows * length * 12 * _HEAD_WIDTH
        q, k, v = (torch.randn(rows * length, 12, _HEAD_WIDTH, requires_grad=True) for _ in range(3))
        grad = torch.randn(rows * length, 12, _HEAD_WIDTH)

        def forward(q: Tensor = q, k: Tensor = k, v: Tensor = v, lengths: Sequence[int] = (length,) * rows) -> Tensor:
            return cpu.attend_tiles(q, k, v, lengths, scale=0.125, dropout=0.1)

        there = measure(forward, device)
        both = measure(lambda: torch.autograd.backward(forward(), grad), device)  # noqa: B023
        product = _tile_products_s(length, 12 * rows)
        for seconds, num_products, row in (
            (there.fastest_s, 2, (entries, 0.0, rows_bytes, 0.0)),
            (both.fastest_s - there.fastest_s, 5, (0.0, entries, 0.0, rows_bytes)),
        ):
            rest = max(0.1 * seconds, seconds - num_products * product)
            sums.append([each / rest for each in row])
            left.append(1.0)
        spreads.append(both)
    found = np.linalg.lstsq(np.array(sums), np.array(left), rcond=None)[0]
    spread = max(spreads, key=lambda each: each.spread)
    for name, seconds in zip(("scores", "scores_backward", "rows", "rows_backward"), found, strict=True):
        yield name, single(1 / max(float(seconds), 1e-12), spread, is_rate=True)


def _tile_products_s(length: int, num_heads: int) -> float:
    """Return the seconds of one product of scores and values for so many heads, tile by tile in the cache."""
    together = min(num_heads, max(1, cpu.TILE // length**2))
    scores, heads = torch.randn(together, length, length), torch.randn(together, length, _HEAD_WIDTH)
    out = torch.empty(together, length, _HEAD_WIDTH)
    return measure(lambda: torch.bmm(scores, heads, out=out), scores.device).fastest_s * num_heads / together
