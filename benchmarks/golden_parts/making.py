"""The runs whose records are kept: tiny models with random weights, some seconds each."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from soak_parts import worlds

import paratune

MEASURED: Mapping[str, Any] = {
    "train.epochs": 3,
    "measure": {"log_every": 1, "warmup_steps": 2, "sample_every_s": 0.1, "noise_scale_every": 2},
}
"""18 steps of 16 rows; the first two are not measured."""
KILLER = """\
import os, pathlib, signal

class Kill:
    def on_step(self, state):
        if state.step == 8 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
MATRIX = """\
name: matrix
base: {extends: c.yaml, train: {epochs: 2}, data: {predict: {}, split: {test: 0.2}}, measure: {warmup_steps: 2}}
published: published.yaml
axes: {batch.layout: [padded, bucketed, packed], run.seed: [1, 2, 3]}
"""
PUBLISHED = """\
source: "Invented for a test"
matrices:
  matrix:
    where: table 1
    figures:
      - {values: {batch.layout: padded}, time: 2 s, memory: 1 GB, accuracy: 91.2%}
      - {values: {batch.layout: packed}, time: 0.02 min, where: table 2}
    claims:
      - claim: "The layout saves no time"
        kind: not_less
        measure: time
        by: 20%
        of: {batch.layout: [bucketed, packed]}
        than: {batch.layout: padded}
      - claim: "Packed is faster"
        kind: less
        measure: time
        by: 5%
        of: {batch.layout: packed}
        than: {batch.layout: padded}
      - claim: "Scores are equal"
        kind: equal
        measure: accuracy
        by: 0.9
        of: {batch.layout: packed}
        than: {batch.layout: padded}
"""


def make(folder: Path) -> None:
    """Train all runs below `folder`/runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        _make(Path())


def _make(folder: Path) -> None:
    _world(folder, worlds.sentences)
    for seed in (1, 2, 3):
        _train(f"packed-{seed}", {"run.seed": seed})
        _train(f"padded-{seed}", {"run.seed": seed, "batch.layout": "padded"})
    for name, strategy in (("ddp", "ddp"), ("zero3", "zero3"), ("pipeline", {"kind": "pipeline", "stages": 2})):
        _train(name, {"strategy": strategy}, nproc=2)
    _train("accumulated", {"batch.micro_batch_size": 4, "measure.profile_steps": 2})
    _train("auto", {"batch": {"global": 32, "micro_batch_size": "auto"}})
    _train("unscored", {"data.split": None, "evaluate": {"every": "never", "steps": None, "best": None}})
    _train("baseline", {"baseline": {"kind": "tfidf"}})
    _kill_and_resume("resumed")
    _matrix()
    for name in ("regression", "labels", "questions", "masked"):
        _world(folder, getattr(worlds, name))
        _train(name, {})


def _world(folder: Path, prepare: Callable[[Path], None]) -> None:
    """Replace model, data and c.yaml; runs stay."""
    shutil.rmtree(folder / "model", ignore_errors=True)
    prepare(folder)


def _train(name: str, values: Mapping[str, Any], *, nproc: int = 1) -> None:
    print(name, flush=True)
    paratune.train("c.yaml", {**MEASURED, **values}, run_name=name, nproc=nproc)


def _kill_and_resume(name: str) -> None:
    """Kill a run after step 8, and resume it from the checkpoint of step 6."""
    Path("kill.py").write_text(KILLER)
    callbacks = "run.callbacks=[{function: kill:Kill}]"
    words = ["train", "c.yaml", "--set", f"run.name={name}", "--set", "measure.log_every=1", "--set", callbacks]
    for more, code in (((), -9), (("--resume",), 0)):
        _paratune(*words, *more, code=code)


def _matrix() -> None:
    Path("m.yaml").write_text(MATRIX)
    Path("published.yaml").write_text(PUBLISHED)
    _paratune("sweep", "m.yaml", code=0)


def _paratune(*words: str, code: int) -> None:
    print(*words, flush=True)
    found = subprocess.run([sys.executable, "-m", "paratune", *words], capture_output=True, text=True)
    if found.returncode != code:
        raise RuntimeError(f"{' '.join(words)}: exit code {found.returncode}, expected {code}:\n{found.stderr[-3000:]}")
