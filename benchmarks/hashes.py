"""Cost of checking the SHA-256 of cached tokens and of a finished model, relative to the run or command.

    python benchmarks/hashes.py
    python benchmarks/hashes.py --rounds 2 --samples 1000 --model-mib 20      # a short run

Tokens: a cache of `--samples` samples of 1 to 512 tokens is opened; this reads and hashes all of it, as each rank of a
run does once for each split. Model: a file of the size of BERT-base's weights in fp32 is hashed, as `evaluate` and
`predict` do. All files are in the page cache. Times are CPU seconds of this process, the medians over rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import machine_lines

from paratune.data.token_store import StoreWriter, TokenStore, open_store
from paratune.records import file_sha256

PASSES = (1, 3)
"""Epochs of a run over the tokens."""


def main() -> None:
    """Measure both and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--model-mib", type=int, default=418, help="BERT-base: 109.5 million weights of 4 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("\n".join(machine_lines()))
    with tempfile.TemporaryDirectory() as folder:
        store = _written(Path(folder) / "tokens", options.samples)
        num_bytes = sum(path.stat().st_size for path in (Path(folder) / "tokens").iterdir())
        seconds = _median_s(lambda: open_store(Path(folder) / "tokens"), options.rounds)
        model = Path(folder) / "model.safetensors"
        model.write_bytes(np.random.default_rng(0).bytes(options.model_mib << 20))
        model_s = _median_s(lambda: file_sha256(model), options.rounds)
    print(f"\n{store.num_tokens} tokens of {len(store)} samples, {num_bytes / 2**20:.0f} MiB\n")
    print("| what | CPU s | GiB/s |\n|---|---|---|")
    print(f"| open the tokens | {seconds:.3f} | {num_bytes / 2**30 / seconds:.2f} |")
    print(f"| hash a model of {options.model_mib} MiB | {model_s:.3f} | {options.model_mib / 2**10 / model_s:.2f} |")
    per_token_ns = seconds / store.num_tokens * 1e9
    print(f"\n{per_token_ns:.2f} ns a token. It is 1% of the training where that processes in a second:\n")
    print("| epochs | tokens/s |\n|---|---|")
    for epochs in PASSES:
        print(f"| {epochs} | {0.01 * epochs / (per_token_ns * 1e-9):,.0f} |")


def _written(folder: Path, num_samples: int) -> TokenStore:
    draw = np.random.default_rng(0)
    with StoreWriter(folder, "<u2", has_type_ids=True) as writer:
        for length in draw.integers(1, 513, num_samples).tolist():
            writer.add([draw.integers(0, 30_000, length).tolist()], [[0] * length], [length])
        writer.finish(512)
    return open_store(folder)


def _median_s(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
