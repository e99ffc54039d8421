"""Predicted against measured, beside runs that have no prediction."""

from pathlib import Path

import pytest
from make_run import make_run

from paratune.reports.rows.speed import prediction_rows, step_ms
from paratune.reports.runs.read import read_runs


def test_predicted_and_measured_step_times_are_rows(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", summary_changes={"prediction": {"step_s": [0.06, 0.04, 0.1], "reason": None}})
    runs = read_runs([folder, make_run(tmp_path / "b")]).runs
    measured = step_ms(runs[0])
    assert measured is not None
    rows = {row.key: row for row in prediction_rows(runs)}
    assert rows["predicted_step_ms"].cells[0].value == pytest.approx(60)
    assert [cell.text for cell in rows["predicted_step_ms"].cells] == ["60.0 (40.0 to 100.0)", "n/a"]
    error = rows["prediction_error_percent"].cells
    assert error[0].value == pytest.approx(100 * (60 / measured - 1))
    assert error[1].text == "n/a"


def test_without_predictions_there_are_no_rows(tmp_path: Path) -> None:
    assert list(prediction_rows(read_runs([make_run(tmp_path / "a")]).runs)) == []
