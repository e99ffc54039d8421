"""Figures of a matrix: what is in them, how they thin out, and that nothing in a record acts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix
from make_run import GIB

from paratune.records.sweep import Axis, read_sweep
from paratune.reports.figures.canvas import Drawing, figure_style, page_figure
from paratune.reports.matrix import make_sweep
from paratune.reports.matrix.document import matrix_sections
from paratune.reports.systems.figures import (
    BEATEN,
    FRONT,
    OPEN,
    Point,
    _state,
    pareto,
    pareto_points,
    phase_drawing,
    scaling_drawings,
    speed_ups,
    time_and_memory,
)
from paratune.reports.systems.labels import MAX_BARS
from paratune.reports.systems.model import Systems, build_systems
from paratune.reports.systems.scaling import scalings

RATE = Axis("train.learning_rate", "rate", {"a": "a", "b": "b", "c": "c"}, keys=("train.learning_rate",))
HOSTILE = "</title><script>alert(1)</script>\x1b[31m=1+1"


def systems_of(folder: Path) -> Systems:
    return build_systems(folder, read_sweep(folder))


def size_of(values: Mapping[str, str]) -> int:
    return int(values["nproc"].removeprefix("nproc-"))


def drawn(drawing: Drawing) -> str:
    return str(page_figure(drawing))


def pareto_matrix(folder: Path, num_seeds: int) -> Systems:
    """Return three configurations: b is slower and larger than a at the same quality; c is slower, and better."""
    step_ms, memory = {"a": 50.0, "b": 60.0, "c": 90.0}, {"a": 1.0, "b": 2.0, "c": 2.0}
    accuracy = {"a": 0.8, "b": 0.8, "c": 0.9}

    def tell(values: Mapping[str, str]) -> Made:
        rate, off = values["rate"], 1 + 0.001 * int(values["seed"][-1])
        size, score = memory[rate] * off * GIB, accuracy[rate] * off
        summary = {"memory.largest_bytes": size, "scores.validation.accuracy": score}
        return Made(step_ms=step_ms[rate] * off, summary=summary)

    seeds = replace(SEED, values={f"seed-{at}": str(at) for at in range(1, num_seeds + 1)})
    make_matrix(folder, (RATE, seeds), tell)
    return systems_of(folder)


def states(systems: Systems) -> dict[str, str]:
    return {point.one.label: point.state for point in pareto_points(systems, systems.measured)}


def test_the_pareto_front(tmp_path: Path):
    systems = pareto_matrix(tmp_path / "m", 3)
    assert states(systems) == {"a": FRONT, "b": BEATEN, "c": FRONT}
    (drawing,) = pareto(systems)
    svg = drawn(drawing)
    assert drawing.caption.startswith("1 a; 2 c.")
    assert [key.label for key in drawing.legend] == [FRONT, BEATEN]
    # 225 steps of 90 ms times 1.002; 2 GiB times 1.002; 0.9 times 1.002.
    assert "c: 20.3 s, 2 GiB, validation accuracy 0.9018; not beaten" in svg
    for label in ("Training time (s)", "Peak memory per device (GiB)", "Validation Accuracy ↑"):
        assert label in svg


def test_one_run_of_each_is_not_distinguishable(tmp_path: Path):
    assert set(states(pareto_matrix(tmp_path / "m", 1)).values()) == {OPEN}


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        # Told apart by time, as good in the other.
        ({"a": ((1, 2), (5, 6)), "b": ((3, 4), (5, 6))}, {"a": FRONT, "b": BEATEN}),
        # Each is told apart by a value of its own.
        ({"a": ((1, 2), (5, 6)), "b": ((3, 4), (1, 2))}, {"a": FRONT, "b": FRONT}),
        # b may be better in the second value: its mean is, and the intervals overlap.
        ({"a": ((1, 2), (5, 6)), "b": ((3, 4), (4, 5.5))}, {"a": FRONT, "b": OPEN}),
        # All intervals overlap.
        ({"a": ((1, 3), (5, 6)), "b": ((2, 4), (5, 6))}, {"a": OPEN, "b": OPEN}),
        # c has no interval: it neither beats nor is beaten, and the others are not told apart from it.
        ({"a": ((1, 2), (1, 2)), "b": ((3, 4), (3, 4)), "c": (None, None)}, {"a": OPEN, "b": BEATEN, "c": OPEN}),
    ],
)
def test_a_state_follows_from_intervals(intervals: Mapping[str, Any], expected: Mapping[str, str]):
    several = [
        Point(name, tuple(10.0 if each is None else sum(each) / 2 for each in pair), pair)
        for name, pair in intervals.items()
    ]
    assert {point.one: _state(point, several, (1, 1)) for point in several} == expected


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
    assert "zero3 [a]: backward 44.0 ms (55.0%)" in svg
    assert "Time of a measured step (ms)" in svg


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
    assert matrix_sections(report) is report.sections
