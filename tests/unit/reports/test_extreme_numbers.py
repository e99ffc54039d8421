"""Finite numbers at the ends of their range: means and units overflow, and no report ends with a traceback."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix
from make_run import make_run
from rich.console import Console

from paratune.reports import make
from paratune.reports.amounts import mean, scale_of
from paratune.reports.matrix import make_sweep
from paratune.reports.terminal import terminal_runs, terminal_sweep

FIELDS = (
    *("time.train_s", "time.total_s", "throughput.samples_per_s", "phases.forward.total_s", "step_ms.median"),
    *("scores.validation.accuracy", "scores.test.accuracy"),
)
PAIRS = [(1e308, 1e308), (5e-324, 5e-324), (1e308, 5e-324)]


def summary_of(value: float) -> dict[str, Any]:
    noise = {"value": value, "trace": value, "squared_norm": value, "num_steps": 30}
    return {**dict.fromkeys(FIELDS, value), "noise_scale": noise, "utilisation": {"kind": "cpu", "energy_j": value}}


@pytest.mark.parametrize("pair", PAIRS)
def test_runs_of_extreme_numbers_are_reported(pair: tuple[float, float], tmp_path: Path):
    runs = [
        make_run(tmp_path / f"{kind}_seed{seed}", kind=kind, seed=seed, summary_changes=summary_of(pair[seed]))
        for kind in ("single", "ddp")
        for seed in (0, 1)
    ]
    report = make(runs, tmp_path / "out", price=1e308)
    Console(file=io.StringIO()).print(terminal_runs(report))
    # No measurement has such a number: it counts as unknown (`records.typed.LARGEST`).
    assert {cell.value for row in report.rows if row.measure.key == "train_s" for cell in row.cells} == {None}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_matrix_of_extreme_numbers_is_reported(pair: tuple[float, float], tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"], summary=summary_of(pair[values["seed"] == "seed-2"]))

    folder = make_matrix(tmp_path / "m", (STRATEGY, SEED), tell)
    report = make_sweep(folder, tmp_path / "out", price=1e308)
    Console(file=io.StringIO()).print(terminal_sweep(report))
    assert {verdict.speed.change for verdict in report.verdicts} == {None}


def test_a_mean_is_within_the_range_of_its_values():
    assert mean([1e308, 1e308]) == 1e308
    assert scale_of("share", [1e308]).text(1e308) == "n/a"  # in per cent it is no number
    assert scale_of("number", [1e300]).text(1e300) == "1e+300"
