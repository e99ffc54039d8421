"""Speed of `torch.compile` on a CPU: forward and backward of an encoder, compiled block by block, and eager.

    OMP_NUM_THREADS=1 python benchmarks/compile.py

    eager          as `paratune train` runs it: packed rows, its own attention, dropout and linear layers
    eager, plain   with PyTorch's own dropout and linear layers
    compiled       the same with each block compiled, as `train.compile: true` does

Each side runs in a separate process. `same T`: every batch has the same number of tokens, so that nothing is compiled
twice; `other T`: the numbers differ, as in packed batches. Medians of the steps after the first --warmup; the seconds
until then are the cost of compiling.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

SIDES = ("eager", "eager, plain", "compiled")


def main() -> None:
    """Measure one side, or print the table of all sides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--side", choices=SIDES, help="measure this side in this process and print JSON")
    parser.add_argument("--lengths", choices=("same T", "other T"), default="same T")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--timeout", type=int, default=900, help="time limit of a side, in seconds")
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(measure(options.side, options.lengths == "other T", options)))
        return
    from machine import machine_lines

    print(
        "\n".join([*machine_lines(), f"- {options.rows} rows of up to 384 tokens, demo:minilm, fp32, dropout 0.1", ""])
    )
    head = ["side", "T", "first steps, s", "step, ms of wall", "step, ms of CPU", "graphs compiled"]
    print("| " + " | ".join(head) + " |\n" + "|" + " --- |" * len(head))
    for lengths in ("same T", "other T"):
        for side in SIDES:
            print(
                "| " + " | ".join([side, lengths.removesuffix(" T"), *_cells(side, lengths, options)]) + " |",
                flush=True,
            )


def _cells(side: str, lengths: str, options: argparse.Namespace) -> list[str]:
    options_given = ["--rows", options.rows, "--steps", options.steps, "--warmup", options.warmup]
    command = [sys.executable, __file__, "--side", side, "--lengths", lengths, *map(str, options_given)]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=options.timeout, check=False, env={**os.environ}
        )
    except subprocess.TimeoutExpired:
        return [f"more than {options.timeout}", "n/a", "n/a", "n/a"]
    if completed.returncode:
        return [f"failed: {completed.stderr.strip().splitlines()[-1][:80]}", "n/a", "n/a", "n/a"]
    figures = json.loads(completed.stdout.splitlines()[-1])
    return [
        f"{figures['first_s']:.1f}",
        f"{figures['wall_ms']:.0f}",
        f"{figures['cpu_ms']:.0f}",
        str(figures["num_graphs"]),
    ]


def measure(side: str, lengths_differ: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of the first steps, medians of the others, and the number of compiled graphs."""
    import torch

    torch.manual_seed(0)
    model = _model(side)
    steps = []
    for number in range(options.warmup + options.steps):
        batch = _batch(options.rows, 384, seed=number if lengths_differ else 0)
        begin, cpu = time.perf_counter(), time.process_time()
        model.loss_sum(model(batch), batch).backward()
        steps.append((1000 * (time.perf_counter() - begin), 1000 * (time.process_time() - cpu)))
    late = steps[options.warmup :]
    return {
        "first_s": sum(wall for wall, _ in steps[: options.warmup]) / 1000,
        "wall_ms": statistics.median(wall for wall, _ in late),
        "cpu_ms": statistics.median(cpu for _, cpu in late),
        "num_graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }


def _model(side: str) -> Any:
    """Return the demo model with a new head, compiled or not."""
    from transformers import AutoModelForSequenceClassification

    from paratune.models.blocks import compile_blocks
    from paratune.models.dropout import use_cheap_dropout
    from paratune.models.linear import use_onednn
    from paratune.models.locate import locate
    from paratune.models.packed import enable_packed_batches
    from paratune.models.task_model import TaskModel

    hf = AutoModelForSequenceClassification.from_pretrained(locate("demo:minilm"), num_labels=2)
    model = TaskModel(hf, "classification").train()
    if side == "eager":
        use_cheap_dropout(model)
        use_onednn(model)
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    if side == "compiled":
        compile_blocks(model)
    return model


def _batch(num_rows: int, longest: int, *, seed: int) -> Any:
    """Return packed rows of 64 to `longest` tokens."""
    import torch

    from paratune.batch import Batch
    from paratune.batch.packing import pack

    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(64, longest + 1, (num_rows,), generator=generator)
    mask_BS = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids_BS = torch.randint(1000, 20_000, mask_BS.shape, generator=generator) * mask_BS
    return pack(
        Batch(
            input_ids=ids_BS,
            row_weight=torch.ones(num_rows),
            index=torch.arange(num_rows),
            num_samples=num_rows,
            num_tokens=int(lengths.sum()),
            num_padded_tokens=ids_BS.numel(),
            loss_denominator=float(num_rows),
            attention_mask=mask_BS,
            token_type_ids=torch.zeros_like(ids_BS),
            max_seqlen=int(lengths.max()),
            labels=torch.zeros(num_rows, dtype=torch.long),
        )
    )


if __name__ == "__main__":
    main()
