"""Bitwise comparison of a killed and resumed run, and of a second run, with an undisturbed run."""

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from .setting import Check, Figures, Setting, hold
from .texts import CASES, of_setting, write_config, write_model
from .training import command, environment, first_difference, losses_of, until


def checks(setting: Setting) -> Iterator[Check]:
    """Yield the two comparisons; both use the same runs."""
    runs = cache(lambda: Runs(setting))
    yield Check("a second run", partial(compare, runs, "second"), "Same bits as an undisturbed run")
    yield Check("killed and resumed", partial(compare, runs, "killed"), "Same bits as an undisturbed run")


class Runs:
    """Three trainings with the same configuration at the same time, one of which is killed after a checkpoint."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.num_steps, every = (40, 10) if setting.tiny else (300, 75)
        write_model(setting, num_hidden_layers=2 if setting.tiny else 4)
        started = {name: self._start(name, every) for name in ("first", "second", "killed")}
        checkpoints = self.folder("killed") / "checkpoints"
        came = until(lambda: any(checkpoints.glob("step_*")), setting.left_s() - 5)
        os.kill(started["killed"].pid, signal.SIGKILL)
        codes = {name: process.wait(max(1.0, setting.left_s() - 5)) for name, process in started.items()}
        if not came or codes["first"] or codes["second"] or codes["killed"] != -signal.SIGKILL:
            raise RuntimeError(f"exit codes {codes}, checkpoint {came}; {self.log('killed') or self.log('first')}")
        self.num_killed = len(losses_of(self.folder("killed")))
        resumed = self._start("killed", every, "--resume")
        if code := resumed.wait(max(1.0, setting.left_s() - 5)):
            raise RuntimeError(f"--resume exited with {code}: {self.log('killed')}")

    def folder(self, name: str) -> Path:
        return self.setting.folder / "runs" / name

    def log(self, name: str) -> str:
        """Return the last lines of a run's log."""
        path = self.setting.folder / f"{name}.log"
        return " | ".join(path.read_text(errors="replace").splitlines()[-6:])

    def _start(self, name: str, every: int, *words: str) -> "subprocess.Popen[bytes]":
        case = of_setting(CASES[0], self.setting)
        sections = {"checkpoint": {"every": "steps", "steps": every}}
        path = write_config(case, self.setting, name, num_rows=256, num_steps=self.num_steps, **sections)
        log = (self.setting.folder / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen(command("train", str(path), *words), stdout=log, stderr=log, env=environment())


def compare(runs: "object", name: str) -> Figures:
    """Compare losses of all steps and the bytes of the final weights with those of the first run."""
    made: Runs = runs()  # type: ignore[operator]
    losses = losses_of(made.folder("first"))
    step = first_difference(losses, losses_of(made.folder(name)))
    weights = [_digest(made.folder(run_name)) for run_name in ("first", name)]
    figures = {
        "same_weights": weights[0] == weights[1],
        "first_step_that_differs": step,
        "num_steps": len(losses),
        "steps_before_the_kill": made.num_killed if name == "killed" else None,
    }
    return hold(figures["same_weights"] and step is None, "losses or weights differ", figures)


def _digest(run: Path) -> str:
    """Return the SHA-256 of a run's weights."""
    digest = hashlib.sha256()
    for path in sorted((run / "model").glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
