"""Measures of runs: arithmetic written out, units, and where each value comes from."""

from pathlib import Path
from typing import Any

import pytest
from make_run import GIB, make_run
from pydantic import BaseModel

from paratune.records.typed import RunFile, Summary
from paratune.reports.amounts import amount, amount_text, decimals, scale_of
from paratune.reports.measures import MEASURES
from paratune.reports.rows import ReportRow, build_rows
from paratune.reports.run import build_report
from paratune.reports.runs.read import read_runs

NOISE = {"value": 96.0, "standard_error": 12.0, "num_steps": 20, "reason": None}
UNKNOWN = {"value": None, "standard_error": None, "num_steps": 0, "reason": "one micro-batch a step: set another"}
UTILISATION = {
    "kind": "nvml",
    "mean": 0.815,
    "devices": [
        {"rank": 0, "name": "NVIDIA L4", "mean": 0.8, "memory_bytes": 1, "power_w": {"mean": 60.0, "max": 70.0}},
        {"rank": 1, "name": "NVIDIA L4", "mean": 0.83, "memory_bytes": 1, "power_w": {"mean": 50.0, "max": 71.0}},
    ],
    "energy_j": 36_500.0,
    "energy_source": "nvml counter",
    "reason": None,
}
FLOPS = {"model_flops_per_s": 2.5e13, "peak_source": "NVIDIA L4 datasheet, 2023", "mfu": 0.1033, "reason": None}


def of(folder: Path, batch: int = 32, **summary: Any) -> Path:
    return make_run(folder, run_changes={"batch.global_batch_size": batch}, summary_changes=summary)


def gpu_run(folder: Path, *, utilisation: Any = None, flops: Any = None, **options: Any) -> Path:
    changes = {"utilisation": {**UTILISATION, **(utilisation or {})}, "flops": {**FLOPS, **(flops or {})}}
    return make_run(folder, run_changes={"device": "cuda"}, summary_changes=changes, **options)


def rows_of(*folders: Path, **options: Any) -> dict[str, ReportRow]:
    return {row.measure.key: row for row in build_rows(read_runs(folders).runs, **options)}


def texts(row: ReportRow) -> list[str]:
    return [cell.text for cell in row.cells]


def values(row: ReportRow) -> list[Any]:
    return [cell.value for cell in row.cells]


@pytest.mark.parametrize("key", [key for key, measure in MEASURES.items() if " " not in measure.source])
def test_a_source_is_a_field_of_a_typed_record(key: str):
    file, *keys = MEASURES[key].source.split(".")
    model: Any = {"run": RunFile, "summary": Summary}[file]
    for part in keys:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            break  # the keys of a dict
        assert part.removesuffix("[]") in model.model_fields
        model = model.model_fields[part.removesuffix("[]")].annotation


def test_phase_means_are_totals_over_measured_steps_and_sum_to_the_step(tmp_path: Path):
    # make_run: 30% of an 80 ms step is forward; five shares sum to 1.
    rows = rows_of(make_run(tmp_path / "a", step_ms=80.0))
    assert values(rows["forward_mean_ms"]) == [pytest.approx(24.0)]
    assert values(rows["mean_step_ms"]) == [pytest.approx(80.0)]


def test_every_cell_names_its_run_and_its_record(tmp_path: Path):
    rows = rows_of(make_run(tmp_path / "a"), make_run(tmp_path / "b", kind="ddp", world_size=2))
    assert [cell.runs for cell in rows["tokens_per_s"].cells] == [("a",), ("b",)]
    assert rows["tokens_per_s"].cells[0].source == "summary.throughput.tokens_per_s"
    assert all(cell.source for row in rows.values() for cell in row.cells)


def test_memory_is_the_largest_rank_and_the_sum(tmp_path: Path):
    rows = rows_of(make_run(tmp_path / "a", kind="ddp", world_size=2))
    # 1.2 GiB and 1.25 GiB, cut to whole bytes.
    assert values(rows["peak_memory_largest_bytes"]) == [int(1.25 * GIB)]
    assert (rows["peak_memory_sum_bytes"].label, texts(rows["peak_memory_sum_bytes"])) == (
        "Total memory (GiB)",
        ["2.45"],
    )


def test_unknown_values_are_not_available_and_not_shown(tmp_path: Path):
    changes = {"throughput.samples_per_s": None, "phases": None, "scores.test": None}
    rows = rows_of(make_run(tmp_path / "a", summary_changes=changes))
    for key in ("samples_per_s", "forward_mean_ms"):
        assert (texts(rows[key]), rows[key].shown) == (["n/a"], False)
    assert "test_accuracy" not in rows


def test_counts_of_rare_events_are_shown_where_there_are_any_and_settings_where_they_differ(tmp_path: Path):
    none, some = (of(tmp_path / str(count), num_skipped_steps=count) for count in (0, 3))
    assert not rows_of(none)["num_skipped_steps"].shown
    assert rows_of(none, some)["num_skipped_steps"].shown
    runs = [make_run(tmp_path / name, run_changes={"loader": {"workers": at}}) for at, name in enumerate("ab")]
    assert rows_of(*runs)["loader_workers"].shown
    assert not rows_of(runs[0])["loader_workers"].shown


def test_options_of_strategies_are_in_the_setup(tmp_path: Path):
    changes = {"strategy.options": {"stages": 2, "schedule": "interleaved", "chunks": None}}
    rows = rows_of(make_run(tmp_path / "a", kind="ddp", run_changes=changes), make_run(tmp_path / "b"))
    assert texts(rows["pipeline_stages"]) == ["2", "n/a"]
    assert values(rows["pipeline_schedule"]) == ["interleaved", None]
    assert not rows["deepspeed_stage"].shown


def test_a_setting_of_a_resumed_run_has_the_values_of_its_sessions(tmp_path: Path):
    changes = {"sessions": [{"step": 0, "world_size": 1}, {"step": 100, "world_size": 2}]}
    rows = rows_of(make_run(tmp_path / "a", run_changes=changes), price=1.0)
    assert texts(rows["world_size"]) == ["1 → 2"]
    assert (texts(rows["device_hours"]), texts(rows["cost"])) == (["n/a"], ["n/a"])


def test_scores_name_their_split_and_better_side(tmp_path: Path):
    rows = rows_of(make_run(tmp_path / "a"), make_run(tmp_path / "b", task="regression"))
    assert texts(rows["test_accuracy"]) == ["0.9233", "n/a"]
    assert (rows["test_rmse"].label, texts(rows["test_rmse"])) == ("Test RMSE ↓", ["n/a", "0.6123"])


@pytest.mark.parametrize(
    ("values", "places"), [([1234.0], 0), ([81.3, 46.1], 1), ([8.1], 2), ([0.00123], 3), ([26.6, 393.6], 1), ([], 3)]
)
def test_decimals_give_three_digits(values: list[float], places: int):
    assert decimals(values) == places


def test_numbers_with_many_digits_have_fewer_decimals():
    scale = scale_of("number", [0.5, 12345.6])
    assert [scale.text(value) for value in (0.5, 12345.6)] == ["0", "12,346"]


@pytest.mark.parametrize(
    ("unit", "value", "name", "text"),
    [
        ("bytes", 3 * GIB, "GiB", "3.00"),
        ("bytes", 2**20, "MiB", "1.00"),
        ("bytes", 5, "KiB", "0.005"),
        ("s", 7200.0, "min", "120"),
        ("s", 36_000.0, "h", "10.0"),
        ("ms", 12_000.0, "s", "12.0"),
        ("share", 0.123, "%", "12.3"),
        ("score", 0.5, "", "0.5000"),
        ("joules", 36_500.0, "kJ", "36.5"),
        ("text", 1234, "", "1234"),
        ("count", 1234, "", "1,234"),
    ],
)
def test_a_unit_suits_the_largest_value(unit: Any, value: float, name: str, text: str):
    scale = scale_of(unit, [None, value])
    assert (scale.unit, scale.text(value), scale.text(None)) == (name, text, "n/a")


def test_a_rate_over_runs_is_total_work_over_total_time(tmp_path: Path):
    # make_run: 32 samples a step; as many steps of 80 and of 20 ms are 64 samples in 100 ms.
    runs = read_runs([make_run(tmp_path / "a", step_ms=80), make_run(tmp_path / "b", step_ms=20)]).runs
    found = amount(MEASURES["samples_per_s"], runs)
    assert found.center == pytest.approx(640.0)
    assert found.deviation == pytest.approx(1200 / 2**0.5)
    assert amount_text(found, scale_of("rate", [found.center])) == "640 ± 849"


def test_predicted_and_measured_step_times_are_measures(tmp_path: Path):
    folder = make_run(tmp_path / "a", summary_changes={"prediction": {"step_s": [0.06, 0.04, 0.1], "reason": None}})
    rows = rows_of(folder, make_run(tmp_path / "b"))
    keys = ("predicted_step_ms", "predicted_step_low_ms", "predicted_step_high_ms")
    assert [values(rows[key])[0] for key in keys] == pytest.approx([60.0, 40.0, 100.0])
    assert values(rows["prediction_error_percent"]) == [pytest.approx(100 * (60 / 80 - 1)), None]


def test_figures_of_devices(tmp_path: Path):
    rows = rows_of(gpu_run(tmp_path / "a", kind="ddp", world_size=2), make_run(tmp_path / "old"))
    assert texts(rows["utilisation"]) == ["81.5", "n/a"]
    assert texts(rows["power_w"]) == ["55.0", "n/a"]
    assert (rows["energy_j"].label, texts(rows["energy_j"])) == ("Energy of all steps (kJ)", ["36.5", "n/a"])
    assert (rows["model_flops_per_s"].label, texts(rows["model_flops_per_s"])[0]) == (
        "Work of real tokens (TFLOP/s)",
        "25.0",
    )
    devices = [UTILISATION["devices"][0], {**UTILISATION["devices"][1], "power_w": None}]
    assert values(rows_of(gpu_run(tmp_path / "b", utilisation={"devices": devices}))["power_w"]) == [None]


def test_a_run_costs_its_device_hours(tmp_path: Path):
    # make_run: 225 steps of 80 ms and 5.2 s; two ranks at 2.5 an hour.
    rows = rows_of(make_run(tmp_path / "a", kind="ddp", world_size=2), price=2.5)
    hours = 2 * (225 * 0.08 + 5.2) / 3600
    assert values(rows["device_hours"]) == [pytest.approx(hours)]
    assert values(rows["cost"]) == [pytest.approx(2.5 * hours)]
    assert values(rows["epoch_cost"]) == [pytest.approx(2.5 * 2 * values(rows["epoch_s"])[0] / 3600)]
    assert "cost" not in rows_of(make_run(tmp_path / "b"))


def test_unknown_figures_have_the_reason_of_the_record(tmp_path: Path):
    missing = {"mean": None, "energy_j": None, "reason": "pynvml is not installed"}
    run = gpu_run(tmp_path / "a", utilisation=missing, flops={"mfu": None, "reason": "the peak of X is not listed"})
    notes = " ".join(build_report(read_runs([run])).notes)
    assert "n/a: pynvml is not installed." in notes
    assert "MFU n/a: the peak of X is not listed." in notes
    cpu = {"utilisation": {**UTILISATION, "kind": "cpu", "energy_j": None, "reason": "no counter"}, "flops": FLOPS}
    run = make_run(tmp_path / "b", run_changes={"device": "cpu"}, summary_changes=cpu)
    assert "n/a" not in " ".join(build_report(read_runs([run])).notes)


def test_efficiency_is_held_against_the_first_run_or_the_baseline(tmp_path: Path):
    small, large = of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", 64, noise_scale={**NOISE, "value": 160.0})
    rows = rows_of(small, large)
    # (160 + 32) / (160 + 64), with the run's own noise scale.
    assert values(rows["statistical_efficiency"]) == [1.0, pytest.approx(192 / 224)]
    rates = values(rows["samples_per_s"])
    assert values(rows["goodput_samples_per_s"]) == pytest.approx([rates[0], rates[1] * 192 / 224])
    assert values(rows["noise_scale_standard_error"]) == [12.0, 12.0]
    other = build_report(read_runs([small, large]), large).rows
    # (96 + 64) / (96 + 32).
    assert next(values(row) for row in other if row.measure.key == "statistical_efficiency") == [
        pytest.approx(160 / 128),
        1.0,
    ]


def test_efficiency_uses_the_noise_scale_under_adamw_if_all_runs_have_it(tmp_path: Path):
    both = {**NOISE, "preconditioned": {**NOISE, "value": 192.0}}
    small, large = of(tmp_path / "small", noise_scale=both), of(tmp_path / "large", 64, noise_scale=both)
    rows = rows_of(small, large)
    assert values(rows["noise_scale_preconditioned"]) == [192.0, 192.0]
    # (192 + 32) / (192 + 64).
    assert values(rows["statistical_efficiency"])[1] == pytest.approx(224 / 256)
    # With a run without it, all use the plain one: (96 + 32) / (96 + 64).
    sharded = {**NOISE, "preconditioned": {**UNKNOWN, "reason": "zero1 shards v", "code": "sharded_states"}}
    other = of(tmp_path / "other", 64, noise_scale=sharded)
    assert values(rows_of(small, other)["statistical_efficiency"])[1] == pytest.approx(128 / 160)
    assert (
        "other: Noise scale under AdamW (samples) n/a: zero1 shards v." in build_report(read_runs([small, other])).notes
    )


def test_efficiency_is_shown_where_batches_differ_from_the_reference(tmp_path: Path):
    rows = rows_of(of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", noise_scale=NOISE))
    assert rows["noise_scale"].shown
    assert not rows["statistical_efficiency"].shown
    changes = {"batch.global_batch_size": 32, "config.measure.reference_batch": 16}
    rows = rows_of(make_run(tmp_path / "c", run_changes=changes, summary_changes={"noise_scale": NOISE}))
    # (96 + 16) / (96 + 32).
    assert (values(rows["statistical_efficiency"]), rows["statistical_efficiency"].shown) == ([0.875], True)


@pytest.mark.parametrize("noise", [UNKNOWN])
def test_the_noise_scale_of_few_samples_is_unknown_and_never_that_of_another_run(tmp_path: Path, noise: Any):
    known, unknown = of(tmp_path / "a", noise_scale=NOISE), of(tmp_path / "b", 64, noise_scale=noise)
    rows = rows_of(known, unknown)
    assert values(rows["noise_scale"]) == [96.0, None]
    assert values(rows["goodput_samples_per_s"])[1] is None
    # At the reference batch a sample is worth one, whatever the noise.
    assert values(rows_of(unknown, known)["statistical_efficiency"]) == [1.0, pytest.approx((96 + 64) / (96 + 32))]


def test_communication_and_the_slowest_rank(tmp_path: Path):
    sent = {"share": 0.25, "exposed_share": 0.125, "time_ms_per_step": 20.0, "num_steps": 5, "kind": "nccl"}
    slow = {"slowest_rank": 3, "slowdown": 1.0834, "wait_share": 0.041, "reason": None}
    first = of(tmp_path / "a", communication={**sent, "reason": None}, stragglers=slow)
    why = "a single process does not communicate"
    second = of(tmp_path / "b", communication={**dict.fromkeys(sent), "reason": why})
    rows = rows_of(first, second)
    assert values(rows["communication_share"]) == [0.25, None]
    assert values(rows["communication_ms_per_step"]) == [20.0, None]
    assert texts(rows["straggler_slowdown"]) == ["1.08×", "n/a"]
    assert texts(rows["wait_share"]) == ["4.1", "n/a"]
    assert f"b: Communication n/a: {why}." in build_report(read_runs([first, second])).notes
    assert not any(why in note for note in build_report(read_runs([second])).notes)
