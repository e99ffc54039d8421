"""The highest speed of matrix products on this machine, with which `speed.py` compares trainings.

Usage: python speed_ceiling.py TOKENS WIDTH INNER, in a separate process with OMP_NUM_THREADS=1; the result, GFLOP/s
by the CPU time of the fastest of several products, is one JSON object.
"""

import json
import sys
import time

import torch

NUM_TRIES = 8


def ceiling(num_tokens: int, width: int, inner: int) -> float:
    """Return GFLOP/s of the fastest of the largest products of a model: (T, D) by (D, F), and back.

    Args:
        num_tokens: T, the tokens of a step.
        width: D.
        inner: F.
    """
    best = 0.0
    for rows, columns in ((width, inner), (inner, width)):
        left, right = torch.randn(num_tokens, rows), torch.randn(rows, columns)
        out = torch.empty(num_tokens, columns)
        for _ in range(NUM_TRIES):
            begin = time.process_time()
            torch.mm(left, right, out=out)
            best = max(best, 2e-9 * num_tokens * rows * columns / (time.process_time() - begin))
    return best


if __name__ == "__main__":
    print(json.dumps({"gflop_per_s": ceiling(*map(int, sys.argv[1:4]))}))
