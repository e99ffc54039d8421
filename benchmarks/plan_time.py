"""Accuracy of predicted step times, and how often the interval contains the measured time.

    OMP_NUM_THREADS=1 python benchmarks/plan_time.py --out FOLDER     # measures this machine first, if necessary

Every row is a training with paratune, of a BERT with new weights; the prediction uses only
its configuration. Texts are longer than any row, so that all rows have `data.max_length` tokens. Runs in FOLDER are
not repeated; the machine's figures are also kept there.
"""

import argparse
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machine import machine_lines
from strategies import PRELOADED, Case, _prepare, _run

from paratune.config.load import load_config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.models.packed import enable_packed_batches
from paratune.planning.build import build_model
from paratune.planning.calibration import calibrate, calibration_file
from paratune.planning.machine import Machine, detect_machine, this_machine
from paratune.planning.profile import Shape, profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.time import StepCase, StepTime, TimeInputs, step_time
from paratune.precision import POLICIES
from paratune.records import read_json

_STEPS = ("train.max_steps=9", "measure.warmup_steps=3", "device=cpu", "model.from_scratch=true")


@dataclass(frozen=True)
class Row:
    """A training."""

    width: int
    num_blocks: int
    length: int
    micro_batch_size: int
    layout: str = "packed"
    grad_accum_steps: int = 1
    strategy: str = "single"
    num_ranks: int = 1
    activation_checkpointing: int | None = None

    @property
    def name(self) -> str:
        again = "-again" if self.activation_checkpointing else ""
        return (
            f"{self.width}x{self.num_blocks}-{self.length}-{self.micro_batch_size}x{self.grad_accum_steps}"
            f"-{self.layout}-{self.strategy}{self.num_ranks}{again}"
        )

    def settings(self, out: Path) -> tuple[str, ...]:
        replicas = 1 if self.strategy == "pipeline" else self.num_ranks
        options = [
            f"model.name={_model(self, out)}",
            f"data.max_length={self.length}",
            f"batch.global={self.micro_batch_size * self.grad_accum_steps * replicas}",
            f"batch.micro_batch_size={self.micro_batch_size}",
            f"strategy={self.strategy}",
        ]
        if self.strategy != "pipeline":
            options.append(f"batch.layout={self.layout}")
        if self.activation_checkpointing:
            options.append(f"train.activation_checkpointing={self.activation_checkpointing}")
        return (*_STEPS, *options, f"run.name={self.name}")


ROWS = (
    Row(128, 2, 64, 16),
    Row(128, 4, 256, 8),
    Row(192, 4, 128, 16),
    Row(256, 4, 64, 16),
    Row(256, 4, 64, 16, "padded"),
    Row(256, 8, 128, 8),
    Row(256, 4, 384, 4),
    Row(320, 6, 96, 12),
    Row(384, 6, 128, 8, grad_accum_steps=2),
    Row(384, 6, 256, 4, "padded"),
    Row(512, 4, 32, 32),
    Row(512, 4, 128, 8, activation_checkpointing=1),
    Row(640, 3, 192, 4),
    Row(768, 2, 128, 8),
    Row(768, 4, 64, 8, "padded"),
    Row(128, 2, 64, 16, strategy="ddp", num_ranks=2),
    Row(256, 4, 64, 8, strategy="ddp", num_ranks=2),
    Row(384, 6, 128, 8, strategy="ddp", num_ranks=2),
    Row(512, 4, 128, 8, strategy="ddp", num_ranks=2),
    Row(256, 4, 128, 8, strategy="ddp", num_ranks=2, grad_accum_steps=2),
    Row(256, 4, 128, 8, strategy="zero1", num_ranks=2),
    Row(256, 4, 128, 8, strategy="zero2", num_ranks=2),
    Row(256, 4, 128, 8, strategy="zero3", num_ranks=2),
    Row(384, 6, 128, 4, "padded", strategy="pipeline", num_ranks=2, grad_accum_steps=4),
)


def main() -> None:
    """Run missing rows and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the records and of the machine's figures")
    parser.add_argument("--only", nargs="+", default=[], help="strategies whose rows are run; default: all")
    parser.add_argument("--table-only", action="store_true", help="print existing results; run nothing")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["PARATUNE_CACHE"] = str(out / "cache")
    _prepare(out)
    if not calibration_file(detect_machine().name).exists():
        calibrate(lambda text: print(f"{text} ...", file=sys.stderr, flush=True))
    if not options.table_only:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        for row in ROWS:
            if not (out / row.name / "summary.json").exists() and (not options.only or row.strategy in options.only):
                print(f"{row.name} ...", file=sys.stderr, flush=True)
                _run(context, Case(row.name, row.num_ranks, ()), list(row.settings(out)), out, row.name)
    print("\n".join([*machine_lines(), "", *_table(out)]))


def _model(row: Row, out: Path) -> Path:
    """Return the folder of a row's model; write it if it does not exist."""
    import shutil

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


def predict(row: Row, out: Path, machine: Machine) -> StepTime | None:
    """Return the predicted step of a row."""
    from transformers import AutoConfig

    config = load_config(out / "bench.yaml", row.settings(out)).config
    hf_config = AutoConfig.from_pretrained(_model(row, out))
    model = build_model(hf_config, config.task, POLICIES["fp32"], None)
    enable_packed_batches(model)
    is_packed = row.layout == "packed"
    shape = Shape((row.length,) * row.micro_batch_size, layout="packed" if is_packed else "padded")
    traced_profile = profile(
        hf_config,
        config.task,
        shape,
        POLICIES["fp32"],
        on_cuda=False,
        entry=model.entry if is_packed else None,
        activation_checkpointing=row.activation_checkpointing,
        with_division=row.strategy == "pipeline",
    )
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    assert traits is not None
    setup = PredictionSetup(
        strategy=config.strategy,
        traits=traits,
        precision=POLICIES["fp32"],
        num_ranks=row.num_ranks,
        ranks_per_node=row.num_ranks,
        micro_batch_size=row.micro_batch_size,
        grad_accum_steps=row.grad_accum_steps,
        activation_checkpointing=row.activation_checkpointing,
        layout="packed" if is_packed else "padded",
    )
    return step_time(StepCase(traced_profile, setup, machine, TimeInputs(num_tokens=shape.num_tokens)))[0]


def _table(out: Path) -> Iterator[str]:
    machine = this_machine()
    yield "| model, tokens a row, micro-batch | strategy | measured ms | predicted ms | interval | over measured |"
    yield "|---|---|---|---|---|---|"
    ratios: dict[str, list[float]] = {}
    num_inside = 0
    for row in ROWS:
        path = out / row.name / "summary.json"
        if not path.exists():
            yield f"| {row.name} | {row.strategy} | not run | | | |"
            continue
        measured = read_json(path)["step_ms"]
        predicted = predict(row, out, machine)
        assert predicted is not None
        ratio = 1000 * predicted.total_s / measured["median"]
        ratios.setdefault("one process" if row.num_ranks == 1 else "two processes", []).append(ratio)
        num_inside += predicted.low_s <= measured["median"] / 1000 <= predicted.high_s
        yield (
            f"| {_said(row)} | {row.strategy} x {row.num_ranks} | {measured['median']:.0f} ({measured['p10']:.0f} to "
            f"{measured['p90']:.0f}) | {1000 * predicted.total_s:.0f} | {1000 * predicted.low_s:.0f} to "
            f"{1000 * predicted.high_s:.0f} | {ratio:.2f} |"
        )
    every = [ratio for group in ratios.values() for ratio in group]
    for name, group in ratios.items():
        yield f"\n{name}: {_errors(group)}."
    if every:
        yield f"\nAll: {_errors(every)}; the interval holds {num_inside} of {len(every)} measured medians."


def _said(row: Row) -> str:
    steps = f" x {row.grad_accum_steps}" if row.grad_accum_steps > 1 else ""
    again = ", checkpointing" if row.activation_checkpointing else ""
    return f"{row.width} x {row.num_blocks}, {row.length}, {row.micro_batch_size}{steps} {row.layout}{again}"


def _errors(ratios: list[float]) -> str:
    errors = [abs(math.log(ratio)) for ratio in ratios]
    within = sum(0.8 <= ratio <= 1.2 for ratio in ratios)
    middle, worst = (math.exp(value) - 1 for value in (statistics.median(errors), max(errors)))
    return f"{within} of {len(ratios)} within 20%, median error {middle:.0%}, largest {worst:.0%}"


if __name__ == "__main__":
    main()
