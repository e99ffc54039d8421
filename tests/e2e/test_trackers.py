"""A run with trackers: their errors do not change its result, and a resumed run continues the same tracker run."""

import json
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from harness import Cli
from hooks import SignalAt, WithPackages
from outcome import outcome
from raised import check_shown

from paratune.errors import EXIT_MISSING, EXIT_OK, EXIT_STOPPED, is_installed

LOOP = "paratune.engine.loop:_step"
NOTES = """
import json, time
from types import SimpleNamespace

def note(call, /, *values, **named):
    with open("{file}", "a") as file:
        file.write(json.dumps([call, values, named], default=str) + "\\n")
"""
WANDB = (
    NOTES
    + """
class Run:
    id = "w1"
    summary = SimpleNamespace(update=lambda values: note("summary", values))
    def define_metric(self, *names, **named): pass
    def log(self, values): note("log", values); {log}
    def finish(self, exit_code): note("finish", exit_code); {finish}

def Settings(**named): return named

def init(**named):
    note("init", **named)
    return Run()
"""
)


class Packages:
    """A folder of packages that replace those of trackers, and the calls that they received."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, text: str, **parts: str) -> None:
        package = self.folder / name
        package.mkdir(parents=True)
        for key, value in {"file": str(self.folder / f"{name}.txt"), "log": "pass", "finish": "pass", **parts}.items():
            text = text.replace(f"{{{key}}}", value)
        (package / "__init__.py").write_text(text)

    def calls(self, name: str) -> list[list[Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.txt").read_text().splitlines()]


@pytest.fixture
def packages(world: Path) -> Packages:
    return Packages(world / "packages")


@pytest.mark.slow
def test_trackers_that_raise_and_hang_change_nothing(world: Path, cli: Cli, packages: Packages):
    plain = cli("train", "c.yaml", "--set", "run.name=plain")
    assert plain.code == EXIT_OK, plain.stderr
    packages.put("wandb", WANDB, finish="time.sleep(10_000)")
    packages.put("mlflow", "raise RuntimeError('mlflow is broken')")
    arguments = ["train", "c.yaml", "--set", "run.name=tracked", "--set", "trackers={wandb: {}, mlflow: {}}"]
    received = cli(*arguments, hook=WithPackages(str(packages.folder), finish_s=5.0))
    assert received.code == EXIT_OK, received.stderr
    check_shown(received.stderr, "tracker.off", "trackers.mlflow", "RuntimeError: mlflow is broken")
    check_shown(received.stderr, "tracker.left_behind", "trackers.wandb")
    assert "accuracy" in received.stdout.lower()
    assert outcome(world / "runs" / "tracked") == outcome(world / "runs" / "plain")
    calls = packages.calls("wandb")
    assert [name for name, *_ in calls].count("log") >= 30  # each step
    assert calls[0][2]["config"]["train.learning_rate"] == 3e-3
    assert [name for name, *_ in calls[-2:]] == ["summary", "finish"]


def test_a_resumed_run_continues_the_same_tracker_run(world: Path, cli: Cli, packages: Packages):
    packages.put("wandb", WANDB)
    arguments = ["train", "c.yaml", "--set", "trackers.wandb.mode=online"]
    stopped = cli(*arguments, hook=WithPackages(str(packages.folder), then=SignalAt(SIGTERM, LOOP, 6)))
    assert stopped.code == EXIT_STOPPED, stopped.stderr
    resumed = cli(*arguments, "--resume", hook=WithPackages(str(packages.folder)))
    assert resumed.code == EXIT_OK, resumed.stderr
    calls = packages.calls("wandb")
    first, second = (named for name, _, named in calls if name == "init")
    assert (first.get("id"), second["id"], second["resume"]) == (None, "w1", "allow")
    steps = [values[0]["step"] for name, values, _ in calls if name == "log" and "train/loss" in values[0]]
    assert steps == list(range(1, 31))
    assert [values for name, values, _ in calls if name == "finish"] == [[75], [0]]


def test_a_missing_package_is_reported_before_the_data_is_read(world: Path, cli: Cli):
    if is_installed("wandb"):
        pytest.skip("wandb is installed")
    (world / "data.csv").write_text("no table")
    (world / "wandb").mkdir()  # the folder of the package's files
    result = cli("train", "c.yaml", "--set", "trackers.wandb={}")
    assert result.code == EXIT_MISSING, result.stderr
    check_shown(result.stderr, "dependency.missing", "paratune[trackers]")
    assert not (world / "runs").exists()
