"""Errors and coverage of predictions, by hand."""

from typing import Any

import pytest

from paratune.planning.score import COLUMNS, Score, row_texts, score_run

RUN = {"strategy": {"kind": "ddp"}, "world_size": 2}


def summary(step_s: list[float] | None, kind: str = "cuda_allocated", **changed: Any) -> dict[str, Any]:
    prediction = {
        "step_s": step_s,
        "is_calibrated": True,
        "memory_terms": {"weights": 700, "activations": 400, "context": 500, "fragmentation": 20},
        "reason": None,
    }
    return {"prediction": prediction | changed, "memory": {"kind": kind, "largest_bytes": 1000}}


def test_errors_and_coverage() -> None:
    inside = score_run("a", RUN, summary([0.11, 0.08, 0.15]), 0.1)
    outside = score_run("b", RUN, summary([0.06, 0.05, 0.09]), 0.1)
    assert inside.time_error == pytest.approx(0.1)
    assert outside.time_error == pytest.approx(-0.4)
    assert (inside.is_covered, outside.is_covered) == (True, False)
    assert (inside.predicted_bytes, inside.memory_error) == (1100, pytest.approx(0.1))
    score = Score((inside, outside))
    assert (score.time_error, score.coverage) == (pytest.approx(0.25), 0.5)
    assert score.lines() == [
        "Step time: off by 25.0% (median of 2), 1 of 2 within the interval.",
        "Memory: off by 10.0% (median of 2).",
    ]
    assert score.as_dict()["runs"][1]["is_covered"] is False
    assert row_texts(outside)[3:8] == ["60", "50 to 90", "100", "−40.0%", "no"]
    assert len(row_texts(outside)) == len(COLUMNS)


def test_resident_memory_is_scored_where_the_process_is_predicted() -> None:
    run = score_run("a", RUN, summary([0.1, 0.1, 0.1], kind="rss"), 0.1)
    assert (run.predicted_bytes, run.measured_bytes, run.memory_error) == (None, None, None)
    terms = {"weights": 200, "activations": 150, "process": 550}
    run = score_run("b", RUN, summary([0.1, 0.1, 0.1], kind="rss", memory_terms=terms), 0.1)
    assert (run.predicted_bytes, run.measured_bytes, run.memory_error) == (900, 1000, pytest.approx(-0.1))


def test_run_without_prediction_has_a_reason() -> None:
    old = score_run("old", RUN, {"memory": {"kind": "rss", "largest_bytes": 1}}, 0.1)
    none = score_run(
        "none", RUN, {"prediction": {"reason": "because"}, "memory": {"kind": "rss", "largest_bytes": 1}}, 0.1
    )
    assert Score((old, none)).lines() == [
        "old: not predicted: it was trained before runs had predictions",
        "none: not predicted: because",
    ]
    assert Score((old, none)).coverage is None
    # No predicted time, no interval.
    assert [row_texts(run)[3:5] for run in (old, none)] == [["n/a", "n/a"]] * 2
