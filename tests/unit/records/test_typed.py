"""Typed records: what may be absent, and what makes a record damaged."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.records.finished import gpus_of, number_in, read_record
from paratune.records.sweep import Axis, CellRecord, SweepRecord, read_sweep, write_sweep
from paratune.records.typed import Summary

RUN = {**WHOLE_RUN, "run_id": "a", "world_size": 2, "config": {"precision": "fp32"}}
SUMMARY = {**WHOLE_SUMMARY, "time": {"train_s": 3.5}, "scores": {"test": None, "validation": {"f1": 0.5}}}


def written(folder: Path, run: Any = RUN, summary: Any = SUMMARY) -> Path:
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_absent_and_null_values_are_none_and_parts_are_empty(tmp_path: Path):
    run = read_record(written(tmp_path, {**RUN, "batch": None}), "a")
    assert (run.run.world_size, run.run.batch.global_batch_size, run.run.device) == (2, None, None)
    assert (run.summary.time.train_s, run.summary.phases.forward.total_s) == (3.5, None)
    assert run.summary.scores == {"validation": {"f1": 0.5}}


def test_whole_numbers_stay_whole_and_unnamed_fields_are_kept():
    summary = Summary.model_validate({"num_steps": 3, "num_restarts": 3.0, "windows": {"validation": 4}})
    assert [type(value) for value in (summary.num_steps, summary.num_restarts)] == [int, float]
    assert summary.model_dump(exclude_unset=True)["windows"] == {"validation": 4}


@pytest.mark.parametrize(
    ("file", "change", "place"),
    [
        ("summary.json", {"time": {"train_s": "fast"}}, "time.train_s"),
        ("summary.json", {"time": {"train_s": True}}, "time.train_s"),
        ("summary.json", {"time": {"train_s": [1]}}, "time.train_s"),
        ("summary.json", {"time": 3}, "time"),
        ("summary.json", {"scores": {"test": {"f1": "x"}}}, "scores.test.f1"),
        ("summary.json", {"ranks": [{"rank": 0}, 7]}, "ranks.1"),
        ("summary.json", {"prediction": {"step_s": [1.0, 2.0]}}, "prediction.step_s"),
        ("summary.json", {"slices": {"test": 3}}, "slices"),
        ("run.json", {"sessions": "none"}, "sessions"),
        ("run.json", {"task": {"metrics": ["f1", 3]}}, "task.metrics.1"),
        ("run.json", {"config": []}, "config"),
    ],
)
def test_a_value_of_another_type_is_damage_at_its_place(tmp_path: Path, file: str, change: Any, place: str):
    run = {**RUN, **change} if file == "run.json" else RUN
    summary = {**SUMMARY, **change} if file == "summary.json" else SUMMARY
    with raises_code("run.damaged", file, place):
        read_record(written(tmp_path, run, summary), "a")


@pytest.mark.parametrize("kind", ["full", "probe", "trainer"])
@pytest.mark.parametrize("key", ["num_steps", "time", "throughput", "phases", "step_ms", "loss"])
def test_a_run_with_steps_has_their_figures(tmp_path: Path, kind: str, key: str):
    figures = {"num_steps": 8, "throughput": {}, "phases": {}, "step_ms": {}, "loss": {}}
    whole = {**SUMMARY, **figures, "kind": kind}
    read_record(written(tmp_path, summary=whole), "a")
    del whole[key]
    with raises_code("run.damaged", "summary.json", key, key=key):
        read_record(written(tmp_path, summary=whole), "a")


@pytest.mark.parametrize("key", ["run_id", "ranks", "memory", "scores"])
def test_a_summary_without_a_part_of_every_run_is_damaged(tmp_path: Path, key: str):
    summary = {name: value for name, value in SUMMARY.items() if name != key}
    with raises_code("run.damaged", "summary.json", key=key):
        read_record(written(tmp_path, summary=summary), "a")


@pytest.mark.parametrize(
    "key",
    ["run_id", "config", "hardware", "versions", "world_size", "strategy", "batch", "seed", "task", "data", "model"],
)
def test_a_run_file_without_a_part_of_every_run_is_damaged(tmp_path: Path, key: str):
    with raises_code("run.damaged", "run.json", key):
        read_record(written(tmp_path, {name: value for name, value in RUN.items() if name != key}), "a")


@pytest.mark.parametrize(
    ("change", "key"), [({"task": {}}, "task.kind"), ({"data": {"test": {}}}, "data.train"), ({"run_id": ""}, "run_id")]
)
def test_a_part_without_what_every_run_has_is_damaged(tmp_path: Path, change: Any, key: str):
    with raises_code("run.damaged", "run.json", key=key):
        read_record(written(tmp_path, {**RUN, **change}), "a")


@pytest.mark.parametrize("key", ["values", "num_processes", "task", "metric", "metrics", "fingerprint", "state"])
def test_a_cell_without_a_value_that_decides_is_damaged(tmp_path: Path, key: str):
    cell = CellRecord("a", {"x": "1"}, 1, "classification", "f1", ("f1",), "ab", "finished")
    write_sweep(tmp_path, SweepRecord("m", "2026", "m.yaml", (), (Axis("x", "x", {"1": "1"}),), (), (cell,)))
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert read_sweep(tmp_path).cells == (cell,)
    del record["cells"][0][key]
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    with raises_code("run.damaged", "sweep.json", key=f"cells.0.{key}"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_format_is_refused(tmp_path: Path, version: Any):
    with raises_code("run.other_version", repr(version)):
        read_record(written(tmp_path, summary={**SUMMARY, "schema_version": version}), "a")


@pytest.mark.parametrize("config", [{"measure": 5}, {"measure": {"probe": "yes"}}, {"measure": None}])
def test_a_configuration_of_other_types_is_no_probe(tmp_path: Path, config: dict[str, Any]):
    assert read_record(written(tmp_path, {**RUN, "config": config}), "a").is_probe is False


def test_gpus_of_a_node_are_its_objects():
    assert gpus_of({"gpus": [{"name": "A"}, "B", None]}) == [{"name": "A"}]
    assert gpus_of({"gpus": "A"}) == gpus_of({}) == []


def test_numbers_are_finite_numbers():
    values = (1, 2.5, True, math.nan, 10**400, "3", None)
    assert [number_in(value) for value in values] == [1.0, 2.5, None, None, None, None, None]
