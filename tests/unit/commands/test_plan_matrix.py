"""`paratune plan` of a matrix: each run as it would be started, in the table and in JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from tiny import tiny_config, tiny_tokenizer

from paratune.api.plan_options import PlanOptions
from paratune.commands import plan_matrix
from paratune.commands.plan import plan
from paratune.errors import EXIT_OK
from paratune.planning import machine
from paratune.planning.memory import Memory
from paratune.planning.states import PredictionSetup
from paratune.reports.published import read_plan

GIB, MIB = 2**30, 2**20
MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [neg, pos]}
  data: {train: absent.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: MODEL}
  train: {max_steps: 10}
  batch: {global: 8}
axes:
  way:
    one: {strategy: single}
    two: {nproc: 2, strategy: {kind: zero3}}
  run.seed: [1, 2]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plan_matrix, "set_up_logging", lambda **_: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tiny_tokenizer(tmp_path / "model")
    tiny_config().save_pretrained(tmp_path / "model")  # and no weights
    path = tmp_path / "m.yaml"
    path.write_text(MATRIX.replace("MODEL", str(tmp_path / "model")))
    return path


OPTIONS = PlanOptions(device="a100-40gb", max_length=8)


def test_each_run_is_planned_with_its_own_strategy_and_processes(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert plan(path, options=OPTIONS, json=True) == EXIT_OK

    written = tmp_path / "plan.json"
    written.write_text(capsys.readouterr().out)
    cells: dict[str, Any] = json.loads(written.read_text())["cells"]
    assert {name: (entry["strategy"], entry["num_ranks"]) for name, entry in cells.items()} == {
        "one_seed-1": ("single", 1),
        "one_seed-2": ("single", 1),
        "two_seed-1": ("zero3", 2),
        "two_seed-2": ("zero3", 2),
    }
    weights = [cells[name]["memory"]["terms"]["weights"] for name in ("one_seed-1", "two_seed-1")]
    # Two ranks have half of the weights each, padded to the rows of two equal parts.
    assert weights[1] == pytest.approx(weights[0] / 2, rel=0.05)
    planned = read_plan(written, "m")
    terms = cells["one_seed-1"]["memory"]["terms"]
    assert planned["one_seed-1"]["state_memory"] == terms["weights"] + terms["gradients"] + terms["optimizer"]
    assert planned["one_seed-1"]["time"] == cells["one_seed-1"]["run_s"][0]


def test_the_table_has_a_line_for_each_run(path: Path, capsys: pytest.CaptureFixture[str]):
    assert plan(path, options=OPTIONS, all_=True) == EXIT_OK

    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[2:6]] == [
        ["one_seed-1", "1"],
        ["one_seed-2", "1"],
        ["two_seed-1", "2"],
        ["two_seed-2", "2"],
    ]


def test_a_fitted_baseline_is_not_planned_as_its_encoder(path: Path, capsys: pytest.CaptureFixture[str]):
    fitted = "    words: {baseline: {kind: tfidf}, strategy: single}\n  run.seed"
    path.write_text(path.read_text().replace("  run.seed", fitted, 1))

    assert plan(path, options=OPTIONS, json=True) == EXIT_OK

    cells = json.loads(capsys.readouterr().out)["cells"]
    assert list(cells["words_seed-1"]) == ["reason"]
    assert cells["one_seed-1"]["num_ranks"] == 1
    assert plan(path, options=OPTIONS) == EXIT_OK
    assert capsys.readouterr().out.startswith("m: 4 of 6 runs fit, 2 n/a\n")  # unknown, and not "no"


def test_a_run_that_does_not_fit_is_planned_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # Whole gradients of 4 GiB between micro-batches do not fit, and shards of 1 GiB do: a plan of one configuration
    # shows both, and the run of a matrix has its own setting.
    def peak(profile: Any, setup: PredictionSetup, on_cuda: bool) -> Memory:
        is_whole = setup.grad_accum_steps > 1 and not setup.traits.reduces_each_micro_step
        return Memory({"gradients": (4 if is_whole else 1) * GIB, "activations": GIB * setup.micro_batch_size}, {})

    original = machine.find_machine
    monkeypatch.setattr("paratune.planning.predict.peak", peak)
    monkeypatch.setattr(machine, "find_machine", lambda name: replace(original(name), memory_bytes=4 * GIB + 800 * MIB))
    path.write_text(path.read_text().replace("{kind: zero3}", "{kind: zero3}, batch.micro_batch_size: auto"))

    assert plan(path, options=OPTIONS, json=True) == EXIT_OK

    cells = json.loads(capsys.readouterr().out)["cells"]
    assert (cells["two_seed-1"]["strategy"], cells["two_seed-1"]["fit"]) == ("zero3", "no")


def test_runs_with_the_same_plan_are_one_line(path: Path, capsys: pytest.CaptureFixture[str]):
    path.write_text(path.read_text().replace("[1, 2]", str([*range(30)])))
    assert plan(path, options=OPTIONS) == EXIT_OK
    # A title, a heading, and a line for each of the two ways, which may wrap.
    assert len(short := capsys.readouterr().out.splitlines()) <= 8
    assert short[0].startswith("m: 60 of 60 runs fit")
    assert plan(path, options=OPTIONS, all_=True) == EXIT_OK
    assert sum("_seed-" in line for line in capsys.readouterr().out.splitlines()) == 60


def test_options_without_effect_and_missing_files_are_refused(path: Path):
    with raises_code("cli.invalid_value", "a100-40gb,t4", option="--device"):
        plan(path, options=PlanOptions(device="a100-40gb,t4", max_length=8), json=True)
    with raises_code("cli.no_effect", option="--devices"):
        plan(path, options=PlanOptions(devices="1", max_length=8), json=True)
    with raises_code("data.not_found", "absent.csv"):
        plan(path, options=PlanOptions(device="a100-40gb"), json=True)
