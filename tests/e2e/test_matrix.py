"""A matrix of systems: impossible runs are skipped, probes have no scores, and runs started elsewhere are found."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Cli
from patience import wait_for
from raised import check_shown

MATRIX = """\
name: m
base: {extends: c.yaml}
probe: {steps: 4, warmup_steps: 1}
env: {NCCL_DEBUG: WARN, TOKENIZERS_PARALLELISM: null}
axes:
  nproc: [1, 2]
  strategy: [single, {kind: pipeline, stages: 2}]
  precision: [fp32, fp16]
"""
ONE, TWO = "nproc-1_single_fp32", "nproc-2_pipeline-stages-2_fp32"


def cells(world: Path) -> dict[str, dict]:
    return {cell["name"]: cell for cell in json.loads((world / "runs/m/sweep.json").read_text())["cells"]}


@pytest.mark.slow
def test_possible_runs_are_probed_and_others_skipped(cli: Cli, world: Path):
    (world / "m.yaml").write_text(MATRIX)

    result = cli("sweep", "m.yaml", "--set", "device=cpu")

    assert result.code == 0, result.stderr
    found_values = cells(world)
    assert {name for name, cell in found_values.items() if cell["state"] == "finished"} == {ONE, TWO}
    assert {cell["state"] for name, cell in found_values.items() if name not in (ONE, TWO)} == {"skipped"}
    assert found_values["nproc-1_single_fp16"]["reason"].endswith("and device is cpu; use precision: fp32")
    assert "needs 2 processes or more" in found_values["nproc-1_pipeline-stages-2_fp32"]["reason"]
    for name, world_size in ((ONE, 1), (TWO, 2)):
        folder = world / "runs/m/runs" / name
        run, summary = (json.loads((folder / file).read_text()) for file in ("run.json", "summary.json"))
        assert (run["kind"], summary["kind"], run["world_size"], summary["num_steps"]) == (
            "probe",
            "probe",
            world_size,
            4,
        )
        assert (run["environment"]["NCCL_DEBUG"], run["environment_unset"]) == ("WARN", ["TOKENIZERS_PARALLELISM"])
        assert summary["scores"] == {}
        assert summary["throughput"]["num_steps_measured"] == 3
        assert not {"model", "checkpoints"} & {path.name for path in folder.iterdir()}
        assert not list(folder.glob("predictions*"))
    page = (world / "runs/m/report/index.html").read_text()
    assert "2 of 8 runs finished, 6 cannot run here" in page
    repeated = cli("sweep", "m.yaml", "--set", "device=cpu")
    assert (repeated.code, "0 to train now" in repeated.stderr) == (0, True)
    alone = cli("train", f"runs/m/configs/{ONE}.yaml", "--resume")
    assert (alone.code, "already finished" in alone.stderr, "model: " in alone.stdout) == (0, True, False)


@pytest.mark.slow
def test_listed_runs_can_be_started_elsewhere(cli: Cli, world: Path):
    (world / "m.yaml").write_text(MATRIX)
    runs = cli("sweep", "m.yaml", "--list", "--only", "precision=fp32", "--json").json["runs"]
    assert [run["name"] for run in runs] == [ONE, TWO]
    lines = cli("sweep", "m.yaml", "--list", "--only", "precision=fp32").stdout.splitlines()
    assert lines == [run["line"] for run in runs]

    (world / "paratune").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m paratune "$@"\n')
    (world / "paratune").chmod(0o755)
    environment = {**os.environ, "PATH": f"{world}:{os.environ['PATH']}", "PARATUNE_CACHE": str(world / "cache")}
    subprocess.run(["sh", "-c", lines[0]], cwd=world, env=environment, check=True, stdin=subprocess.DEVNULL)

    report = cli("report", "runs/m", "--json").json
    assert {run["name"] for run in report["runs"] if run["state"] == "finished"} == {ONE}
    assert cells(world)[ONE]["state"] == "pending"  # the matrix does not know of it yet
    left = cli("sweep", "m.yaml", "--list", "--only", "precision=fp32").stdout.splitlines()
    assert left == lines[1:]
    assert cells(world)[ONE]["state"] == "finished"


@pytest.mark.slow
def test_a_probe_that_is_stopped_saves_nothing(cli: Cli, world: Path):
    long = ["--set", "train.max_steps=100000", "--set", "train.epochs=null", "--set", "measure.probe=true"]
    quiet = ["--set", "evaluate.best=null", "--set", "checkpoint={every: never, steps: null}"]
    process = cli.start("train", "c.yaml", *long, *quiet, "--set", "run.name=p")
    wait_for(lambda: (world / "runs/p/run.json").exists())
    process.send(signal.SIGTERM)
    result = process.wait()
    assert result.code == 75, result.stderr
    assert "a probe saves nothing: start it again" in result.stderr or "nothing to save" in result.stderr
    assert not list((world / "runs/p").glob("checkpoints/*"))


def test_nothing_possible_is_an_error(cli: Cli, world: Path):
    (world / "m.yaml").write_text("base: c.yaml\naxes: {nproc: [2, 3]}\n")
    result = cli("sweep", "m.yaml")
    assert result.code == 2
    check_shown(result.stderr, "sweep.none_possible")
    assert "single runs in 1 process, and the run has 3" in result.stderr
    plan = cli("sweep", "m.yaml", "--dry-run")
    assert plan.code == 2
    check_shown(plan.stderr, "sweep.none_possible")
    assert (
        json.loads(cli("sweep", "m.yaml", "--dry-run", "--json").stdout)["errors"][0]["code"] == "sweep.none_possible"
    )
    both = cli("sweep", "m.yaml", "--list", "--dry-run")
    assert (both.code, "use one of them" in both.stderr) == (2, True)
    assert not (world / "runs").exists()
