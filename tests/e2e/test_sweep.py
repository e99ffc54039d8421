"""A matrix of runs from one command: trained, killed, resumed, reported."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Cli
from patience import PATIENCE_S, wait_for
from raised import check_shown

MATRIX = """\
name: m
base:
  extends: c.yaml
  train: {epochs: 1}
axes:
  train.learning_rate: [3e-3, 1e-4]
  run.seed: [1]
"""
RUNS = ["learning_rate-0.003_seed-1", "learning_rate-0.0001_seed-1"]


def record(world: Path) -> dict:
    return json.loads((world / "runs/m/sweep.json").read_text())


def states(world: Path) -> list[str]:
    return [cell["state"] for cell in record(world)["cells"]]


def has_checkpoint(world: Path, number: int) -> bool:
    """Return whether a run has saved a checkpoint."""
    return any((world / "runs/m/runs" / RUNS[number] / "checkpoints").glob("step_*/"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent process")
def test_a_sweep_resumes_after_kills_and_signals(cli: Cli, world: Path):
    (world / "m.yaml").write_text(MATRIX.replace("  train:", "  strategy: {kind: 'outside:Slow'}\n  train:"))
    (world / "brake").touch()

    sweep = cli.start("sweep", "m.yaml")
    wait_for(lambda: has_checkpoint(world, 0))
    second = cli("sweep", "m.yaml")
    assert (second.code, "in use by another paratune sweep" in second.stderr) == (4, True)
    sweep.send(signal.SIGKILL)
    sweep.wait()

    # The started run saves and exits by itself; the sweep waits for it, and resumes it.
    sweep = cli.start("sweep", "m.yaml")
    wait_for(lambda: has_checkpoint(world, 1))
    sweep.send(signal.SIGTERM)
    result = sweep.wait()
    assert result.code == 75, result.stderr
    assert "the same command continues it" in result.stderr
    assert states(world) == ["finished", "interrupted"]

    # Ctrl-C ends `tee` first: later output of the command is lost, its record is not.
    piped = f"'{sys.executable}' -m paratune sweep m.yaml 2>&1 | tee sweep.log"
    shell = subprocess.Popen(["sh", "-c", piped], cwd=world, start_new_session=True)
    wait_for(lambda: states(world)[1] == "running")
    os.killpg(shell.pid, signal.SIGINT)
    shell.wait(PATIENCE_S)
    assert states(world) == ["finished", "interrupted"]
    assert all(attempt["ended"] for attempt in record(world)["cells"][1]["attempts"])
    first = json.loads((world / "runs/m/runs" / RUNS[0] / "summary.json").read_text())
    assert first["num_interruptions"] <= 1
    (world / "brake").unlink()

    result = cli("sweep", "m.yaml", "--json")
    assert result.code == 0, result.stderr
    assert states(world) == ["finished", "finished"]
    (group,) = result.json["groups"]
    scores = [entry["scores"]["validation"]["accuracy"]["mean"] for entry in group["candidates"]]
    best = max(range(2), key=scores.__getitem__)
    assert group["chosen"] == {"learning_rate": RUNS[best].removesuffix("_seed-1")}
    assert (world / "runs/m/report/index.html").is_file()

    result = cli("sweep", "m.yaml", "--set", "train.eps=1e-6")
    assert result.code == 4
    check_shown(result.stderr, "sweep.changed", "train.eps: 1.0e-08", "1.0e-06")
    assert states(world) == ["finished", "finished"]


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_others(cli: Cli, world: Path):
    # The second file does not have the column, which is detected when it is read.
    (world / "odd.csv").write_text("id,words,label\n1,good,positive\n")
    files = "  file: {good: {data.train: data.csv}, odd: {data.train: odd.csv}}\n"
    (world / "m.yaml").write_text(MATRIX.replace("  train.learning_rate: [3e-3, 1e-4]\n", files))

    result = cli("sweep", "m.yaml")

    assert result.code == 1
    assert states(world) == ["finished", "failed"]
    assert "odd.csv" in record(world)["cells"][1]["reason"]
    assert "Unfinished: 1 of 2 runs" in result.stdout
    repeated = cli("sweep", "m.yaml")
    assert (repeated.code, len(record(world)["cells"][1]["attempts"])) == (1, 1)
    retried = cli("sweep", "m.yaml", "--retry-failed", "--only", "file=odd")
    assert (retried.code, len(record(world)["cells"][1]["attempts"])) == (1, 2)


@pytest.mark.slow
def test_runs_side_by_side_are_those_in_turn(cli: Cli, world: Path):
    # With other numbers of threads the last digits of sums may differ.
    text = MATRIX.replace("  run.seed: [1]", "  run.seed: [1, 2]") + "env: {OMP_NUM_THREADS: 1}\n"
    for name in ("turn", "beside"):
        (world / f"{name}.yaml").write_text(text.replace("name: m", f"name: {name}"))
    assert cli("sweep", "turn.yaml").code == 0
    result = cli("sweep", "beside.yaml", "--parallel", "2", "--timing")
    assert result.code == 0, result.stderr

    runs = sorted((world / "runs/turn/runs").iterdir())
    assert len(runs) == 4
    num_constant = 0
    for run in runs:
        other = world / "runs/beside/runs" / run.name
        for file in ("model/model.safetensors", "predictions.validation.parquet"):
            assert (run / file).read_bytes() == (other / file).read_bytes()
        alone, beside = (json.loads((one / "summary.json").read_text()) for one in (run, other))
        assert (alone["neighbours"], alone["scores"]) == (None, beside["scores"])
        assert set(beside["neighbours"]["names"]) <= {one.name for one in runs} - {run.name}
        num_constant += beside["neighbours"]["is_constant"]
    assert num_constant < 4  # four runs do not begin and end together
    report = json.loads((world / "runs/beside/report/report.json").read_text())
    assert report["verdicts"][0]["speed"]["code"] == "neighbours"
    timed = json.loads((world / "runs/beside.probe/report/report.json").read_text())
    assert timed["verdicts"][0]["speed"]["code"] != "neighbours"


@pytest.mark.slow
def test_a_parallel_sweep_resumes_after_a_kill_and_a_signal(cli: Cli, world: Path):
    slow = MATRIX.replace("  train:", "  strategy: {kind: 'outside:Slow'}\n  train:")
    # 60 steps, a minute: on a busy machine one run begins its first step long after the other one.
    (world / "m.yaml").write_text(slow.replace("epochs: 1", "epochs: 6") + "parallel: 2\n")
    (world / "brake").touch()
    log, started = world / "runs/m/neighbours.jsonl", re.compile('"(begin|resume)"')
    for how in (signal.SIGKILL, signal.SIGTERM):
        before = log.read_text() if log.exists() else ""
        sweep = cli.start("sweep", "m.yaml")
        # Both have begun in this sweep, and have something to save.
        wait_for(lambda before=before: log.exists() and len(started.findall(log.read_text()[len(before) :])) == 2)
        wait_for(lambda: has_checkpoint(world, 0) and has_checkpoint(world, 1))
        sweep.send(how)
        result = sweep.wait()
    assert result.code == 75, result.stderr
    assert states(world) == ["interrupted", "interrupted"]
    (world / "brake").unlink()
    assert cli("sweep", "m.yaml").code == 0
    assert states(world) == ["finished", "finished"]


def test_a_plan_starts_nothing(cli: Cli, world: Path):
    (world / "m.yaml").write_text(MATRIX)
    result = cli("sweep", "m.yaml", "--dry-run", "--json")
    assert result.code == 0
    assert [run["name"] for run in result.json["cells"]] == RUNS
    (world / "m.yaml").write_text(MATRIX.replace("1e-4", "fast"))
    result = cli("sweep", "m.yaml", "--dry-run")
    assert result.code == 2
    assert "1 of 2 runs cannot be trained" in result.stderr
    check_shown(result.stderr, "config.invalid_value", 'train.learning_rate is "fast"')
    assert not (world / "runs").exists()
