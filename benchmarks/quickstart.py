"""The quick start: Hugging Face Trainer and paratune on the same rows, then one training, checked and reported.

    python benchmarks/quickstart.py     # make quickstart

Thirty steps of the demo model are measured three times with each trainer, in turn: Trainer padded to the maximum, as
run_glue.py does by default, Trainer at its best on this device, and paratune (`speed.py` has the details). Nothing is
downloaded. On GPUs without bf16 and FlashAttention (before Ampere), the CPU's sides are measured.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import speed
from speed_cases import Case, make_models, write_case

from paratune.models.locate import locate

ROOT = Path(__file__).parents[1]
CASE = Case(
    "quickstart",
    "classification",
    "demo:sentences",
    {"text": "sentence", "label": "label"},
    max_length=128,
    batch_size=8,
    num_steps=30,
)
SINGLE, DDP = (f"configs/quickstart/{name}.yaml" for name in ("single", "ddp"))
NUM_ROUNDS = 3
CPU, OLDER, AMPERE = "a CPU", "a GPU before Ampere", "a GPU with bf16 and FlashAttention"


def measure(device: str) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, one of each round; print them."""
    best = "padding-free" if device == AMPERE else "grouped"
    sides = ["padded", best, "paratune"]
    precisions = {side: "bf16" if device == AMPERE and side != "padded" else "fp32" for side in sides}
    work = ROOT / "build" / "quickstart"
    work.mkdir(parents=True, exist_ok=True)
    with redirect_stdout(sys.stderr):
        model = make_models(work, {CASE.model}, locate("demo:minilm"))[CASE.model]
    settings = write_case(CASE, ROOT, work, model)
    options = argparse.Namespace(work=work, precisions=precisions, layout=None)
    num_tokens = settings["num_tokens"] / settings["num_samples"]
    print(
        f"{NUM_ROUNDS} x {CASE.num_steps} steps each of Trainer padded, Trainer {best} and paratune; sentences have "
        f"{num_tokens:.0f} tokens on average (the first figure takes a minute)",
        flush=True,
    )
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    with ExitStack() as stack:
        ask = {side: stack.enter_context(_waiting(side, work, on_gpu=device != CPU)) for side in sides}
        for number in range(NUM_ROUNDS):
            for side in speed.in_turn(sides, number):
                times = ask[side](speed.write_settings(CASE, side, settings, options))
                speed.check_texts(times, settings, side)
                # With one thread, other work on a CPU does not count.
                seconds[side].append(times["cpu_s" if device == CPU else "wall_s"] / CASE.num_steps)
                name = "paratune" if side == "paratune" else f"Trainer, {side}"
                print(f"{number + 1}/{NUM_ROUNDS} {name:21} {1000 * seconds[side][-1]:6.0f} ms a step", flush=True)
    return seconds


@contextmanager
def _waiting(side: str, work: Path, *, on_gpu: bool) -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Start the process of a side, which imports its packages once; yield the function that gets a measurement."""
    log = work / f"{side}.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, str(speed.program(side))],
            env=speed.environment(on_gpu=on_gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def ask(settings: Path) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(settings, file=process.stdin, flush=True)
            for line in process.stdout:
                if line.startswith('{"'):  # Trainer prints Python's dicts
                    found: dict[str, Any] = json.loads(line)
                    return found
            sys.exit(f"{side} failed:\n{log.read_text(encoding='utf-8')[-4000:]}")

        yield ask


def speed_sentence(seconds: dict[str, list[float]], device: str) -> str:
    """Return both ratios: medians of the rounds, with the lowest and the highest."""
    padded, best, ours = seconds.values()
    ratios = [
        f"{median(found):.2f} times ({min(found):.2f} to {max(found):.2f})"
        for found in ([a / b for a, b in zip(side, ours, strict=True)] for side in (padded, best))
    ]
    how = {
        CPU: "grouped by length, fused AdamW), in fp32 on one core",
        AMPERE: "no padding, FlashAttention, fused AdamW, bf16 as here), on one GPU",
        OLDER: "grouped by length, fused AdamW), in fp32 on one GPU",
    }[device]
    return (
        f"{CASE.num_steps} steps of {CASE.batch_size} sentences: paratune is {ratios[0]} as fast as Hugging Face "
        f"Trainer padded to {CASE.max_length} tokens, and {ratios[1]} as fast as Trainer at its best ({how}. "
        f"Medians of {NUM_ROUNDS} repeats in turn, with the lowest and the highest, of "
        f"{'CPU' if device == CPU else 'wall'} time. Batches of few short sentences have little padding once they are "
        f"grouped; longer texts: benchmarks/speed_cpu_202611.md."
    )


def paratune(*words: object) -> None:
    """Print a command of paratune and run it; stop where it fails."""
    line = [str(word) for word in words]
    print(f"$ paratune {shlex.join(line)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "paratune", *line], cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """Measure, train, check, report, and say what was found."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch

    num_gpus = torch.cuda.device_count()
    device = CPU if not num_gpus else AMPERE if torch.cuda.get_device_capability() >= (8, 0) else OLDER
    found = speed_sentence(measure(device), device)
    print(f"\n{found}\n", flush=True)
    runs = ["runs/quickstart"]
    paratune("train", SINGLE, "--set", "run.name=quickstart", "--overwrite")
    if num_gpus > 1:
        runs.append("runs/quickstart-ddp")
        paratune("train", DDP, "--set", "run.name=quickstart-ddp", "--nproc", num_gpus, "--overwrite")
    certified = ["--strategies", "ddp", "--layouts", "padded", "--steps", 2]
    certified += ["--set", "device=cpu"] * (num_gpus == 1)  # two processes need two GPUs
    paratune("certify", SINGLE, "--set", "run.name=quickstart", *certified)
    paratune("report", *runs, "--out", "report/quickstart")
    print(f"\n{found}")
    if num_gpus < 2:
        shared = "one GPU" if num_gpus else "the cores of this machine"
        print(f"DDP is not measured: two processes would share {shared}. The certificate above shows what it trains.")


if __name__ == "__main__":
    main()
