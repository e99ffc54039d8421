"""`paratune.sweep`, `Sweep` and reports of matrices; no run is made."""

import json
from pathlib import Path

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from make_run import make_run
from raised import raises_code
from whole_records import WHOLE_RUN

import paratune
from paratune.records.sweep import cell_run_folder, write_sweep
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix

MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {epochs: 3}
  batch: {global: 4}
axes:
  train.learning_rate: [1e-4, 1e-3]
  run.seed: [1, 2]
"""
STEP_MS = {"ddp": 80.0, "zero3": 160.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A matrix of 2 strategies and 2 seeds, in which one run failed."""
    return make_matrix(
        tmp_path / "m",
        (STRATEGY, SEED),
        lambda values: Made(STEP_MS[values["strategy"]]),
        states={"zero3_seed-2": ("failed", "out of memory")},
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    return tmp_path


def test_a_dry_run_returns_the_runs_and_writes_nothing(here: Path) -> None:
    before = sorted(here.rglob("*"))
    found = paratune.sweep("m.yaml", {"train.epochs": 1}, dry_run=True, only=["learning_rate=1e-3"])
    assert [(cell.name, cell.state) for cell in found.cells] == [
        ("learning_rate-0.001_seed-1", "pending"),
        ("learning_rate-0.001_seed-2", "pending"),
    ]
    assert found.table()["learning_rate"].tolist() == ["learning_rate-0.001"] * 2
    assert (found.runs, found.changed, found.is_finished) == ({}, {}, False)
    assert sorted(here.rglob("*")) == before


def test_one_text_is_one_condition(here: Path) -> None:
    found = paratune.sweep("m.yaml", dry_run=True, only="*_seed-2")
    assert [cell.name for cell in found.cells] == ["learning_rate-0.0001_seed-2", "learning_rate-0.001_seed-2"]


def test_a_run_with_other_settings_is_listed_as_changed(here: Path) -> None:
    found = paratune.sweep("m.yaml", dry_run=True)
    found.folder.mkdir(parents=True)
    write_sweep(found.folder, found.record)
    first = cells_of(read_matrix(here / "m.yaml"))[0]
    run = cell_run_folder(found.folder, first.name)
    run.mkdir(parents=True)
    assert first.loaded is not None
    (run / "run.json").write_text(json.dumps({**WHOLE_RUN, "config": first.loaded.values}))
    assert paratune.sweep("m.yaml", dry_run=True).changed == {}
    changed = paratune.sweep("m.yaml", {"train.epochs": 1}, dry_run=True).changed
    assert {name: list(lines) for name, lines in changed.items()} == {first.name: ["train.epochs: 3.0 then, 1.0 now"]}


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"until": "decided", "dry_run": True}, ("cli.conflict", "--until", "--dry-run")),
        ({"until": "fast"}, ("cli.invalid_value", "--until", "fast")),
        ({"only": ["seed=9"]}, ("run.not_found", "--only", "9")),
        ({"overrides": {"run.seed": 3}}, ("sweep.invalid", "run.seed")),
        ({"overrides": {"batch.globl": 3}}, ("config.unknown_key", "batch.globl")),
    ],
)
def test_invalid_arguments_have_the_codes_of_the_command(
    here: Path, options: dict[str, object], refused: tuple[str, ...]
) -> None:
    with raises_code(*refused):
        paratune.sweep("m.yaml", **options)  # type: ignore[arg-type]
    assert not (here / "runs").exists()


def test_a_sweep_has_its_runs_scores_and_states(folder: Path) -> None:
    found = paratune.Sweep(folder)
    assert list(found.runs) == ["ddp_seed-1", "ddp_seed-2", "zero3_seed-1"]
    assert (found.failed, found.is_finished) == (("zero3_seed-2",), False)
    table = found.table()
    run = found.runs["zero3_seed-1"]
    assert (
        table.loc["zero3_seed-1", "samples_per_s"] == run.summary["throughput"]["samples_per_s"] == 200
    )  # 32 in 160 ms
    assert table.loc["zero3_seed-1", "test_accuracy"] == run.scores["test"]["accuracy"]
    assert table.loc["zero3_seed-2", "reason"] == "out of memory"
    assert table["test_accuracy"].isna().tolist() == [False, False, False, True]
    assert table["strategy"].tolist() == ["ddp", "ddp", "zero3", "zero3"]
    assert "zero3_seed-2" in found._repr_html_()
    with raises_code("run.damaged"):
        paratune.Sweep(folder / "nowhere")
    with raises_code("cli.invalid_value", "speed=far"):
        paratune.report(found, margin="speed=far")


def test_the_report_of_a_matrix_is_that_of_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paratune.cli import app

    options = ["--price", "2.5", "--target", "accuracy>=0.5", "--margin", "speed=5%"]
    app(["report", str(folder), *options, "--json"], result_action="return_value")
    printed = json.loads(capsys.readouterr().out)
    found = paratune.report(paratune.Sweep(folder), price=2.5, target="accuracy>=0.5", margin="speed=5%")
    again = paratune.report(folder, price=2.5, target=["accuracy>=0.5"], margin=["speed=5%"])
    assert json.loads(json.dumps(found.as_dict())) == json.loads(json.dumps(again.as_dict())) == printed
    assert "zero3" in found._repr_html_()
    written = paratune.report(folder, out=tmp_path / "out").files
    assert tmp_path / "out" / "index.html" in written


def test_options_without_effect_are_refused(folder: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    with raises_code("cli.conflict"):
        paratune.report(run, folder)
    with raises_code("cli.no_effect", "--baseline", f"paratune compare {folder} "):
        paratune.report(folder, baseline=run)
    with raises_code("cli.invalid_value", "--price"):
        paratune.report(folder, price=-1)
    with raises_code("cli.no_effect", "--layout"):
        paratune.report(run, layout="imdb")
    with raises_code("cli.required"):
        paratune.report()
