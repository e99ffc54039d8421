"""Predictions of runs, by the table that they belong into."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from raised import raises_code

from paratune.hub.submission import table_text
from paratune.hub.submission_runs import run_predictions


def make_run(folder: Path, glue: str | None, sets: dict[str, list[Any]], *, num_dropped: int = 0) -> Path:
    data: dict[str, Any] = {"train": {"num_rows": 9, "num_dropped": {}}, "test": None}
    for name, values in sets.items():
        data[name] = {"num_rows": len(values), "num_dropped": {"text": num_dropped} if num_dropped else {}}
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"task": {"kind": "classification", "glue": glue}, "data": data}))
    (folder / "summary.json").write_text("{}")
    for name, values in sets.items():
        table = pa.table({"index": list(range(len(values))), "prediction": values})
        pq.write_table(table, folder / f"predictions.{name}.parquet")
    return folder


def test_a_run_of_mnli_gives_three_tables(tmp_path):
    sets = {"test": ["neutral"], "test_mismatched": ["entailment"], "ax": ["contradiction"], "mine": ["neutral"]}
    result = run_predictions(make_run(tmp_path / "run", "mnli", sets))
    assert {name: list(item.values) for name, item in result.items()} == {
        "MNLI-m.tsv": ["neutral"],
        "MNLI-mm.tsv": ["entailment"],
        "AX.tsv": ["contradiction"],
    }


def test_rows_that_were_dropped_are_missing(tmp_path):
    result = run_predictions(make_run(tmp_path / "run", "rte", {"test": ["entailment"] * 3}, num_dropped=2))
    with raises_code("submission.rows", "2 of 5", "3", "4"):
        table_text("RTE.tsv", result["RTE.tsv"])


def test_predictions_without_a_table_are_an_error(tmp_path):
    both = {"test": ["neutral"], "test_matched": ["neutral"]}
    cases = [
        (("run.other_task", "GLUE"), make_run(tmp_path / "a", None, {"test": ["x"]})),
        (("run.no_predictions", "test"), make_run(tmp_path / "b", "rte", {"other": ["x"]})),
        (("run.other_task", "test and test_matched", "MNLI-m.tsv"), make_run(tmp_path / "e", "mnli", both)),
        (("run.not_a_run",), tmp_path),
    ]
    unfinished = make_run(tmp_path / "c", "rte", {"test": ["x"]})
    (unfinished / "summary.json").unlink()
    torn = make_run(tmp_path / "d", "rte", {"test": ["x"]})
    (torn / "predictions.test.parquet").write_text("x")
    for refused, folder in [*cases, (("run.not_finished",), unfinished), (("run.unreadable",), torn)]:
        with raises_code(*refused, folder):
            run_predictions(folder)
