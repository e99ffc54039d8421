"""Every kernel of packed attention, forward and backward, against softmax attention in float64 on the host."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paratune.models.attention import cpu, cuda
from paratune.models.attention.check import TF32, TOLERANCE, reference_attention

from .setting import Check, Figures, Setting, Skipped, durations_ms, hold, largest_difference, spread
from .texts import IMDB, Case, draw_lengths, packed_batch
from .training import Steps

LENGTHS = (1, 200, 70, 129, 8)
CASES: tuple[tuple[str, torch.dtype, int, int | None], ...] = (
    ("bf16", torch.bfloat16, 64, None),
    ("fp16", torch.float16, 64, None),
    ("bf16, window 64", torch.bfloat16, 64, 64),
    ("bf16, heads of 32", torch.bfloat16, 32, None),
    ("bf16, heads of 96", torch.bfloat16, 96, None),
    ("bf16, heads of 16, window 3", torch.bfloat16, 16, 3),
    ("bf16, heads of 264", torch.bfloat16, 264, None),
    ("bf16, heads of 20", torch.bfloat16, 20, None),
    ("fp32", torch.float32, 64, None),
    ("fp32, heads of 20", torch.float32, 20, None),
    ("fp32, window 64", torch.float32, 64, 64),
    ("fp64", torch.float64, 64, None),
)
"""Name, dtype, head width, window: together they reach each kernel of `cuda.choose_kernel`."""


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a check for each kernel path, for dropout, and for determinism and its cost."""
    for name, dtype, width, window in CASES:
        yield Check(name, partial(against_float64, setting, dtype, width, window), "Kernels against float64")
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        yield Check(f"dropout, {name}", partial(dropout, setting, dtype), "Dropout")
    yield Check("backward twice", partial(backward_twice, setting, False), "Same bits twice")
    yield Check("backward twice, torch told to", partial(backward_twice, setting, True), "Same bits twice")
    yield Check("a step, 16 rows of IMDB", partial(step_cost, setting), "Cost of determinism", proves=False)


def attend(xs: list[Tensor], lengths: tuple[int, ...], **options: Any) -> Tensor:
    """Return packed attention of queries, keys and values (T, H, K) by the device's kernel."""
    query, key, value = xs
    scale = query.shape[-1] ** -0.5
    if query.device.type != "cuda":
        return cpu.attend_tiles(query, key, value, lengths, scale=scale, **options)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=query.device)
    return cuda.attend(query, key, value, ends, max(lengths), scale=scale, **options)


def kernel_of(setting: Setting, dtype: torch.dtype, width: int, window: int | None) -> str:
    """Return the name of the kernel for a case."""
    if not setting.on_gpu:
        return "tiles"
    return cuda.choose_kernel(dtype, width, window, torch.cuda.get_device_capability(setting.device))


def against_float64(setting: Setting, dtype: torch.dtype, width: int, window: int | None) -> Figures:
    """Compare outputs and gradients; a wrong window or row gives differences of 0.1 and more."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(LENGTHS), 2 if setting.tiny else 3, width)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for _ in range(4)]
    ours = [x.to(setting.device, copy=True).requires_grad_() for x in tensors[:3]]
    expected_kernel = kernel_of(setting, dtype, width, window)
    out = attend(ours, LENGTHS, window=window)
    kernel = kernel_of(setting, dtype, width, window)
    computed = [out, *torch.autograd.grad(out, ours, tensors[3].to(setting.device))]
    exact = [x.double().requires_grad_() for x in tensors[:3]]
    out = reference_attention(*exact, lengths=LENGTHS, scale=width**-0.5, window=window)
    expected = [out, *torch.autograd.grad(out, exact, tensors[3].double())]
    allowed = TF32 if setting.on_gpu and dtype == torch.float32 else TOLERANCE[dtype]
    figures = {"kernel": kernel, "difference": largest_difference(computed, expected), "allowed": allowed}
    hold(kernel == expected_kernel, f"the {expected_kernel} kernel failed at its first call", figures)
    return hold(figures["difference"] <= allowed, "outputs or gradients differ from float64", figures)


def dropout(setting: Setting, dtype: torch.dtype) -> Figures:
    """Compute the dropped probabilities: with uniform attention on rows of 64 whose values are unit vectors.

    Each output then is a row of dropped probabilities, 0 or 1 / (64 (1 - p)), and the gradient of the values for unit
    vectors is its transpose if the backward pass has the mask of the forward pass.
    """
    L, p, rows, heads = 64, 0.1, 8 if setting.tiny else 64, 4
    lengths, shape = (L,) * rows, (L * rows, heads, L)
    query, key = (torch.zeros(shape, dtype=dtype, device=setting.device) for _ in range(2))
    units = torch.eye(L, dtype=dtype, device=setting.device).repeat(rows, 1)[:, None].expand(shape).contiguous()
    outs, gradients = [], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        value = units.clone().requires_grad_()
        out = attend([query, key, value], lengths, dropout=p)
        (gradient,) = torch.autograd.grad(out, [value], units)
        outs.append(out.detach().float())
        gradients.append(gradient.float())
    rows_BHLL = outs[0].view(rows, L, heads, L).transpose(1, 2)
    back_BHLL = gradients[0].view(rows, L, heads, L).transpose(1, 2)
    kept = rows_BHLL[rows_BHLL > 0]
    num = rows_BHLL.numel()
    share = float((rows_BHLL == 0).sum()) / num
    expected = 1 / (L * (1 - p))
    figures = {
        "dropped_share": share,
        "asked": p,
        "standard_errors": (share - p) / (p * (1 - p) / num) ** 0.5,
        "kept_value_off": float((kept / expected - 1).abs().max()),
        "backward_mask_off": float((rows_BHLL - back_BHLL.mT).abs().max() / expected),
        "same_seed_same": bool(torch.equal(outs[0], outs[1])),
        "other_seed_same": bool(torch.equal(outs[0], outs[2])),
    }
    # PyTorch's kernels compare 8 or 32 random bits with p: so the share differs by at most 1/256.
    hold(abs(share - p) <= 1 / 256 + 5 * (p * (1 - p) / num) ** 0.5, "the dropped share is not p", figures)
    hold(figures["kept_value_off"] <= 0.02, "kept probabilities are not divided by 1 - p", figures)
    hold(figures["backward_mask_off"] <= 0.02, "the masks of the backward and the forward pass differ", figures)
    return hold(figures["same_seed_same"] and not figures["other_seed_same"], "the seed does not set the mask", figures)


def backward_twice(setting: Setting, deterministic: bool) -> Figures:
    """Compute gradients of one input several times; `deterministic` switches on PyTorch's deterministic algorithms."""
    if deterministic and not setting.on_gpu:
        raise Skipped("only on a GPU: the CPU's kernel always sums in the same order")
    lengths = tuple(draw_lengths(_imdb(setting), 4 if setting.tiny else 32))
    generator = torch.Generator().manual_seed(0)
    shape, dtype = (sum(lengths), 2 if setting.tiny else 12, 64), torch.bfloat16 if setting.on_gpu else torch.float32
    tensors = [torch.randn(shape, generator=generator).to(setting.device, dtype) for _ in range(4)]
    inputs = [x.requires_grad_() for x in tensors[:3]]

    def gradients() -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        return torch.autograd.grad(attend(inputs, lengths, dropout=0.1), inputs, tensors[3])

    with _deterministic(deterministic):
        first = gradients()
        same = [all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True)) for _ in range(5)]
        times = durations_ms(gradients, setting.device, repeats=2 if setting.tiny else 20)
    figures = {"num_same": sum(same), "num_tries": len(same), "ms": spread(times)}
    return hold(all(same), "gradients of the same input are not bitwise equal", figures)


@contextmanager
def _deterministic(enabled: bool) -> Iterator[None]:
    """Switch on PyTorch's deterministic algorithms inside the block if enabled; operators without one only warn."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    if enabled:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # filling with NaN would count in the time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def step_cost(setting: Setting) -> Figures:
    """Return the time of a training step of BERT-base: by default, deterministic, and explicitly nondeterministic.

    The last one is measured only if attention has a setting for it.
    """
    steps = Steps(setting)
    batch = packed_batch(draw_lengths(_imdb(setting), 16), steps.vocab_size).to(setting.device)
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "as_it_is": nullcontext,
        "deterministic": partial(_deterministic, True),
    }
    if hasattr(cuda, "attention_settings"):
        ways["not_deterministic"] = partial(cuda.attention_settings, deterministic=False)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 if setting.tiny else 3):  # in turn, so that clocks and heat affect all of them equally
        for name, way in ways.items():
            with way():
                times[name] += durations_ms(lambda: steps(batch), setting.device, repeats=2 if setting.tiny else 20)
    spreads = {name: spread(values) for name, values in times.items()}
    fastest = min(timing["median"] for timing in spreads.values())
    costs = {f"{name}_over_fastest": timing["median"] / fastest - 1 for name, timing in spreads.items()}
    return {**{f"{name}_ms": timing for name, timing in spreads.items()}, **costs}


def _imdb(setting: Setting) -> Case:
    return Case("imdb", "classification", 64 if setting.tiny else 512, 16, IMDB)
