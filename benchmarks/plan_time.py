"""Accuracy of step times that are planned from one probe, and how often the interval contains the measured time.

    OMP_NUM_THREADS=1 python benchmarks/plan_time.py --out FOLDER

Every row is a probe of 20 steps, of a BERT with new weights. The first one is the anchor (`paratune plan --measured`)
from which the ten others are planned: other lengths, batches, models and strategies. Texts are longer than any row, so
that all rows have `data.max_length` tokens. Runs in FOLDER are not repeated.
"""

import argparse
import math
import multiprocessing
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine_lines
from strategies import PRELOADED, Case, _prepare, _run

import paratune
from paratune.records.finished import read_record
from paratune.reports.measures import step_ms

STEPS = {"train.max_steps": 20, "measure.warmup_steps": 5, "measure.probe": True}
CLOSE, GOAL = 0.2, 0.8
"""Error of a cell that counts as close, and the share of cells that should be close."""


@dataclass(frozen=True)
class Row:
    """A probe."""

    width: int
    num_blocks: int
    length: int
    micro_batch_size: int
    layout: str = "packed"
    grad_accum_steps: int = 1
    strategy: str = "single"
    num_ranks: int = 1

    @property
    def name(self) -> str:
        sizes = f"{self.length}-{self.micro_batch_size}x{self.grad_accum_steps}"
        return f"{self.width}x{self.num_blocks}-{sizes}-{self.layout}-{self.strategy}{self.num_ranks}"

    def settings(self, out: Path) -> dict[str, Any]:
        replicas = 1 if self.strategy == "pipeline" else self.num_ranks
        return {
            **STEPS,
            "device": "cpu",
            "model.from_scratch": True,
            "model.name": str(_model(self, out)),
            "data.max_length": self.length,
            "batch.global": self.micro_batch_size * self.grad_accum_steps * replicas,
            "batch.micro_batch_size": self.micro_batch_size,
            "batch.layout": self.layout,
            "strategy.kind": self.strategy,
            "run.name": self.name,
        }


ROWS = (
    Row(256, 4, 64, 16),
    Row(256, 4, 64, 4),
    Row(256, 4, 256, 8),
    Row(256, 4, 64, 16, "padded"),
    Row(256, 4, 128, 8, grad_accum_steps=2),
    Row(128, 2, 64, 16),
    Row(384, 6, 128, 8),
    Row(256, 4, 64, 8, strategy="ddp", num_ranks=2),
    Row(384, 6, 128, 8, strategy="ddp", num_ranks=2),
    Row(256, 4, 128, 8, strategy="zero1", num_ranks=2),
    Row(256, 4, 128, 8, strategy="zero2", num_ranks=2),
)
"""The first row is the anchor."""


def main() -> None:
    """Run missing rows and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--table-only", action="store_true", help="print existing results; run nothing")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    _prepare(out)
    if not options.table_only:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        for row in ROWS:
            if not (out / row.name / "summary.json").exists():
                print(f"{row.name} ...", file=sys.stderr, flush=True)
                texts = [f"{key}={value}" for key, value in row.settings(out).items()]
                _run(context, Case(row.name, row.num_ranks, ()), texts, out, row.name)
    print("\n".join([*machine_lines(), "", *_table(out)]))


def _model(row: Row, out: Path) -> Path:
    """Return the folder of a row's model; write it if it does not exist."""
    from transformers import AutoTokenizer, BertConfig

    folder = out / f"bert{row.width}x{row.num_blocks}"
    if not folder.exists():
        tokenizer = AutoTokenizer.from_pretrained(out / "small")
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=row.width,
            num_hidden_layers=row.num_blocks,
            num_attention_heads=row.width // 64,
            intermediate_size=4 * row.width,
        )
        aside = folder.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        config.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(folder)
    return folder


def _table(out: Path) -> Iterator[str]:
    anchor, *others = ROWS
    yield f"Anchor: {anchor.name}, {step_ms(read_record(out / anchor.name, anchor.name)):.0f} ms."
    yield ""
    yield "| width x blocks, tokens a row, micro-batch | strategy | measured ms | planned ms (interval) | ratio |"
    yield "|---|---|---|---|---|"
    ratios, num_inside = [], 0
    for row in others:
        measured = step_ms(read_record(out / row.name, row.name))
        plan = paratune.plan(
            out / "bench.yaml",
            row.settings(out),
            devices=row.num_ranks,
            strategies=row.strategy,
            max_length=row.length,
            measured=out / anchor.name,
        )
        step = plan.predictions[0].figures["step_s"]
        assert step is not None
        assert measured is not None
        value, low, high = (1000 * seconds for seconds in (step.value, step.low, step.high))
        ratios.append(value / measured)
        num_inside += low <= measured <= high
        steps = f" x {row.grad_accum_steps}" if row.grad_accum_steps > 1 else ""
        yield (
            f"| {row.width} x {row.num_blocks}, {row.length}, {row.micro_batch_size}{steps} {row.layout} | "
            f"{row.strategy} x {row.num_ranks} | {measured:.0f} | {value:.0f} ({low:.0f} to {high:.0f}) | "
            f"{value / measured:.2f} |"
        )
    close = sum(abs(ratio - 1) <= CLOSE for ratio in ratios)
    middle = math.exp(statistics.median(abs(math.log(ratio)) for ratio in ratios)) - 1
    yield ""
    yield (
        f"{close} of {len(ratios)} within {CLOSE:.0%} (goal: {GOAL:.0%}), median error {middle:.0%}; the interval "
        f"contains {num_inside} of {len(ratios)} measured means."
    )


if __name__ == "__main__":
    main()
