"""Time to quality of configurations, from events written out by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from raised import raises_code

from paratune.commands.report import report
from paratune.config.metric_names import parse_target
from paratune.records.sweep import CellRecord, cell_run_folder
from paratune.reports.matrix import make_sweep, read_joined
from paratune.reports.tables.table import Table

SCORES = {"ddp_seed-1": 0.9, "ddp_seed-2": 0.7, "zero3_seed-1": 0.6, "zero3_seed-2": 0.75}
"""F1 at step 4; at step 2 it is 0.5. A step takes a second, an evaluation half of one."""


def matrix(folder: Path) -> Path:
    make_matrix(folder, (STRATEGY, SEED), lambda values: Made(kind=values["strategy"], num_steps=4))
    for name, score in SCORES.items():
        write_events(cell_run_folder(folder, name), score)
    return folder


def write_events(run: Path, score: float) -> None:
    events: list[dict[str, Any]] = [{"event": "step", "step": at, "wall_ms": 1000.0, "loss": 1.0} for at in range(1, 5)]
    for at, f1 in ((4, score), (2, 0.5)):
        events.insert(
            at, {"event": "evaluation", "step": at, "split": "validation", "scores": {"f1": f1}, "time_s": 0.5}
        )
    for path in run.glob("events.*"):
        path.unlink()
    (run / "events.rank0000.jsonl").write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))


def table_of(folder: Path, target: str, out: Path | None = None) -> Table:
    report = make_sweep(folder, out, targets=[parse_target(target)])
    (section,) = (each for each in report.sections if each.key == "targets")
    (table,) = section.tables
    return table


def cells(table: Table, key: str) -> list[tuple[Any, str]]:
    at = [column.name for column in table.columns].index(key)
    return [(line[at].value, line[at].text) for line in table.lines]


def test_times_are_means_of_the_runs_that_reached_it(tmp_path: Path):
    table = table_of(matrix(tmp_path / "m"), "f1>=0.7", tmp_path / "out")
    assert table.title == "Time to f1 ≥ 0.7 on validation"
    # All reach it at step 4, after 4 s; with 2.5 s of start-up, 0.4 s of tokenization, and two evaluations 7.9 s.
    assert cells(table, "train_until_f1_0.7_s") == [(4.0, "4.00 ± 0.00"), (4.0, "4.00 (1 of 2) (0.0%)")]
    assert [value for value, _ in cells(table, "total_until_f1_0.7_s")] == pytest.approx([7.9, 7.9])
    best = cells(table, "best_f1")
    assert [value for value, _ in best] == pytest.approx([0.8, 0.675])
    assert "Time to f1 ≥ 0.7 on validation" in (tmp_path / "out" / "index.html").read_text()


def test_a_target_that_no_run_reached_has_the_best_scores(tmp_path: Path):
    table = table_of(matrix(tmp_path / "m"), "f1>=0.95")
    assert cells(table, "train_until_f1_0.95_s") == [(None, "n/a"), (None, "n/a")]
    assert cells(table, "best_f1")[0][1].startswith("0.8000 ± 0.1414")


def test_a_run_with_damaged_events_is_named_and_left_out(tmp_path: Path):
    folder = matrix(tmp_path / "m")
    (cell_run_folder(folder, "ddp_seed-1") / "events.rank0000.jsonl").write_text("{]\n{}\n")
    table = table_of(folder, "f1>=0.7")
    assert [cell.runs for cell in (line[1] for line in table.lines)] == [("ddp_seed-2",), ("zero3_seed-2",)]
    (warning,) = read_joined([folder]).warnings
    assert "ddp_seed-1/events.rank0000.jsonl, line 1" in warning


def test_a_metric_by_which_no_run_was_evaluated_is_refused(tmp_path: Path):
    with raises_code("metric.unknown", "f1"):
        report(matrix(tmp_path / "m"), target=["rmse<=1"])


def test_a_matrix_of_probes_has_no_time_to_quality(tmp_path: Path):
    from dataclasses import replace

    def probe(cell: CellRecord) -> CellRecord:
        return replace(cell, kind="probe")

    def tell(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"], num_steps=4)

    make_matrix(tmp_path / "m", (STRATEGY,), tell, changes=probe)
    with raises_code("metric.unknown", option="--target"):
        make_sweep(tmp_path / "m", None, targets=[parse_target("f1>=0.7")])
