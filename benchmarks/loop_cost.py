"""CPU time of one optimizer step of `paratune train` on a tiny model, compared with a hand-written loop and Trainer.

    OMP_NUM_THREADS=1 python benchmarks/loop_cost.py                  # 5 rounds of 5 sides
    OMP_NUM_THREADS=1 python benchmarks/loop_cost.py --paired         # all sides in one process, in turn
    OMP_NUM_THREADS=1 python benchmarks/loop_cost.py --parts          # where paratune's time goes, in this process

The model is a BERT with 2 layers of width 32 and 2 heads, so that nearly all of the step is host time, which a GPU
would wait for. Each side runs as for a user, in a separate process, once with 200 and once with 2,000 steps. The time
of a step is the difference of the two divided by 1,800, so start-up and end cancel. CPU time is the kernel's count for
the process, all of its threads and all children that it waited for (`os.wait4`); wall time is from start to end. The
sides take turns in an order that rotates from round to round; the table has medians and the range over rounds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine_lines

PEERS = Path(__file__).parent / "peers"
NUM_ROWS, NUM_WORDS, BATCH_SIZE = 512, 400, 8
SHORT_STEPS, LONG_STEPS = 200, 2_000
CLS, SEP, PAD, UNK, MASK = "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"


@dataclass(frozen=True)
class Side:
    """A command that trains for a number of steps."""

    name: str
    command: tuple[str, ...]
    """Arguments of the command; FOLDER and STEPS are replaced."""


def sides() -> list[Side]:
    """Return the compared sides; the others are compared with the first."""
    python = sys.executable
    plain = (python, str(PEERS / "plain_tiny.py"), "FOLDER", "STEPS")
    ours = (python, "-m", "paratune", "train", "FOLDER/train.yaml", "--overwrite", "--set", "train.max_steps=STEPS")
    return [
        Side("hand-written, padded", (*plain, "padded")),
        Side("hand-written, packed", (*plain, "packed")),
        Side("Trainer", (python, str(PEERS / "hf_trainer_tiny.py"), "FOLDER", "STEPS")),
        Side("paratune, packed (default)", ours),
        Side("paratune, padded", (*ours, "--set", "batch.layout=padded")),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paired", action="store_true", help="all sides in one process, in turn")
    parser.add_argument("--blocks", type=int, default=40, help="for --paired: blocks of each side, 3 for warm-up")
    parser.add_argument("--block", type=int, default=25, help="for --paired: steps of a block")
    parser.add_argument("--parts", action="store_true", help="print where the time of a step goes, and nothing else")
    parser.add_argument("--steps", type=int, default=1_000, help="of --parts")
    parser.add_argument("--layout", default="packed", help="for --parts and --paired: packed or padded")
    parser.add_argument("--only", default="", help="only sides whose name contains this text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder)
        if options.parts:
            from loop_cost_parts import parts_table

            lines = parts_table(folder / "train.yaml", options.steps, options.layout)
        elif options.paired:
            from loop_cost_paired import paired_table

            lines = paired_table(folder, options.layout, options.blocks, options.block)
        else:
            lines = compare(folder, [side for side in sides() if options.only in side.name], options.rounds)
    print("\n".join([*machine_lines(), "", *lines]))


def write_inputs(folder: Path) -> None:
    """Write model, tokenizer, rows and paratune's configuration."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    words = [f"w{number}" for number in range(NUM_WORDS)]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([PAD, UNK, CLS, SEP, MASK, *words]) + "\n", encoding="utf-8")
    (folder / "model").mkdir()
    BertTokenizerFast(str(vocabulary), model_max_length=64).save_pretrained(folder / "model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=NUM_WORDS + 5, max_position_embeddings=64, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    random = np.random.default_rng(1)
    rows = [
        {"text": " ".join(random.choice(words, random.integers(4, 31))), "label": int(random.integers(2))}
        for _ in range(NUM_ROWS)
    ]
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "train.yaml").write_text(json.dumps(_configuration(folder)), encoding="utf-8")


def _configuration(folder: Path) -> dict[str, Any]:
    return {
        "run": {"name": "run", "folder": str(folder / "runs"), "seed": 1},
        "task": {"kind": "classification", "labels": [0, 1]},
        "data": {"train": str(folder / "rows.jsonl"), "columns": {"text": "text", "label": "label"}, "max_length": 64}
        | {"cache_dir": str(folder / "cache")},
        "model": {"name": str(folder / "model")},
        "train": {"max_steps": LONG_STEPS, "learning_rate": 1e-4, "weight_decay": 0.01},
        "batch": {"global": BATCH_SIZE},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
    }


def compare(folder: Path, chosen: Sequence[Side], num_rounds: int) -> list[str]:
    """Return the table of all sides."""
    cpu_ms: dict[str, list[float]] = {side.name: [] for side in chosen}
    wall_ms: dict[str, list[float]] = {side.name: [] for side in chosen}
    for number in range(num_rounds):
        turn = number % len(chosen)
        for side in [*chosen[turn:], *chosen[:turn]]:
            short, long = (run_once(side, folder, steps) for steps in (SHORT_STEPS, LONG_STEPS))
            for taken, kind in ((cpu_ms, 0), (wall_ms, 1)):
                taken[side.name].append(1000 * (long[kind] - short[kind]) / (LONG_STEPS - SHORT_STEPS))
            print(f"round {number + 1}, {side.name}: {cpu_ms[side.name][-1]:.2f} ms of CPU time", file=sys.stderr)
    base = cpu_ms[chosen[0].name]
    lines = [
        f"{num_rounds} rounds. Milliseconds a step: median (lowest to highest).",
        "",
        f"| side | CPU time | wall time | CPU time more than {chosen[0].name}, paired |",
        "| --- | --- | --- | --- |",
    ]
    for side in chosen:
        more = np.subtract(cpu_ms[side.name], base)
        cells = [_range(cpu_ms[side.name]), _range(wall_ms[side.name]), "" if side is chosen[0] else _range(more)]
        lines.append("| " + " | ".join([side.name, *cells]) + " |")
    return lines


def run_once(side: Side, folder: Path, num_steps: int) -> tuple[float, float]:
    """Run a side in a separate process; return its CPU seconds, children included, and its wall seconds."""
    words = [word.replace("FOLDER", str(folder)).replace("STEPS", str(num_steps)) for word in side.command]
    log = folder / "output.txt"
    with log.open("wb") as out:
        begin = time.perf_counter()
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        pid = os.posix_spawn(words[0], words, environment, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"{' '.join(words)}\n{log.read_text(errors='replace')[-3000:]}")
    return usage.ru_utime + usage.ru_stime, wall_s


def _range(values: Sequence[float] | Any) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
