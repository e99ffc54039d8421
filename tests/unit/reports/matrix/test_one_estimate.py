"""One quantity has one value: in verdicts, figures, tables and the CSV of a matrix."""

import csv
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from make_matrix import Axis, Made, make_matrix

from paratune.reports.comparison import make_comparison
from paratune.reports.matrix import make_sweep, matrix_csv
from paratune.reports.measures import MEASURES
from paratune.reports.outcomes import SweepReport
from paratune.reports.systems.building import findings, scalings
from paratune.reports.systems.figures import speed_ups
from paratune.reports.tables.table import Table, TableCell
from paratune.verdicts.speeds import changes_of

SEEDS = Axis("run.seed", "seed", {f"seed-{at}": str(at) for at in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
STRATEGIES = Axis("strategy", "strategy", {"ddp": "ddp", "zero3": "zero3"}, keys=("strategy.kind",))
BATCHES = Axis("batch.global", "batch", {"b-32": "32", "b-64": "64"}, keys=("batch.global",))
SIZES = Axis("nproc", "nproc", {"nproc-1": "1", "nproc-2": "2"}, keys=("nproc",))
SPREAD = {"seed-1": 1.0, "seed-2": 1.1, "seed-3": 1.4}
"""Times differ so much that means, geometric means and ratios of totals differ in their second digit."""


def made(values):
    batch, size = int(values.get("batch", "b-32")[2:]), int(values.get("nproc", "nproc-2")[-1])
    # The spread belongs to one side alone: a common factor would cancel.
    spread = SPREAD[values["seed"]] if (batch, size) != (32, 2) else 1.0
    noise = {"value": None, "reason": "zero3 shards gradients"}
    scale = 60.0 * spread
    if values.get("strategy") == "ddp":
        noise = {"value": scale, "trace": 2 * scale, "squared_norm": 2.0, "num_steps": 10}
    if "adamw" in values:  # all runs have both estimates
        own = {"trace": 3 * scale, "squared_norm": 1.0, "num_steps": 20, "value": 3 * scale}
        noise = {"value": scale, "trace": 2 * scale, "squared_norm": 2.0, "num_steps": 20, "preconditioned": own}
    score = 0.9 + 0.01 * spread
    return Made(
        step_ms=80.0 * spread * (batch / 32) ** 0.5 / size, batch=batch, world_size=size,
        kind=values.get("strategy", "ddp"),
        summary={"noise_scale": noise, "scores.validation.accuracy": score, "scores.test.accuracy": score},
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_batches(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    return make_sweep(make_matrix(tmp_path_factory.mktemp("a") / "m", (STRATEGIES, BATCHES, SEEDS), made), None)


@pytest.fixture(scope="module")
def of_sizes(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    return make_sweep(make_matrix(tmp_path_factory.mktemp("b") / "m", (SIZES, SEEDS), made), None)


@pytest.fixture(scope="module")
def of_adamw(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    axes = (Axis("train.optimizer", "adamw", {"adamw": "adamw"}), BATCHES, SEEDS)
    return make_sweep(make_matrix(tmp_path_factory.mktemp("c") / "m", axes, made), None)


def tables(report: SweepReport) -> dict[str, Table]:
    return {table.key: table for section in report.sections for table in section.tables}


def values(table: Table, name: str, at: int = 0) -> dict[str, object]:
    """Return a column by the texts of another one."""
    place = [column.name for column in table.columns].index(name)
    return {line[at].text: line[place] for line in table.lines}


def test_a_change_of_speed_or_goodput_is_that_of_the_verdict(of_batches: SweepReport):
    efficiency = tables(of_batches)["configurations"]
    columns = {"speed": "samples_per_s", "goodput": "goodput_samples_per_s"}
    assert {verdict.speed.measure for verdict in of_batches.verdicts} == set(columns)
    known = [verdict for verdict in of_batches.verdicts if verdict.label != "zero3, batch 64"]
    assert len(known) == len(of_batches.verdicts) - 1
    for verdict in known:
        cell = values(efficiency, columns[verdict.speed.measure])[verdict.label]
        assert verdict.speed.change is not None, verdict.label
        assert cell.change_percent == pytest.approx(100 * verdict.speed.change, abs=1e-9), verdict.label
        assert (cell.better is None) == (verdict.speed.outcome != "different")


def test_a_noise_scale_is_never_that_of_another_configuration(of_batches: SweepReport):
    efficiency = tables(of_batches)["configurations"]
    noise, goodput = values(efficiency, "noise_scale"), values(efficiency, "goodput_samples_per_s")
    # Traces over squared norms of the three runs of ddp with that batch: 60 (1 + 1.1 + 1.4) / 3 = 70.
    assert noise["ddp, batch 64"].value == pytest.approx(70.0)
    # ddp with that batch trained the same.
    assert (noise["zero3, batch 64"].value, goodput["zero3, batch 64"].value) == (None, None)
    (verdict,) = (verdict for verdict in of_batches.verdicts if verdict.label == "zero3, batch 64")
    assert (verdict.speed.code, verdict.speed.change) == ("unknown_noise_scale", None)
    assert "zero3 shards gradients" in verdict.speed.reason


def test_the_command_compare_has_the_same_changes(of_batches: SweepReport):
    comparison = make_comparison([str(of_batches.folder)])
    assert {verdict.label: verdict.speed.change for verdict in comparison.systems.verdicts} == {
        verdict.label: verdict.speed.change for verdict in of_batches.verdicts
    }
    # Times too: with the variance of all configurations, adjusted for the order of runs as the speed is.
    cell = values(tables(of_batches)["configurations"], "train_s")["ddp, batch 64"]
    found = findings(comparison.systems)["train_s"]["ddp, batch 64"]
    assert cell.change_percent == pytest.approx(100 * found.change)
    base, other = (one for one in comparison.systems.measured if one.label in ("ddp, batch 32", "ddp, batch 64"))
    sides = [MEASURES["train_s"].of(run) for run in base.runs], [MEASURES["train_s"].of(run) for run in other.runs]
    (alone,) = changes_of(base.group, [other.group], "train_s", [sides], is_speed=True)
    assert found.estimate.degrees_of_freedom != alone.estimate.degrees_of_freedom


def test_the_preconditioned_noise_scale_gives_one_goodput_where_all_runs_have_it(of_adamw: SweepReport):
    (verdict,) = of_adamw.verdicts
    # Each run of 64 samples by its own 180 spread, with (phi + 32) / (phi + 64).
    scales = [180.0 * spread for spread in SPREAD.values()]
    rates = [
        64 / (0.04 * spread * 2**0.5) * (phi + 32) / (phi + 64)
        for spread, phi in zip(SPREAD.values(), scales, strict=True)
    ]
    assert verdict.speed.change == pytest.approx(statistics.geometric_mean(rates) / 800 - 1)
    efficiency = tables(of_adamw)["configurations"]
    (cell,) = (cell for cell in values(efficiency, "goodput_samples_per_s").values() if cell.change_percent is not None)
    assert cell.change_percent == pytest.approx(100 * verdict.speed.change, abs=1e-9)
    plain, own = (values(efficiency, name) for name in ("noise_scale", "noise_scale_preconditioned"))
    assert [own[label].value for label in own] == pytest.approx([3 * plain[label].value for label in plain])
    compared = make_comparison([str(of_adamw.folder)]).systems
    assert [one.speed.change for one in compared.verdicts] == [verdict.speed.change]


def test_a_speed_up_is_that_of_the_verdict_in_tables_and_figures(of_sizes: SweepReport):
    (verdict,) = of_sizes.verdicts
    assert verdict.speed.change == pytest.approx(2 * statistics.geometric_mean(SPREAD.values()) - 1)
    scaling = tables(of_sizes)["scaling-strong"]
    assert values(scaling, "speed_up")["2"].value == pytest.approx(1 + verdict.speed.change)
    assert values(scaling, "scaling_efficiency")["2"].value == pytest.approx((1 + verdict.speed.change) / 2)
    (strong,) = (found for found in scalings(of_sizes.measured) if found.rule == "strong")
    ends = (verdict.speed.change, verdict.speed.low, verdict.speed.high)
    size, found = speed_ups(strong, 1)[-1]
    assert (size, *found) == pytest.approx((2, *(1 + end for end in ends)))


def test_tables_have_the_means_and_totals_of_the_lines_of_the_csv(of_batches: SweepReport, tmp_path: Path):
    lines = list(csv.DictReader(matrix_csv(of_batches).splitlines()))
    configurations = tables(of_batches)["configurations"]
    for label, (strategy, batch) in {
        f"{strategy}, batch {batch}": (strategy, f"{batch}") for strategy in ("ddp", "zero3") for batch in (32, 64)
    }.items():
        mine = [line for line in lines if line["run"].startswith(f"{strategy}_b-{batch}_")]
        assert len(mine) == 3
        times = [float(line["train_s"]) for line in mine]
        assert values(configurations, "train_s")[label].value == pytest.approx(statistics.fmean(times))
        # All samples over all time: the runs have equally many samples.
        rates = [float(line["samples_per_s"]) for line in mine]
        assert values(configurations, "samples_per_s")[label].value == pytest.approx(statistics.harmonic_mean(rates))
        scores = [float(line["test_accuracy"]) for line in mine]
        assert values(configurations, "test_accuracy")[label].value == pytest.approx(statistics.fmean(scores))


def cells_of(folder: Path, axes: tuple[Axis, ...], tell: Callable[[Mapping[str, str]], Made]) -> dict[str, TableCell]:
    """Return the cells of the second configuration of a matrix, by column."""
    table = tables(make_sweep(make_matrix(folder / "m", axes, tell), None))["configurations"]
    return {column.name: cell for column, cell in zip(table.columns, table.lines[1], strict=True)}


def test_an_adjusted_change_is_one_for_equal_values_and_has_a_note(tmp_path: Path):
    # zero3 is 17% slower, but its runs came when the machine was faster: 20% from run to run, ddp first.
    place = {("ddp", 1): 0, ("zero3", 1): 1, ("ddp", 2): 2, ("zero3", 2): 3, ("ddp", 3): 4, ("zero3", 3): 5}

    def tell(values: Mapping[str, str]) -> Made:
        kind, at = values["strategy"], place[values["strategy"], int(values["seed"][-1])]
        step_ms = 100.0 * 1.2**-at * (1.1 if kind == "zero3" else 1.0) * (1.001 if at == 2 else 1.0)
        times = {"created": f"2026-11-21T10:{at:02}:00+00:00"}
        noise = {"value": 60.0, "trace": 120.0, "squared_norm": 2.0, "num_steps": 10}
        summary = {"finished": f"2026-11-21T10:{at:02}:50+00:00", "noise_scale": noise}
        return Made(kind=kind, step_ms=step_ms, run=times, summary=summary)

    cells = cells_of(tmp_path, (STRATEGIES, SEEDS), tell)
    # The values: 1.2 / 1.1 = 9% more; the change of zero3: 1 / 1.1 = 9.1% less.
    assert cells["samples_per_s"].change_percent == pytest.approx(-9.1, abs=0.2)
    assert cells["samples_per_s"].better is False
    assert cells["goodput_samples_per_s"].value == pytest.approx(cells["samples_per_s"].value)
    assert cells["goodput_samples_per_s"].change_percent == pytest.approx(cells["samples_per_s"].change_percent)
    assert cells["goodput_samples_per_s"].marks == cells["samples_per_s"].marks != ()
    assert cells["train_s"].change_percent == pytest.approx(10.0, abs=0.2)


def test_what_cannot_differ_has_no_change(tmp_path: Path):
    rates = Axis("train.learning_rate", "rate", {"low": "1e-5", "high": "1e-3"}, keys=("train.learning_rate",))

    def tell(values: Mapping[str, str]) -> Made:
        slower = 1.3 if values["rate"] == "high" else 1.0
        noise = 1 + 0.001 * int(values["seed"][-1])
        return Made(step_ms=80 * slower * noise, run={"config.train.learning_rate": rates.values[values["rate"]]})

    cells = cells_of(tmp_path, (rates, SEEDS), tell)
    for name in ("samples_per_s", "epoch_s"):
        assert (cells[name].change_percent, cells[name].better) == (None, None), name
    assert cells["train_s"].change_percent == pytest.approx(30.0)  # it may stop early


def test_figures_that_depend_on_the_training_budget_are_grey(tmp_path: Path):
    steps = Axis("train.max_steps", "steps", {"few": "100", "many": "400"}, keys=("train.max_steps",))

    def tell(values: Mapping[str, str]) -> Made:
        number, seed = int(steps.values[values["steps"]]), int(values["seed"][-1])
        plan = {"num_steps": number, "steps_per_epoch": 75, "num_epochs": number / 75}
        loss = 0.8 + 0.001 * seed - 0.1 * (number == 400)
        return Made(
            num_steps=number, step_ms=(100 if number == 100 else 80) * (1 + 0.001 * seed),
            run={"plan": plan, "config.train.max_steps": number},
            summary={"scores.validation.loss": loss, "time.train_s": number * (1 + 0.001 * seed)},
        )  # fmt: skip

    cells = cells_of(tmp_path, (steps, SEEDS), tell)
    grey = {name for name, cell in cells.items() if cell.change_percent is not None and cell.better is None}
    assert {"train_s", "validation_loss"} <= grey
    assert cells["samples_per_s"].better is True


def test_a_change_has_the_sign_of_the_two_values(tmp_path: Path):
    # Means of times: 10 against (1 + 1 + 29) / 3 = 10.3; geometric means: 10 against 29^(1/3) = 3.1.
    times = {"ddp": (10.0, 10.0, 10.0), "zero3": (1.0, 1.0, 29.0)}

    def tell(values: Mapping[str, str]) -> Made:
        train_s = times[values["strategy"]][int(values["seed"][-1]) - 1]
        return Made(kind=values["strategy"], summary={"time.train_s": train_s})

    cell = cells_of(tmp_path, (STRATEGIES, SEEDS), tell)["train_s"]
    assert (cell.change_percent, cell.better) == (pytest.approx(100 * (31 / 30 - 1)), None)
