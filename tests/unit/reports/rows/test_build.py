"""The comparison table: arithmetic, units, and where each cell came from."""

from dataclasses import replace

import pytest
from make_run import GIB, make_run

from paratune.reports.rows.build import build_rows
from paratune.reports.rows.row import byte_unit, decimals, numbers
from paratune.reports.rows.speed import step_parts_ms
from paratune.reports.runs.read import read_runs


def _rows(*folders):
    return {row.key: row for row in build_rows(read_runs(folders).runs)}


def test_phase_means_are_totals_over_measured_steps_and_sum_to_the_step(tmp_path):
    # make_run: 30% of an 80 ms step is forward; five shares sum to 1.
    run = read_runs([make_run(tmp_path / "a", step_ms=80.0)]).runs[0]
    parts = step_parts_ms(run)
    assert parts["forward"] == pytest.approx(24.0)
    assert sum(parts.values()) == pytest.approx(80.0)


def test_every_cell_names_its_run_and_its_record(tmp_path):
    rows = _rows(make_run(tmp_path / "a"), make_run(tmp_path / "b", kind="ddp", world_size=2))
    assert [cell.runs for cell in rows["tokens_per_s"].cells] == [("a",), ("b",)]
    assert rows["tokens_per_s"].cells[0].source == "summary.throughput.tokens_per_s"
    assert all(cell.source for row in rows.values() for cell in row.cells)


def test_throughput_is_compared_with_the_first_run(tmp_path):
    rows = _rows(make_run(tmp_path / "a", step_ms=80), make_run(tmp_path / "b", step_ms=32))
    assert [cell.text for cell in rows["tokens_per_s_to_first"].cells] == ["1.00×", "2.50×"]


def test_the_size_of_the_model_is_in_million_bytes_and_batches_are_counted(tmp_path):
    changes = {"model.size_bytes": 437_951_488, "plan.batches_per_epoch": 1250}
    rows = _rows(make_run(tmp_path / "a", run_changes=changes), make_run(tmp_path / "b"))
    assert [cell.text for cell in rows["model_size_bytes"].cells] == ["438.0", "n/a"]
    assert [cell.text for cell in rows["batches_per_epoch"].cells] == ["1,250", "n/a"]


def test_memory_is_the_largest_rank_and_the_sum(tmp_path):
    rows = _rows(make_run(tmp_path / "a", kind="ddp", world_size=2))
    # 1.2 GiB and 1.25 GiB, cut to whole bytes.
    assert rows["peak_memory_largest_bytes"].cells[0].value == int(1.25 * GIB)
    assert rows["peak_memory_sum_bytes"].cells[0].text == "2.45"


def test_unknown_values_are_not_available(tmp_path):
    changes = {"throughput.samples_per_s": None, "phases": None, "scores.test": None}
    rows = _rows(make_run(tmp_path / "a", summary_changes=changes))
    assert rows["samples_per_s"].cells[0].text == "n/a"
    assert rows["forward_mean_ms"].cells[0].text == "n/a"
    assert "test_accuracy" not in rows


def test_skipped_steps_have_a_row_where_there_are_any(tmp_path):
    plain, half = make_run(tmp_path / "a"), make_run(tmp_path / "b", summary_changes={"num_skipped_steps": 3})
    assert "num_skipped_steps" not in _rows(plain)
    assert [cell.text for cell in _rows(plain, half)["num_skipped_steps"].cells] == ["n/a", "3"]
    none = make_run(tmp_path / "c", summary_changes={"num_skipped_steps": 0})
    assert "num_skipped_steps" not in _rows(none)


def test_bubble_has_the_ideal_value_in_brackets_and_a_footnote(tmp_path):
    pipeline = make_run(
        tmp_path / "a", kind="ddp", summary_changes={"pipeline": {"bubble_share": 0.31, "ideal_bubble_share": 0.2}}
    )
    rows = _rows(make_run(tmp_path / "b"), pipeline)
    assert [cell.text for cell in rows["bubble_share"].cells] == ["n/a", "31.0% (20.0%)"]
    assert rows["bubble_share"].footnote.startswith("* ")
    assert rows["bubble_share"].label.endswith(" *")
    assert (rows["bubble_share"].cells[1].value, rows["ideal_bubble_share"].cells[1].value) == (0.31, 0.2)
    assert not rows["ideal_bubble_share"].shown
    assert "bubble_share" not in _rows(make_run(tmp_path / "c"))


def test_loader_workers_are_shown_where_runs_differ(tmp_path):
    none, two, old = (
        make_run(tmp_path / name, run_changes=changes)
        for name, changes in (
            ("none", {"loader": {"workers": 0}}),
            ("two", {"loader": {"workers": 2}}),
            ("old", {}),
        )
    )
    row = _rows(none, two)["loader_workers"]
    assert ([cell.text for cell in row.cells], row.shown) == (["0", "2"], True)
    assert [cell.text for cell in _rows(none, old)["loader_workers"].cells] == ["0", "n/a"]
    assert not _rows(two, make_run(tmp_path / "other", run_changes={"loader": {"workers": 2}}))["loader_workers"].shown
    assert not _rows(old)["loader_workers"].shown


def test_options_of_strategies_are_in_the_setup(tmp_path):
    options = {"stages": 2, "schedule": "interleaved", "chunks": None}
    changes = {"strategy.options": options, "strategy.traits.stages_per_rank": 2}
    rows = _rows(make_run(tmp_path / "a", kind="ddp", run_changes=changes), make_run(tmp_path / "b"))
    assert [cell.text for cell in rows["pipeline_stages"].cells] == ["2", "n/a"]
    assert [cell.text for cell in rows["pipeline_schedule"].cells] == ["interleaved, 2 a rank", "n/a"]
    assert rows["pipeline_schedule"].cells[0].value == "interleaved"
    assert "deepspeed_stage" not in rows
    assert "pipeline_stages" not in _rows(make_run(tmp_path / "c"))


def test_scores_of_all_runs_have_a_row(tmp_path):
    rows = _rows(make_run(tmp_path / "a"), make_run(tmp_path / "b", task="regression"))
    assert [cell.text for cell in rows["test_accuracy"].cells] == ["0.9233", "n/a"]
    assert [cell.text for cell in rows["test_rmse"].cells] == ["n/a", "0.6123"]
    assert rows["test_rmse"].label == "RMSE ↓"


@pytest.mark.parametrize(
    ("values", "places"), [([1234.0], 0), ([81.3, 46.1], 1), ([8.1], 2), ([0.00123], 3), ([26.6, 393.6], 1), ([], 3)]
)
def test_decimals_give_three_digits(values, places):
    assert decimals(values) == places


def test_numbers_with_many_digits_have_fewer_decimals():
    assert numbers([0.5, 12345.6]) == ["0", "12,346"]


@pytest.mark.parametrize(("value", "unit"), [(3 * GIB, "GiB"), (2**20, "MiB"), (5, "KiB")])
def test_byte_unit_suits_the_largest(value, unit):
    assert byte_unit([1.0, None, value])[0] == unit


def test_f1_is_shown_once_where_it_is_the_macro_average(tmp_path):
    scores = {"scores.validation": {"f1": 0.5, "f1_macro": 0.5}}
    two = make_run(tmp_path / "two", summary_changes=scores)
    three = make_run(tmp_path / "three", labels=("a", "b", "c"), summary_changes=scores)
    number = make_run(tmp_path / "number", task="regression")
    for runs, shown in (((two,), True), ((three,), False), ((three, number), False), ((two, three), True)):
        rows = _rows(*runs)
        assert rows["validation_f1"].shown == shown
        assert rows["validation_f1"].cells[0].value == 0.5, "CSV and JSON hold it"
        assert rows["validation_f1_macro"].shown


def test_the_kept_step_is_next_to_the_scores(tmp_path):
    runs = read_runs([make_run(tmp_path / name) for name in "abc"]).runs
    best = {"step": 150, "metric": "accuracy", "value": 0.9}
    values = ({"kept_step": 150, "best": best, "num_steps": 225}, {"kept_step": 1225, "num_steps": 1225}, {})
    runs = [replace(run, summary={**run.summary, **more}) for run, more in zip(runs, values, strict=True)]
    rows = {row.key: row for row in build_rows(runs)}
    cells = rows["kept_step"].cells
    assert [cell.text for cell in cells] == ["150 of 225 (best accuracy)", "1,225 of 1,225 (last)", "n/a"]
    assert [cell.value for cell in cells] == [150, 1225, None]
    keys = list(rows)
    assert keys.index("train_loss_last_epoch") < keys.index("kept_step") < keys.index("validation_accuracy")
    assert "kept_step" not in _rows(make_run(tmp_path / "old"))
