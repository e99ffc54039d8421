"""Comparison of a matrix: main effects of its axes."""

import io
from pathlib import Path

import pytest
from make_matrix import Made, make_matrix
from rich.console import Console

from paratune.records.sweep import Axis
from paratune.reports.comparison import make_comparison
from paratune.reports.terminal import terminal_comparison

STRATEGY = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))
PRECISION = Axis("precision", "precision", {"fp32": "fp32", "bf16": "bf16"}, keys=("precision",))
SEED = Axis("run.seed", "seed", {f"seed-{seed}": str(seed) for seed in (1, 2, 3)}, keys=("run.seed",), is_seed=True)


def make_run_of(values) -> Made:
    # ZeRO-3 needs twice the time and bf16 four fifths; the seeds differ by up to 1%.
    factors = {"zero3": 2.0, "bf16": 0.8, "seed-2": 1.01, "seed-3": 0.99}
    step_ms = 80.0
    for value in values.values():
        step_ms *= factors.get(value, 1.0)
    run = {"config.precision": values.get("precision", "fp32")}
    return Made(kind=values["strategy"], step_ms=step_ms, run=run)


def test_a_matrix_with_two_axes_has_the_main_effect_of_each(tmp_path: Path):
    make_matrix(tmp_path, (STRATEGY, PRECISION, SEED), make_run_of)
    comparison = make_comparison([str(tmp_path)])
    (compared,) = comparison.families
    speeds = {effect.level: effect for effect in compared.effects if effect.comparison.measure == "speed"}
    changes = {level: effect.comparison.change for level, effect in speeds.items()}
    assert changes == {"zero3": pytest.approx(1 / 2 - 1), "bf16": pytest.approx(1 / 0.8 - 1)}
    assert [effect.num_combinations for effect in speeds.values()] == [2, 2]
    assert [effect["level"] for effect in comparison.as_dict()["families"][0]["effects"]] == [
        effect.level for effect in compared.effects
    ]
    output = io.StringIO()
    Console(file=output, width=120).print(terminal_comparison(comparison))
    lines = [line.strip() for line in output.getvalue().splitlines()]
    assert any(line.startswith("precision bf16 ") and "fp32" in line and "25.0%" in line for line in lines)


@pytest.mark.parametrize("options", [{}, {"by": ["strategy"]}])
def test_one_compared_axis_has_no_main_effects(options, tmp_path: Path):
    axes = (STRATEGY, PRECISION, SEED) if options else (STRATEGY, SEED)
    make_matrix(tmp_path, axes, make_run_of)
    assert all(compared.effects == () for compared in make_comparison([str(tmp_path)], **options).families)


def test_different_kinds_of_memory_are_not_compared(tmp_path: Path):
    kinds = {"ddp": "rss", "zero3": "cuda_allocated"}

    def made(values) -> Made:
        return Made(kind=values["strategy"], summary={"memory.kind": kinds[values["strategy"]]})

    make_matrix(tmp_path, (STRATEGY, SEED), made)
    comparison = make_comparison([str(tmp_path)])
    (row,) = (row for row in comparison.families[0].rows if row.measure.key == "peak_memory_largest_bytes")
    (finding,) = row.findings
    assert (finding.change, finding.code) == (None, "different_memory_kind")
    assert finding.baseline is not None


def test_different_threads_are_a_note(tmp_path: Path):
    make_matrix(
        tmp_path,
        (STRATEGY, SEED),
        lambda values: Made(run={"num_threads": 2 if values["strategy"] == "ddp" else 1}),
    )
    comparison = make_comparison([str(tmp_path)])
    (sentence,) = comparison.families[0].execution
    assert "ddp 2; zero3 1" in sentence
    assert sentence in comparison.notes
