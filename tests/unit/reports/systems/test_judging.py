"""Verdicts on the configurations of a matrix and on the values of its axes, in words and as forest plots."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix

from paratune.records.sweep import Axis, read_sweep
from paratune.reports.figures.canvas import page_figure
from paratune.reports.systems.judging import axis_effects, interval_of, judged, verdict_section, verdict_table
from paratune.reports.systems.model import Systems, read_cell_runs
from paratune.verdicts import MeasureComparison

FOUND = MeasureComparison("accuracy", False, 0.8, 0.81, (3, 3), change=0.01, low=-0.002, high=0.022, margin=0.005)


def systems_of(folder: Path) -> Systems:
    return Systems(read_sweep(folder), read_cell_runs(folder, read_sweep(folder)))


def test_speed_is_judged_against_the_baseline(tmp_path: Path):
    # 100 and 101 ms against 50 and 50.5 ms: twice as fast.
    def tell(values: Mapping[str, str]) -> Made:
        step = 100.0 if values["strategy"] == "ddp" else 50.0
        return Made(kind=values["strategy"], step_ms=step * (1.01 if values["seed"] == "seed-2" else 1.0))

    make_matrix(tmp_path / "m", (STRATEGY, SEED), tell)
    (verdict,), said = judged(systems_of(tmp_path / "m"))
    assert (verdict.label, verdict.baseline, said) == ("zero3", "ddp", ())
    assert verdict.speed.change == pytest.approx(1.0)
    (table,) = verdict_table((verdict,), said)
    assert table.lines[0][1].text.startswith("2.00× as fast")
    assert table.lines[0][0].runs == ("zero3_seed-1", "zero3_seed-2")
    drawing, _ = verdict_section([verdict], said).parts
    assert "zero3 against ddp: speed +100.0%" in str(page_figure(drawing)).replace("+100%", "+100.0%")
    looks = {(key.marker, key.is_hollow) for key in drawing.legend}
    assert len(looks) == len(drawing.legend) == 4


def test_axes_have_main_effects_and_a_figure_before_that_of_the_configurations(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        second = values["seed"] == "seed-2"
        accuracy = {"high": 0.9, "low": 0.8}[values["rate"]] + 0.02 * second
        step = {"ddp": 100.0, "zero3": 50.0}[values["strategy"]] * (1.01 if second else 1.0)
        rate = {"high": 1e-3, "low": 1e-5}[values["rate"]]
        return Made(
            kind=values["strategy"], step_ms=step, run={"config.train.learning_rate": rate},
            summary={"scores.validation.accuracy": accuracy},
        )  # fmt: skip

    rates = Axis("train.learning_rate", "rate", {"high": "0.001", "low": "1e-05"}, keys=("train.learning_rate",))
    make_matrix(tmp_path / "m", (STRATEGY, rates, SEED), tell)
    systems = systems_of(tmp_path / "m")
    (family,) = axis_effects(systems)
    speeds = {effect.level: effect.comparison.change for effect in family.effects if effect.comparison.is_ratio}
    assert speeds == {"zero3": pytest.approx(1.0), "1e-05": None}  # 100 ms against 50 ms; a learning rate has no speed
    of_axes, of_configurations, _ = verdict_section(*judged(systems), (family,)).parts
    assert (of_axes.key, of_configurations.key) == ("axis_effects", "effects")
    svg = str(page_figure(of_axes))
    assert svg.count("<g><title>") == sum(effect.comparison.change is not None for effect in family.effects)
    assert "strategy zero3 against strategy ddp: speed +100.0%" in svg.replace("+100%", "+100.0%")


@pytest.mark.parametrize(
    ("outcome", "is_better", "label"),
    [
        ("different", True, "better"),
        ("different", False, "worse"),
        ("equal", None, "equal within the margin"),
        ("cannot tell", None, "cannot tell"),
        ("n/a", None, "cannot tell"),
    ],
)
def test_style_of_a_change_follows_its_outcome_and_not_its_sign(outcome: str, is_better: bool | None, label: str):
    comparison = replace(FOUND, outcome=outcome, is_better=is_better)
    row = interval_of(comparison, 100.0, "zero3 against ddp", "classification")
    assert row.style.is_hollow == (label == "cannot tell")
    assert row.text == f"zero3 against ddp: Accuracy +1.0 points [−0.2, +2.2], {label}"
    assert (row.value, row.low, row.high, row.margin) == pytest.approx((1.0, -0.2, 2.2, 0.5))


def test_names_with_a_colon_are_removed_from_the_verdict(tmp_path: Path):
    axis = replace(STRATEGY, values={"ddp": "ddp", "pipe": "pipeline (stages: 2)"})
    step_ms = {"ddp": 50.0, "pipe": 100.0}

    def made(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"], step_ms=step_ms[values["strategy"]])

    make_matrix(tmp_path / "m", (axis, SEED), made)
    (table,) = verdict_table(*judged(systems_of(tmp_path / "m")))
    assert [entry.text.partition(" (")[0] for entry in table.lines[0]] == ["pipeline", "50.0% slower"]


def test_no_verdict_on_differences_that_are_not_on_an_axis(tmp_path: Path):
    make_matrix(tmp_path / "m", (STRATEGY, SEED), lambda values: Made(
        run={"data.train.fingerprint": ("ab" if values["strategy"] == "ddp" else "cd") * 32}))  # fmt: skip
    (verdict,), _ = judged(systems_of(tmp_path / "m"))
    assert "not the same experiment" in verdict.sentence


def test_another_machine_is_a_note_and_not_a_difference(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(run={"hardware": [{"hostname": "x", "cpu_model": values["strategy"], "gpus": []}]})

    make_matrix(tmp_path / "m", (STRATEGY, SEED), tell)
    (verdict,), _ = judged(systems_of(tmp_path / "m"))
    assert "they ran on different machines" in verdict.sentence
    assert "which is what is compared" not in verdict.sentence


def test_one_run_on_each_side_has_no_interval_but_a_reason(tmp_path: Path):
    make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    (verdict,), _ = judged(systems_of(tmp_path / "m"))
    assert "interval n/a (one run" in verdict.sentence


def test_probes_are_judged_by_speed_alone(tmp_path: Path):
    axis = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))
    make_matrix(tmp_path / "m", (axis, SEED), lambda values: Made(kind=values["strategy"]),
                changes=lambda cell: replace(cell, kind="probe"))  # fmt: skip
    (verdict,), _ = judged(systems_of(tmp_path / "m"))
    assert verdict.quality == ()


def test_a_large_matrix_is_judged_as_far_as_it_is_fast(tmp_path: Path):
    axis = Axis("x", "x", {f"x-{size}": str(size) for size in range(1, 31)}, keys=("train.learning_rate",))
    make_matrix(tmp_path / "m", (axis,), lambda values: Made(step_ms=10.0 + int(values["x"][2:]), num_steps=10))
    found, said = judged(systems_of(tmp_path / "m"))
    assert [verdict.label for verdict in found] == [f"x {size}" for size in range(2, 25)]
    assert said[0].startswith("Judged: the 24 fastest of 30 configurations")
