"""Predictions in the page of a matrix: which configurations have a figure, and what it says."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix

from paratune.records.sweep import cell_run_folder, read_sweep
from paratune.reports.matrix import make_sweep
from paratune.reports.systems.figures import loss_drawings, prediction_drawings
from paratune.reports.systems.model import Systems, build_systems

pytest.importorskip("matplotlib")


def matrix(folder: Path, **run: object) -> Systems:
    """Two strategies with two seeds of a regression; the errors of seed 1 are 0.5 and of seed 2 are 3."""
    make_matrix(folder, (STRATEGY, SEED), lambda values: Made(
        kind=values["strategy"],
        run={"task.kind": "regression", **(run if values["strategy"] == "zero3" else {})},
        summary={"scores.test": {"rmse": 0.5}},
    ))  # fmt: skip
    for cell in read_sweep(folder).cells:
        error = 0.5 if cell.values["seed"] == "seed-1" else 3.0
        labels = [4.0, 5.0, 6.0, 8.0]
        columns = {"index": [0, 1, 2, 3], "label": labels, "prediction": [label + error for label in labels]}
        table = pa.table(columns)
        pq.write_table(table, cell_run_folder(folder, cell.name) / "predictions.test.parquet")
    return build_systems(folder, read_sweep(folder))


def test_each_configuration_has_the_predictions_of_its_first_run(tmp_path: Path):
    drawings = list(prediction_drawings(matrix(tmp_path / "m")))
    assert [each.key for each in drawings] == ["predictions-1", "predictions-2"]
    assert [each.title.partition(":")[0] for each in drawings] == ["ddp", "zero3"]
    for each, run in zip(drawings, ("ddp_seed-1", "zero3_seed-1"), strict=True):
        assert "Errors: mean 0.5, standard deviation 0" in each.caption
        assert run in each.caption


def test_a_configuration_whose_predictions_cannot_be_read_is_named(tmp_path: Path):
    systems = matrix(tmp_path / "m")
    (cell_run_folder(tmp_path / "m", "ddp_seed-1") / "predictions.test.parquet").unlink()
    (drawing,) = prediction_drawings(systems)
    assert drawing.title.startswith("zero3:")
    assert "ddp_seed-1" in drawing.caption
    assert "predictions.test.parquet" in drawing.caption


def test_classes_have_no_such_figure(tmp_path: Path):
    make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    assert not list(prediction_drawings(build_systems(tmp_path / "m", read_sweep(tmp_path / "m"))))


def test_a_fitted_baseline_has_predictions_and_no_course_of_the_loss(tmp_path: Path):
    systems = matrix(tmp_path / "m", **{"config.baseline": {"kind": "tfidf"}})
    assert len(list(prediction_drawings(systems))) == 2
    (loss,) = loss_drawings(systems)
    assert [key.label for key in loss.legend] in ([], ["ddp"])


def test_the_page_shows_them(tmp_path: Path):
    matrix(tmp_path / "m")
    make_sweep(tmp_path / "m", tmp_path / "out", wanted=["figures"])
    assert 'id="predictions"' in (tmp_path / "out" / "index.html").read_text()
    assert (tmp_path / "out" / "figures" / "predictions-1.svg").is_file()
