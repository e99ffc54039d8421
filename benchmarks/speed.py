"""Speed of paratune and Hugging Face Trainer: the same rows, model, batch size, precision and dropout.

    python benchmarks/speed.py --data FOLDER --out speed.jsonl              # one core, fp32, the embedded MiniLM
    python benchmarks/speed.py --data FOLDER --out speed.jsonl --model base    # BERT-base's width, on IMDB
    python benchmarks/speed.py --data FOLDER --out gpu.jsonl --gpu          # one GPU, BERT-base's width, bf16
    python benchmarks/speed.py --data FOLDER --out amx.jsonl --sides paratune "paratune bf16" ceiling    # AMX
    python benchmarks/speed.py --data FOLDER --quality                      # packed against padded: scores over 3 seeds

`paratune` is compared with Trainer (a), padded to the maximum as studies run it, and with Trainer at its best: on a CPU
(b), grouped by length, padded to the longest row of the batch, with fused AdamW; on a GPU (c), without padding, with
FlashAttention and fused AdamW (`peers/hf_trainer_speed.py`). Each measurement is a separate process; they take turns,
round after round, in an order that rotates. Steps are timed from the end of the
warm-up to the end of the last one, on all sides by the same code, so that loading and tokenizing do not count, and
fetching batches does. Each measurement is a line of --out; existing measurements are not repeated.

--gpu has not been run yet: it was written on a machine without a GPU.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import speed_table
from speed_cases import (
    CASES,
    OF_BASE,
    OF_GPU,
    POOL_BATCHES,
    Case,
    make_models,
    model_flops,
    read_config,
)
from speed_cases import write_case as write

from paratune.models.locate import locate

HERE = Path(__file__).parent
OURS, PEER, CEILING = HERE / "speed_ours.py", HERE / "peers" / "hf_trainer_speed.py", HERE / "speed_ceiling.py"
SIDES = {"paratune": "fp32", "padded": "fp32", "grouped": "fp32", "ceiling": "fp32"}
AMX_SIDE = {"paratune bf16": "bf16"}
"""Only with --sides: for CPUs with `amx_bf16` or `avx512_bf16`; others are 5 times slower in bf16."""
GPU_SIDES = {"paratune": "bf16", "padded": "fp32", "padded bf16": "bf16", "grouped": "bf16", "padding-free": "bf16"}
"""Precision of each side."""


def main() -> None:
    """Run missing measurements, then print the tables."""
    options = _options()
    if options.quality:
        sys.exit(subprocess.call(_quality_command(options)))
    options.work.mkdir(parents=True, exist_ok=True)
    existing = speed_table.read_lines(options.out)
    if not options.table_only:
        cases = _cases(options)
        with redirect_stdout(sys.stderr):  # DeepSpeed, if installed, prints when a model is saved
            models = make_models(options.work, {case.model for case in cases}, locate("demo:minilm"))
        case_settings = {case.name: write(case, options.data, options.work, models[case.model]) for case in cases}
        for number in range(options.rounds):
            for case in cases:
                for side in in_turn(options.sides, number):
                    key = _key(case, side, number, options)
                    if any(key.items() <= row.items() for row in existing):
                        continue
                    print(f"{time.strftime('%H:%M:%S')} {case.name} {side} ...", file=sys.stderr, flush=True)
                    row = {**key, **measure(case, side, case_settings[case.name], options)}
                    keys = ("cpu_s", "wall_s", "process_cpu_s", "gflop_per_s")
                    print(f"  { {key: round(row[key], 2) for key in keys if key in row} }", file=sys.stderr, flush=True)
                    speed_table.append_line(options.out, row)
                    existing.append(row)
    print("\n".join(speed_table.table(existing)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PARATUNE_SHARED_DATA"), help="folder of data sets")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "paratune-speed")
    parser.add_argument("--out", type=Path, help="JSON lines, one per measurement; default: in --work")
    parser.add_argument("--cases", nargs="+", choices=list(CASES))
    parser.add_argument("--sides", nargs="+", choices=list(dict.fromkeys([*SIDES, *AMX_SIDE, *GPU_SIDES])))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="measured steps, for a short run; default: those of the case")
    parser.add_argument("--batch-size", type=int, help="rows of a batch, on all sides; default: those of the case")
    parser.add_argument("--model", choices=("minilm", "base"), help="base: BERT-base's width, random weights, on IMDB")
    parser.add_argument(
        "--layout", choices=("packed", "bucketed", "padded"), help="batch.layout of paratune; default: its own choice"
    )
    parser.add_argument("--gpu", action="store_true", help="on a GPU: BERT-base's width, bf16, longer")
    parser.add_argument("--quality", action="store_true", help="scores of packed and padded training (quality.py)")
    parser.add_argument("--table-only", action="store_true", help="run nothing, print the tables of --out")
    options = parser.parse_args()
    if options.data is None and not options.table_only:
        parser.error("the folder of the data sets is missing: --data FOLDER or $PARATUNE_SHARED_DATA")
    options.data = Path(options.data or ".").resolve()
    options.out = options.out or options.work / "speed.jsonl"
    options.model = options.model or ("base" if options.gpu else "minilm")
    options.precisions = GPU_SIDES if options.gpu else {**SIDES, **AMX_SIDE}
    options.sides = options.sides or list(GPU_SIDES if options.gpu else SIDES)
    if unknown := [side for side in options.sides if side not in options.precisions]:
        parser.error(f"--sides {' '.join(unknown)}: {'with' if options.gpu else 'without'} --gpu there are "
                     f"{', '.join(options.precisions)}")  # fmt: skip
    options.cases = options.cases or (["imdb"] if options.model == "base" and not options.gpu else list(CASES))
    if options.steps is not None and not 1 <= options.steps <= POOL_BATCHES:
        parser.error(f"--steps {options.steps}: rows are chosen from {POOL_BATCHES} batches; give 1 to {POOL_BATCHES}")
    if options.gpu and not options.table_only:
        _require_gpu(parser)
    return options


def _require_gpu(parser: argparse.ArgumentParser) -> None:
    import torch

    if not torch.cuda.is_available():
        parser.error("--gpu: PyTorch sees no GPU here (paratune doctor gives the reason)")


def _quality_command(options: argparse.Namespace) -> list[str]:
    """Return the command that trains IMDB and MRPC packed and padded, over 3 seeds."""
    out = options.work / "quality.jsonl"
    command_options = ["--data", options.data, "--work", options.work, "--out", out, "--tasks", "imdb", "mrpc"]
    command_options += ["--sides", "packed", "padded", "--seeds", 1, 2, 3, "--precision", "fp32"]
    command_options += ["--table-only"] if options.table_only else []
    return [sys.executable, str(HERE / "quality.py"), *map(str, command_options)]


def _cases(options: argparse.Namespace) -> list[Case]:
    cases = []
    for name in options.cases:
        case = replace(CASES[name], model=options.model)
        if options.gpu:
            case = replace(case, **OF_GPU)
        elif options.model == "base":
            case = replace(case, **OF_BASE)
        overrides = {"num_steps": options.steps, "batch_size": options.batch_size}
        cases.append(replace(case, **{key: value for key, value in overrides.items() if value is not None}))
    return cases


def in_turn(sides: list[str], number: int) -> list[str]:
    turn = number % len(sides)
    return sides[turn:] + sides[:turn]


def _key(case: Case, side: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "case": case.name,
        "model": case.model,
        "side": side,
        "round": number,
        "precision": options.precisions[side],
        "batch_size": case.batch_size,
        "num_steps": case.num_steps,
        "max_length": case.max_length,
        "layout": options.layout if side.startswith("paratune") else None,
    }


def measure(case: Case, side: str, case_settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a separate process; return its times and the other values of the table."""
    model = read_config(Path(case_settings["model_folder"]))
    if side == "ceiling":
        num_tokens = case_settings["num_tokens"] // case.num_steps
        command = [str(CEILING), *map(str, (num_tokens, model["hidden_size"], model["intermediate_size"]))]
    else:
        command = [str(program(side)), str(write_settings(case, side, case_settings, options))]
    result = _call([sys.executable, *command], options, name=f"{case.name} {side}")
    if side != "ceiling":
        check_texts(result, case_settings, f"{case.name} {side}")
    result["device"] = _device_name() if options.gpu else None
    result |= {
        "num_samples": case_settings["num_samples"],
        "model_flops": model_flops(case, case_settings["lengths"], model),
    }
    return {"num_set_tokens": case_settings["num_tokens"], **result}


def write_settings(case: Case, side: str, case_settings: dict[str, Any], options: argparse.Namespace) -> Path:
    """Write the settings of one side, and return their path."""
    folder = options.work / f"{case.name}-{case.model}-{side.replace(' ', '-')}"
    settings = {
        **case_settings,
        "side": side.split()[0],
        "precision": options.precisions[side],
        "layout": options.layout,
        "folder": str(folder),
        "cache": str(options.work / "cache"),
    }
    path: Path = options.work / f"{folder.name}.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def program(side: str) -> Path:
    return OURS if side.startswith("paratune") else PEER


def check_texts(result: dict[str, Any], case_settings: dict[str, Any], name: str) -> None:
    """Stop when a side had another dropout or other texts."""
    assert result["dropout"] == [0.1, 0.1], f"{name}: dropout is {result['dropout']}"
    num_tokens = result.get("num_tokens", case_settings["num_tokens"])
    assert abs(num_tokens / case_settings["num_tokens"] - 1) < 0.01, f"{name}: {num_tokens} tokens, other texts"


def environment(*, on_gpu: bool) -> dict[str, str]:
    """Return the variables of a side: one thread on a CPU."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return variables if on_gpu else {**variables, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _call(command: list[str], options: argparse.Namespace, name: str) -> dict[str, Any]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    finished = subprocess.run(command, env=environment(on_gpu=options.gpu), capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if finished.returncode:
        sys.exit(f"{name}: exit code {finished.returncode}\n{finished.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result |= {"process_wall_s": round(time.perf_counter() - begin, 2), "process_cpu_s": round(cpu_s, 2)}
    return result


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
