"""Cost of attention and dropout of packed rows on the CPU, compared with PyTorch's own.

    OMP_NUM_THREADS=1 python benchmarks/attention.py

Forward and backward of one layer's attention, in CPU time of the process; each round measures all variants in turn:

- `packed`: paratune.models.attention.cpu.attend_tiles on the rows without padding, dropout 0.1
- `packed, no dropout`: the same tiles with dropout 0; `cpu.attend` itself then uses the flash kernel (`attend_rows`)
- `padded`: scaled_dot_product_attention on rows padded to `S`, with mask and dropout 0.1, as a padded batch
  of a model with dropout runs
- `padded, no dropout`: the same with dropout 0, where PyTorch's flash kernel for the CPU can be used

Forward alone, as in evaluation, of rows sorted by length: `attend_rows`, which calls the kernel for each group of rows
of one length, and the same for one row at a time. Also `nn.Dropout` and paratune.models.dropout.CheapDropout on the
hidden states of the packed rows.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from machine import machine_lines
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from paratune.models.attention import cpu
from paratune.models.attention.rows import attend_rows
from paratune.models.dropout import CheapDropout

HEADS = 12
DROPOUT = 0.1


@dataclass(frozen=True)
class Case:
    """Rows of a batch."""

    name: str
    lengths: tuple[int, ...]
    S: int
    """Length of the padded batch."""


def imdb_like(num_rows: int, rng: random.Random) -> tuple[int, ...]:
    """Return lengths with IMDB's median of 233 wordpieces and 15% at 512 or more."""
    return tuple(min(512, max(16, round(rng.lognormvariate(5.45, 0.76)))) for _ in range(num_rows))


RNG = random.Random(1)
CASES = (
    Case("IMDB-like, 16 rows", imdb_like(16, RNG), 512),
    Case("MRPC-like, 32 rows", tuple(RNG.randint(25, 81) for _ in range(32)), 128),
    Case("8 rows of 384", (384,) * 8, 384),
)
SORTED = {
    "1,000 rows of 6": [6] * 1000,
    "SST-2-like, 512 rows": [max(3, min(60, round(RNG.lognormvariate(3.0, 0.6)))) for _ in range(512)],
    "MRPC-like, 256 rows": [RNG.randint(25, 81) for _ in range(256)],
    "IMDB-like, 64 rows": imdb_like(64, RNG),
}
"""Passes of an evaluation."""


def evaluation_ways(lengths: Iterable[int], head_width: int) -> dict[str, Callable[[], object]]:
    """Return each variant as a call that runs forward once, on rows from the longest to the shortest."""
    rows = sorted(lengths, reverse=True)
    packed = [torch.randn(sum(rows), HEADS, head_width) for _ in range(3)]

    @torch.inference_mode()
    def one_at_a_time() -> Tensor:
        rows_by_length = zip(rows, *(x.split(rows) for x in packed), strict=True)
        return torch.cat([attend_rows(q, k, v, [L], scale=head_width**-0.5) for L, q, k, v in rows_by_length])

    by_runs = torch.inference_mode()(lambda: attend_rows(*packed, rows, scale=head_width**-0.5))
    return {"runs": by_runs, "one row at a time": one_at_a_time}


def attention_ways(case: Case, head_width: int) -> dict[str, Callable[[], object]]:
    """Return each variant as a call that runs forward and backward once."""
    T, B, K = sum(case.lengths), len(case.lengths), head_width
    packed = [torch.randn(T, HEADS, K, requires_grad=True) for _ in range(3)]
    padded = [torch.randn(B, HEADS, case.S, K, requires_grad=True) for _ in range(3)]
    mask = (torch.arange(case.S) < torch.tensor(case.lengths)[:, None])[:, None, None]

    def ours(dropout: float) -> object:
        out = cpu.attend_tiles(*packed, case.lengths, scale=K**-0.5, dropout=dropout)
        return torch.autograd.grad(out, packed, torch.ones_like(out))

    def theirs(dropout: float) -> object:
        out = scaled_dot_product_attention(*padded, attn_mask=mask, dropout_p=dropout)
        return torch.autograd.grad(out, padded, torch.ones_like(out))

    return {
        "packed": lambda: ours(DROPOUT),
        "packed, no dropout": lambda: ours(0.0),
        "padded": lambda: theirs(DROPOUT),
        "padded, no dropout": lambda: theirs(0.0),
    }


def dropout_ways(shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    x = torch.randn(shape, requires_grad=True)

    def both(layer: nn.Module) -> Callable[[], object]:
        def run() -> Tensor:
            out = layer(x)
            return torch.autograd.grad(out, x, torch.ones_like(out))[0]

        return run

    return {"CheapDropout": both(CheapDropout(DROPOUT)), "nn.Dropout": both(nn.Dropout(DROPOUT))}


def measure(ways: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of each variant in each round; the order of variants rotates."""
    durations_ms: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for name in names:
        ways[name]()
    for turn in range(num_rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.process_time()
            ways[name]()
            durations_ms[name].append((time.process_time() - start) * 1e3)
    return durations_ms


def row(label: str, durations_ms: dict[str, list[float]], ours: str, theirs: str) -> str:
    cells = [f"{statistics.median(ms):.1f} ({min(ms):.1f} to {max(ms):.1f})" for ms in durations_ms.values()]
    ratio = statistics.median(b / a for a, b in zip(durations_ms[ours], durations_ms[theirs], strict=True))
    return f"| {label} | {' | '.join(cells)} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each variant")
    num_rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print("\n".join(machine_lines()))
    print(f"\nCPU ms, medians of {num_rounds} rounds (least to most); ratio: median over rounds of padded / packed.\n")
    print("| rows, heads x width | packed | packed, no dropout | padded | padded, no dropout | ratio |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        for head_width in (32, 64):
            durations_ms = measure(attention_ways(case, head_width), num_rounds)
            print(row(f"{case.name}, {HEADS} x {head_width}", durations_ms, "packed", "padded"), flush=True)
    print("\n| sorted rows, heads x width | runs | one row at a time | ratio |\n|---|---|---|---|")
    for name, lengths in SORTED.items():
        for head_width in (32, 64):
            durations_ms = measure(evaluation_ways(lengths, head_width), num_rounds)
            print(row(f"{name}, {HEADS} x {head_width}", durations_ms, "runs", "one row at a time"), flush=True)
    print("\n| hidden states | CheapDropout | nn.Dropout | ratio |\n|---|---|---|---|")
    for case in CASES:
        shape = (sum(case.lengths), HEADS * 32)
        print(row(f"{shape[0]} x {shape[1]}", measure(dropout_ways(shape), num_rounds), "CheapDropout", "nn.Dropout"))


if __name__ == "__main__":
    main()
