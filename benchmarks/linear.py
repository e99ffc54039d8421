"""Products of a linear layer by MKL, which PyTorch uses for float32, and by oneDNN: forward, and both gradients.

    OMP_NUM_THREADS=1 python benchmarks/linear.py

T tokens, K features in, N out: those of MiniLM (384) and BERT-base (768). GFLOP/s by process CPU time, median of
--rounds, taken in turn. The table is Markdown; the choice of `paratune.models.linear` is based on it.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import machine_lines
from torch import Tensor
from torch.nn.functional import linear

SHAPES = [(384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="+", default=[700, 2500])
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| T | K | N | product | MKL | oneDNN | times as fast |", "|" + " --- |" * 7]
    for num_tokens in options.tokens:
        for features_in, features_out in SHAPES:
            for name, pair in _products(num_tokens, features_in, features_out).items():
                mkl, onednn = _rates(pair, 2 * num_tokens * features_in * features_out, options.rounds)
                cells = [num_tokens, features_in, features_out, name, f"{mkl:.0f}", f"{onednn:.0f}"]
                lines.append("| " + " | ".join([*map(str, cells), f"{onednn / mkl:.2f}"]) + " |")
    print("\n".join([*machine_lines(), "", *lines]))


def _products(num_tokens: int, features_in: int, features_out: int) -> dict[str, list[Callable[[], Tensor]]]:
    x, grad = torch.randn(num_tokens, features_in), torch.randn(num_tokens, features_out)
    weight, bias = torch.randn(features_out, features_in), torch.randn(features_out)
    onednn = torch.ops.mkldnn._linear_pointwise
    return {
        "forward": [lambda: linear(x, weight, bias), lambda: onednn(x, weight, bias, "none", [], "")],
        "gradient of x": [lambda: grad @ weight, lambda: onednn(grad, weight.t(), None, "none", [], "")],
        "gradient of weight": [lambda: grad.t() @ x, lambda: onednn(grad.t(), x.t(), None, "none", [], "")],
    }


def _rates(pair: list[Callable[[], Tensor]], num_flops: int, rounds: int) -> list[float]:
    """Return GFLOP/s of each."""
    for product in pair:
        product()
    seconds: list[list[float]] = [[] for _ in pair]
    for _ in range(rounds):
        for product, durations in zip(pair, seconds, strict=True):
            begin = time.process_time()
            product()
            durations.append(time.process_time() - begin)
    return [num_flops / statistics.median(durations) / 1e9 for durations in seconds]


if __name__ == "__main__":
    main()
