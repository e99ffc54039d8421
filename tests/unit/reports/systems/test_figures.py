"""Figures of a matrix: what is in them, how they thin out, and that nothing in a record acts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix

from paratune.records.sweep import Axis, read_sweep
from paratune.reports.figures.canvas import Drawing, figure_style, page_figure
from paratune.reports.matrix import make_sweep, matrix_sections
from paratune.reports.measures import MEASURES
from paratune.reports.systems.building import scalings
from paratune.reports.systems.figures import phase_drawing, scaling_drawings, speed_ups, step_drawings, time_and_memory
from paratune.reports.systems.model import MAX_BARS, Systems, read_cell_runs

HOSTILE = "</title><script>alert(1)</script>\x1b[31m=1+1"


def systems_of(folder: Path) -> Systems:
    return Systems(read_sweep(folder), read_cell_runs(folder, read_sweep(folder)))


def size_of(values: Mapping[str, str]) -> int:
    return int(values["nproc"].removeprefix("nproc-"))


def drawn(drawing: Drawing) -> str:
    return str(page_figure(drawing))


def test_speed_up_and_efficiency(tmp_path: Path):
    # From 2 devices on: 64 samples in 100 and 62.5 ms: 1.6 times as fast on twice the devices, an efficiency of 80%;
    # the line begins at the ideal speed-up of 2 against one device.
    step_ms = {1: 1.0, 2: 100.0, 4: 62.5}

    def tell(values: Mapping[str, str]) -> Made:
        return Made(step_ms=step_ms[size_of(values)], world_size=size_of(values), batch=64)

    make_matrix(tmp_path / "m", (NPROC,), tell, states={"nproc-1": ("failed", "x")})
    systems = systems_of(tmp_path / "m")
    (scaling,) = scalings(systems.measured)
    assert speed_ups(scaling, 1) == [(2, pytest.approx((2.0,) * 3)), (4, pytest.approx((3.2,) * 3))]
    (drawing,) = scaling_drawings(systems)
    assert drawing.title == "Strong scaling: constant total batch"
    assert [key.label for key in drawing.legend] == ["64 samples a step", "ideal"]
    assert "4 devices, speed-up 1.60, efficiency 80.0%" in drawn(drawing)


def test_an_efficiency_above_one_is_inside_its_axes(tmp_path: Path):
    # 32 samples in 100 and 40 ms: 2.5 times as fast on twice the devices, an efficiency of 125%.
    step_ms = {1: 100.0, 2: 40.0}

    def tell(values: Mapping[str, str]) -> Made:
        return Made(step_ms=step_ms[size_of(values)], world_size=size_of(values))

    make_matrix(tmp_path / "m", (replace(NPROC, values={"nproc-1": "1", "nproc-2": "2"}),), tell)
    (drawing,) = scaling_drawings(systems_of(tmp_path / "m"))
    with figure_style():
        figure, _ = drawing.laid_out
    assert figure.axes[1].get_ylim() == (0, pytest.approx(135.0))


def test_phases_are_seconds_of_a_run_and_milliseconds_of_probes(tmp_path: Path):
    # Of 225 steps of 80 ms 55% are backward: 9.9 s; of a step 44 ms.
    make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(kind=values["strategy"]))
    drawing = phase_drawing(systems_of(tmp_path / "m"))
    svg = drawn(drawing)
    assert "zero3: backward 9.90 s (55.0%)" in svg
    assert "Time of all training steps of a run (s)" in svg
    make_matrix(tmp_path / "p", (STRATEGY,), lambda values: Made(kind=values["strategy"]),
                changes=lambda cell: replace(cell, kind="probe"))  # fmt: skip
    drawing = phase_drawing(systems_of(tmp_path / "p"))
    svg = drawn(drawing)
    assert "zero3: backward 44.0 ms (55.0%)" in svg
    assert "Time of a measured step (ms)" in svg


def test_a_fitted_baseline_has_no_course_of_the_loss(tmp_path: Path):
    fitted = {"config.baseline": {"kind": "tfidf"}}
    make_matrix(tmp_path / "m", (STRATEGY,), lambda values: Made(run=fitted if values["strategy"] == "zero3" else {}))
    members = systems_of(tmp_path / "m").measured
    drawings = step_drawings([(member.label, member.runs) for member in members], 32)
    assert all(key.label == "ddp" for drawing in drawings for key in drawing.legend)


def test_caption_names_the_drawn_configurations_of_many(tmp_path: Path):
    axis = Axis("x", "x", {f"x-{size}": str(size) for size in range(40)}, keys=("train.learning_rate",))
    make_matrix(tmp_path / "m", (axis,), lambda values: Made(step_ms=100.0 - int(values["x"][2:]), num_steps=10))
    drawing = time_and_memory(systems_of(tmp_path / "m"))
    assert f"{MAX_BARS} fastest of 40 configurations" in drawing.caption
    svg = drawn(drawing)
    assert "x 39: training time" in svg
    assert "x 0: training time" in svg  # the baseline, though it is the slowest
    assert "x 1: training time" not in svg


def test_texts_of_records_are_escaped(tmp_path: Path):
    axis = Axis("strategy", HOSTILE, {"ddp": HOSTILE, "zero3": "=2+2"}, keys=("strategy.kind",))
    make_matrix(tmp_path / "m", (axis, NPROC), lambda values: Made(kind=values[HOSTILE], world_size=size_of(values)))
    report = make_sweep(tmp_path / "m", tmp_path / "out")
    html = report.files[0].read_text()
    assert "<script>alert" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;alert(1)" in html


@pytest.mark.slow
def test_a_thousand_runs_make_one_report(tmp_path: Path):
    seeds = Axis(
        "run.seed", "seed", {f"seed-{seed}": str(seed) for seed in range(1, 26)}, is_seed=True, keys=("run.seed",)
    )
    rates = Axis("train.learning_rate", "rate", {f"r-{at}": str(at) for at in range(10)}, keys=("train.learning_rate",))
    two = Axis("nproc", "nproc", {"nproc-1": "1", "nproc-2": "2"}, keys=("nproc",))
    make_matrix(tmp_path / "m", (STRATEGY, two, rates, seeds), lambda values: Made(
        kind=values["strategy"], world_size=size_of(values), num_steps=10))  # fmt: skip
    report = make_sweep(tmp_path / "m", None)
    assert len(report.cell_runs) == 1000
    assert {section.key for section in matrix_sections(report)} >= {
        "verdicts",
        "overview",
        "scaling",
        "phases",
    }


def test_amounts_are_computed_once(tmp_path: Path):
    make_matrix(tmp_path / "m", (STRATEGY, SEED), lambda values: Made(kind=values["strategy"]))
    report = make_sweep(tmp_path / "m", None)
    train_s, (member, *_) = MEASURES["train_s"], report.measured
    assert report.amount(train_s, member) is report.amount(train_s, member)
