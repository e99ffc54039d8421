"""Losses of two DDP processes compared with one process, step by step, with the same global batch.

    python benchmarks/ddp_equality.py

Each row is a run of `paratune train` on the demo data with the demo model, dropout off; losses and gradient norms are
read from the records and compared with those of one process with the whole batch. In fp64 the remaining difference is
rounding, in fp32 rounding that accumulates over the steps.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from machine import machine_lines

from paratune.records import read_events

CONFIG = {
    "task": {"kind": "classification", "labels": ["negative", "positive"]},
    "data": {"train": "demo:sentences", "columns": {"text": "sentence", "label": "label"}},
    "model": {
        "name": "demo:minilm",
        "overrides": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
    "train": {"learning_rate": 5e-5, "warmup_ratio": 0.1},
    "batch": {"global": 32},
    "checkpoint": {"every": "never"},
    "device": "cpu",
}


@dataclass(frozen=True)
class Case:
    """A variant of the same steps."""

    name: str
    num_processes: int
    overrides: tuple[str, ...] = ()


REFERENCE = Case("one process, batch whole", 1)
CASES = (
    Case("one process, micro-batches of 8", 1, ("batch.micro_batch_size=8",)),
    Case("DDP on two processes", 2, ("strategy.kind=ddp",)),
    Case("DDP on two processes, micro-batches of 4", 2, ("strategy.kind=ddp", "batch.micro_batch_size=4")),
)
LIMITS = {"fp32": 1e-5, "fp64": 1e-10}


def main() -> None:
    """Run all cases in both precisions, print the table; exit with 1 if a loss differs by more than its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--precisions", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    options = parser.parse_args()
    lines = [*machine_lines(), "", f"{options.steps} steps of 32 samples; largest difference over all steps.", ""]
    lines += ["| precision | run | first loss | last loss | loss differs by | grad norm by, relative | limit | |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    holds = True
    with tempfile.TemporaryDirectory() as scratch:
        for precision in options.precisions:
            expected = _run(REFERENCE, precision, options.steps, Path(scratch))
            lines.append(f"| {precision} | {REFERENCE.name} | {expected[0][0]:.6f} | {expected[-1][0]:.6f} | | | | |")
            for case in CASES:
                steps = _run(case, precision, options.steps, Path(scratch))
                loss = max(abs(a[0] - b[0]) for a, b in zip(expected, steps, strict=True))
                norm = max(abs(a[1] - b[1]) / a[1] for a, b in zip(expected, steps, strict=True))
                is_within = loss <= LIMITS[precision]
                holds &= is_within
                lines.append(
                    f"| {precision} | {case.name} | {steps[0][0]:.6f} | {steps[-1][0]:.6f} | {loss:.1e} | {norm:.1e} "
                    f"| {LIMITS[precision]:.0e} | {'holds' if is_within else 'FAILS'} |"
                )
    print("\n".join(lines))
    sys.exit(0 if holds else 1)


def _run(case: Case, precision: str, num_steps: int, scratch: Path) -> list[tuple[float, float]]:
    """Train and return (loss, gradient norm) of each step."""
    path = scratch / "run.yaml"
    config = {**CONFIG, "precision": precision, "run": {"name": "run", "folder": str(scratch)}}
    config["train"] = {**config["train"], "max_steps": num_steps}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "paratune", "train", str(path), "--overwrite", "--json"]
    command += ["--nproc", str(case.num_processes)]
    command += [word for override in case.overrides for word in ("--set", override)]
    print(f"{precision}: {case.name} ...", file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    steps = [event for event in read_events(scratch / "run") if event["event"] == "step"]
    assert len(steps) == num_steps, f"{len(steps)} steps were recorded, {num_steps} were requested"
    return [(step["loss"], step["grad_norm"]) for step in steps]


if __name__ == "__main__":
    main()
