"""What samples are worth and what ranks lose, as rows: from records written by hand."""

from pathlib import Path
from typing import Any

import pytest
from make_run import make_run

from paratune.reports import make
from paratune.reports.run.model import Report

NOISE = {"value": 96.0, "standard_error": 12.0, "num_steps": 20, "reason": None}
UNKNOWN = {"value": None, "standard_error": None, "num_steps": 0, "reason": "one micro-batch a step: set another"}


def of(folder: Path, **summary: Any) -> Path:
    batch = summary.pop("batch", 32)
    return make_run(
        folder, run_changes={"batch.global_batch_size": batch}, summary_changes={f"{k}": v for k, v in summary.items()}
    )


def texts(report: Report, key: str) -> list[str]:
    return [cell.text for row in report.rows if row.key == key for cell in row.cells]


def values(report: Report, key: str) -> list[Any]:
    return [cell.value for row in report.rows if row.key == key for cell in row.cells]


def test_efficiency_is_held_against_the_first_run(tmp_path: Path):
    small = of(tmp_path / "small", noise_scale=NOISE)
    large = of(tmp_path / "large", noise_scale={**NOISE, "value": 160.0}, batch=64)
    report = make([small, large], None)
    # (160 + 32) / (160 + 64), with the run's own noise scale.
    assert values(report, "statistical_efficiency") == [1.0, pytest.approx(192 / 224)]
    rates = values(report, "samples_per_s")
    assert values(report, "goodput") == pytest.approx([rates[0], rates[1] * 192 / 224])
    assert texts(report, "noise_scale") == ["96.0 ± 12.0 (n = 20)", "160.0 ± 12.0 (n = 20)"]
    assert "Statistical efficiency (against 32 samples)" in [row.label for row in report.shown_rows]


def test_efficiency_uses_the_noise_scale_under_adamw_if_all_runs_have_it(tmp_path: Path):
    both = {**NOISE, "preconditioned": {**NOISE, "value": 192.0}}
    small, large = of(tmp_path / "small", noise_scale=both), of(tmp_path / "large", noise_scale=both, batch=64)
    report = make([small, large], None)
    assert values(report, "noise_scale") == [96.0, 96.0]
    assert texts(report, "noise_scale_preconditioned") == ["192 ± 12 (n = 20)"] * 2
    # (192 + 32) / (192 + 64).
    assert values(report, "statistical_efficiency")[1] == pytest.approx(224 / 256)
    # With a run without it, all use the plain one: (96 + 32) / (96 + 64).
    sharded = {**NOISE, "preconditioned": {**UNKNOWN, "reason": "zero1 shards v", "code": "sharded_states"}}
    other = of(tmp_path / "other", noise_scale=sharded, batch=64)
    report = make([small, other], None)
    assert values(report, "statistical_efficiency")[1] == pytest.approx(128 / 160)
    assert "other: noise scale under AdamW n/a: zero1 shards v." in report.notes


def test_efficiency_is_held_against_the_baseline_that_is_named(tmp_path: Path):
    small = of(tmp_path / "small", noise_scale=NOISE)
    large = of(tmp_path / "large", noise_scale=NOISE, batch=64)
    report = make([small, large], None, baseline=large)
    assert values(report, "statistical_efficiency") == [pytest.approx(160 / 128), 1.0]


def test_runs_of_one_batch_size_do_not_show_that_they_are_equal(tmp_path: Path):
    report = make([of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", noise_scale=NOISE)], None)
    shown = {row.key for row in report.shown_rows}
    assert "noise_scale" in shown
    assert {"statistical_efficiency", "goodput"}.isdisjoint(shown)
    assert values(report, "statistical_efficiency") == [1.0, 1.0]


def test_a_reference_batch_of_the_users_own_shows_efficiency_at_equal_batches(tmp_path: Path):
    changes = {"batch.global_batch_size": 32, "config.measure.reference_batch": 16}
    folders = [
        make_run(tmp_path / name, run_changes=changes, summary_changes={"noise_scale": {**NOISE, "value": value}})
        for name, value in (("a", 96.0), ("b", 32.0))
    ]
    report = make(folders, None)
    # (96 + 16) / (96 + 32) and (32 + 16) / (32 + 32).
    assert values(report, "statistical_efficiency") == pytest.approx([0.875, 0.75])
    rates = values(report, "samples_per_s")
    assert values(report, "goodput") == pytest.approx([rates[0] * 0.875, rates[1] * 0.75])
    assert "Statistical efficiency (against 16 samples)" in [row.label for row in report.shown_rows]
    (row,) = (row for row in report.rows if row.key == "statistical_efficiency")
    assert row.cells[0].source.endswith("m0 measure.reference_batch of a")


def test_the_noise_scale_is_never_that_of_another_run(tmp_path: Path):
    report = make([of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", noise_scale=UNKNOWN)], None)
    assert texts(report, "noise_scale") == ["96.0 ± 12.0 (n = 20)", "n/a (n = 0)"]
    assert "b: noise scale n/a: one micro-batch a step: set another." in report.notes


def test_the_noise_scale_of_few_samples_is_unknown_and_not_shown(tmp_path: Path):
    report = make([of(tmp_path / "a", noise_scale={**NOISE, "num_steps": 19})], None)
    assert texts(report, "noise_scale") == ["n/a (n = 19)"]
    assert values(report, "noise_scale") == [None]
    assert "noise_scale" not in [row.key for row in report.shown_rows]


def test_not_from_one_that_trained_something_else(tmp_path: Path):
    report = make([of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", noise_scale=UNKNOWN, batch=64)], None)
    assert texts(report, "noise_scale") == ["96.0 ± 12.0 (n = 20)", "n/a (n = 0)"]
    assert values(report, "goodput")[1] is None
    assert "b: noise scale n/a: one micro-batch a step: set another." in report.notes


def test_at_the_reference_batch_a_sample_is_worth_one_whatever_the_noise(tmp_path: Path):
    report = make([of(tmp_path / "a", noise_scale=UNKNOWN), of(tmp_path / "b", noise_scale=NOISE, batch=64)], None)
    # (96 + 32) / (96 + 64)
    assert values(report, "statistical_efficiency") == [1.0, pytest.approx(0.8)]
    assert values(report, "goodput")[0] == values(report, "samples_per_s")[0]


def test_old_records_have_no_such_rows_and_no_remarks(tmp_path: Path):
    report = make([of(tmp_path / "a")], None)
    assert "Efficiency" not in [row.group for row in report.shown_rows]
    assert not any("n/a:" in note for note in report.notes)


def test_communication_and_the_slowest_rank(tmp_path: Path):
    sent = {"share": 0.25, "exposed_share": 0.125, "time_ms_per_step": 20.0, "num_steps": 5, "kind": "nccl"}
    slow = {"slowest_rank": 3, "slowdown": 1.0834, "wait_share": 0.041, "reason": None}
    alone = dict.fromkeys(("slowest_rank", "slowdown", "wait_share"))
    first = of(tmp_path / "a", noise_scale=NOISE, communication={**sent, "reason": None}, stragglers=slow)
    second = of(
        tmp_path / "b",
        noise_scale=NOISE,
        communication={**dict.fromkeys(sent), "reason": "a single process does not communicate"},
        stragglers={**alone, "reason": "one process waits for nobody"},
    )
    report = make([first, second], None)
    assert texts(report, "communication_share") == ["25.0% (12.5%)", "n/a"]
    assert texts(report, "straggler_slowdown") == ["1.08× (rank 3)", "n/a"]
    assert texts(report, "wait_share") == ["4.1%", "n/a"]
    assert values(report, "communication_ms_per_step") == [20.0, None]
    assert "b: communication n/a: a single process does not communicate." in report.notes
    assert "b: slowest rank n/a: one process waits for nobody." in report.notes
    assert any(
        note.startswith("a: ") and note.endswith("; so are 5 steps under the profiler.") for note in report.notes
    )
    # Nobody has them: nobody is told why.
    assert not any("exchanges" in note for note in make([second], None).notes)
