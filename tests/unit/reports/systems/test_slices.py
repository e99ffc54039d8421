"""Scores by slice of a matrix: a column a configuration, means over seeds written out."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from make_run import edit_json

from paratune.records.sweep import Axis
from paratune.reports.matrix import make_sweep
from paratune.reports.tables.latex import latex_table
from paratune.reports.tables.table import Table

SCORES = {("ddp", 1): 0.5, ("ddp", 2): 0.7, ("zero3", 1): 0.6, ("zero3", 2): None}


def entry(value: str, num_rows: int, accuracy: float | None, interval: list[float] | None = None) -> dict[str, Any]:
    return {
        "value": value,
        "detail": None,
        "num_rows": num_rows,
        "scores": {"accuracy": {"value": accuracy, "interval": interval}},
    }


def two_strategies(values: Mapping[str, str]) -> Made:
    kind, seed = values["strategy"], int(values["seed"].removeprefix("seed-"))
    found = [entry("art", 20, SCORES[kind, seed], [0.4, 0.8])]
    if kind == "ddp":
        found.append(entry("food", 4, 0.25))
    return Made(kind=kind, summary={"slices": {"test": {"topic": found}}})


def tables(folders: Path | list[Path], out: Path | None = None) -> list[Table]:
    sections = make_sweep(folders, out).sections
    return [table for section in sections if section.key == "slices" for table in section.tables]


def test_a_matrix_has_the_mean_over_seeds_of_each_configuration(tmp_path: Path):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), two_strategies)
    (table,) = tables(folder, tmp_path / "out")
    assert table.header == ("topic", "Rows", "ddp", "zero3")
    # 0.5 and 0.7: mean 0.6, standard deviation sqrt(2 * 0.1^2) = 0.1414.
    assert [list(line) for line in table.rows] == [
        ["art", "20", "0.6000 ± 0.1414", "0.6000 (1 of 2)"],
        ["food", "4", "0.2500 ± 0.0000", "n/a"],
    ]
    assert table.lines[0][2].deviation == pytest.approx(statistics.stdev([0.5, 0.7]))
    assert table.lines[0][2].runs == ("ddp_seed-1", "ddp_seed-2")
    assert r"$0.6000 \pm 0.1414$" in latex_table(table)
    assert 'id="slices"' in (tmp_path / "out" / "index.html").read_text()
    assert "0.6000 ± 0.1414" in (tmp_path / "out" / "index.html").read_text()
    runs = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
    assert [run["slices"]["test"]["topic"][0]["scores"]["accuracy"]["interval"] for run in runs] == [[0.4, 0.8]] * 4


def test_one_seed_has_the_interval_over_rows(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(
            kind=values["strategy"], summary={"slices": {"test": {"topic": [entry("art", 20, 0.5, [0.3, 0.7])]}}}
        )

    (table,) = tables(make_matrix(tmp_path / "m", (STRATEGY,), tell))
    assert [list(line) for line in table.rows] == [["art", "20", "0.5000 [0.3000, 0.7000]", "0.5000 [0.3000, 0.7000]"]]


def test_joined_matrices_are_beside_each_other(tmp_path: Path):
    folders = [make_matrix(tmp_path / name, (STRATEGY, SEED), two_strategies) for name in "ab"]
    (table,) = tables(folders)
    assert table.header == ("topic", "Rows", "a, ddp", "a, zero3", "b, ddp", "b, zero3")


def test_other_tasks_have_a_table_of_their_own(tmp_path: Path):
    topic = Axis("task", "task", {"one": "one", "two": "two"}, keys=("task.labels",))

    def tell(values: Mapping[str, str]) -> Made:
        name = values["task"]
        slices = {"test": {"label": [entry(f"class of {name}", 20, 0.5)]}}
        return Made(run={"task.labels": [f"class of {name}", "other"]}, summary={"slices": slices})

    found = tables(make_matrix(tmp_path / "m", (topic,), tell))
    assert [table.header for table in found] == [("label", "Rows", "one"), ("label", "Rows", "two")]
    assert [table.key for table in found] == ["slices-1", "slices-2"]
    assert len({table.title for table in found}) == 2


@pytest.mark.parametrize("damaged", [7, {"test": 7}, {"test": {"topic": [7]}}, {"test": {"topic": [{"value": "a"}]}}])
def test_damaged_slices_make_a_record_that_cannot_be_read(tmp_path: Path, damaged: Any):
    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), two_strategies)
    edit_json(folder / "runs" / "ddp_seed-1" / "summary.json", slices=damaged)
    report = make_sweep(folder, None)
    assert [each.cell.name for each in report.cell_runs if each.record is None] == ["ddp_seed-1"]


def test_a_matrix_without_slices_has_no_section(tmp_path: Path):
    assert not tables(make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"])))


def test_parts_that_are_held_out_are_columns_of_test_scores(tmp_path: Path):
    names = {"held_out-1": "1", "held_out-2": "2"}
    axis = Axis("data.split.held_out", "held_out", names, is_seed=True, keys=("data.split.held_out",))

    def tell(values: Mapping[str, str]) -> Made:
        test = {"held_out-1": 0.5, "held_out-2": 0.8}[values["held_out"]]
        return Made(summary={"scores": {"validation": {"accuracy": 0.6}, "test": {"accuracy": test}}})

    sections = {
        section.key: section for section in make_sweep(make_matrix(tmp_path / "m", (axis,), tell), None).sections
    }
    (table,) = sections["candidates"].tables
    columns = {column.label: cell for column, cell in zip(table.columns, table.lines[0], strict=True)}
    assert [columns[f"held-out part {part}: test Accuracy ↑"].value for part in "12"] == [0.5, 0.8]
    # Mean 0.65, and the sample standard deviation is 0.3 / sqrt 2.
    assert columns["test Accuracy ↑"].text == "0.6500 ± 0.2121"
    assert columns["validation Accuracy ↑"].value == 0.6
    assert sections["candidates"].is_short
