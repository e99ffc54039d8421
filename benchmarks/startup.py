"""Cold start: time from process start to the first training step, compared with importing torch and the model class.

    OMP_NUM_THREADS=1 python benchmarks/startup.py
    OMP_NUM_THREADS=1 python benchmarks/startup.py --profile      # also the import time of each package

Two commands take turns, each in a separate process: `imports` imports torch and the class of the demo model;
`paratune train` runs the configuration of the demo sentences, whose tokens are cached, and exits before its first
step. Wall time is measured from before the start of the process; CPU time is that of the process.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from machine import machine_lines

IMPORTS = """
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification
"""
"""The second name makes transformers import the class; the first one alone does not import a model class."""
TRAIN = """
import contextlib
import paratune.base.imports
held_back = paratune.base.imports.collector_off_for_imports
@contextlib.contextmanager
def collector_off_for_imports():
    with held_back():
        yield
    if "paratune.training.run" in sys.modules:
        sys.modules["paratune.training.run"].run_loop = lambda loop, progress: report()
paratune.base.imports.collector_off_for_imports = collector_off_for_imports
from paratune.cli import main
main()
"""
"""Replaces the loop after the command has imported it, so that the imports are those of the command."""
REPORT = """
import json, os, resource, sys, time
def report():
    used = resource.getrusage(resource.RUSAGE_SELF)
    wall_s = time.perf_counter() - float(os.environ["SPAWNED"])
    found = {"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime, "num_modules": len(sys.modules)}
    print(json.dumps(found), file=sys.__stdout__, flush=True)
    os._exit(0)
"""
CONFIG = {
    "run": {"name": "startup"},
    "task": {"kind": "classification", "labels": ["negative", "positive"]},
    "data": {"train": "demo:sentences", "columns": {"text": "sentence", "label": "label"}, "max_length": 64},
    "model": {"name": "demo:minilm"},
    "train": {"max_steps": 1},
    "batch": {"global": 8},
}
LEAST_MS = 15.0
"""Packages with a shorter time are not listed."""


def main() -> None:
    """Time both and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="runs of each command")
    parser.add_argument("--validation", action="store_true", help="the run has a validation set")
    parser.add_argument("--profile", action="store_true", help="also print the import time by package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        commands = _commands(Path(scratch), with_validation=options.validation)
        for command in commands.values():
            _run(command)  # fills the caches of tokens, of byte code, and of the file system
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(options.rounds):
            for name in list(commands)[:: 1 if number % 2 else -1]:
                runs[name].append(_run(commands[name]))
        print("\n".join([*machine_lines(), "", *_table(runs)]))
        if options.profile:
            print("\n".join(["", *_packages(commands)]))


def _commands(scratch: Path, *, with_validation: bool) -> dict[str, list[str]]:
    values: dict[str, Any] = {**CONFIG, "run": {**CONFIG["run"], "folder": str(scratch / "runs")}}
    values["data"] = {**CONFIG["data"], "cache_dir": str(scratch / "cache")}
    if with_validation:
        values["data"]["split"] = {"validation": 0.25}
    path = scratch / "startup.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return {
        "imports": [sys.executable, "-c", f"{REPORT}{IMPORTS}report()"],
        "paratune train": [sys.executable, "-c", REPORT + TRAIN, "train", str(path), "--overwrite"],
    }


def _run(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "SPAWNED": repr(time.perf_counter())}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(finished.stderr)
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def _table(runs_by_command: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = ["| command | wall s: median (range) | CPU s: median (range) | modules |", "| --- | --- | --- | --- |"]
    arrays = {
        name: {key: np.array([run[key] for run in runs]) for key in runs[0]} for name, runs in runs_by_command.items()
    }
    for name, values in arrays.items():
        cells = [name, _range(values["wall_s"]), _range(values["cpu_s"]), f"{values['num_modules'][0]:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    more = {key: arrays["paratune train"][key] - arrays["imports"][key] for key in ("wall_s", "cpu_s")}
    lines.append(f"| more, paired | {_range(more['wall_s'])} | {_range(more['cpu_s'])} | |")
    return [f"{len(next(iter(runs_by_command.values())))} runs of each, in turn.", "", *lines]


def _range(values: Any) -> str:
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def _packages(commands: dict[str, list[str]]) -> list[str]:
    """Return a table of the packages whose imports take more time in `paratune train` than in `imports`."""
    times = {name: _import_ms(command) for name, command in commands.items()}
    more = {package: ms - times["imports"][package] for package, ms in times["paratune train"].items()}
    lines = [
        "Time of imports by package (`-X importtime`, one run of each, which itself makes them slower):",
        "",
        "| package | imports, ms | paratune train, ms | more, ms |",
        "| --- | --- | --- | --- |",
    ]
    for package in sorted(more, key=lambda candidate: -more[candidate]):
        if more[package] >= LEAST_MS:
            both = [times[name][package] for name in times]
            lines.append(f"| {package} | {both[0]:.0f} | {both[1]:.0f} | {more[package]:.0f} |")
    sums = [sum(arrays.values()) for arrays in times.values()]
    return [*lines, f"| all | {sums[0]:.0f} | {sums[1]:.0f} | {sums[1] - sums[0]:.0f} |"]


def _import_ms(command: list[str]) -> Counter[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "SPAWNED": repr(time.perf_counter())}
    traced_command = [command[0], "-X", "importtime", *command[1:]]
    text = subprocess.run(traced_command, env=environment, capture_output=True, text=True, check=True).stderr
    ms_by_package: Counter[str] = Counter()
    for own_us, name in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \| +(\S+)", text, re.MULTILINE):
        ms_by_package[name.partition(".")[0]] += int(own_us) / 1000
    return ms_by_package


if __name__ == "__main__":
    main()
