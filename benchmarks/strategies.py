"""Cost of each strategy, precision and memory saver: the four phases, samples per second, memory per rank.

    OMP_NUM_THREADS=1 python benchmarks/strategies.py --out FOLDER      # a CPU: all strategies, 2 and 4 processes
    python benchmarks/strategies.py --gpu --out FOLDER                  # one GPU: precisions and memory savers

Every run is a training with paratune, and every cell is computed from the records of its runs, which stay in FOLDER.
Runs take turns, in an order that rotates from round to round, so that other load of the machine affects them all
equally. Runs in FOLDER are not repeated, so the script can be stopped and restarted. All runs of a table train the same
samples in the same order. Modules are imported once, before the processes fork: in each process they count as resident
memory, the same for all rows.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from machine import machine_lines

from paratune.base.units import format_bytes
from paratune.config.traits import strategy_traits
from paratune.hardware import resident_memory_bytes
from paratune.processes.place import RENDEZVOUS_VARIABLE
from paratune.records import read_json
from paratune.strategies import STRATEGIES

PHASES = ("get_batch", "forward", "backward", "optimizer", "other")
PRELOADED = [
    "paratune.training.run",
    *(target.partition(":")[0] for target in STRATEGIES.values()),
    "transformers.models.bert.modeling_bert",
    "sklearn.metrics",
    "scipy.stats",
    "pandas",
]
LIMIT_S = 1800
SMALL = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
"""A small BERT; other settings are those of BERT-base."""


@dataclass(frozen=True)
class Case:
    """A row: a variant of the same training."""

    name: str
    num_processes: int
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows with the same samples."""

    title: str
    name: str
    settings: tuple[str, ...]
    """Settings of all rows: model, length, batch, steps."""
    cases: tuple[Case, ...]


def main() -> None:
    """Run missing rows and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="one GPU instead of CPU processes")
    parser.add_argument("--table-only", action="store_true", help="print existing results; run nothing")
    parser.add_argument("--only", nargs="+", default=[], help="names of tables and rows to run; default: all")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    tables = list(_gpu_tables(out) if options.gpu else _cpu_tables(out))
    if not options.table_only:
        _prepare(out)
        _run_missing(tables, out, options.rounds, set(options.only))
    print("\n".join(machine_lines()))
    for table in tables:
        print("\n".join(["", *_report(table, out, options.rounds)]))
    print("\n".join(["", *_contents([case for table in tables for case in table.cases])]))


def _cpu_tables(out: Path) -> Iterator[Table]:
    steps = ("train.max_steps=14", "measure.warmup_steps=4", "batch.global=16", "data.max_length=64", "device=cpu")
    models = {
        "small": (
            "a BERT of 4 layers of width 256 (11 M parameters), new weights",
            (f"model.name={out / 'small'}", "model.from_scratch=true"),
        ),
        "demo": ("demo:minilm, 6 layers of width 384 (22.7 M parameters)", ("model.name=demo:minilm",)),
    }
    for name, (title, settings) in models.items():
        common = (*settings, *steps)
        yield Table(f"{title}; 16 samples of 64 tokens a step", name, common, tuple(_cpu_cases()))


def _cpu_cases() -> Iterator[Case]:
    yield Case("single", 1, ("strategy=single",))
    for count in (2, 4):
        for kind in ("ddp", "zero1", "zero2", "zero3"):
            yield Case(f"{kind} x {count}", count, (f"strategy={kind}",))
        if count == 4:
            yield Case("hsdp 2 x 2", count, ("strategy={kind: hsdp, shard_size: 2}",))
        if "pipeline" in STRATEGIES:
            yield Case(f"pipeline {count}", count, (f"strategy={{kind: pipeline, stages: {count}}}",))
        if "pipeline" in STRATEGIES and count == 4:
            yield Case("pipeline 2 x ddp 2", count, ("strategy={kind: pipeline, stages: 2}",))
        if "deepspeed" in STRATEGIES and importlib.util.find_spec("deepspeed"):
            for stage in range(4):
                yield Case(f"deepspeed {stage} x {count}", count, (f"strategy={{kind: deepspeed, stage: {stage}}}",))


def _gpu_tables(out: Path) -> Iterator[Table]:
    common = (f"model.name={out / 'base'}", "model.from_scratch=true", "device=cuda", "train.max_steps=40")
    checkpointed = "train.activation_checkpointing=1"
    offload = "strategy={kind: zero3, cpu_offload: true}"
    auto = ("batch={global: 4096, micro_batch_size: auto}", "train.max_steps=6", "measure.warmup_steps=2")
    for length, size in ((128, 128), (512, 32)):
        batch = (f"data.max_length={length}", f"batch.global={size}", "measure.warmup_steps=10")
        precisions = ("fp32", "tf32", "bf16", "fp16")
        cases = [
            *(Case(f"single, {precision}", 1, (f"precision={precision}",)) for precision in precisions),
            *(
                Case(f"single, {precision}, checkpointing", 1, (f"precision={precision}", checkpointed))
                for precision in precisions
            ),
            Case("zero3 x 1, offload, bf16", 1, ("precision=bf16", offload)),
            Case("zero3 x 1, bf16", 1, ("precision=bf16", "strategy=zero3")),
            *(
                Case(f"auto micro-batch of 4096, {precision}", 1, (f"precision={precision}", *auto))
                for precision in ("fp32", "bf16")
            ),
            Case("auto micro-batch of 4096, bf16, checkpointing", 1, ("precision=bf16", checkpointed, *auto)),
        ]
        title = f"BERT-base (110 M parameters, new weights); {size} samples of {length} tokens a step"
        yield Table(title, f"base{length}", (*common, *batch), tuple(cases))


def _prepare(out: Path) -> None:
    """Write the models' configurations with the demo model's tokenizer, texts longer than any row, and the file."""
    from transformers import AutoTokenizer, BertConfig

    from paratune.models.locate import locate

    if (out / "bench.yaml").exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(locate("demo:minilm"))
    for name, sizes in (("small", SMALL), ("base", {})):
        BertConfig(vocab_size=len(tokenizer), **sizes).save_pretrained(out / name)
        tokenizer.model_max_length = 512
        tokenizer.save_pretrained(out / name)
    draw = random.Random(1)
    words = [word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2]
    words.sort()
    with (out / "texts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(4096):
            row = {"text": " ".join(draw.choices(words, k=520)), "label": ["a", "b"][number % 2]}
            file.write(json.dumps(row) + "\n")
    config = {
        "task": {"kind": "classification", "labels": ["a", "b"]},
        "data": {"train": str(out / "texts.jsonl"), "columns": {"text": "text", "label": "label"}},
        "model": {"name": "demo:minilm"},
        "train": {"learning_rate": 1e-5, "schedule": "constant"},
        "batch": {},
        "evaluate": {"every": "never"},
        "checkpoint": {"every": "never"},
        "run": {"folder": str(out)},
    }
    (out / "bench.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def _run_missing(tables: Sequence[Table], out: Path, num_rounds: int, only: set[str]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    every = [(table, case) for table in tables for case in table.cases]
    selected = [(table, case) for table, case in every if not only or {table.name, case.name} & only]
    for number in range(num_rounds):
        turn = number * len(selected) // num_rounds
        for table, case in selected[turn:] + selected[:turn]:
            name = _run_name(table, case, number)
            if not (out / name / "summary.json").exists():
                print(f"{name} ...", file=sys.stderr, flush=True)
                _run(context, case, [*table.settings, *case.settings, f"run.name={name}"], out, name)


def _run(context: Any, case: Case, settings: list[str], out: Path, name: str) -> None:
    """Train in the row's number of processes."""
    rendezvous = out / f"{name}.rendezvous"
    rendezvous.unlink(missing_ok=True)
    processes = []
    for rank in range(case.num_processes):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(case.num_processes),
            "LOCAL_WORLD_SIZE": str(case.num_processes),
            "PARATUNE_CACHE": str(out / "cache"),
            RENDEZVOUS_VARIABLE: str(rendezvous),
        }
        processes.append(context.Process(target=_rank, args=(out / "bench.yaml", settings, environment, out / name)))
        processes[-1].start()
    for process in processes:
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
    rendezvous.unlink(missing_ok=True)
    if any(process.exitcode for process in processes):
        print(f"{name} failed: {out / name}.log", file=sys.stderr)


def _rank(path: Path, settings: list[str], environment: Mapping[str, str], name: Path) -> None:
    """Run one process of a run."""
    name.with_name(f"{name.name}.baseline").write_text(str(resident_memory_bytes()))
    descriptor = os.open(name.with_name(f"{name.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    from paratune.config.load import load_config
    from paratune.training.run import train

    try:
        train(load_config(path, settings), mode="overwrite")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _report(table: Table, out: Path, num_rounds: int) -> list[str]:
    lines = [
        f"### {table.title}",
        "",
        "Medians over runs of each run's medians, in ms a step; samples/s with the least and the most of the runs. "
        f"Peak memory of one rank and of all together; {_baseline(table, out)}.",
        "",
        "| row | processes | micro-batch | runs | samples/s (min to max) | step | "
        + " | ".join(phase.replace("_", " ") for phase in PHASES)
        + " | largest rank | sum |",
        "|---" * (len(PHASES) + 8) + "|",
    ]
    lines += [_row(case, _records(table, case, out, num_rounds)) for case in table.cases]
    reasons = [record["run"]["batch"]["reason"] for case in table.cases for record in _records(table, case, out, 1)]
    return [*lines, *(f"\n{reason}" for reason in reasons if reason)]


def _baseline(table: Table, out: Path) -> str:
    """Return a sentence with the memory of a process before it starts."""
    baselines = [int(path.read_text()) for path in sorted(out.glob(f"{table.name}.*.baseline"))]
    return f"a process that has only imported has {format_bytes(statistics.median(baselines)) if baselines else 'n/a'}"


def _row(case: Case, records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return f"| {case.name} | {case.num_processes} " + "| n/a " * (len(PHASES) + 6) + "|"
    summaries = [record["summary"] for record in records]
    rates = [summary["throughput"]["samples_per_s"] for summary in summaries]
    batch = records[0]["run"]["batch"]
    cells = [
        case.name,
        str(case.num_processes),
        f"{batch['micro_batch_size']} x {batch['grad_accum_steps']}",
        str(len(records)),
        f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})",
        _median(summary["step_ms"]["median"] for summary in summaries),
        *(_median(summary["phases"][phase]["median_ms"] for summary in summaries) for phase in PHASES),
        *(
            format_bytes(statistics.median(summary["memory"][key] for summary in summaries))
            for key in ("largest_bytes", "sum_bytes")
        ),
    ]
    return "| " + " | ".join(cells) + " |"


def _median(values: Iterator[float]) -> str:
    return f"{statistics.median(values):.1f}"


def _records(table: Table, case: Case, out: Path, num_rounds: int) -> list[dict[str, Any]]:
    folders = [out / _run_name(table, case, number) for number in range(num_rounds)]
    return [
        {"run": read_json(folder / "run.json"), "summary": read_json(folder / "summary.json")}
        for folder in folders
        if (folder / "summary.json").exists()
    ]


def _contents(cases: Sequence[Case]) -> list[str]:
    """Return what each phase contains under each strategy."""
    rows = {}
    for case in cases:
        strategies = [setting.partition("=")[2] for setting in case.settings if setting.startswith("strategy=")]
        options = yaml.safe_load(strategies[-1] if strategies else "single")
        options = {"kind": options} if isinstance(options, str) else options
        kind = options.pop("kind")
        traits = strategy_traits(kind, options)
        if traits is not None:
            words = [traits.phases.get(phase, "what is in no phase, such as logging") for phase in PHASES]
            name = f"{kind} {options['stage']}" if "stage" in options else kind
            rows.setdefault(name, f"| {name} | " + " | ".join(words) + " |")
    head = ["### What the phases contain", "", "| strategy | " + " | ".join(PHASES) + " |", "|---" * 6 + "|"]
    return [*head, *rows.values()]


def _run_name(table: Table, case: Case, number: int) -> str:
    plain = "".join(letter if letter.isalnum() else "-" for letter in case.name).strip("-")
    return f"{table.name}.{plain}.{number}"


if __name__ == "__main__":
    main()
